"""The processes of a split run: where they meet, how those of this machine are started, and how each is one of them."""

import importlib.metadata
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from boonta.architectures.split import Process
from boonta.core import signals
from boonta.core.exchange import Exchange, Layout
from boonta.core.settings import Refused
from boonta.experiments import config as configuration
from boonta.experiments import process, trust
from boonta.experiments.config import Config
from boonta.experiments.tables import patience
from boonta.transport import redis_server
from boonta.transport.redis import Redis
from boonta.transport.shm import SharedMemory

SHARED = "shm"
LOOK = 1.0  # seconds between looks at who is elsewhere
MISSED = 2  # looks at which it may not be there: a server may have forgotten it
LEFT = -1  # exit status of who is not there any more


class Place(NamedTuple):
    """Where the processes of a run meet.

    Attributes:
        exchange: the driver's door to it.
        words: of the command line of those who come.
        files: descriptors that they inherit.
        invitation: what whoever runs roles on other machines is to be told.
    """

    exchange: Exchange
    words: list[str]
    files: tuple[int, ...] = ()
    invitation: str = ""


class Invited(NamedTuple):
    """What a process knows before it meets the others.

    Attributes:
        config: of the run.
        life: of its environments.
        hosts: of the processes that share its learner.
        join: what takes part, as such a role.
    """

    config: Config
    life: int
    hosts: process.Hosts
    join: Callable[[Layout, str], Exchange]


class Elsewhere:
    """A process that somebody else starts, and starts again.

    Args:
        exchange: where it comes to.
        role: as what.
    """

    def __init__(self, exchange: Exchange, role: str) -> None:
        assert isinstance(exchange, Redis)
        self._exchange, self._role = exchange, role
        self._first, self._last, self._missed, self._looked = "", "", 0, 0.0

    def poll(self) -> int | None:
        """None until it came and went, be it that another has its role already."""
        if time.monotonic() - self._looked > LOOK:
            self._looked = time.monotonic()
            holder = self._exchange.holder(self._role)
            self._missed = 0 if holder else self._missed + 1
            self._last = holder or self._last
            self._first = self._first or holder
        return LEFT if self._last != self._first or (self._first and self._missed > MISSED) else None

    def kill(self) -> None:
        """Take its role, without which it ends."""
        self._exchange.dismiss(self._role)

    def wait(self, timeout: float) -> None:
        """Nothing."""


def place(config: Config, layout: Layout, life: int) -> Place:
    """Where the processes of a new run meet, whose environments' first life this is.

    Raises:
        Refused: there is no room, or no such server.
    """
    options = config.architecture_settings
    if options.transport == SHARED:
        exchange = SharedMemory(layout)
        return Place(exchange, ["--transport", f"{SHARED}:{exchange.descriptor}"], (exchange.descriptor,))
    server, address = redis_server.client(options.transport), options.transport
    try:
        run = redis_server.called(address, lambda: redis_server.begun(server))
    finally:
        server.close()
    words = ["--transport", address, "--run", run, *["--insecure"] * options.insecure]
    _warn(redis_server.private(address, options.insecure))
    asked = shlex.join([*words, *(["--coordinator", options.coordinator] if options.coordinator else [])])
    invitation = f"run {run} waits for {', '.join(options.remote)}: boonta split-worker --role ROLE {asked}"
    told = {"config": configuration.write(config), "life": str(life)}
    return Place(Redis(layout, address, run, patience=patience(options) / 2, told=told), words, (), invitation)


def started(config: Config, meeting: Place, everyone: list[str], roles: list[str], life: int) -> Sequence[Process]:
    """Processes of these roles, one each; of several, JAX makes one.

    Args:
        config: of the run.
        meeting: where they meet.
        everyone: all roles of the run.
        roles: those to start.
        life: of their environments.
    """
    options, several = config.architecture_settings, len(roles) > 1
    hosts = ["--coordinator", options.coordinator or f"127.0.0.1:{_free_port()}", "--processes", str(len(roles))]
    found: list[Process] = []
    for rank, role in enumerate(roles):
        if role in options.remote:
            found.append(Elsewhere(meeting.exchange, role))
            continue
        text = process.readable(configuration.write(config))
        command = [sys.executable, "-P", "-m", "boonta", "split-worker", "--role", role, "--life", str(life), "--tied"]
        command += [*meeting.words, "--config", f"/dev/fd/{text}"]
        command += [*hosts, "--process", str(rank)] if several else []
        own = os.environ | surroundings(role, *accelerators(options, everyone, role, accelerators_here()))
        with signals.held():
            found.append(process.Tied(command, env=own, pass_fds=(*meeting.files, text)))
        os.close(text)
    return found


def invited(
    transport: str, role: str, text: str | None, run: str, life: int | None, hosts: process.Hosts,
    own: Mapping[str, str | None] = {}, insecure: bool = False,
) -> Invited:  # fmt: skip
    """What one process is to know.

    Args:
        transport: `shm:FD`, or the address of a Redis server.
        role: such as value/1.
        text: the configuration; None for what the server knows.
        run: the name of the run, over Redis; nothing for the only one.
        life: of its environments; None for one that was not yet.
        hosts: as the command line says; by default as the configuration does.
        own: the agent and the environment that the command line names: of modules of the user's own, the server's word
            is not enough.
        insecure: whether Redis may be one of another machine, in clear text.

    Raises:
        ValueError: no such transport.
        Refused: no such run.
        Disconnected: a process that the driver has started has waited for the server too long.
    """
    kind, _, descriptor = transport.partition(":")
    if kind == SHARED:
        if not descriptor.isdigit() or text is None:
            raise ValueError(f"--transport must be shm:FD with --config, or the address of a Redis, got {transport!r}")
        config = configuration.loaded(text, "--config")
        return Invited(config, life or 0, hosts, lambda layout, role: SharedMemory(layout, int(descriptor)))
    warning = redis_server.private(transport, insecure)
    if life is None:
        _warn(warning)
    given = configuration.loaded(text, "--config") if text is not None else None
    seconds = patience(given.architecture_settings) / 2 if given and life is not None else 0.0
    server = redis_server.client(transport)
    try:
        run, told = redis_server.called(transport, lambda: redis_server.there(server, run), seconds)
        config = _agreed(told.get("config", ""), given, own) if life is None else given
        if config is None:
            raise ValueError("--life is for those that the driver has started, with --config")
        options, held = config.architecture_settings, life or 0
        name, _, rank = role.partition("/")
        if life is None:
            if role not in options.remote:
                raise ValueError(
                    f"--role must be one of architecture.remote ({', '.join(options.remote) or 'none'}), as the others "
                    f"are the driver's; got {role!r}"
                )
            key = f"{redis_server.prefix(run)}lives/{role}"
            first = told.get("life", "")
            if not first.isdecimal():
                raise Refused(f"Redis at {transport} tells no life of run {run}, got {first[:40]!r}")
            life = redis_server.called(transport, lambda: int(first) + int(server.incr(key)) - 1)
            if name not in ("environment", "policy") and options.value_processes > 1:
                if not given and hosts.coordinator != options.coordinator:  # the server's word is not enough
                    raise Refused(
                        f"the run, as Redis tells it, has the coordinator {options.coordinator!a}: --coordinator "
                        f"{options.coordinator!a} agrees to that, got {hosts.coordinator!a}"
                    )
                hosts = process.Hosts(options.coordinator, options.value_processes, int(rank))
    finally:
        server.close()
    join = lambda layout, role: Redis(layout, transport, run, role, held, patience(options) / 2)  # noqa: E731
    return Invited(config, life, hosts, join)


def _agreed(text: str, given: Config | None, own: Mapping[str, str | None]) -> Config:
    """The configuration that a server tells; what it names of modules must be named, or given, here as well.

    Raises:
        Refused: it tells none, or another one than is given, or names modules that are not named here.
    """
    try:
        tables = configuration.parsed(text, "the run's configuration, as Redis tells it,")
    except ValueError as error:
        raise Refused(str(error)) from error
    if given:
        there, here = configuration.fingerprint(tables), configuration.fingerprint(given.tables())
        if there != here:
            raise Refused(f"--config must be the run's config.toml, whose fingerprint is {there}; got one of {here}")
        return given
    for table, asked in own.items():
        if asked and asked != tables[table]["name"]:
            raise Refused(f"--{table} {asked}: the run's is {tables[table]['name']!a}")
    unnamed = [table for table in trust.modules(tables) if not own.get(table)]
    if unnamed:
        raise Refused(
            "the run's configuration, as Redis tells it, names modules that would be imported: "
            + " ".join(f"--{table} {tables[table]['name']!a}" for table in unnamed)
            + " agrees to that"
        )
    return configuration.loaded(text, "the run's configuration, as Redis tells it,")


def check(options: Any, roles: Sequence[str]) -> None:
    """Check who is where.

    Raises:
        ValueError: a transport that is none, roles that nobody has, processes that cannot find each other, or too few
            accelerators for those that share a batch.
    """
    if options.transport != SHARED:
        redis_server.private(options.transport, options.insecure)
    elif away := next((key for key in ("remote", "cluster") if getattr(options, key)), ""):
        raise ValueError(
            f"architecture.{away} needs a transport that other machines reach, such as redis://HOST:PORT/0"
        )
    if options.remote and options.cluster:
        raise ValueError("architecture.remote and architecture.cluster do not go together: who starts those roles?")
    if unknown := set(options.remote) - set(roles):
        raise ValueError(
            f"architecture.remote must be of the run's roles ({', '.join(roles)}), got {', '.join(sorted(unknown))}"
        )
    shared = [role for role in options.remote if role.split("/")[0] not in ("environment", "policy")]
    if shared and options.value_processes > 1 and not options.coordinator:
        name = shared[0].split("/")[0]
        raise ValueError(f"architecture.coordinator must be HOST:PORT where the processes of {name} find each other")
    names = [one.split("/")[0] for one in _learners_here(options, roles)]
    most, here = max(map(names.count, names), default=0), len(accelerators_here())
    if most > 1 and 0 < here < most * options.devices and not options.cluster:
        raise ValueError(
            f"architecture.value_processes must be at most {max(here // options.devices, 1)} of this machine, whose "
            f"accelerators are {here}: processes that share a batch need {options.devices} each "
            f"(architecture.devices) of their own; got {most}"
        )


def accelerators_here() -> list[str]:
    """The names of NVIDIA's accelerators that processes of this machine, and their JAX, may use."""
    platforms = os.environ.get("JAX_PLATFORMS")
    plugins = importlib.metadata.entry_points(group="jax_plugins").names
    if not any("cuda" in name for name in plugins) or (platforms and not {"cuda", "gpu"} & set(platforms.split(","))):
        return []
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in chosen.split(",") if name]
    return [str(i) for i in range(len([path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]))]


def accelerators(options: Any, everyone: Iterable[str], role: str, here: list[str]) -> tuple[float, list[str]]:
    """The part of each accelerator's memory that a learner's process has, and which it sees; none for all.

    Accelerators are dealt out in turn, so each process of this machine has its own where there are enough.
    """
    mine, each = _learners_here(options, everyone), options.devices
    if role not in mine or len(here) < each:
        return 1.0 / max(len(mine), 1), []
    seen = [[here[(i * each + j) % len(here)] for j in range(each)] for i in range(len(mine))]
    own = seen[mine.index(role)]
    return 1.0 / max(sum(name in those for those in seen) for name in own), own


def _warn(text: str) -> None:
    if text:
        print(f"boonta: WARNING: {text}", file=sys.stderr)


def _learners_here(options: Any, roles: Iterable[str]) -> list[str]:
    """The processes that learn on this machine; those that share a batch follow one another."""
    return [one for one in roles if not one.startswith("environment/") and one not in options.remote]


def surroundings(role: str, share: float, visible: Sequence[str] = ()) -> dict[str, str]:
    """Environment variables of a process: it counts its own virtual devices, and knows its part of accelerators."""
    flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "device_count" not in flag]
    part = os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", f"{0.9 * share:.3f}")
    found = {"XLA_FLAGS": " ".join(flags), "XLA_PYTHON_CLIENT_MEM_FRACTION": part}
    found |= {"CUDA_VISIBLE_DEVICES": ",".join(visible)} if visible else {}
    return found | {"JAX_PLATFORMS": "cpu"} if role.startswith("environment/") else found


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
