"""What every agent must do, as tests that the author of one inherits."""

from functools import cache, partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

try:
    import pytest
except ImportError as error:
    raise ImportError("boonta.testing needs pytest: pip install 'boonta[dev]'") from error
from jax.sharding import PartitionSpec as P

from boonta.core import acting, devices
from boonta.core.agent import Agent, check
from boonta.core.environment import Environment
from boonta.core.spec import Discrete, Spec
from boonta.core.types import FIRST, LAST, Array, Ids, Key, Params, PyTree, Sample, TimeStep, Trajectory


class AgentContract:
    """Inherit it in a test module, as `class TestMine(AgentContract)`, and say how the agent is made.

    Small networks and short trajectories do. Episodes must be shorter than a trajectory, so that there are ends in it.

    Attributes:
        envs: environments that act side by side in the tests of acting.
        steps: how long they act.
        of_the_action: keys of `extras` that describe the action taken, which no update may look at where it is idle.
        one_device_is_two: whether an update of a batch is the same update on two devices, up to rounding: for plain SGD
            and a single minibatch, with a large step size. (Adam would hide gradients of the wrong scale.)
        rounding: how far answers of a batch of another width may be off, absolute and relative; more than the default
            only where differences between nearly equal numbers are scaled up, as searches do.
    """

    envs: ClassVar[int] = 4
    steps: ClassVar[int] = 12
    of_the_action: ClassVar[tuple[str, ...]] = ("sample", "log_prob")
    one_device_is_two: ClassVar[bool] = False
    rounding: ClassVar[float] = 1e-5

    def make(self) -> tuple[Agent, Environment]:
        """The agent under test, and an environment for it."""
        raise NotImplementedError

    # Acting

    def test_groups_have_one_owner_and_exist(self):
        agent, _ = self._made()
        check(agent, self._params())

    def test_act_needs_no_group_but_those_it_reads(self):
        agent, _ = self._made()
        params = {name: self._params()[name] for name in agent.reads}
        actors, _ = self._walk()
        one = _first(actors)
        for act in (agent.act, agent.exploit):
            jax.eval_shape(act, params, one.memory, one.timestep, one.key)

    def test_shapes_stay_as_they_are(self):
        agent, environment = self._made()
        one = _first(self._start())
        memory, action, extras = jax.eval_shape(agent.act, self._params(), one.memory, one.timestep, one.key)
        assert _schema(memory) == _schema(one.memory), "the memory's structure, shapes or dtypes change in a step"
        assert _schema(action) == _schema(environment.spec.action.zero()), f"not an action of the spec: {action}"
        again = jax.eval_shape(agent.act, self._params(), memory, one.timestep, one.key)
        assert _schema(again) == _schema((memory, action, extras))
        memory, action, _ = jax.eval_shape(agent.exploit, self._params(), one.memory, one.timestep, one.key)
        assert _schema((memory, action)) == _schema((one.memory, environment.spec.action.zero()))

    def test_the_same_inputs_give_the_same_answers(self):
        actors, _ = self._walk()
        _equal(self._act()(*_inputs(actors)), self._act()(*_inputs(actors)))

    def test_another_order_of_environments_changes_nothing(self):
        memory, timestep, key = _inputs(self._walk()[0])
        backwards = jax.tree.map(lambda x: x[::-1], (memory, timestep, key))
        there, back = self._act()(memory, timestep, key), self._act()(*backwards)
        _equal(there, jax.tree.map(lambda x: x[::-1], back))

    def test_many_at_once_are_many_one_by_one(self):
        inputs = _inputs(self._walk()[0])
        ones = [self._act()(*jax.tree.map(lambda x, i=i: x[i : i + 1], inputs)) for i in range(self.envs)]
        memory, action, extras = jax.tree.map(lambda *xs: jnp.concatenate(xs), *ones)
        together = self._act()(*inputs)
        _close((memory, extras), (together[0], together[2]), self.rounding)
        _close(action, together[1])

    def test_memory_starts_anew_at_first(self):
        """Whatever was remembered: the same answers as with the memory of an actor that just began."""
        begun, walked = self._start(), self._walk()[0]
        _equal(
            self._act()(walked.memory, begun.timestep, begun.key), self._act()(begun.memory, begun.timestep, begun.key)
        )

    def test_actions_are_valid(self):
        trajectory = self._walk()[1]
        timesteps = jax.tree.map(lambda x: np.asarray(x), trajectory.timesteps)
        _, environment = self._made()
        moved = timesteps.step_type[:, 1:] != FIRST
        before = jax.tree.map(lambda x: x[:, :-1][moved], timesteps.observation)
        _valid(environment.spec, before, timesteps.action[:, 1:][moved])

    def test_exploit_is_valid(self):
        agent, environment = self._made()
        actors, _ = self._walk()
        exploit = jax.jit(jax.vmap(agent.exploit, (None, 0, 0, 0)))
        memory, action, _ = exploit(self._params(), *_inputs(actors))
        _valid(environment.spec, actors.timestep.observation, action)
        _finite(memory)

    def test_extras_are_finite(self):
        actors, trajectory = self._walk()
        _finite((trajectory.extras, actors.memory))

    # Learning

    def test_an_update_returns_the_groups_it_owns_as_they_were_shaped(self):
        for name, learner in self._made()[0].learners.items():
            state, params, feedback = self._updated(name)
            assert set(params) == set(learner.owns), f"{name} owns {learner.owns} and returned {tuple(params)}"
            for group in params:
                assert _schema(params[group]) == _schema(self._params()[group]), (
                    f"{name} changes the shape of {group!r}"
                )
            assert _schema(state) == _schema(self._state(name)), f"{name} changes the shape of its state"
            _finite(params)
            assert isinstance(feedback.metrics, dict) and feedback.metrics, f"{name} reports no metrics"
            for key, value in feedback.metrics.items():
                assert value.shape == (), f"{name}'s metric {key} has the shape {value.shape}; metrics are scalars"
                assert jnp.issubdtype(value.dtype, jnp.floating) and np.isfinite(value), f"{name}'s {key} is {value}"
            if feedback.priorities is not None:
                assert feedback.priorities.shape == (learner.experience.batch,)
                assert np.all(np.isfinite(feedback.priorities) & (np.asarray(feedback.priorities) >= 0))

    def test_an_update_needs_no_group_but_those_it_names(self):
        for name, learner in self._made()[0].learners.items():
            params = {group: self._params()[group] for group in {*learner.owns, *learner.reads}}
            jax.eval_shape(learner.update, self._state(name), params, self._sample(name), jax.random.key(0))

    def test_an_update_changes_something_and_the_key_decides_the_rest(self):
        for name, learner in self._made()[0].learners.items():
            _, params, _ = self._updated(name)
            before = {group: self._params()[group] for group in learner.owns}
            changed = jax.tree.map(lambda a, b: not np.array_equal(a, b), params, before)
            assert any(jax.tree.leaves(changed)), f"an update of {name} changes nothing"
            _equal(self._run(name, self._sample(name)), self._updated(name))

    def test_an_update_does_not_look_at_idle_actions(self):
        """An action at LAST is ignored by the environment, so nothing about it may be learnt."""
        for name in self._made()[0].learners:
            sample = self._sample(name)
            trajectory = sample.trajectory
            if not isinstance(trajectory.extras, dict):
                continue
            idle = np.asarray(trajectory.timesteps.step_type[:, :-1] == LAST)
            assert np.any(idle), f"no episode ends within {name}'s trajectories of {idle.shape[1]} steps"
            extras = {
                key: jax.tree.map(partial(_altered, idle), x) if key in self.of_the_action else x
                for key, x in trajectory.extras.items()
            }
            altered = sample._replace(trajectory=trajectory._replace(extras=extras))
            state, params, _ = self._run(name, altered)
            _equal((state, params), self._updated(name)[:2])

    def test_first_priorities_are_sound(self):
        for name, learner in self._made()[0].learners.items():
            if learner.insert is not None:
                insert = jax.jit(jax.vmap(partial(learner.insert, self._params())))
                priorities = np.asarray(insert(self._sample(name).trajectory))
                assert priorities.shape == (learner.experience.batch,)
                assert np.all(np.isfinite(priorities) & (priorities >= 0)), f"{name}'s priorities: {priorities}"

    def test_devices_agree_after_an_update(self):
        """Two devices end with the same parameters, state and metrics; with those of one device where promised."""
        if len(jax.devices()) < 2:
            pytest.skip("needs two devices: XLA_FLAGS=--xla_force_host_platform_device_count=2")
        mesh = devices.mesh(jax.devices()[:2])
        for name, learner in self._made()[0].learners.items():
            if learner.experience.batch % 2:
                continue

            state, params, sample = self._state(name), self._params(), self._sample(name)

            def update(sample: Sample, state=state, params=params, learner=learner) -> Any:
                key = jax.random.fold_in(jax.random.key(1), devices.rank())
                state, params, feedback = learner.update(state, params, sample, key)
                return jax.tree.map(lambda x: jnp.asarray(x)[None], (state, params, feedback.metrics))

            shard = partial(jax.shard_map, mesh=mesh, check_vma=False)
            split = P(devices.LEARNERS)
            out = jax.jit(shard(update, in_specs=(split,), out_specs=split))(sample)
            _equal(*(jax.tree.map(lambda x, i=i: x[i], out) for i in range(2)))
            if self.one_device_is_two:
                alone = self._updated(name)[1]
                moved = jax.tree.map(lambda a, b: np.max(np.abs(a - b)), alone, {name: params[name] for name in alone})
                assert max(jax.tree.leaves(moved)) > 1e-3, "a larger step size, or this test sees nothing"
                _close(jax.tree.map(lambda x: x[0], out)[1], alone)

    # The tests of one class share what they compile.

    @classmethod
    @cache
    def _made(cls) -> tuple[Agent, Environment]:
        return cls().make()

    @classmethod
    @cache
    def _params(cls) -> Params:
        return jax.jit(cls._made()[0].init)(jax.random.key(0))

    @classmethod
    @cache
    def _act(cls) -> Any:
        return partial(jax.jit(jax.vmap(cls._made()[0].act, (None, 0, 0, 0))), cls._params())

    @classmethod
    def _begin(cls, envs: int) -> acting.Actor:
        begin = partial(acting.begin, *cls._made(), cls._params(), count=envs, key=jax.random.key(2))
        return jax.jit(jax.vmap(lambda index: begin(index=index)))(jnp.arange(envs, dtype=jnp.int32))

    @classmethod
    @cache
    def _start(cls) -> acting.Actor:
        return cls._begin(cls.envs)

    @classmethod
    @cache
    def _walk(cls) -> tuple[acting.Actor, Trajectory]:
        return cls._unroll(cls._start(), cls.steps)

    @classmethod
    def _unroll(cls, actors: acting.Actor, length: int) -> tuple[acting.Actor, Trajectory]:
        unroll = partial(acting.unroll, *cls._made(), length=length, version=jnp.int32(0))
        actors, trajectory, _ = jax.jit(lambda params, actors: unroll(params=params, actors=actors))(
            cls._params(), actors
        )
        return actors, trajectory

    @classmethod
    @cache
    def _sample(cls, name: str) -> Sample:
        experience = cls._made()[0].learners[name].experience
        _, trajectory = cls._unroll(cls._begin(experience.batch), experience.length)
        if experience.view is not None:
            trajectory = experience.view(trajectory)
        place = jnp.arange(experience.batch, dtype=jnp.int32)
        return Sample(trajectory, jnp.ones(experience.batch, jnp.float32), Ids(place, jnp.zeros_like(place)))

    @classmethod
    @cache
    def _state(cls, name: str) -> PyTree:
        return jax.jit(cls._made()[0].learners[name].init)(cls._params())

    @classmethod
    @cache
    def _update(cls, name: str) -> Any:
        return jax.jit(cls._made()[0].learners[name].update)

    @classmethod
    def _run(cls, name: str, sample: Sample) -> Any:
        return cls._update(name)(cls._state(name), cls._params(), sample, jax.random.key(1))

    @classmethod
    @cache
    def _updated(cls, name: str) -> Any:
        return cls._run(name, cls._sample(name))


def _inputs(actors: acting.Actor) -> tuple[PyTree, TimeStep, Key]:
    return actors.memory, actors.timestep, actors.key


def _first(actors: acting.Actor) -> acting.Actor:
    return jax.tree.map(lambda x: x[0], actors)


def _valid(spec: Spec, observation: PyTree, action: PyTree) -> None:
    """Actions [N, ...] at observations [N, ...]."""
    action = np.asarray(action)
    if not isinstance(spec.action, Discrete):
        assert np.all(np.isfinite(action))
        return
    assert np.all((action >= 0) & (action < spec.action.n)), (
        f"actions must be from 0 to {spec.action.n - 1}, got {action}"
    )
    if isinstance(observation, dict) and "legal" in observation:
        chosen = np.take_along_axis(np.asarray(observation["legal"]), action[:, None], 1)
        assert np.all(chosen), "an illegal action"


def _altered(idle: np.ndarray, x: Array) -> Array:
    """Another valid value wherever `idle`, [B, T]."""
    other = jnp.where(x > 0, x - 1, x + 1) if jnp.issubdtype(x.dtype, jnp.integer) else x + 0.5
    return jnp.where(idle.reshape(*idle.shape, *[1] * (x.ndim - 2)), other, x)


def _numbers(tree: PyTree) -> PyTree:
    return jax.tree.map(
        lambda x: np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x), tree
    )


def _equal(actual: PyTree, expected: PyTree) -> None:
    jax.tree.map(np.testing.assert_array_equal, _numbers(actual), _numbers(expected))


def _close(actual: PyTree, expected: PyTree, tolerance: float = 1e-5) -> None:
    def one(a: np.ndarray, b: np.ndarray) -> None:
        if np.issubdtype(b.dtype, np.integer) or b.dtype == bool:
            np.testing.assert_array_equal(a, b)
        else:
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)

    jax.tree.map(one, _numbers(actual), _numbers(expected))


def _finite(tree: PyTree) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(_numbers(tree)):
        assert np.all(np.isfinite(leaf)), f"not finite: {jax.tree_util.keystr(path)}"


def _schema(tree: PyTree) -> Any:
    """Structure, shapes and dtypes."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(leaf.shape, leaf.dtype) for leaf in leaves]
