"""The loop of remote environments: step them, ask the server what to do, connect again where it is gone."""

import random
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from boonta.core.faults import Broken, Guard, Supervisor
from boonta.core.host import Host, Workers
from boonta.transport.client import Link, Lost
from boonta.transport.security import Security
from boonta.transport.wire import Schema

FIRST_WAIT, LONGEST_WAIT = 0.2, 10.0  # seconds before connecting again, doubled each time


class Actor(NamedTuple):
    """What an actor is told.

    Attributes:
        addresses: of the server, or of all those of a run on several hosts.
        envs: environments.
        first: global index of the first; below 0 for any that are free.
        name: what the server calls it.
        security: Security.
        workers: Workers, what steps environments in Python.
        patience: seconds without a server after which it gives up.
        timeout: seconds that an answer may take: clients wait for a slow learner, its evaluations and its checkpoints,
            and that a server is gone is noticed by other means.
        restarts: how often environments may fail and be made anew.
        quiet: tell only of environments that failed: the server is this run's own, and tells the rest.
    """

    addresses: tuple[str, ...]
    envs: int
    first: int
    name: str
    security: Security
    workers: Workers
    patience: float = 300.0
    timeout: float = 7200.0
    restarts: int = 3
    quiet: bool = False


def act(host: Host, actor: Actor, tell: Callable[[str], None] = lambda text: _say(text)) -> None:
    """Step environments for a server until it cannot be reached any more; of several, for one with room.

    Raises:
        Lost: no server for too long, or all of them do not want these environments.
        Exhausted: environments failed too often.
    """
    schema, supervisor = Schema(host.spec), Supervisor(actor.restarts, setting="")
    workers, _ = host.choose(actor.envs, actor.workers) if host.choose else (actor.workers, "")
    since, wait, refused, told = time.monotonic(), FIRST_WAIT, 0, ""
    which = random.randrange(len(actor.addresses)) if actor.first < 0 else actor.first // actor.envs
    while True:
        steps, address = 0, actor.addresses[which % len(actor.addresses)]
        try:
            link = Link(address, schema, actor.envs, actor.first, actor.name, actor.security, actor.timeout)
            try:
                indices = np.arange(link.welcome.first, link.welcome.first + actor.envs)
                if not actor.quiet:
                    tell(f"boonta: connected to {address}: environments {indices[0]} to {indices[-1]}")
                make = lambda: host.make(indices, link.welcome.seed, link.welcome.life, workers)  # noqa: B023, E731
                with Guard(make, False, tell) as environments:
                    timestep = environments.reset()
                    while True:
                        timestep = environments.step(link.step(timestep))
                        steps += 1
            finally:
                link.close()
        except (Broken, Lost) as error:
            if steps:  # all was well until now
                since, wait, refused, told = time.monotonic(), FIRST_WAIT, 0, ""
            if isinstance(error, Broken):
                who = f"environments of actor {actor.name}"
                restart = supervisor.incident(who, error, "failed and are made anew")
                for notice in supervisor.told():
                    tell(f"boonta: WARNING: {notice}")
                wait = max(wait, restart.delay)
            else:
                which, refused = which + 1, refused + 1 if error.final else 0
                if refused == len(actor.addresses) or time.monotonic() > since + actor.patience:
                    raise
                if not actor.quiet and str(error) != told:
                    tell(f"boonta: {error}; connecting again, for up to {actor.patience:g} s")
                told = str(error)
        time.sleep(wait * random.uniform(0.5, 1.5))  # not all at once
        wait = min(2 * wait, LONGEST_WAIT)


def _say(text: str) -> None:
    """One write: other processes write to the same place."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
