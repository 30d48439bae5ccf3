"""Replays of one kind of experience: R2D2's sequences of 120 steps that begin every 40, of four stacked frames.

Each gives insert (a piece of 40 steps of each of ENVS environments), sample (a batch of sequences), and nbytes. The
frames are those of random play of Pong, so that compressing them means something.
"""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from boonta import envs
from boonta.core.agent import Experience
from boonta.core.host import Workers, random_actions
from boonta.core.types import Origin, Trajectory
from boonta.replay import frames
from boonta.replay.host import HostReplay
from boonta.replay.ring import ring

ENVS, UNROLL, LENGTH, STACK = 8, 40, 120, 4
Store = tuple[Callable[[], Any], Callable[[], Any], Callable[[], int]]


def fills(capacity: int) -> int:
    """How many insertions fill a replay, those included that wait to be complete."""
    return -(-capacity // ENVS) + LENGTH // UNROLL


def frames_held(capacity: int) -> int:
    """Steps that a full replay holds: a sequence begins every 40, and the last ones of each environment wait."""
    return capacity * UNROLL + ENVS * LENGTH


def wanted(batch: int, capacity: int) -> Experience:
    """What R2D2 asks for."""
    return Experience(LENGTH, batch, period=UNROLL, capacity=capacity, minimum=1, sampler="prioritized")


def host(capacity: int, batch: int, compress: bool = False) -> Store:
    """Ours in the host's memory, its samples put on a device, where stacks are put together."""
    pieces = _pieces()
    waiting = ENVS * LENGTH // UNROLL
    replay = HostReplay(wanted(batch, capacity), batch, capacity + waiting, _of(next(pieces), 0), STACK, compress)

    def insert() -> None:
        chunk = next(pieces)
        for i in range(ENVS):
            replay.insert(_of(chunk, i))

    whole = jax.jit(lambda sample: frames.unpack(sample.trajectory.timesteps, STACK))

    def sample() -> None:
        jax.block_until_ready(whole(replay.sample()))

    return insert, sample, replay.nbytes


compressed = partial(host, compress=True)


def device(capacity: int, batch: int) -> Store:
    """Ours on a device."""
    pieces = _pieces()
    replay = ring(wanted(batch, capacity), batch, capacity, ENVS, ENVS, STACK)
    first = next(pieces)
    held = [jax.jit(replay.init, static_argnums=())(jax.tree.map(lambda x: x[0], first))]
    put = jax.jit(replay.insert, donate_argnums=0)
    draw = jax.jit(replay.sample, donate_argnums=0)
    keys = (jax.random.key(i) for i in itertools.count())

    def insert() -> None:
        held[0], ids = put(held[0], next(pieces))
        jax.block_until_ready(ids)

    def sample() -> None:
        held[0], sample = draw(held[0], next(keys))
        jax.block_until_ready(sample)

    return insert, sample, lambda: sum(x.nbytes for x in jax.tree.leaves(held[0].pieces))


def flashbax(capacity: int, batch: int) -> Store:
    """Flashbax's prioritised trajectory buffer, which keeps stacks as they are."""
    import flashbax as fbx

    pieces = _pieces()
    buffer = fbx.make_prioritised_trajectory_buffer(
        add_batch_size=ENVS, sample_batch_size=batch, sample_sequence_length=LENGTH + 1, period=UNROLL,
        min_length_time_axis=LENGTH + 1, max_size=capacity * UNROLL, device=jax.default_backend(),
    )  # fmt: skip
    flat = lambda chunk: {"steps": jax.tree.map(lambda x: x[:, :-1], chunk.timesteps), "q": chunk.extras}  # noqa: E731
    held = [buffer.init(jax.tree.map(lambda x: jnp.asarray(x[0, 0]), flat(next(pieces))))]
    put, draw = jax.jit(buffer.add, donate_argnums=0), jax.jit(buffer.sample)
    keys = (jax.random.key(i) for i in itertools.count())

    def insert() -> None:
        held[0] = put(held[0], flat(next(pieces)))
        jax.block_until_ready(held[0].current_index)

    def sample() -> None:
        jax.block_until_ready(draw(held[0], next(keys)))

    return insert, sample, lambda: sum(x.nbytes for x in jax.tree.leaves(held[0].experience))


def _pieces() -> Any:
    """Trajectory [ENVS, ...] of UNROLL steps, one after the other; the same twenty again and again."""
    game = envs.make("ale:Pong")
    batch, rng = game.make(np.arange(ENVS, dtype=np.int32), 0, 0, Workers()), np.random.default_rng(0)
    timestep, seen = batch.reset(), []
    for _ in range(20 * UNROLL + 1):
        seen.append(jax.tree.map(np.copy, timestep))
        timestep = batch.step(random_actions(game.spec, rng, timestep))
    batch.close()
    cores = tuple(np.zeros((ENVS, 512), np.float32) for _ in range(2))
    q, zeros = np.zeros((ENVS, UNROLL, 6), np.float32), np.zeros(ENVS, np.int32)
    made = []
    for i in range(20):
        steps = jax.tree.map(lambda *x: np.stack(x, axis=1), *seen[i * UNROLL : (i + 1) * UNROLL + 1])
        made.append(Trajectory(cores, steps, {"q": q}, Origin(np.arange(ENVS, dtype=np.int32), zeros, zeros, zeros)))  # type: ignore[arg-type]
    for i in itertools.count():
        chunk = made[i % 20]
        yield chunk._replace(origin=chunk.origin._replace(step=np.full(ENVS, i * UNROLL, np.int32)))


def _of(chunk: Trajectory, i: int) -> Trajectory:
    return jax.tree.map(lambda x: x[i], chunk)
