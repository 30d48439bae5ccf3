"""The contract of replays, held by each of ours; windows, lives, stacks and chances."""

import queue
import threading
import time
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boonta.architectures.seed_replay import Feeder
from boonta.core import devices
from boonta.core.agent import Experience
from boonta.core.trace import Trace
from boonta.core.types import FIRST, LAST, MID, Ids, Origin, TimeStep, Trajectory
from boonta.replay import frames, sums
from boonta.replay.host import HostReplay
from boonta.replay.limiter import Limiter
from boonta.replay.once import once
from boonta.replay.ring import ring
from boonta.replay.weights import Weights
from boonta.replay.windows import windows
from boonta.testing.replay import LENGTH, ReplayContract, pieces, whole
from tests.marks import in_full, some_of


class TestOnce(ReplayContract):
    hands_out_once = True

    def make(self, capacity, batch, envs):
        return once(capacity, batch)


class Ring(ReplayContract):
    sampler = ""

    def make(self, capacity, batch, envs):
        wanted = Experience(LENGTH, batch, capacity=capacity, sampler=self.sampler)
        return ring(wanted, batch, capacity, rows=envs, arriving=envs)


class TestUniform(Ring):
    sampler = "uniform"


class TestPrioritized(Ring):
    sampler = "prioritized"


class TestRanked(Ring):
    sampler = "ranked"


def test_the_capacity_must_be_a_multiple_of_the_batch():
    with pytest.raises(ValueError, match="multiple of batch, got 6 and 4"):
        once(6, 4)


def test_the_capacity_must_be_a_multiple_of_what_is_inserted():
    replay = once(6, 2)
    state = replay.init(jax.tree.map(lambda x: x[0], pieces(0)))
    with pytest.raises(ValueError, match="6 and 4"):
        replay.insert(state, pieces(0))


def test_an_unknown_sampler_is_refused():
    with pytest.raises(ValueError, match="uniform, prioritized, ranked, got 'once'"):
        ring(Experience(2, 2, capacity=8), 2, 8, 1, 1)


def test_windows_must_begin_every_period():
    with pytest.raises(ValueError, match="multiple of experience.period, got 5 and 2"):
        windows(Experience(4, 1, period=2, unroll=5))


# Windows of any length and period, over lives, with stacks of frames


def streams(envs, steps, stack, seed=0):
    """TimeStep [E, steps, ...] of short episodes, whose observations are stacks of frames."""
    rng = np.random.default_rng(seed)
    kinds = np.full((envs, steps), MID, np.int8)
    observation = np.zeros((envs, steps, 2, 2, stack), np.uint8)
    fresh = rng.integers(1, 255, (envs, steps, 2, 2), np.uint8)
    for e in range(envs):
        begin = 0
        while begin < steps:
            end = begin + int(rng.integers(2, 9))
            kinds[e, begin] = FIRST
            kinds[e, end - 1 : end] = LAST
            for t in range(begin, min(end, steps)):
                for back in range(min(stack, t - begin + 1)):
                    observation[e, t, ..., stack - 1 - back] = fresh[e, t - back]
            begin = end
    number = np.arange(envs * steps, dtype=np.int32).reshape(envs, steps)
    return TimeStep(observation, number, number / 2.0, np.ones((envs, steps), np.float32), kinds)


def piece_of(stream, i, unroll, life):
    envs = len(stream.reward)
    own = jax.tree.map(lambda x: jnp.asarray(x[:, i * unroll : (i + 1) * unroll + 1]), stream)
    step = jnp.full(envs, i * unroll, jnp.int32)
    origin = Origin(jnp.arange(envs, dtype=jnp.int32), jnp.asarray(life, jnp.int32), step, step)
    return Trajectory({"h": step[:, None]}, own, {"q": own.reward[:, :-1]}, origin)


def of_the_stream(trajectory, stream, period, reborn):
    """Hold trajectories [B, ...] to be what happened, and none of environment 1 to cross its rebirth."""
    timesteps, origin = trajectory.timesteps, trajectory.origin
    length = timesteps.reward.shape[1] - 1
    for b in range(len(timesteps.reward)):
        e, begin = int(origin.environment[b]), int(origin.step[b])
        expected = jax.tree.map(lambda x, e=e, begin=begin: x[e, begin : begin + length + 1], stream)
        jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda x, b=b: x[b], timesteps), expected)
        np.testing.assert_array_equal(trajectory.extras["q"][b], expected.reward[:-1])
        assert begin % period == 0
        assert e != 1 or not begin < reborn <= begin + length, "a window crosses lives"


samplers = pytest.mark.parametrize("sampler", ["uniform", "prioritized", "ranked"])
SHAPES = [(6, 2, 4, 3), (5, 2, 2, 2)]
MORE = [(6, 2, 2, 1), (1, 1, 1, 4), (3, 1, 4, 4), (4, 4, 4, 4), (2, 1, 6, 1)]
shapes = pytest.mark.parametrize(("length", "period", "unroll", "stack"), [*SHAPES, *in_full(*MORE)])


@samplers
@shapes
def test_windows_are_the_stream(sampler, length, period, unroll, stack):
    """Every step stored once comes back in every window it is in, and no window crosses a life."""
    envs, rounds, reborn, capacity = 3, 24, 12, 16
    stream = streams(envs, rounds * unroll + 1, stack)
    wanted = Experience(length, 5, period=period, unroll=unroll, capacity=capacity, sampler=sampler)
    replay = ring(wanted, 5, capacity, envs, envs, stack)
    insert, sample, revise = jax.jit(replay.insert), jax.jit(replay.sample), jax.jit(replay.revise)
    life = np.zeros(envs, int)
    state = replay.init(jax.tree.map(lambda x: x[0], piece_of(stream, 0, unroll, life)))
    drawn = 0
    for i in range(rounds):
        life[1] = i >= reborn
        state, _ = insert(state, piece_of(stream, i, unroll, life))
        if int(replay.size(state)) == 0:
            continue
        state, some = sample(state, jax.random.key(i))
        of_the_stream(some.trajectory, stream, period, reborn * unroll)
        drawn += 5
        state = revise(state, some.ids, jax.random.uniform(jax.random.key(i), (5,)))
    assert drawn > 50 and int(replay.size(state)) >= capacity
    assert int(replay.size(state)) == int(jnp.sum(state.priorities.weights > 0))


def unpacked(trajectory, stack):
    return trajectory._replace(timesteps=frames.unpack(trajectory.timesteps, stack))


def hosted(stream, sampler, length, period, unroll, stack, capacity=16, wishes=None, **options):
    sizes = {"period": period, "unroll": unroll, "capacity": capacity, "sampler": sampler}
    wanted = Experience(length, 5, **sizes, **wishes or {})
    example = jax.tree.map(lambda x: np.asarray(x[0]), piece_of(stream, 0, unroll, np.zeros(len(stream.reward), int)))
    return HostReplay(wanted, 5, capacity, example, stack, **options)


@samplers
@shapes
@pytest.mark.parametrize("compress", [False, True])
def test_windows_on_the_host_are_the_stream(sampler, length, period, unroll, stack, compress):
    """Also where environments go at their own pace, and where a checkpoint is taken in between."""
    envs, rounds, reborn = 3, 24, 12
    stream, rng = streams(envs, rounds * unroll + 1, stack), np.random.default_rng(0)
    replay, there, drawn = hosted(stream, sampler, length, period, unroll, stack, compress=compress), [0] * envs, 0
    for i in range(envs * rounds):
        e = int(rng.choice([e for e in range(envs) if there[e] < rounds]))
        life = [0, there[e] >= reborn, 0]
        piece = jax.tree.map(lambda x, e=e: np.asarray(x[e]), piece_of(stream, there[e], unroll, life))
        ids = replay.insert(piece)
        there[e] += 1
        of_the_stream(unpacked(replay.window(ids), stack), stream, period, reborn * unroll)
        assert len(replay) <= 16 + unroll // period
        if not len(replay):
            continue
        if i == 40:
            again = hosted(stream, sampler, length, period, unroll, stack, compress=compress)
            with replay.arrays() as arrays:
                again.restore(arrays)
            assert len(again) == len(replay) and again.nbytes() == replay.nbytes()
            replay = again
        some = replay.sample()
        of_the_stream(unpacked(some.trajectory, stack), stream, period, reborn * unroll)
        drawn += 5
        replay.revise(some.ids, rng.random(5))
    assert drawn > 250 and len(replay) == np.count_nonzero(replay._weights.all())


def test_the_host_draws_while_others_insert():
    """What is overwritten while it is copied is drawn again."""
    unroll, rounds, envs = 2, 400, 4
    stream = streams(envs, rounds * unroll + 1, 4)
    replay = hosted(stream, "prioritized", 4, 2, unroll, 4, capacity=24)
    pieces_ = [piece_of(stream, i, unroll, np.zeros(envs, int)) for i in range(rounds)]
    pieces_ = [[jax.tree.map(lambda x, e=e: np.asarray(x[e]), piece) for e in range(envs)] for piece in pieces_]
    errors = []

    def insert(e):
        for piece in pieces_:
            replay.insert(piece[e])

    def draw():
        try:
            while any(thread.is_alive() for thread in threads):
                if len(replay) > 8:
                    some = replay.sample()
                    of_the_stream(unpacked(some.trajectory, 4), stream, 2, -1)
                    replay.revise(some.ids, np.full(5, 2.0))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=insert, args=(e,), daemon=True) for e in range(envs)]
    drawers = [threading.Thread(target=draw, daemon=True) for _ in range(2)]
    for thread in [*threads, *drawers]:
        thread.start()
    for thread in [*threads, *drawers]:
        thread.join(60)
        assert not thread.is_alive()
    assert not errors, errors


def test_stacked_frames_are_stored_once():
    stream = streams(1, 41, 4)
    replay = hosted(stream, "uniform", 20, 20, 20, 4, capacity=4)
    for i in range(2):
        replay.insert(jax.tree.map(lambda x: np.asarray(x[0]), piece_of(stream, i, 20, np.zeros(1, int))))
    frames_, others = 2 * (20 + 3) * 4, 2 * 20 * (4 + 4 + 4 + 1 + 4) + 2 * (4 + 4 * 4)
    assert replay.nbytes() == frames_ + others


def test_a_stack_is_one_array():
    trajectory = jax.tree.map(lambda x: np.asarray(x[0]), piece_of(streams(1, 5, 2), 0, 4, np.zeros(1, int)))
    for observation in (trajectory.timesteps.observation[..., :1], {"a": np.zeros((5, 2)), "b": np.zeros((5, 2))}):
        one = trajectory._replace(timesteps=trajectory.timesteps._replace(observation=observation))
        with pytest.raises(ValueError, match="a spec with stack 2 needs one array"):
            HostReplay(Experience(4, 1, capacity=8, sampler="uniform"), 1, 8, one, 2)
        with pytest.raises(ValueError, match="a spec with stack 2 needs one array"):
            ring(Experience(4, 1, capacity=8, sampler="uniform"), 1, 8, 1, 1, 2).init(one)


def test_nothing_is_drawn_from_nothing():
    stream = streams(1, 9, 1)
    with pytest.raises(ValueError, match="nothing in replay"):
        hosted(stream, "uniform", 4, 4, 4, 1).sample()


def test_nobody_inserts_while_a_checkpoint_is_written():
    stream = streams(1, 13, 1)
    replay = hosted(stream, "uniform", 4, 4, 4, 1)
    pieces_ = [jax.tree.map(lambda x: np.asarray(x[0]), piece_of(stream, i, 4, np.zeros(1, int))) for i in range(2)]
    replay.insert(pieces_[0])
    thread = threading.Thread(target=replay.insert, args=(pieces_[1],), daemon=True)
    with replay.arrays() as arrays:
        thread.start()
        time.sleep(0.1)
        assert thread.is_alive() and len(replay) == 0 and arrays["numbers"][0] == 1
    thread.join(20)
    assert not thread.is_alive() and len(replay) == 1


def test_a_replay_made_otherwise_is_refused():
    stream = streams(1, 9, 1)
    kept = hosted(stream, "uniform", 4, 4, 4, 1)
    kept.insert(jax.tree.map(lambda x: np.asarray(x[0]), piece_of(stream, 0, 4, np.zeros(1, int))))
    with pytest.raises(ValueError, match="timesteps/observation is uint8"), kept.arrays() as arrays:
        hosted(stream, "uniform", 4, 2, 2, 1).restore(arrays)


VOID = [(1, 1, 4, 1, 0), (3, 1, 4, 2, 0), (6, 2, 2, 1, 3), (1, 4, 4, 1, 0)]


@pytest.mark.parametrize("sampler", some_of(["prioritized", "ranked"], "prioritized"))
@pytest.mark.parametrize(("length", "period", "unroll", "stack", "trained"), some_of(VOID, *VOID[1:3]))
def test_windows_of_which_nothing_is_learned_are_never_drawn(sampler, length, period, unroll, stack, trained):
    """Those whose one trained step is LAST, on a device and on the host, also once their places are overwritten."""
    envs, rounds = 3, 24
    stream = streams(envs, rounds * unroll + 1, stack)
    wishes = {"trained_step": trained, "memory": False}
    wanted = Experience(length, 5, period=period, unroll=unroll, capacity=16, sampler=sampler, **wishes)
    device, life = ring(wanted, 64, 16, envs, envs, stack), np.zeros(envs, int)
    host = hosted(stream, sampler, length, period, unroll, stack, wishes=wishes)
    host.batch = 64
    insert, sample, revise = jax.jit(device.insert), jax.jit(device.sample), jax.jit(device.revise)
    state = device.init(jax.tree.map(lambda x: x[0], piece_of(stream, 0, unroll, life)))
    passed_over, rng = 0, np.random.default_rng(0)
    for i in range(rounds):
        piece = piece_of(stream, i, unroll, life)
        state, ids = insert(state, piece)
        state = revise(state, ids, rng.random(len(ids.place)))
        for e in range(envs):
            ids = host.insert(jax.tree.map(lambda x, e=e: np.asarray(x[e]), piece))
            host.revise(ids, rng.random(len(ids.place)))
            passed_over += int(np.sum(ids.place < 0))
        if not len(host):
            continue
        state, some = sample(state, jax.random.key(i))
        for drawn in (some, host.sample()):
            assert not np.any(drawn.trajectory.timesteps.step_type[:, trained] == LAST)
    assert passed_over > 5
    assert int(state.count) == int(jnp.sum(state.priorities.weights > 0))
    assert int(device.size(state)) >= 16  # so that learning begins with any minimum that is allowed
    assert len(host) == np.count_nonzero(host._weights.all())


def test_learning_waits_while_nothing_can_be_drawn():
    """The threads around a replay: nothing dies, and what then comes is learned from."""
    stream = streams(1, 33, 1)
    pieces_ = [jax.tree.map(lambda x: x[:1], piece_of(stream, i, 4, np.zeros(1, int))) for i in range(8)]
    kinds = [np.full((1, 5), kind, np.int8) for kind in 4 * [LAST] + 4 * [MID]]
    pieces_ = [x._replace(timesteps=x.timesteps._replace(step_type=k)) for x, k in zip(pieces_, kinds, strict=True)]
    replay = hosted(stream, "prioritized", 1, 1, 4, 1, wishes={"trained_step": 0, "memory": False})
    limiter, arriving = Limiter(1.0, 4, inserting=4, sampling=5, band=100.0, timeout=20), queue.Queue()
    mesh = devices.mesh(jax.devices()[:1])
    take = lambda: None if arriving.empty() else arriving.get()  # noqa: E731
    feeder = Feeder(replay, limiter, mesh, take, None, 1, 1, Trace())
    feeder.start()
    try:
        for piece in pieces_[:4]:
            arriving.put(piece)
        while limiter.inserted < 12:  # the last piece of the four waits for its successor
            assert feeder.failure() is None
        assert len(replay) == 0 and feeder.get() is None and feeder.failure() is None
        for piece in pieces_[4:]:
            arriving.put(piece)
        while (drawn := feeder.get()) is None:
            assert feeder.failure() is None
        assert not np.any(drawn.sample.trajectory.timesteps.step_type[:, 0] == LAST)
    finally:
        feeder.stop(20)


# Chances


def drawn(where, sampler, priorities, alpha=1.0, beta=1.0, draws=40):
    """How often each window comes, its weights, and the number of draws."""
    n = len(priorities)
    wanted = Experience(LENGTH, 256, capacity=n, sampler=sampler, priority_exponent=alpha, importance_exponent=beta)
    counts, weights = Counter(), {}
    for some in on_the_host(wanted, priorities, draws) if where == "host" else on_a_device(wanted, priorities, draws):
        counts.update(np.asarray(some.trajectory.origin.environment).tolist())
        weights |= dict(zip(some.trajectory.origin.environment.tolist(), some.weights.tolist(), strict=True))
    return counts, weights, 256 * draws


def on_the_host(wanted, priorities, draws):
    n = len(priorities)
    replay = HostReplay(wanted, 256, 2 * n, jax.tree.map(lambda x: x[0], pieces(0)))
    for i in range(2):
        for e in range(n):
            ids = replay.insert(jax.tree.map(lambda x, e=e: np.asarray(x[e]), pieces(i, n)))
            replay.revise(ids, np.asarray(priorities)[[e] * len(ids.place)])
    return (replay.sample() for _ in range(draws))


def on_a_device(wanted, priorities, draws):
    n = len(priorities)
    replay = ring(wanted, 256, n, rows=n, arriving=n)
    state = replay.init(jax.tree.map(lambda x: x[0], pieces(0)))
    state, _ = replay.insert(state, pieces(0, n))
    state, ids = replay.insert(state, pieces(1, n))
    state = replay.revise(state, ids, jnp.asarray(priorities, jnp.float32))
    sample = jax.jit(replay.sample)
    return (sample(state, jax.random.key(seed))[1] for seed in range(draws))


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("where", ["device", "host"])
@samplers
def test_windows_come_as_often_as_they_should(sampler, where, alpha):
    priorities = np.array([1.0, 4.0, 2.0, 0.5, 8.0, 3.0])
    ranks = np.array([5, 2, 4, 6, 1, 3])  # the highest first
    shares = {"uniform": np.ones(6), "prioritized": priorities**alpha, "ranked": (1.0 / ranks) ** alpha}[sampler]
    chances = shares / shares.sum()
    counts, weights, n = drawn(where, sampler, priorities, alpha, beta=0.6)
    for i, chance in enumerate(chances):
        spread = np.sqrt(n * chance * (1 - chance))
        assert abs(counts[i] - n * chance) < 5 * spread, (i, counts[i], n * chance)
        expected = 1.0 if sampler == "uniform" else (6 * chance) ** -0.6
        np.testing.assert_allclose(weights[i], expected, rtol=1e-4)


def test_what_is_new_is_as_likely_as_the_likeliest():
    wanted = Experience(LENGTH, 4, capacity=16, sampler="prioritized", priority_exponent=1.0)
    replay = ring(wanted, 4, 16, rows=4, arriving=4)
    state = replay.init(jax.tree.map(lambda x: x[0], pieces(0)))
    for i in range(2):
        state, ids = replay.insert(state, pieces(i))
    state = replay.revise(state, ids, jnp.array([3.0, 7.0, 1.0, 0.0]))
    state, new = replay.insert(state, pieces(2))
    np.testing.assert_array_equal(sums.at(state.priorities, new.place), 7.0)


def test_priorities_that_are_no_numbers_do_not_enter():
    wanted = Experience(LENGTH, 4, capacity=16, sampler="prioritized")
    replay = ring(wanted, 4, 16, rows=4, arriving=4)
    state = replay.init(jax.tree.map(lambda x: x[0], pieces(0)))
    for i in range(2):
        state, ids = replay.insert(state, pieces(i))
    before = state.priorities
    state = replay.revise(state, ids, jnp.array([jnp.nan, jnp.inf, -jnp.inf, jnp.nan]))
    jax.tree.map(np.testing.assert_array_equal, state.priorities, before)
    assert float(state.highest) == 1.0


def test_priorities_that_come_too_late_go_nowhere():
    wanted = Experience(LENGTH, 4, capacity=4, sampler="prioritized")
    replay = ring(wanted, 4, 4, rows=4, arriving=4)
    insert = jax.jit(replay.insert)
    state = replay.init(jax.tree.map(lambda x: x[0], pieces(0)))
    for i in range(2):
        state, old = insert(state, pieces(i))
    for i in range(2, 12):
        state, _ = insert(state, pieces(i))
    before = state.priorities
    state = replay.revise(state, old, jnp.full(4, 100.0))
    jax.tree.map(np.testing.assert_array_equal, state.priorities, before)
    nowhere = Ids(jnp.full(4, -1, jnp.int32), jnp.zeros(4, jnp.int32))
    state = replay.revise(state, nowhere, jnp.full(4, 100.0))
    jax.tree.map(np.testing.assert_array_equal, state.priorities, before)


def test_priorities_on_the_host_that_come_too_late_or_are_not_finite_go_nowhere():
    stream = streams(1, 61, 1)
    replay = hosted(stream, "prioritized", 2, 2, 2, 1, capacity=4)
    insert = lambda i: replay.insert(  # noqa: E731
        jax.tree.map(lambda x: np.asarray(x[0]), piece_of(stream, i, 2, np.zeros(1, int)))
    )
    _, old, *_, ids = (insert(i) for i in range(10))
    before = replay._weights.all().copy()
    assert len(old.place) == len(ids.place) == 1 and old.generation < replay._generation[old.place]
    assert before[old.place] > 0
    replay.revise(old, np.full(1, 100.0))
    for bad in (np.nan, np.inf, -np.inf):
        replay.revise(ids, np.full(1, bad))
    np.testing.assert_array_equal(replay._weights.all(), before)
    replay.revise(ids, np.full(1, 100.0))
    assert replay._weights.all().max() > before.max()


def test_a_new_life_begins_its_windows_anew():
    wanted = Experience(2 * LENGTH, 4, period=LENGTH, capacity=32, sampler="uniform")
    replay = ring(wanted, 4, 32, rows=4, arriving=4)
    state = replay.init(jax.tree.map(lambda x: x[0], pieces(0)))
    seen = []
    for i, life in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 1), (3, 1)):
        state, ids = replay.insert(state, pieces(i, life=life))
        there = np.asarray(ids.place) >= 0
        seen.append(bool(there.all()))
        assert there.all() == there.any()
        whole(jax.tree.map(lambda x, there=there: x[there], replay.window(state, ids)))
    assert seen == [False, False, False, False, True, True]


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(-1, 2999), st.floats(0, 100, width=32)), min_size=1, max_size=40),
    st.lists(st.floats(0, 1, exclude_max=True, width=32), min_size=1, max_size=8),
)
def test_a_sum_tree_is_a_list_of_weights(changes, shares):
    plain, tree, twin = np.zeros(3000, np.float32), sums.zeros(3000), Weights(3000)
    for place, weight in changes:
        if place >= 0:
            plain[place] = weight
            twin.put(np.array([place]), weight)
        tree = sums.put(tree, jnp.array([place]), jnp.array([weight]))
    np.testing.assert_array_equal(sums.at(tree, jnp.arange(3000)), plain)
    np.testing.assert_allclose(sums.total(tree), plain.sum(), rtol=1e-5)
    np.testing.assert_array_equal(twin.at(np.arange(3000)), plain)
    for found in (
        [sums.find(tree, jnp.asarray(shares, jnp.float32)), twin.find(np.array(shares))] if plain.any() else []
    ):
        found = np.asarray(found)
        assert np.all(plain[found] > 0)
        ends, wanted = np.cumsum(plain, dtype=np.float64), np.array(shares) * plain.sum(dtype=np.float64)
        slack = 1e-4 * ends[-1]
        assert np.all(ends[found] >= wanted - slack) and np.all((ends - plain)[found] <= wanted + slack)


# Acting again on what is stored


def renewing(length, period, unroll, stack, **more):
    wanted = Experience(length, 5, period=period, unroll=unroll, capacity=16, sampler="prioritized", **more)
    return ring(wanted, 5, 16, 3, 3, stack)


@shapes
def test_pieces_acted_on_again_are_the_stream_and_keep_their_new_extras(length, period, unroll, stack):
    rounds = 30
    stream = streams(3, rounds * unroll + 1, stack)
    replay = renewing(length, period, unroll, stack, reanalyse=1.0, memory=False)
    past, renew = jax.jit(replay.renewal.past, static_argnums=2), jax.jit(replay.renewal.renew)
    insert, look, revise = jax.jit(replay.insert), jax.jit(replay.window), jax.jit(replay.revise)
    state = replay.init(jax.tree.map(lambda x: x[0], piece_of(stream, 0, unroll, np.zeros(3, int))))
    for i in range(rounds):
        state, _ = insert(state, piece_of(stream, i, unroll, np.zeros(3, int)))
        place, pieces_ = past(state, jax.random.key(i), 4)
        for b in range(4):
            e, begin = int(pieces_.origin.environment[b]), int(pieces_.origin.step[b])
            expected = jax.tree.map(lambda x, e=e, begin=begin: x[e, begin : begin + unroll], stream)
            one = jax.tree.map(lambda x, b=b: x[b], pieces_)
            jax.tree.map(np.testing.assert_array_equal, one.timesteps, expected)
            assert one.memory["h"] == begin
        state, ids = renew(state, place, {"q": -pieces_.timesteps.reward}, jnp.int32(1000 + i))
        there = np.asarray(ids.place) >= 0
        window = look(state, ids)
        assert window.memory == ()
        for b in np.flatnonzero(there):
            q, reward = window.extras["q"][b], window.timesteps.reward[b, :-1]
            inside = min(unroll - int(window.origin.step[b]) % unroll, length)
            np.testing.assert_array_equal(q[:inside], -reward[:inside])
            assert window.origin.version[b] == 1000 + i
        revised = revise(state, ids, jnp.full(len(there), 2.0))
        assert int(replay.size(revised)) == int(replay.size(state))
    assert 0 < replay.renewal.share(state) < 1


@shapes
@pytest.mark.parametrize("compress", [False, True])
def test_pieces_on_the_host_are_acted_on_again(length, period, unroll, stack, compress):
    stream, wishes = streams(1, 30 * unroll + 1, stack), {"reanalyse": 1.0, "memory": False}
    replay = hosted(stream, "prioritized", length, period, unroll, stack, wishes=wishes, compress=compress)
    for i in range(30):
        replay.insert(jax.tree.map(lambda x: np.asarray(x[0]), piece_of(stream, i, unroll, np.zeros(1, int))))
        ids, pieces_ = replay.past(3)
        timesteps = frames.unpack(pieces_.timesteps, stack)
        for b, begin in enumerate(pieces_.origin.step):
            expected = jax.tree.map(lambda x, begin=begin: x[0, begin : begin + unroll], stream)
            jax.tree.map(lambda x, y, b=b: np.testing.assert_array_equal(x[b], y), timesteps, expected)
            assert pieces_.memory["h"][b] == begin
        windows_ = replay.renew(ids, {"q": -timesteps.reward}, 1000 + i)
        window = replay.window(windows_)
        assert window.memory == () and np.all(window.origin.version == 1000 + i)
        np.testing.assert_array_equal(window.extras["q"][:, 0], -window.timesteps.reward[:, 0])
        replay.revise(windows_, np.full(len(windows_.place), 2.0))
    again = hosted(stream, "prioritized", length, period, unroll, stack, wishes=wishes, compress=compress)
    with replay.arrays() as arrays:
        again.restore(arrays)
    assert 0 < again.renewed() == replay.renewed() <= 1


def test_a_piece_that_is_gone_is_not_renewed():
    stream = streams(1, 61, 1)
    replay = hosted(stream, "uniform", 2, 2, 2, 1, capacity=4)
    insert = lambda i: replay.insert(  # noqa: E731
        jax.tree.map(lambda x: np.asarray(x[0]), piece_of(stream, i, 2, np.zeros(1, int)))
    )
    insert(0)
    ids, old = replay.past(1)
    for i in range(1, 10):
        insert(i)
    assert len(replay.renew(ids, {"q": old.extras["q"] + 1}, 7).place) == 0 and replay.renewed() == 0
    some = replay.sample().trajectory
    np.testing.assert_array_equal(some.extras["q"], some.timesteps.reward[:, :-1])


def test_what_is_overwritten_is_no_longer_renewed():
    stream = streams(3, 61, 1)
    replay = renewing(2, 2, 2, 1, reanalyse=1.0)
    state = replay.init(jax.tree.map(lambda x: x[0], piece_of(stream, 0, 2, np.zeros(3, int))))
    state, _ = replay.insert(state, piece_of(stream, 0, 2, np.zeros(3, int)))
    state, _ = replay.renewal.renew(state, jnp.arange(3), {"q": jnp.zeros((3, 2))}, jnp.int32(1))
    assert replay.renewal.share(state) == 1
    for i in range(1, 25):
        state, _ = replay.insert(state, piece_of(stream, i, 2, np.zeros(3, int)))
    assert replay.renewal.share(state) == 0


def test_a_memory_nobody_asks_for_is_not_kept():
    stream = streams(3, 9, 1)
    replay = renewing(2, 1, 4, 1, memory=False)
    assert replay.init(jax.tree.map(lambda x: x[0], piece_of(stream, 0, 4, np.zeros(3, int)))).pieces.memory == ()
