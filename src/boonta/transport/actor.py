"""The loop of remote environments: step them, ask the server what to do, connect again where it is gone."""

import random
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from boonta.core.faults import Broken, Budget, Guard
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
        timeout: seconds that an answer may take: clients wait for a slow learner, its evaluations and its checkpoints,
            and that a server is gone is noticed by other means.
        patience: seconds without a server after which it gives up.
        restarts: how often environments may fail and be made anew.
    """

    addresses: tuple[str, ...]
    envs: int
    first: int
    name: str
    security: Security
    workers: Workers
    timeout: float = 7200.0
    patience: float = 300.0
    restarts: int = 3


def act(host: Host, actor: Actor, tell: Callable[[str], None] = lambda text: print(text, file=sys.stderr)) -> None:
    """Step environments for a server until it cannot be reached any more; of several, for one with room.

    Raises:
        Lost: no server for too long, or all of them do not want these environments.
        Broken: environments failed too often.
    """
    schema, budget = Schema(host.spec), Budget(actor.restarts)
    workers, _ = host.choose(actor.envs, actor.workers) if host.choose else (actor.workers, "")
    since, wait, refused = time.monotonic(), FIRST_WAIT, 0
    which = random.randrange(len(actor.addresses)) if actor.first < 0 else actor.first // actor.envs
    while True:
        steps, address = 0, actor.addresses[which % len(actor.addresses)]
        try:
            link = Link(address, schema, actor.envs, actor.first, actor.name, actor.security, actor.timeout)
            try:
                indices = np.arange(link.welcome.first, link.welcome.first + actor.envs)
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
                since, wait, refused = time.monotonic(), FIRST_WAIT, 0
            if isinstance(error, Broken):
                budget.spend(f"actor {actor.name}", error)
                for notice in budget.told():
                    tell(f"boonta: WARNING: {notice}")
            else:
                which, refused = which + 1, refused + 1 if error.final else 0
                if refused == len(actor.addresses) or time.monotonic() > since + actor.patience:
                    raise
                tell(f"boonta: {error}; connecting again")
        time.sleep(wait * random.uniform(0.5, 1.5))  # not all at once
        wait = min(2 * wait, LONGEST_WAIT)
