"""Contestants of SEED's benchmarks: round trips, inference near and far, whole runs, replays, and RLlib."""

import atexit
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.contestant import Compiled, Task, serve
from benchmarks.sebulba.contestants import ours, system_of

SECONDS = 5.0  # of a measured run


def wire(task: Task) -> Compiled:
    """Round trips of one client through a server that does nothing.

    The task: server (ours, raw), to (unix, tcp), count (environments of the client).
    """
    import grpc
    import numpy as np

    from benchmarks.seed import echo
    from boonta.core import host
    from boonta.transport.client import Link
    from boonta.transport.security import Security
    from boonta.transport.wire import Schema

    count, ours = task["count"], task["server"] == "ours"
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    address = f"unix:{folder.name}/s" if task["to"] == "unix" else "127.0.0.1:0"
    address = _server([task["server"], address, str(count)])
    timestep = host.empty(echo.SPEC, count)
    timestep.discount[:] = 1.0
    if ours:
        link = Link(address, Schema(echo.SPEC), count, -1, "benchmark", Security(), 60.0)
        atexit.register(link.close)
        link.step(timestep)
        timestep.step_type[:] = 1
        once: Callable[[], Any] = lambda: link.step(timestep)  # noqa: E731
    else:
        data, turn = bytes(count * Schema(echo.SPEC).step_bytes), threading.Semaphore(0)

        def requests() -> Any:
            while turn.acquire():
                yield data

        channel = grpc.insecure_channel(address)
        atexit.register(channel.close)
        call = channel.stream_stream(echo.METHOD)(requests())

        def once() -> Any:
            turn.release()
            return np.frombuffer(next(call), np.int32)

    return Compiled(lambda seed: timed(once, count), 0.0, {})


def local(task: Task) -> Compiled:
    """IMPALA's way: an actor of one environment asks a network of its own on one core.

    The task: words (of `boonta train`).
    """
    from boonta.architectures.sebulba_split import acting_alone

    system, seconds = system_of(task)
    act = acting_alone(system.unit, system.spec, 1, system.plan.actors[0])
    return Compiled(lambda seed: timed(act, 1), seconds, {})


def remote(task: Task) -> Compiled:
    """SEED's way: actors ask a server, which answers whoever is there together; nothing learns.

    The task: words (of `boonta train`), clients, count (environments of each).
    """
    import jax

    from boonta.core import host
    from boonta.experiments.systems.seed import _door
    from boonta.transport.client import Link, Lost
    from boonta.transport.security import Security
    from boonta.transport.server import Server
    from boonta.transport.wire import Schema

    system, seconds = system_of(task | {"on": "seed"})
    state = system.start()
    threads, plan = system.threads, system.plan
    threads.compile(state.params)
    threads.publish(state.params, state.updates)
    threads.start()
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    schema = Schema(system.spec)
    server = Server(f"unix:{folder.name}/s", schema, _door(threads), 0, Security(), plan.maximum, 64, 60.0)
    atexit.register(server.close)
    atexit.register(threads.stop)
    going, seen = threading.Event(), []

    def play() -> None:
        with suppress(Lost):  # at the end
            stepping()

    def stepping() -> None:
        link = Link(server.address, schema, task["count"], -1, "benchmark", Security(), 60.0)
        timestep = host.empty(system.spec, task["count"])
        timestep.discount[:] = 1.0
        while True:
            going.wait()
            begin = time.perf_counter()
            link.step(timestep)
            seen.append(time.perf_counter() - begin)
            timestep.step_type[:] = 1

    def drain() -> None:
        while True:
            if (item := threads.take(1.0)) is not None:
                jax.block_until_ready(item.chunk)

    for target in (drain, *[play] * task["clients"]):
        threading.Thread(target=target, daemon=True).start()

    def run(seed: int) -> dict[str, Any]:
        del seed
        seen.clear()
        going.set()
        time.sleep(SECONDS)
        going.clear()
        latency = statistics.median(seen)
        return {"seconds": SECONDS, "steps": len(seen) * task["count"], "idle": 0, "latency": latency}

    return Compiled(run, seconds, {})


def store(task: Task) -> Compiled:
    """A replay of R2D2's sequences of Atari frames, filled, then inserted into or sampled from.

    The task: store (host, compressed, device, flashbax), what (insert, sample), capacity (sequences), batch.
    """
    from benchmarks.seed import stores

    made = {"host": stores.host, "compressed": stores.compressed, "device": stores.device, "flashbax": stores.flashbax}
    begin = time.perf_counter()
    insert, sample, nbytes = made[task["store"]](task["capacity"], task["batch"])
    for _ in range(stores.fills(task["capacity"])):
        insert()
    facts = {"bytes_per_frame": nbytes() / stores.frames_held(task["capacity"])}
    sample()
    once, steps = {"insert": (insert, stores.ENVS), "sample": (sample, task["batch"])}[task["what"]]
    return Compiled(lambda seed: timed(once, steps), time.perf_counter() - begin, facts)


def rllib(task: Task) -> Compiled:
    """RLlib's IMPALA, a run of its own each time, timed once it is going.

    The task: environment (CartPole-v1, ale_py:ALE/Pong-v5), runners, envs (of each), unroll, batch (steps), seconds.
    """
    script = Path(__file__).with_name("launch_rllib.py")

    def run(seed: int) -> dict[str, Any]:
        words = [sys.executable, str(script), json.dumps(task | {"seed": seed})]
        environment = os.environ | {"RAY_AUTH_MODE": "disabled", "RAY_DEDUP_LOGS": "0"}
        done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=900, env=environment)
        if done.returncode:
            raise RuntimeError(f"RLlib ended with code {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return json.loads(done.stdout.splitlines()[-1])

    return Compiled(run, 0.0, {})


def timed(once: Callable[[], Any], steps: int) -> dict[str, Any]:
    """Call it for a while: steps/s, and the median seconds of one call. The first calls are not timed."""
    for _ in range(10):
        once()
    taken: list[float] = []
    begin = time.perf_counter()
    while (now := time.perf_counter()) < begin + SECONDS:
        once()
        taken.append(time.perf_counter() - now)
    latency = statistics.median(taken)
    return {"seconds": time.perf_counter() - begin, "steps": len(taken) * steps, "idle": 0, "latency": latency}


def _server(words: list[str]) -> str:
    """Start an echo server; where it listens. It ends with this process."""
    command = [sys.executable, "-m", "benchmarks.seed.echo", *words]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    atexit.register(process.communicate)  # its stdin ends, and so does it
    assert process.stdout
    return process.stdout.readline().strip()


KINDS: dict[str, Callable[[Task], Compiled]] = {
    "wire": wire,
    "local": local,
    "remote": remote,
    "ours": ours,
    "store": store,
    "rllib": rllib,
}

if __name__ == "__main__":
    serve(KINDS)
