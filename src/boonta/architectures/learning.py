"""All learners of an agent beside their replays: what architectures with fused learning share."""

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from boonta.core import devices
from boonta.core.acting import reanalyse
from boonta.core.agent import Agent, Experience, Learner
from boonta.core.settings import multiple_of, nearest_numbers
from boonta.core.types import Array, Key, Params, PyTree, Sample, Trajectory
from boonta.replay.once import once
from boonta.replay.ring import ring
from boonta.replay.types import Renewal, Replay
from boonta.replay.windows import windows

Stored = dict[str, PyTree]
MOST_UNROLLS = 64  # after which updates come out even, where there is more than one


class Learning(NamedTuple):
    """One iteration of learning, on one device.

    Attributes:
        unroll: steps of a piece of experience.
        rounds: pieces, each of all environments once, that an iteration takes.
        updates: updates that an iteration makes, once replay holds its minimum.
        lasting: the shapes of one piece -> replays that hold nothing, of those that outlast an iteration.
        passing: likewise, of those that are empty between iterations.
        insert: (params, replays, Trajectory [E, ...]) -> replays.
        learn: (params, learners' states, replays, key, version) -> Learned.
    """

    unroll: int
    rounds: int
    updates: int
    lasting: Callable[[Trajectory], Stored]
    passing: Callable[[Trajectory], Stored]
    insert: Callable[[Params, Stored, Trajectory], Stored]
    learn: Callable[[Params, dict[str, PyTree], Stored, Key, Array], "Learned"]


class Learned(NamedTuple):
    """What an iteration of learning comes to.

    Attributes:
        params: all groups.
        states: each learner's private state, by name.
        stored: the replays.
        updates: int32, updates made.
        metrics: means over the updates made, 0 where there were none.
        lag: float32, mean over updates of how many had been made since their experience was.
        lag_max: int32, the most.
    """

    params: Params
    states: dict[str, PyTree]
    stored: Stored
    updates: Array
    metrics: dict[str, Array]
    lag: Array
    lag_max: Array


def spread(stored: Stored) -> Stored:
    """A device's replays so that they can lie beside those of others: numbers [] as [1], arrays [n, ...] as they are.

    An axis of devices before all others would make XLA copy a replay whole in every update.
    """
    return jax.tree.map(lambda x: x[None] if x.ndim == 0 else x, stored)


def gathered(stored: Stored, like: Stored) -> Stored:
    """What `spread` was given, from what it gave; `like` has the shapes."""
    return jax.tree.map(lambda x, shape: x.reshape(shape.shape), stored, like)


class _Share(NamedTuple):
    """A learner's part of an iteration: its replay, how often it learns from how many pieces, and what is renewed."""

    replay: Replay
    rounds: int
    updates: int
    minimum: int
    renewals: int


def initial(agent: Agent, key: Key, settings: Mapping[str, Array | float]) -> tuple[Params, dict[str, PyTree]]:
    """An agent's parameters, with these in place of some of its settings, and its learners' private states."""
    params = agent.init(key)
    if settings:
        params = params | {"settings": params["settings"] | dict(settings)}
    return params, {name: learner.init(params) for name, learner in agent.learners.items()}


def fused(agent: Agent, envs: int, shards: int, everyone: int = 0, stack: int = 1) -> Learning:
    """The learners of an agent, in order.

    Args:
        agent: on-policy learners, to whom each trajectory is handed once, and those with replay.
        envs: environments of a piece of experience, over all learner devices.
        shards: learner devices.
        everyone: environments over all threads; 0 for `envs`.
        stack: see `Spec.stack`.

    Raises:
        ValueError: environments or a batch that devices, or each other, do not divide; wishes that do not go together.
    """
    unroll = unroll_of(agent)
    batches = {name: learner.experience.batch for name, learner in agent.learners.items()}
    numbers = {"environments (architecture.envs)": envs, **{f"{k}'s batch": n for k, n in batches.items()}}
    for what, n in numbers.items():
        if n % shards:
            raise ValueError(
                f"the number of {what} must be a multiple of the number of devices, got {n} and {shards}"
                f"{multiple_of(shards, n)}"
            )
    waiting = {name: _waiting(name, learner, envs, shards) for name, learner in agent.learners.items()}
    rounds = math.lcm(*(each for each, _ in waiting.values()))
    shares: dict[str, _Share] = {}
    for name, learner in agent.learners.items():
        wanted, (each, updates) = learner.experience, waiting[name]
        if wanted.capacity:
            capacity, rows = -(-wanted.capacity // shards), everyone or envs
            replay = ring(wanted, wanted.batch // shards, capacity, rows, envs // shards, stack)
        else:
            replay = once(envs // shards * rounds, wanted.batch // shards)
        least = max(-(-wanted.minimum // shards), 1)
        renewals = math.ceil(envs // shards * rounds * wanted.reanalyse - 1e-9)
        shares[name] = _Share(replay, each, updates * rounds // each, least, renewals)

    def made(lasting: bool, example: Trajectory) -> Stored:
        check_memory(agent, example.memory)
        return {
            name: share.replay.init(example)
            for name, share in shares.items()
            if bool(agent.learners[name].experience.capacity) == lasting
        }

    def insert(params: Params, stored: Stored, trajectories: Trajectory) -> Stored:
        after = {}
        for name, share in shares.items():
            after[name], ids = share.replay.insert(stored[name], trajectories)
            priority = agent.learners[name].insert
            if priority is not None:
                window = share.replay.window(after[name], ids)
                after[name] = share.replay.revise(after[name], ids, jax.vmap(partial(priority, params))(window))
        return after

    def learn(params: Params, states: dict[str, PyTree], stored: Stored, key: Key, version: Array) -> Learned:
        whole = Learned(params, states, stored, jnp.int32(0), {}, jnp.float32(0.0), jnp.int32(0))
        ready = _ready(agent, shares, stored)
        for i, (name, share) in enumerate(shares.items()):
            learner, mine = agent.learners[name], jax.random.fold_in(key, i)
            begin = (whole.stored[name], whole.params, whole.states[name])
            one = partial(_once_more, learner, share.replay)
            updates = partial(_as_far_as_it_goes, ready=ready[name]) if name in ready else _every_time
            (replay, params, private), each, metrics, lag, most = updates(one, begin, share, mine, version)
            whole = Learned(
                params,
                whole.states | {name: private},
                whole.stored | {name: replay},
                whole.updates + each,
                whole.metrics | metrics,
                whole.lag + lag,
                jnp.maximum(whole.lag_max, most),
            )
            if share.renewals:
                renew_key = jax.random.fold_in(mine, 1 << 30)
                replay, metrics = _renewed(agent, name, share, whole, renew_key, version + whole.updates, ready[name])
                whole = whole._replace(stored=whole.stored | {name: replay}, metrics=whole.metrics | metrics)
        return whole._replace(lag=whole.lag / jnp.maximum(whole.updates, 1))

    total = sum(share.updates for share in shares.values())
    return Learning(unroll, rounds, total, partial(made, True), partial(made, False), insert, learn)


def check_memory(agent: Agent, memory: PyTree) -> None:
    """Hold an agent that remembers to windows that begin where pieces do.

    Raises:
        ValueError: several windows begin in a piece, which keeps the memory of its first step alone.
    """
    for name, learner in agent.learners.items():
        if jax.tree.leaves(memory) and learner.experience.memory and windows(learner.experience).each > 1:
            raise ValueError(f"{name}'s experience.unroll must be its period: a memory is kept once for each")


_Carry = tuple[PyTree, Params, PyTree]


def _once_more(learner: Learner, replay: Replay, carry: _Carry, key: Key) -> tuple[_Carry, dict[str, Array], Sample]:
    """A sample, an update, and the priorities that come of it."""
    stored, params, private = carry
    sample_key, update_key = jax.random.split(key)
    stored, sample = replay.sample(stored, sample_key)
    private, owned, feedback = learner.update(private, params, sample, update_key)
    if feedback.priorities is not None:
        stored = replay.revise(stored, sample.ids, feedback.priorities)
    return (stored, params | owned, private), feedback.metrics, sample


def _every_time(one: Callable, carry: _Carry, share: _Share, key: Key, version: Array) -> tuple:
    """On-policy: as many updates as make up the whole experience."""
    n = share.updates

    def body(carry: _Carry, key: Key) -> tuple[_Carry, tuple]:
        carry, metrics, sample = one(carry, key)
        age = version - sample.trajectory.origin.version
        return carry, (metrics, jnp.mean(age.astype(jnp.float32)), jnp.max(age))

    carry, (metrics, lag, most) = repeat(body, carry, n, jax.random.split(key, n))
    metrics = jax.tree.map(jnp.mean, metrics)
    return carry, jnp.int32(n), metrics, jnp.sum(lag) + n * (n - 1) / 2, jnp.max(most) + n - 1


def _ready(agent: Agent, shares: dict[str, _Share], stored: Stored) -> dict[str, Array]:
    """Which replays have their minimum, on all devices, bool [] each.

    Asked for all at once before anything is learned: no data would order the question of a learner after the loop of
    the one before it, and devices that meet in different orders wait for one another for ever.
    """
    names = [name for name in shares if agent.learners[name].experience.capacity]
    if not names:
        return {}
    there = [shares[name].replay.size(stored[name]) >= shares[name].minimum for name in names]
    everywhere = devices.lowest(jnp.stack(there).astype(jnp.int32))
    return {name: everywhere[i] > 0 for i, name in enumerate(names)}


def _as_far_as_it_goes(one: Callable, carry: _Carry, share: _Share, key: Key, version: Array, ready: Array) -> tuple:
    """From replay: no update before it is `ready`."""
    # A loop that runs zero times leaves the replay where it is; a conditional would copy it.
    n = jnp.where(ready, share.updates, 0).astype(jnp.int32)

    def body(i: Array, now: tuple) -> tuple:
        carry, sums, lag, most = now
        carry, metrics, sample = one(carry, jax.random.fold_in(key, i))
        age = version + i - sample.trajectory.origin.version
        lag = lag + jnp.mean(age.astype(jnp.float32))
        return carry, jax.tree.map(jnp.add, sums, metrics), lag, jnp.maximum(most, jnp.max(age))

    shapes = jax.eval_shape(lambda carry: one(carry, key)[1], carry)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    start = (carry, zeros, jnp.float32(0.0), jnp.int32(0))
    carry, sums, lag, most = jax.lax.fori_loop(0, n, body, start)
    return carry, n, jax.tree.map(lambda x: x / jnp.maximum(n, 1), sums), lag, most


def _renewed(
    agent: Agent, name: str, share: _Share, now: "Learned", key: Key, version: Array, ready: Array
) -> tuple[PyTree, dict[str, Array]]:
    """A replay of which some pieces have been acted on again, and how much of it has; nothing before it is `ready`."""
    replay, stored, priority = share.replay, now.stored[name], agent.learners[name].insert
    renewal: Renewal = replay.renewal  # type: ignore[assignment]
    which_key, act_key = jax.random.split(key)

    def body(_: Array, stored: PyTree) -> PyTree:
        place, past = renewal.past(stored, which_key, share.renewals)
        keys = jax.random.split(act_key, past.timesteps.reward.shape)
        again = jax.vmap(partial(reanalyse, agent, now.params))
        stored, ids = renewal.renew(stored, place, again(past.memory, past.timesteps, keys)[1], version)
        if priority is not None:
            window = replay.window(stored, ids)
            stored = replay.revise(stored, ids, jax.vmap(partial(priority, now.params))(window))
        return stored

    stored = jax.lax.fori_loop(0, ready.astype(jnp.int32), body, stored)
    return stored, {"replay/reanalysed": devices.average(renewal.share(stored))}


def unroll_of(agent: Agent) -> int:
    """The steps of a piece that suits all learners.

    Raises:
        ValueError: they differ, or a wish that on-policy learning does not grant.
    """
    for name, learner in agent.learners.items():
        wanted = learner.experience
        if wanted.view is not None:
            raise ValueError(
                f"{name}'s experience.view must be None where learning is fused; architectures.turns.together "
                "makes one learner of those that share a replay"
            )
        if wanted.capacity:
            continue
        plain = Experience(wanted.length, wanted.batch)
        for field in ("period", "unroll", "minimum", "sampler", "samples_per_insert", "reanalyse"):
            if getattr(wanted, field) != (granted := getattr(plain, field)):
                raise ValueError(
                    f"{name}'s experience.{field} must be {granted!r} (on-policy, as capacity is 0), "
                    f"got {getattr(wanted, field)!r}"
                )
        if learner.insert is not None:
            raise ValueError(f"{name}'s insert must be None (on-policy)")
    unrolls = {name: windows(learner.experience).unroll for name, learner in agent.learners.items()}
    if len(set(unrolls.values())) != 1:
        raise ValueError(f"all learners must have the same experience.unroll, got {unrolls}")
    return unrolls.popitem()[1]


def _waiting(name: str, learner: Learner, envs: int, shards: int) -> tuple[int, int]:
    """How many pieces of all environments a learner waits for, and how many updates it then makes."""
    wanted = learner.experience
    if not wanted.capacity:
        divides = lambda n: not (n % wanted.batch and wanted.batch % n)  # noqa: E731
        if not divides(envs):
            others = nearest_numbers(envs, lambda n: n % shards == 0 and divides(n), "environments")
            raise ValueError(
                f"{name}'s batch and architecture.envs must divide one another, got {wanted.batch} and {envs}{others}"
            )
        rounds = math.lcm(envs, wanted.batch) // envs
        return rounds, envs * rounds // wanted.batch
    asked = wanted.samples_per_insert * windows(wanted).each / wanted.batch  # updates for each unroll of one
    near, fits = _fraction(asked * envs)
    if not fits:
        others = nearest_numbers(envs, lambda n: n % shards == 0 and _fraction(asked * n)[1], "environments")
        raise ValueError(
            f"{name}'s updates for each unroll must be a fraction with 1 above or at most {MOST_UNROLLS} below, got "
            f"{asked * envs:g} ({envs} environments x {windows(wanted).each} windows x {wanted.samples_per_insert:g} "
            f"samples per insert / batch {wanted.batch}); with {float(near) / (asked * envs):.8g} times the agent's "
            f"replay ratio it is {near}{others}"
        )
    return near.denominator, near.numerator


def _fraction(ratio: float) -> tuple[Fraction, bool]:
    """The nearest fraction that comes out even soon, and whether it is `ratio` but for rounding."""
    few, one = Fraction(ratio).limit_denominator(MOST_UNROLLS), Fraction(1, max(round(1 / ratio), 1))
    near = min(few or one, one, key=lambda some: abs(some - ratio))
    return near, abs(near - ratio) <= 1e-5 * ratio


def repeat(body: Callable, carry: PyTree, n: int, xs: PyTree = None) -> tuple[PyTree, PyTree]:
    """A scan, spelt out where it has a single step."""
    if n > 1:
        return jax.lax.scan(body, carry, xs, length=n)
    carry, y = body(carry, jax.tree.map(lambda x: x[0], xs))
    return carry, jax.tree.map(lambda x: x[None], y)
