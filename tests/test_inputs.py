"""How networks read observations of all spaces."""

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from boonta import envs
from boonta.agents import ppo
from boonta.agents.common import init_statistics, normalize_observation, update_statistics
from boonta.core.environment import Environment, check
from boonta.core.environment import start as first_step
from boonta.core.host import Workers
from boonta.core.spec import Continuous, Discrete, Shape, Spec
from boonta.core.types import TimeStep, Trajectory
from boonta.envs import dm
from boonta.envs.errors import Failing
from boonta.nets.inputs import inputs
from boonta.nets.torso import Options, torso
from boonta.transport.wire import Malformed, Schema


def reads(observation, **more):
    return inputs(Spec("case", observation, Discrete(2)), **more)


@pytest.mark.parametrize(
    ("shape", "dtype", "image"),
    [
        ((84, 84, 4), np.uint8, (84, 84, 4)),
        ((3, 84, 84), np.uint8, (84, 84, 3)),
        ((4, 84, 84), np.uint8, (84, 84, 4)),
        ((3, 24, 30), np.float32, (24, 30, 3)),
        ((84, 84), np.uint8, (84, 84, 1)),
        ((84, 84), np.float32, None),
        ((4, 84, 84, 3), np.uint8, (84, 84, 12)),
        ((4, 3, 84, 84), np.uint8, (84, 84, 12)),
        ((84, 84, 3, 4), np.uint8, (84, 84, 12)),
        ((3, 16, 16), np.uint8, (16, 16, 3)),
        ((20, 84, 84), np.uint8, (84, 84, 20)),
        ((4, 10, 10), np.float32, (10, 10, 4)),
        ((6, 8, 8), np.uint8, (8, 8, 6)),
        ((10, 10, 10), bool, (10, 10, 10)),
        ((4, 3, 194), bool, (4, 3, 194)),  # animal shogi
        ((84, 84, 50), np.uint8, (84, 84, 50)),
        ((10, 10, 4), bool, (10, 10, 4)),  # MinAtar
        ((19, 19, 17), bool, (19, 19, 17)),  # go
        ((8, 8, 119), bool, (8, 8, 119)),  # chess
        ((6, 7, 2), bool, (6, 7, 2)),
        ((2, 2, 3), np.uint8, None),
        ((2, 2, 2, 2), np.float32, None),
        ((20, 300, 3), np.uint8, (20, 300, 3)),
    ],
)
def test_images_are_known_by_their_axes(shape, dtype, image):
    read = reads(Shape(shape, dtype))
    (leaf,) = read.leaves
    assert (leaf.shape if leaf.kind == "image" else None) == image
    assert bool(leaf.remark) == ((image != shape and len(shape) > 2) or image == (84, 84, 1))
    x = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    made = np.asarray(read.features(jnp.asarray(x)))
    assert made.shape == (image or shape)
    if image == (84, 84, 3):
        np.testing.assert_allclose(made, np.moveaxis(x, 0, -1) / np.float32(255), rtol=1e-6)
    if shape == (4, 84, 84, 3):  # the frames side by side, each with its channels
        np.testing.assert_allclose(made[..., 3:6], x[1] / np.float32(255), rtol=1e-6)


@pytest.mark.parametrize("shape", [(64, 64, 64), (20, 84, 84, 20), (3, 4, 84, 84, 2)])
def test_images_in_no_known_order_are_refused_or_read_flat(shape):
    with pytest.raises(ValueError, match=r"observation of shape \(.*\) looks like images"):
        reads(Shape(shape, np.uint8))
    assert reads(Shape(shape, np.uint8), flat=True).leaves[0].kind == "vector"


def test_categories_are_one_hot_and_many_are_embedded():
    read = reads({"a": Shape((), np.int32, categories=3), "b": Shape((2,), np.int32, categories=(2, 4))})
    made = read.features({"a": jnp.array([2, 0]), "b": jnp.array([[1, 3], [0, 0]])})
    np.testing.assert_array_equal(made["a"], [[0, 0, 1], [1, 0, 0]])
    np.testing.assert_array_equal(made["b"], [[0, 1, 0, 0, 0, 1], [1, 0, 1, 0, 0, 0]])
    spec = Spec("many", Shape((2,), np.int32, categories=2000), Discrete(2))
    trunk = torso(spec, Options(hidden=(8,)))
    params = trunk.init(jax.random.key(0), jax.random.key(1))
    assert params["body"]["params"]["Embed_0"]["embedding"].shape == (4000, 64)
    timestep = TimeStep(jnp.array([[[1, 0]], [[0, 1]]]), *[jnp.zeros((2, 1))] * 3, jnp.zeros((2, 1), jnp.int8))  # type: ignore[arg-type]
    _, x = trunk.unroll(params, (), timestep)
    assert np.abs(x[0] - x[1]).max() > 0  # entries are not one another's


@pytest.mark.parametrize(
    ("bounds", "low", "high"),
    [(None, 0.0, 1.0), ((0, 255), 0.0, 1.0), ((0, 3), -(3**0.5), 3**0.5), (((0, 10), (3, 20)), -(3**0.5), 3**0.5)],
)
def test_bytes_are_scaled_by_their_bounds(bounds, low, high):
    read = reads(Shape((2,), np.uint8, bounds))
    least, most = bounds or (0, 255)
    ends = jnp.stack([jnp.broadcast_to(jnp.asarray(x, jnp.uint8), (2,)) for x in (least, most)])
    np.testing.assert_allclose(read.features(ends), [[low] * 2, [high] * 2], atol=1e-6)


def test_bounds_of_pixels_move_with_them():
    low = np.zeros((3, 24, 24), np.uint8)
    high = np.full((3, 24, 24), 255, np.uint8)
    high[1] = 5
    bounds = tuple(tuple(map(tuple, (map(tuple, plane) for plane in x))) for x in (low.tolist(), high.tolist()))
    made = reads(Shape((3, 24, 24), np.uint8, tuple(bounds))).features(jnp.asarray(high))
    np.testing.assert_allclose(made, np.ones((24, 24, 3)), rtol=1e-6)


def test_statistics_are_of_quantities_alone():
    observation = {"kind": Shape((), np.int32, categories=3), "speed": Shape((2,), np.float32)}
    read = reads(observation)
    statistics = init_statistics(read)
    assert [x.shape for x in jax.tree.leaves(statistics["mean"])] == [(2,)]
    seen = {"kind": jnp.zeros((4, 3), jnp.int32), "speed": jnp.full((4, 3, 2), 5.0)}
    steps = TimeStep(seen, *[jnp.zeros((4, 3))] * 4)  # type: ignore[arg-type]
    statistics = update_statistics(read, statistics, Trajectory((), steps, (), ()))  # type: ignore[arg-type]
    features = read.features(normalize_observation(read, statistics, steps).observation)
    np.testing.assert_array_equal(features["speed"], 0.0)
    np.testing.assert_array_equal(features["kind"][0, 0], [1, 0, 0])


def test_statistics_of_nothing_but_categories_are_none():
    read = reads(Shape((), np.int32, categories=3))
    seen = jnp.zeros((4, 3), jnp.int32)
    steps = TimeStep(seen, *[jnp.zeros((4, 3))] * 4)  # type: ignore[arg-type]
    statistics = update_statistics(read, init_statistics(read), Trajectory((), steps, (), ()))  # type: ignore[arg-type]
    features = read.features(normalize_observation(read, statistics, steps).observation)
    np.testing.assert_array_equal(features[0, 0], [1, 0, 0])


def test_an_agent_acts_on_images_beside_vectors_with_and_without_statistics():
    nested = {"speed": Shape((2,), np.float32), "state": Shape((), np.int32, categories=4)}
    observation = {"image": Shape((24, 24, 3), np.uint8), "more": nested, "legal": Shape((3,), np.bool_)}
    spec = Spec("both", observation, Discrete(3))
    for normalize in (False, True):
        settings = ppo.Settings(hidden=(8,), channels=(2,), normalize_observations=normalize)
        agent = ppo.ppo(spec, settings)
        params = agent.init(jax.random.key(0))
        seen = jax.tree.map(lambda s: jnp.ones(s.shape, s.dtype), observation)
        seen["legal"] = jnp.array([False, True, False])
        _, action, _ = agent.act(params, (), first_step(seen, spec.action), jax.random.key(1))
        assert action == 1


# The doors of dm_env, of compiled environments, and of the wire


class Kinds(dm_env.Environment):
    """An observation of each kind, with a mask; two steps."""

    def __init__(self, wrong=False):
        self.wrong = wrong

    def reset(self):
        self.t = 0
        return dm_env.restart(self._seen())

    def step(self, action):
        assert action.dtype == np.int64 and action.shape == ()
        self.t += 1
        return dm_env.termination(1.0, self._seen()) if self.t == 2 else dm_env.transition(1.0, self._seen())

    def observation_spec(self):
        return {
            "kind": specs.DiscreteArray(5, np.int64),
            "few": specs.BoundedArray((2,), np.uint8, 0, 3),
            "action_mask": specs.BoundedArray((2,), np.int8, 0, 1),
        }

    def action_spec(self):
        return specs.DiscreteArray(2, np.int64)

    def _seen(self):
        mask = np.array([self.t < 2, False], np.int8)  # at the end nothing is legal
        return {"kind": np.int64(7 if self.wrong else 4), "few": np.array([0, 3], np.uint8), "action_mask": mask}


def test_dm_env_specs_are_read_as_spaces_are():
    host = dm.of("kinds", Kinds)
    assert host.spec.observation == {
        "kind": Shape((), np.int32, categories=5),
        "few": Shape((2,), np.uint8, (0, 3)),
        "legal": Shape((2,), np.bool_),
    }
    batch = host.make(np.arange(1), 0, 0, Workers("serial"))
    assert batch.reset().observation["legal"].tolist() == [[True, False]]
    batch.step(np.zeros(1, np.int32))
    last = batch.step(np.zeros(1, np.int32))
    assert last.discount == 0.0 and last.observation["legal"].all()  # as nothing follows
    with pytest.raises(Failing, match="observation/kind is of other values than its space has: it got int64"):
        dm.of("kinds", lambda: Kinds(wrong=True))


def masked():
    """A compiled environment whose mask is called `action_mask`."""
    made = envs.make("boonta:probe-context")

    def shown(answer):
        state, timestep = answer
        seen = {"x": timestep.observation, "action_mask": jnp.array([True, True])}
        return state, timestep._replace(observation=seen)

    observation = {"x": made.spec.observation, "action_mask": jax.ShapeDtypeStruct((2,), bool)}  # type: ignore[union-attr]
    return Environment(
        made.spec._replace(observation=observation),
        lambda key: shown(made.reset(key)),  # type: ignore[union-attr]
        lambda *args: shown(made.step(*args)),  # type: ignore[union-attr]
    )


def test_a_compiled_environments_action_mask_is_the_mask():
    made = envs.make("tests.test_inputs:masked")
    assert isinstance(made, Environment) and {*made.spec.observation} == {"x", "legal"}
    check(made)


def test_an_index_is_a_category_and_the_wire_holds_it_to_its_range():
    assert envs.make("gymnax:FrozenLake-misc").spec.observation == Shape((), np.int32, categories=16)
    schema = Schema(Spec("lake", Shape((), np.int32, categories=16), Discrete(4)))
    assert schema.text.splitlines()[0] == "observation i4[] < 16"

    def step(seen):
        zeros, ones = np.zeros(1, np.float32), np.ones(1, np.float32)
        return schema.encode(TimeStep(np.full(1, seen, np.int32), None, zeros, ones, np.zeros(1, np.int8)))  # type: ignore[arg-type]

    schema.decode(step(15), None, np.zeros(1, np.int32))
    with pytest.raises(Malformed, match="observation must be from 0 to below 16"):
        schema.decode(step(16), None, np.zeros(1, np.int32))


def test_how_far_agents_reach_where_there_is_no_bound():
    low, high = np.array([-np.inf, 0, -np.inf, -3], np.float32), np.array([np.inf, np.inf, 2, 3], np.float32)
    box = Continuous((4,), low, high, span=5.0)
    np.testing.assert_array_equal(box.reach(), [[-5, 0, -3, -3], [5, 5, 2, 3]])
    np.testing.assert_allclose(box.scale(jnp.ones(4)), [5, 5, 2, 3])
    np.testing.assert_allclose(box.unit(box.scale(jnp.array([0.5, -1, 0, 1]))), [0.5, -1, 0, 1], atol=1e-6)
