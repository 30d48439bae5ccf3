"""Contestants of split's benchmarks: ours, peers, bare products of matrices, and what carries experience."""

import atexit
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.contestant import Compiled, Task, serve, timed
from benchmarks.sebulba.contestants import ours, system_of

KEPT = 4096  # entries of experience
TOGETHER = 256  # of them, read or sent at a time
PAUSE = 1e-4  # seconds
PATIENCE = 600.0  # seconds that an evaluation may take


def updates(task: Task) -> Compiled:
    """How often the critics are updated while environments step: a run of Boonta, of which the steps are updates.

    The task: words (of `boonta train`, from AGENT on), on (an architecture), iterations (of one measured run),
    redis (whether processes meet there).
    """
    if task.get("redis"):
        task = task | {"words": [*task["words"], f"architecture.transport={_redis()}"]}
    system, seconds = system_of(task)
    atexit.register(system.close)
    held = [system.start()]
    held[0], *_ = system.advance(held[0], task["warm"], _never)
    count = [0.0]

    def run(seed: int) -> dict[str, Any]:
        del seed
        held[0], came_to, seconds = system.advance(held[0], task["iterations"], _never)
        if "updates/value" in came_to.levels:
            before, count[0] = count[0], float(came_to.levels["updates/value"][0])
            made = count[0] - before
        else:
            made = float(came_to.made.sum())  # turns, each of one update of the critics and one of the policy
        return {"seconds": seconds, "steps": made, "idle": 0, "env_steps": task["iterations"] * system.steps}

    return Compiled(run, seconds + system.compile_seconds, {})


def taught(task: Task) -> Compiled:
    """A run of Boonta that goes on with every measured run, and is evaluated after each.

    The task: words (of `boonta train`, from AGENT on), on (an architecture), steps (of one measured run), episodes.
    """
    system, seconds = system_of(task)
    atexit.register(system.close)
    held = [system.start()]

    def run(seed: int) -> dict[str, Any]:
        del seed
        held[0], _, seconds = system.advance(held[0], round(task["steps"] / system.steps), _never)
        scores = system.evaluate(held[0], task["episodes"]).result(PATIENCE)
        return {"seconds": seconds, "steps": task["steps"], "idle": 0, "return": float(scores.returns.mean())}

    return Compiled(run, seconds + system.compile_seconds, {})


def sbx(task: Task) -> Compiled:
    """DDPG or SAC of SBX, one update for each step.

    The task: algorithm, environment (Gymnasium's name), hidden, batch, minimum, capacity (100,000 by default), steps
    (of a measured run), together (steps before as many updates; 1 by default, as it comes), episodes (of an evaluation
    after each; none by default).
    """
    import sbx as library  # type: ignore[import-not-found]

    policy: dict[str, Any] = {"net_arch": list(task["hidden"])}
    if task["algorithm"] == "ddpg":
        policy["n_critics"] = 1
    model = getattr(library, task["algorithm"].upper())(
        "MlpPolicy", task["environment"], batch_size=task["batch"], learning_starts=task["minimum"],
        buffer_size=task.get("capacity", 100_000), policy_kwargs=policy, seed=0, train_freq=task.get("together", 1),
        gradient_steps=task.get("together", 1),
    )  # fmt: skip

    def run(seed: int) -> dict[str, Any]:
        del seed
        begin = time.perf_counter()
        model.learn(task["steps"], reset_num_timesteps=False)
        told = {"seconds": time.perf_counter() - begin, "steps": task["steps"], "idle": 0}
        return told | ({"return": _played(model, task)} if task.get("episodes") else {})

    return Compiled(run, 0.0, {})


def _played(model: Any, task: Task) -> float:
    """The mean return of greedy episodes of SBX."""
    import gymnasium

    environment, total = gymnasium.make(task["environment"]), 0.0
    for seed in range(task["episodes"]):
        observation, _ = environment.reset(seed=seed)
        ended = False
        while not ended:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, *ends, _ = environment.step(action)
            total, ended = total + float(reward), any(ends)
    environment.close()
    return total / task["episodes"]


def rejax(task: Task) -> Compiled:
    """TD3 or SAC of rejax as they come, without evaluations: 2 dense layers of 64.

    The task: algorithm, environment (gymnax' name), batch, minimum, steps.
    """
    import jax
    import rejax as library  # type: ignore[import-not-found]

    algorithm = getattr(library, task["algorithm"].upper()).create(
        env=task["environment"], num_envs=1, batch_size=task["batch"], fill_buffer=task["minimum"], buffer_size=100_000,
        total_timesteps=task["steps"], eval_freq=task["steps"], skip_initial_evaluation=True,
    ).replace(eval_callback=lambda *_: ())  # fmt: skip
    begin = time.perf_counter()
    compiled = jax.jit(algorithm.train).lower(jax.random.PRNGKey(0)).compile()
    seconds = time.perf_counter() - begin

    def run(seed: int) -> dict[str, Any]:
        _, seconds = timed(compiled, jax.random.PRNGKey(seed))
        return {"seconds": seconds, "steps": task["steps"], "idle": 0}

    return Compiled(run, seconds, {})


def products(task: Task) -> Compiled:
    """The products of matrices in updates of critics and policy, and nothing else: the floor.

    TD3's policy is updated after every second update of the critics, by the first of them.

    The task: algorithm, observation, action (numbers of each), hidden, batch, steps (updates).
    """
    import jax
    import jax.numpy as jnp

    critics, outputs = (1, 1) if task["algorithm"] == "ddpg" else (2, 2 if task["algorithm"] == "sac" else 1)
    observation, action = task["observation"], task["action"]

    def layers(first: int, last: int) -> list[Any]:
        sizes = [first, *task["hidden"], last]
        return [0.01 * jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(pairwise(sizes))]

    def forward(weights: list[Any], x: Any) -> list[Any]:
        passed = [x]
        for one in weights:
            passed.append(passed[-1] @ one)
        return passed

    def backward(weights: list[Any], passed: list[Any], learned: bool) -> list[Any]:
        """The weights after a step, or without one that of the inputs."""
        moved, grown = passed[-1], []
        for i in reversed(range(len(weights))):
            if learned:
                grown.append(weights[i] + 1e-6 * (passed[i].T @ moved))
            if i or not learned:
                moved = moved @ weights[i].T
        return grown[::-1] if learned else [moved]

    def update(i: Any, both: Any) -> Any:
        policy, values = both
        chosen = forward(policy, seen)[-1]
        acted = jnp.concatenate([seen, chosen[:, :action]], -1)
        targets = [forward(one, acted)[-1] for one in values]
        taught = []
        for one, target in zip(values, targets, strict=True):
            passed = forward(one, acted + 1e-6 * target)
            taught.append(backward(one, passed, True))
        if task["algorithm"] == "td3":
            return jax.lax.cond(i % 2, improve, lambda policy, _: policy, policy, taught[:1]), taught
        return improve(policy, taught), taught

    def improve(policy: Any, values: Any) -> Any:
        passed = forward(policy, seen)
        acted = jnp.concatenate([seen, passed[-1][:, :action]], -1)
        pushed = sum(backward(one, forward(one, acted), False)[0][:, -action:].sum(-1, keepdims=True) for one in values)
        return backward(policy, [*passed[:-1], passed[-1] * pushed], True)

    seen = jax.random.normal(jax.random.key(9), (task["batch"], observation))
    both = layers(observation, outputs * action), [layers(observation + action, 1) for _ in range(critics)]
    go = jax.jit(lambda both: jax.lax.fori_loop(0, task["steps"], update, both)).lower(both).compile()
    return Compiled(lambda seed: {"seconds": timed(go, both)[1], "steps": task["steps"], "idle": 0}, 0.0, {})


def carrier(task: Task) -> Compiled:
    """Entries of experience that one process writes and another reads, as fast as they can.

    The task: by (`in-process`, `shm`, `redis`, or `pipelines`: what a client of Redis does with the same bytes and
    nothing else), size (bytes of an entry), seconds (of a measured run).
    """
    import numpy as np

    from boonta.core.exchange import Layout
    from boonta.transport import redis_server
    from boonta.transport.redis import Redis
    from boonta.transport.shm import SharedMemory

    layout = Layout({"log": (task["size"], KEPT)}, {}, ("read",))
    data = np.random.default_rng(0).integers(0, 256, task["size"], np.uint8)
    by = task["by"]
    if by == "pipelines":
        return _pipelines(task, data.tobytes())
    if by == "redis":
        address = _redis()
        name = redis_server.begun(redis_server.client(address))
        reader: Any = Redis(layout, address, name)
        join: Callable[[], Any] = lambda: Redis(layout, address, name, "environment/0")  # noqa: E731
    else:
        reader = SharedMemory(layout)
        join = (lambda: reader) if by == "in-process" else (lambda: SharedMemory(layout, reader.descriptor))

    def write() -> None:
        """Never so far ahead of who reads that anything is lost."""
        exchange, made, times = join(), 0, 0
        while True:
            if made - exchange.totals()["read"] < KEPT // 2:
                for _ in range(TOGETHER):
                    exchange.append("log", data)
                made, times = made + TOGETHER, 0
            else:
                exchange.pause(times := times + 1)

    _beside(write, thread=by == "in-process")
    following = [0]

    def run(seed: int) -> dict[str, Any]:
        del seed
        begin, first, times, lost = time.perf_counter(), following[0], 0, 0
        while (seconds := time.perf_counter() - begin) < task["seconds"]:
            found = reader.read("log", following[0], TOGETHER)
            times = 0 if len(found.data) else times + 1
            following[0], lost = found.following, lost + found.lost
            reader.put("read", following[0])
            if times:
                reader.pause(times)
        return {"seconds": seconds, "steps": following[0] - first - lost, "idle": 0, "lost": lost}

    return Compiled(run, 0.0, {})


def _pipelines(task: Task, data: bytes) -> Compiled:
    """A stream that is trimmed, written and read a pipeline at a time."""
    from boonta.transport import redis_server

    address = _redis()
    reader = redis_server.client(address)

    def write() -> None:
        writer = redis_server.client(address)
        made = 0
        while True:
            if made - int(writer.get("read") or 0) < KEPT // 2:
                with writer.pipeline(transaction=False) as pipe:
                    for _ in range(TOGETHER):
                        pipe.xadd("log", {"e": data}, maxlen=KEPT, approximate=True)
                    pipe.execute()
                made += TOGETHER
            else:
                time.sleep(PAUSE)

    _beside(write)
    held: list[Any] = [b"0-0", 0]

    def run(seed: int) -> dict[str, Any]:
        del seed
        begin, first = time.perf_counter(), held[1]
        while (seconds := time.perf_counter() - begin) < task["seconds"]:
            for _, entries in reader.xread({"log": held[0]}, TOGETHER, block=100) or ():
                held[:] = entries[-1][0], held[1] + len(entries)
            reader.set("read", held[1])
        return {"seconds": seconds, "steps": held[1] - first, "idle": 0}

    return Compiled(run, 0.0, {})


def _beside(write: Callable[[], None], thread: bool = False) -> None:
    if thread:
        threading.Thread(target=write, daemon=True).start()
    else:
        multiprocessing.get_context("fork").Process(target=write, daemon=True).start()


def _redis() -> str:
    """The address of a server that ends with this process."""
    from boonta.testing.redis_servers import Server

    folder = tempfile.TemporaryDirectory()
    server, mine = Server(Path(folder.name)), os.getpid()
    atexit.register(folder.cleanup)
    atexit.register(lambda: server.stop() if os.getpid() == mine else None)
    return server.address


def _never() -> bool:
    return False


KINDS: dict[str, Callable[[Task], Compiled]] = {
    "ours": ours,
    "updates": updates,
    "taught": taught,
    "sbx": sbx,
    "rejax": rejax,
    "products": products,
    "carrier": carrier,
}

if __name__ == "__main__":
    serve(KINDS)
