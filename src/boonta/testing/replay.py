"""What every replay on a device must do, as tests that the author of one inherits."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from boonta.core.types import Array, Ids, Origin, PyTree, Sample, TimeStep, Trajectory
from boonta.replay.types import Replay

LENGTH = 3  # steps of a piece, and of a window
ENVS = 4


class ReplayContract:
    """Inherit it in a test module, as `class TestMine(ReplayContract)`, and say how the replay is made.

    Attributes:
        hands_out_once: whether each trajectory is handed out exactly once, in the order of arrival.
    """

    hands_out_once: ClassVar[bool] = False

    def make(self, capacity: int, batch: int, envs: int) -> Replay:
        """A replay of `capacity` windows of LENGTH steps, which is what pieces have, that draws `batch` at a time.

        Pieces of `envs` environments arrive together.
        """
        raise NotImplementedError

    def test_shapes_and_dtypes_are_kept(self):
        replay = self.make(8, 4, ENVS)
        one = jax.tree.map(lambda x: x[0], pieces(0))
        state = replay.init(one)
        assert _schema(state) == _schema(replay.init(jax.eval_shape(lambda: one))), "init needs more than shapes"
        filled, ids = jax.jit(replay.insert)(state, pieces(0))
        assert _schema(filled) == _schema(state), "insert changes the state's structure, shapes or dtypes"
        drawn, sample = jax.jit(replay.sample)(filled, jax.random.key(0))
        assert _schema(drawn) == _schema(state), "sample changes the state's structure, shapes or dtypes"
        assert _schema(sample.trajectory) == _schema(pieces(0))
        assert _schema(replay.window(state, ids)) == _schema(jax.tree.map(lambda x: x[: len(ids.place)], pieces(0)))
        places = jnp.ones(4, jnp.int32)
        assert _schema((sample.weights, sample.ids)) == _schema((jnp.ones(4, jnp.float32), Ids(places, places)))
        revised = jax.jit(replay.revise)(drawn, sample.ids, jnp.ones(4))
        assert _schema(revised) == _schema(state), "revise changes the state's structure, shapes or dtypes"
        assert _schema(replay.size(state)) == _schema(jnp.int32(0))

    def test_what_comes_out_went_in_whole(self):
        for sample in self._samples(capacity=8, batch=2, envs=4, rounds=6):
            whole(sample.trajectory)

    def test_windows_are_what_was_inserted(self):
        replay, state = self._filled(8, 4, ENVS, rounds=0)
        complete = 0
        for i in range(5):
            state, ids = replay.insert(state, pieces(i))
            there = np.asarray(ids.place) >= 0
            whole(jax.tree.map(lambda x, there=there: x[there], replay.window(state, ids)))
            complete += int(there.sum())
        assert complete >= 4 * ENVS, "windows of which all steps are there are not told"

    def test_weights_are_finite_and_positive(self):
        for sample in self._samples(capacity=8, batch=2, envs=4, rounds=4):
            assert np.all(np.isfinite(sample.weights)) and np.all(np.asarray(sample.weights) > 0)
            if self.hands_out_once:
                np.testing.assert_array_equal(sample.weights, 1)

    def test_each_comes_out_once_in_the_order_of_arrival(self):
        if not self.hands_out_once:
            return
        for capacity, batch, envs in ((8, 4, 4), (8, 2, 4), (12, 6, 2), (4, 4, 4)):
            samples = self._samples(capacity, batch, envs, rounds=12)
            origin = jax.tree.map(lambda *xs: np.concatenate(xs), *[sample.trajectory.origin for sample in samples])
            drawn = origin.step // LENGTH * envs + origin.environment
            np.testing.assert_array_equal(drawn, np.arange(12 * envs))

    def test_it_says_how_much_there_is(self):
        replay, state = self._filled(8, 2, ENVS, rounds=0)
        assert int(replay.size(state)) == 0
        for i in range(2):
            state, _ = replay.insert(state, pieces(i))
        assert ENVS <= int(replay.size(state)) <= 2 * ENVS

    def test_the_oldest_are_forgotten(self):
        if self.hands_out_once:
            return
        replay, state = self._filled(8, 8, ENVS, rounds=30)
        assert 8 <= int(replay.size(state)) <= 8 + 2 * ENVS
        for seed in range(5):
            state, sample = replay.sample(state, jax.random.key(seed))
            age = 30 - np.asarray(sample.trajectory.origin.step) // LENGTH
            assert np.all(age <= 5), f"older than the capacity allows: {age}"

    def test_the_key_decides_everything(self):
        replay, state = self._filled(8, 4, ENVS, rounds=3)
        a, b = (replay.sample(state, jax.random.key(3)) for _ in range(2))
        _equal(a, b)

    def test_revising_goes_on_working(self):
        """Also for trajectories that have been overwritten meanwhile, and with any priority."""
        replay, state = self._filled(4, 4, ENVS, rounds=3)
        state, sample = replay.sample(state, jax.random.key(0))
        state = replay.revise(state, sample.ids, jnp.array([0.0, 1e6, jnp.nan, jnp.inf]))
        old = sample.ids
        state, _ = replay.sample(state, jax.random.key(1))
        for i in range(3, 12):
            state, _ = replay.insert(state, pieces(i))
        state = replay.revise(state, old, jnp.array([1e6, 0.0, 1.0, 1.0]))
        state, sample = replay.sample(state, jax.random.key(2))
        assert np.all(np.isfinite(sample.weights))
        whole(sample.trajectory)

    def test_it_lives_in_a_scan(self):
        """Insert and sample under one `jax.lax.scan`, as Anakin does, is what they are one by one."""
        replay = self.make(8, 4, ENVS)

        def body(state: PyTree, i: Array) -> tuple[PyTree, Any]:
            state, _ = replay.insert(state, pieces(i))
            state, sample = replay.sample(state, jax.random.fold_in(jax.random.key(0), i))
            return replay.revise(state, sample.ids, jnp.ones(4)), sample

        state = replay.init(jax.tree.map(lambda x: x[0], pieces(0)))
        scanned, samples = jax.jit(lambda state: jax.lax.scan(body, state, jnp.arange(4)))(state)
        for i in range(4):
            state, sample = body(state, jnp.int32(i))
            _close(sample, jax.tree.map(lambda x, i=i: x[i], samples))
        _close(state, scanned)

    def _filled(self, capacity: int, batch: int, envs: int, rounds: int) -> tuple[Replay, PyTree]:
        """The replay, jitted, after so many pieces of every environment."""
        made = self.make(capacity, batch, envs)
        names = ("insert", "window", "sample", "revise")
        replay = made._replace(**{name: jax.jit(getattr(made, name)) for name in names})
        state = replay.init(jax.tree.map(lambda x: x[0], pieces(0, envs)))
        for i in range(rounds):
            state, _ = replay.insert(state, pieces(i, envs))
        return replay, state

    def _samples(self, capacity: int, batch: int, envs: int, rounds: int) -> list[Sample]:
        """Insert and draw in turn, as many as came in, as soon as they suffice."""
        replay, state = self._filled(capacity, batch, envs, 0)
        samples, waiting = [], 0
        for i in range(rounds):
            state, ids = replay.insert(state, pieces(i, envs))
            waiting += int(np.sum(np.asarray(ids.place) >= 0))
            while waiting >= batch:
                state, sample = replay.sample(state, jax.random.fold_in(jax.random.key(0), len(samples)))
                state = replay.revise(state, sample.ids, jnp.ones(batch))
                samples.append(sample)
                waiting -= batch
        return samples


def pieces(i: Array | int, envs: int = ENVS, life: Array | int = 0) -> Trajectory:
    """The i-th pieces [E, ...] of endless streams, whose every number tells its environment, life and step."""
    environment = jnp.arange(envs, dtype=jnp.int32)
    step = jnp.broadcast_to(jnp.asarray(i, jnp.int32) * LENGTH, (envs,))
    return _stream(Origin(environment, jnp.broadcast_to(jnp.asarray(life, jnp.int32), (envs,)), step, step), LENGTH)


def whole(trajectory: Trajectory) -> None:
    """Hold trajectories [B, ...] to be what `pieces` gave, from the steps that their origins tell."""
    length = trajectory.timesteps.reward.shape[1] - 1
    origin = jax.tree.map(jnp.asarray, trajectory.origin)
    expected = _stream(origin, length)
    first = origin._replace(step=origin.step // LENGTH * LENGTH)  # of the piece: only there is a version, and a memory
    expected = expected._replace(origin=origin._replace(version=first.step), memory=_stream(first, 1).memory)
    _equal(trajectory, expected)


def _stream(origin: Origin, length: int) -> Trajectory:
    time = origin.step[:, None] + jnp.arange(length + 1)
    at = origin.environment[:, None] * 1000 + origin.life[:, None] * 100_000 + time
    real = at / 8.0
    image = (at[..., None] + jnp.arange(2)).astype(jnp.uint8)
    observation = {"image": image, "legal": jnp.ones((*at.shape, 3), bool)}
    kind = (1 + time * 0).astype(jnp.int8)
    timesteps = TimeStep(observation, at, real, jnp.ones_like(real), kind)
    extras = {"log_prob": -real[:, :-1], "sample": at[:, :-1]}
    return Trajectory({"h": real[:, :1] * jnp.ones(2)}, timesteps, extras, origin)


def _equal(actual: PyTree, expected: PyTree) -> None:
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def _close(actual: PyTree, expected: PyTree) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), actual, expected)


def _schema(tree: PyTree) -> Any:
    """Structure, shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
