"""Who steps a batch of Python environments: the caller, threads or processes, as asked or as measured."""

import pickle
import time
from contextlib import suppress

import numpy as np

from boonta.core import host
from boonta.core.faults import Unclosed
from boonta.core.host import Workers
from boonta.core.settings import Refused, WorkerKind
from boonta.core.spec import Spec
from boonta.envs import processes
from boonta.envs.errors import Failing
from boonta.envs.parts import Died, Part
from boonta.envs.processes import Processes
from boonta.envs.threads import Threads

PROBE_SECONDS = 0.2  # of stepping, in a measurement
HANDING = 200e-6  # seconds that a step costs more where others make it: to a process or a thread, and back
CHEAP = 1e-3  # seconds of a batch's step that are not worth dividing: the other cores have acting and learning to do
MANY = 8  # environments from which on one call for all is taken to be cheaper than one for each


def spread(
    spec: Spec, part: Part, remarks: tuple[str, ...] = (), repeatable: bool = False, vectorized: Part | None = None
) -> host.Host:
    """Environments that a part steps one after the other, spread over workers as asked; the rest is the host's.

    `vectorized` steps all of them in one call, where such a form is known.
    """

    def make(indices: np.ndarray, seed: int, life: int, workers: Workers) -> host.Batch:
        seeds = [host.seed_of(seed, int(i), life) for i in indices]
        workers, _ = choose(len(seeds), workers)
        if workers.kind == "vectorized" and vectorized:
            return vectorized(seeds, host.empty(spec, len(seeds)))
        if workers.kind == "threads":
            return Threads(spec, part, seeds, workers)
        if workers.kind == "processes":
            return Processes(spec, part, seeds, workers)
        return part(seeds, host.empty(spec, len(seeds)))

    def choose(count: int, workers: Workers) -> tuple[Workers, str]:
        workers = workers._replace(count=min(workers.count or host.cores(), count))
        if workers.kind == "vectorized" and not vectorized:
            raise Refused(
                f"architecture.workers must be one of auto, serial, threads, processes for {spec.name}, which has no "
                "vectorized form; got vectorized"
            )
        if workers.kind == "auto" and vectorized and count >= MANY:  # by a rule, so that streams stay the same
            return workers._replace(kind="vectorized", count=1), "all of them step in one call"
        if workers.kind == "processes" and (why_not := _stays(part)):
            raise ValueError(
                f"{spec.name} cannot travel to a process ({why_not}): its factory must be a function that can be "
                "imported by its name; or take architecture.workers=threads or serial"
            )
        lacks = processes.lacking(spec, count)
        if workers.kind == "processes" and lacks:
            raise Refused(lacks)
        if workers.kind != "auto":
            return workers, "as asked"
        alone, together = (_probe(spec, part, threads, workers.timeout) for threads in (1, 2))
        told = f"a step takes {alone * 1e6:.0f} µs, two in two threads {together * 1e6:.0f} µs"
        serial = alone * count
        if workers.count == 1 or serial < CHEAP:
            return workers._replace(kind="serial"), told
        threads = serial / min(2 * alone / together, workers.count) + HANDING
        kinds: dict[WorkerKind, float] = {"serial": serial, "threads": threads}
        if not lacks and not _stays(part):
            kinds["processes"] = serial / workers.count + HANDING
        return workers._replace(kind=min(kinds, key=kinds.__getitem__)), told

    return host.Host(spec, make, choose, remarks=remarks, repeatable=repeatable)


def _stays(part: Part) -> str:
    """Why it cannot travel to a process; nothing where it can."""
    try:
        pickle.dumps(part)
    except Exception as error:  # each type that cannot has its own
        return str(error)
    return ""


def _probe(spec: Spec, part: Part, threads: int, timeout: float) -> float:
    """Seconds of a step, each of `threads` threads stepping an environment of its own with random actions.

    Raises:
        Failing: the environment raised, or did not answer in time.
    """
    generator = np.random.default_rng(0)
    seconds = []

    def go(part: host.Batch) -> None:
        step = host.at_random(spec, part, generator)
        begin, steps = time.perf_counter(), 0
        while time.perf_counter() - begin < PROBE_SECONDS:
            step()
            steps += 1
        seconds.append((time.perf_counter() - begin) / steps)

    try:
        batch = Threads(spec, part, range(threads), Workers("threads", threads, timeout))
        try:
            batch.each(lambda i, part: go(part))
        finally:
            with suppress(Unclosed):  # the trial has told of it
                batch.close()
    except Died as error:
        raise Failing(f"{spec.name} failed when it was tried: {error}") from error
    return max(seconds)
