"""Replay of windows on a device: every step stored once, the oldest pieces overwritten first."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from boonta.core.agent import Experience
from boonta.core.trees import batch_size
from boonta.core.types import LAST, Array, Ids, Key, PyTree, Sample, Trajectory
from boonta.replay import frames, sums
from boonta.replay.types import LEAST, SAMPLERS, Renewal, Replay
from boonta.replay.windows import steps, windows


class State(NamedTuple):
    """Pieces, and which of their windows can be drawn.

    Attributes:
        pieces: Trajectory [N, ...] of U time steps each, without the one after them; stacks as `frames` keeps them.
        generation: int32 [N], how often each place was overwritten.
        chain: int32 [N, W], for a piece whose windows are complete, the places of all the pieces they need.
        tails: int32 [rows, W], the latest places of each environment, the newest last, -1 where there are fewer.
        following: int32 [rows, 2], the life and the step at which each environment's next piece goes on.
        written: int32, the place to write to next.
        count: int32, windows that can be drawn.
        priorities: of each window, float32 [N K], raised to the exponent where sampling is proportional; 0: not there.
        highest: float32, the highest priority so far.
        renewed: bool [N], whether a piece has been acted on again.
    """

    pieces: Trajectory
    generation: Array
    chain: Array
    tails: Array
    following: Array
    written: Array
    count: Array
    priorities: sums.Sums
    highest: Array
    renewed: Array


def ring(experience: Experience, batch: int, capacity: int, rows: int, arriving: int, stack: int = 1) -> Replay:
    """A ring of pieces.

    Args:
        experience: whose windows and sampler.
        batch: windows in a sample.
        capacity: windows that can be drawn, at least, with those that teach nothing.
        rows: environments over all devices and hosts: the range of their global indices.
        arriving: pieces in one insertion, all of different environments.
        stack: frames in an observation of the environment (`Spec.stack`).

    Raises:
        ValueError: windows that do not begin every period, or an unknown sampler.
    """
    sizes = windows(experience)
    each, unroll = sizes.each, sizes.unroll
    # The last pieces of every environment wait for those that complete their windows.
    places = -(-capacity // each) + rows * sizes.pieces
    places += -places % arriving
    proportional, ranked = experience.sampler == "prioritized", experience.sampler == "ranked"
    if experience.sampler not in SAMPLERS:
        raise ValueError(f"experience.sampler must be {', '.join(SAMPLERS)}, got {experience.sampler!r}")
    alpha = experience.priority_exponent if proportional else 1.0

    def kept(piece: Trajectory) -> Trajectory:
        return piece if experience.memory or experience.reanalyse else piece._replace(memory=())

    def init(example: Trajectory) -> State:
        frames.check(example.timesteps.observation, stack)
        one = kept(example)
        one = one._replace(timesteps=jax.tree.map(_without_last, one.timesteps))
        one = jax.eval_shape(lambda: frames.pack(jax.tree.map(_zeros, one), stack))
        pieces = jax.tree.map(lambda x: jnp.zeros((places, *x.shape), x.dtype), one)
        zeros = jnp.zeros(places, jnp.int32)
        chain, tails = (jnp.full((n, sizes.pieces), -1, jnp.int32) for n in (places, rows))
        following, none = jnp.full((rows, 2), -1, jnp.int32), jnp.int32(0)
        weights, no = (sums.zeros if proportional else sums.flat)(places * each), jnp.zeros(places, bool)
        return State(pieces, zeros, chain, tails, following, none, none, weights, jnp.float32(1.0), no)

    def insert(state: State, trajectories: Trajectory) -> tuple[State, Ids]:
        n = batch_size(trajectories)
        at = state.written + jnp.arange(n, dtype=jnp.int32)
        cut = kept(trajectories)
        cut = cut._replace(timesteps=jax.tree.map(lambda x: x[:, :-1], cut.timesteps))
        pieces = jax.tree.map(
            lambda all_, new: jax.lax.dynamic_update_slice_in_dim(all_, new, state.written, 0),
            state.pieces,
            jax.vmap(lambda one: frames.pack(one, stack))(cut),
        )
        generation = state.generation.at[at].add(1)
        gone = (at[:, None] * each + jnp.arange(each)).reshape(-1)
        count = state.count - jnp.sum(sums.at(state.priorities, gone) > 0, dtype=jnp.int32)
        origin = trajectories.origin
        row = origin.environment
        here = jnp.stack([origin.life, origin.step], axis=1)
        goes_on = (state.following[row] == here).all(axis=1)
        before = jnp.where(goes_on[:, None], state.tails[row, 1:], -1)
        tail = jnp.concatenate([before, at[:, None]], axis=1)
        begin = tail[:, 0]
        chain = state.chain.at[jnp.where(begin < 0, places, begin)].set(tail, mode="drop")
        complete = begin[:, None] * each + jnp.arange(each)
        complete = jnp.where(begin[:, None] < 0, -1, complete)
        if experience.trained_step is not None and (proportional or ranked):
            complete = jnp.where(_is_void(pieces.timesteps.step_type, tail, experience.trained_step), -1, complete)
        complete = complete.reshape(-1).astype(jnp.int32)
        # In one change, as between two XLA copies all weights; a window of a single piece takes the place of what goes.
        changed, weights = gone, jnp.where(complete >= 0, _raised(state.highest), 0.0)
        if sizes.pieces > 1:
            changed = jnp.concatenate([gone, complete])
            weights = jnp.concatenate([jnp.zeros(n * each, jnp.float32), weights])
        priorities = sums.put(state.priorities, changed, weights)
        state = State(
            pieces,
            generation,
            chain,
            state.tails.at[row].set(tail),
            state.following.at[row].set(here + jnp.asarray([0, unroll], jnp.int32)),
            (state.written + n) % places,
            count + jnp.sum(complete >= 0, dtype=jnp.int32),
            priorities,
            state.highest,
            state.renewed.at[at].set(False),
        )
        return state, Ids(complete, generation[jnp.maximum(complete, 0) // each])

    def window(state: State, ids: Ids) -> Trajectory:
        first, begin = ids.place // each, ids.place % each * sizes.period
        chain = state.chain[first]
        which, step = steps(sizes, begin, sizes.length + 1, jnp.arange)
        place = jnp.take_along_axis(chain, which, axis=1)
        timesteps = frames.unpack(frames.window(state.pieces.timesteps, stack, begin, place, step), stack)
        extras = jax.tree.map(lambda x: x[place[:, :-1], step[:, :-1]], state.pieces.extras)
        memory = state.pieces.memory if experience.memory else ()
        memory, origin = jax.tree.map(lambda x: x[first], (memory, state.pieces.origin))
        return Trajectory(memory, timesteps, extras, origin._replace(step=origin.step + begin))

    def sample(state: State, key: Key) -> tuple[State, Sample]:
        weights = jnp.ones(batch, jnp.float32)
        if ranked or proportional:
            shares = jax.random.uniform(key, (batch,), jnp.float32)
            place, chance = (_by_rank if ranked else _by_weight)(state, shares)
            weights = (state.count * chance) ** -experience.importance_exponent
        else:
            place = _any(state, key)
        ids = Ids(place, state.generation[place // each])
        return state, Sample(window(state, ids), weights, ids)

    def revise(state: State, ids: Ids, priorities: Array) -> State:
        if not (proportional or ranked):
            return state
        there = (ids.place >= 0) & (state.generation[ids.place // each] == ids.generation) & jnp.isfinite(priorities)
        priorities = jnp.maximum(priorities, LEAST)
        put = sums.put(state.priorities, jnp.where(there, ids.place, -1), _raised(priorities))
        highest = jnp.maximum(state.highest, jnp.max(jnp.where(there, priorities, 0.0)))
        return state._replace(priorities=put, highest=highest)

    def size(state: State) -> Array:
        # A full ring has as many as it ever will, of which some may teach nothing.
        full = (state.generation[-1] > 0) & (state.count > 0)
        return jnp.where(full, jnp.maximum(state.count, capacity), state.count)

    def past(state: State, key: Key, n: int) -> tuple[Array, Trajectory]:
        there, (from_key, key) = jnp.maximum(_there(state), 1), jax.random.split(key)
        apart = jnp.maximum(there // n, 1)  # no two alike, unless there are fewer: their order would be left open
        drawn = jnp.arange(n) * apart + jax.random.randint(key, (n,), 0, apart)
        place = (drawn + jax.random.randint(from_key, (), 0, there)) % there
        which, step = jnp.broadcast_to(place[:, None], (n, unroll)), jnp.broadcast_to(jnp.arange(unroll), (n, unroll))
        timesteps = frames.window(state.pieces.timesteps, stack, jnp.zeros_like(place), which, step)
        others = jax.tree.map(lambda x: x[place], state.pieces._replace(timesteps=()))
        return place, others._replace(timesteps=frames.unpack(timesteps, stack))

    def renew(state: State, place: Array, extras: PyTree, version: Array) -> tuple[State, Ids]:
        pieces = state.pieces
        origin = pieces.origin._replace(version=pieces.origin.version.at[place].set(version))
        newer = jax.tree.map(lambda all_, new: all_.at[place].set(new), pieces.extras, extras)
        renewed = state.renewed.at[place].set(True)
        state = state._replace(pieces=pieces._replace(extras=newer, origin=origin), renewed=renewed)
        begin = (place[:, None] * each + jnp.arange(each)).reshape(-1)
        begin = jnp.where(sums.at(state.priorities, begin) > 0, begin, -1).astype(jnp.int32)
        return state, Ids(begin, state.generation[jnp.maximum(begin, 0) // each])

    def share(state: State) -> Array:
        return jnp.sum(state.renewed) / jnp.maximum(_there(state), 1).astype(jnp.float32)

    def _is_void(step_type: Array, chain: Array, trained_step: int) -> Array:
        """bool [n, K], whether the only step that is learned from is LAST, of chains of pieces [n, W]."""
        which, step = steps(sizes, jnp.arange(each) * sizes.period + trained_step, 1, jnp.arange)
        return step_type[chain[:, which[:, 0]], step[:, 0]] == LAST

    def _there(state: State) -> Array:
        """Pieces that there are."""
        return jnp.where(state.generation[-1] > 0, places, state.written)

    def _raised(priority: Array) -> Array:
        return priority**alpha if proportional else priority if ranked else jnp.ones_like(priority)

    def _any(state: State, key: Key) -> Array:
        """Places drawn alike: any that there are, and anew where no window can be drawn, which are few."""

        def drawn(key: Key) -> Array:
            bits = jax.random.bits(key, (batch,)) % jnp.maximum(_there(state) * each, 1).astype(jnp.uint32)
            return bits.astype(jnp.int32)  # off from alike by less than places / 2^32

        def missed(place: Array) -> Array:
            return (sums.at(state.priorities, place) == 0) & (state.count > 0)

        def again(now: tuple[Array, Key]) -> tuple[Array, Key]:
            place, (key, draw) = now[0], jax.random.split(now[1])
            return jnp.where(missed(place), drawn(draw), place), key

        key, draw = jax.random.split(key)
        return jax.lax.while_loop(lambda now: missed(now[0]).any(), again, (drawn(draw), key))[0]

    def _by_weight(state: State, shares: Array) -> tuple[Array, Array]:
        """Places drawn in proportion to priorities, which are raised already, and the chance of each."""
        place = sums.find(state.priorities, shares)
        return place, sums.at(state.priorities, place) / sums.total(state.priorities)

    def _by_rank(state: State, shares: Array) -> tuple[Array, Array]:
        """Places drawn with probability (1 / rank)^alpha, rank 1 for the highest of `count` priorities, and theirs."""
        weights, count = state.priorities.weights, state.count
        order = jnp.argsort(-weights)
        ends = jnp.cumsum(jnp.arange(1, len(weights) + 1, dtype=jnp.float32) ** -experience.priority_exponent)
        whole = ends[jnp.maximum(count - 1, 0)]
        rank = jnp.minimum(jnp.searchsorted(ends, shares * whole, side="right"), jnp.maximum(count - 1, 0))
        return order[rank].astype(jnp.int32), (rank + 1.0) ** -experience.priority_exponent / whole

    return Replay(init, insert, window, sample, revise, size, Renewal(past, renew, share))


def _without_last(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((shape.shape[0] - 1, *shape.shape[1:]), shape.dtype)


def _zeros(shape: jax.ShapeDtypeStruct) -> Array:
    return jnp.zeros(shape.shape, shape.dtype)
