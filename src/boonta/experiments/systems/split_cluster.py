"""The processes of a split run on a Ray cluster: one member each, which starts the process and says whether it runs."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from boonta.architectures.split import Failed, Process
from boonta.core import signals
from boonta.core.crew import Crew, Gone, Lost, Resources
from boonta.experiments import config as configuration
from boonta.experiments import process
from boonta.experiments.config import Config
from boonta.experiments.systems.split_processes import Place, surroundings
from boonta.transport import ray
from boonta.transport.redis_server import PASSWORD

LOOK = 0.5  # seconds that a member looks at its process before it answers
SOON = 30.0  # seconds of waiting for room after which that is told
ROOM = 600.0  # seconds in which the cluster must have room for a process
ENDED = -1  # exit status of a process whose machine is gone


class Keeper:
    """A member of the crew.

    Args:
        words: the command line, without the interpreter.
        text: the configuration, which the process reads from its standard input's place.
        variables: of the environment, in place of those of the cluster.
        address: of this machine, as the others of the cluster reach it.
    """

    def __init__(
        self, words: list[str], text: str, variables: dict[str, str], address: Callable[[], str] = ray.address_here
    ) -> None:
        self._words, self._text, self._variables, self._address = words, text, variables, address
        self._process: process.Tied | None = None

    def place(self) -> str:
        """An address of this machine with a free port."""
        host = self._address()
        with socket.socket() as one:
            one.bind((host, 0))
            return f"{host}:{one.getsockname()[1]}"

    def start(self, words: list[str]) -> None:
        """Start the process, with these words more."""
        text = process.readable(self._text)
        command = [sys.executable, *self._words, *words, "--config", f"/dev/fd/{text}"]
        environment = os.environ | self._variables
        with signals.held():
            self._process = process.Tied(command, env=environment, pass_fds=(text,))
        os.close(text)

    def poll(self) -> int | None:
        """Its exit status; None while it runs."""
        assert self._process is not None
        try:
            return self._process.wait(LOOK)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it."""
        if self._process:
            self._process.kill()
            with suppress(subprocess.TimeoutExpired):  # the driver sees whether it has ended
                self._process.wait(LOOK)


class Kept:
    """The driver's side of it; see `architectures.split.Process`."""

    def __init__(self, crew: Crew, keeper: Any) -> None:
        self._crew, self._keeper = crew, keeper
        self._asked: Any = None
        self._code: int | None = None

    def poll(self) -> int | None:
        """As of a moment ago."""
        if self._code is None:
            if self._asked is None:
                self._asked = self._crew.ask(self._keeper, "poll")
            if self._crew.wait([self._asked], 0.0):
                try:
                    self._code = self._crew.get(self._asked, LOOK)
                except (Gone, Lost):
                    self._code = ENDED
                self._asked = None
        return self._code

    def kill(self) -> None:
        """End it, where its machine is still there."""
        self._crew.ask(self._keeper, "kill")

    def wait(self, timeout: float) -> None:
        """Until it has ended, or its machine, or nothing is heard of either; then its member is dismissed."""
        try:
            if self._code is None:
                self._code = self._crew.get(self._crew.ask(self._keeper, "poll"), timeout)
        except (Gone, Lost, TimeoutError):
            self._code = ENDED
        self._crew.dismiss(self._keeper)


def started(crew: Crew, config: Config, meeting: Place, roles: list[str], life: int) -> Sequence[Process]:
    """Processes of these roles, one each, wherever there is room; of several, JAX makes one.

    Raises:
        Failed: there is no room.
    """
    options, found = config.architecture_settings, []
    secret = {PASSWORD: os.environ[PASSWORD]} if PASSWORD in os.environ else {}
    for role in roles:
        words = ["-P", "-m", "boonta", "split-worker", "--role", role, "--life", str(life), "--tied", *meeting.words]
        variables = surroundings(role, min(options.gpus, 1.0) or 1.0) | secret
        make = partial(Keeper, words, configuration.write(config), variables)
        needs = Resources(options.cpus, 0.0 if role.startswith("environment/") else options.gpus)
        keeper = crew.hire(role.replace("/", " "), make, needs)
        found.append(keeper)
        here, asked = crew.here(keeper), f"architecture.cpus={needs.cpus:g}, architecture.gpus={needs.gpus:g}"
        if not crew.wait([here], SOON):
            print(f"boonta: {role} waits for room in the cluster ({asked})", file=sys.stderr)
            if not crew.wait([here], ROOM - SOON):
                raise Failed(f"the cluster has no room for {role} ({asked}) in {ROOM:g} s")
        crew.get(here, LOOK)
    more: list[str] = []
    if len(roles) > 1:
        coordinator = options.coordinator or crew.get(crew.ask(found[0], "place"), ROOM)
        more = ["--coordinator", coordinator, "--processes", str(len(roles))]
    for rank, keeper in enumerate(found):
        crew.get(crew.ask(keeper, "start", [*more, "--process", str(rank)] if more else []), ROOM)
    return [Kept(crew, keeper) for keeper in found]
