"""DDPG, TD3 and SAC: the contract, their formulas, and learners that take turns."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import rlax

from boonta.agents import continuous, ddpg, sac, td3
from boonta.architectures import anakin, turns
from boonta.core import acting, devices
from boonta.core.agent import Agent, Experience, Learner
from boonta.core.spec import Continuous
from boonta.core.types import Feedback, Ids, Origin, Sample, TimeStep, Trajectory
from boonta.envs import catch
from boonta.experiments.checkpoint import Checkpoints
from boonta.ops.value_head import value_head
from boonta.testing.agent import AgentContract
from tests.test_agents import reach

SMALL = {"hidden": (8,), "value_batch": 4, "policy_batch": 4, "n_step": 6, "bins": 5}
PLAIN = {
    "value_optimizer": "sgd",
    "policy_optimizer": "sgd",
    "value_learning_rate": 0.1,
    "policy_learning_rate": 0.1,
}


def made(module, environment=None, **settings):
    environment = environment or reach()
    factory = getattr(module, module.__name__.split(".")[-1])
    return factory(environment.spec, module.Settings(**SMALL | settings)), environment


class TestDDPG(AgentContract):
    def make(self):
        return made(ddpg, noise_correlation=0.8)


class TestTD3(AgentContract):
    def make(self):
        return made(td3, critic="quantile", sampler="prioritized", layer_norm=True)


class TestSAC(AgentContract):
    def make(self):
        return made(sac, critic="categorical", value_low=-50.0, value_high=0.0, normalize_observations=True)


def test_an_update_on_two_devices_is_that_of_one():
    """With plain SGD, which hides no wrong scale; DDPG draws nothing in its updates."""
    agent, environment = made(ddpg, **PLAIN, minimum=8, value_updates=0.5, policy_updates=0.5)
    agent = turns.together(agent)
    params = agent.init(jax.random.key(0))
    (learner,) = agent.learners.values()
    trajectory = unrolled(agent, environment, params, 8, 6)
    sample = Sample(trajectory, jnp.ones(8), Ids(jnp.arange(8), jnp.zeros(8, jnp.int32)))
    one = jax.jit(learner.update)(learner.init(params), params, sample, jax.random.key(1))[1]

    # Devices hold other parts of the value's and of the policy's share than of the whole.
    order = np.array([0, 1, 4, 5, 2, 3, 6, 7])
    mesh = devices.mesh(jax.devices()[:2])
    split = jax.sharding.PartitionSpec(devices.LEARNERS)
    body = jax.shard_map(
        lambda s: learner.update(learner.init(params), params, s, jax.random.key(1))[1],
        mesh=mesh, in_specs=(split,), out_specs=jax.sharding.PartitionSpec(), check_vma=False,
    )  # fmt: skip
    two = jax.jit(body)(jax.tree.map(lambda x: x[order], sample))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    moved = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), one["policy"], params["policy"])
    assert max(jax.tree.leaves(moved)) > 1e-3


@pytest.mark.parametrize("name", ["value", "policy"])
def test_gradients_are_clipped_where_a_setting_or_a_sweep_says_so(name):
    steps = {}
    for limit in (None, 1e-3):
        agent, environment = made(ddpg, **PLAIN, max_grad_norm=limit)
        learner, params = agent.learners[name], agent.init(jax.random.key(0))
        trajectory = unrolled(agent, environment, params, 4, 6)
        sample = Sample(trajectory, jnp.ones(4), Ids(jnp.arange(4), jnp.zeros(4, jnp.int32)))
        for swept in ({}, {"max_grad_norm": jnp.float32(1e-4)}):
            varied = params | {"settings": params["settings"] | swept}
            owned = jax.jit(learner.update)(learner.init(varied), varied, sample, jax.random.key(1))[1]
            group = learner.owns[0]
            moved = jax.tree.map(lambda a, b: a - b, owned[group], params[group])
            steps[limit, bool(swept)] = float(optax.tree.norm(moved))
    assert steps[None, False] > 2e-3
    assert steps[1e-3, False] == pytest.approx(1e-4, rel=1e-2)
    assert steps[None, True] == pytest.approx(1e-5, rel=1e-2)
    assert steps[1e-3, True] == pytest.approx(1e-5, rel=1e-2)


def unrolled(agent, environment, params, count, length):
    start = lambda i: acting.begin(agent, environment, params, i, count, jax.random.key(2))  # noqa: E731

    @jax.jit
    def unroll():
        actors = jax.vmap(start)(jnp.arange(count, dtype=jnp.int32))
        return acting.unroll(agent, environment, params, actors, length, jnp.int32(0))[1]

    return unroll()


# What critics say


def random_targets(key, k):
    atoms = 3 * jax.random.normal(key, (k,))
    return atoms, jax.nn.softmax(jax.random.normal(jax.random.fold_in(key, 1), (k,)))


def test_the_categorical_loss_is_the_cross_entropy_with_rlax_projection():
    head = value_head("categorical", 11, -2.0, 2.0)
    logits = jax.random.normal(jax.random.key(0), (11,))
    atoms, probabilities = random_targets(jax.random.key(1), 7)
    # rlax wants its atoms in order
    order = jnp.argsort(atoms)
    support = jnp.linspace(-2.0, 2.0, 11)
    projected = rlax.categorical_l2_project(atoms[order], probabilities[order], support)
    expected = -jnp.sum(projected * jax.nn.log_softmax(logits))
    np.testing.assert_allclose(head.loss(logits, atoms, probabilities), expected, rtol=1e-5)


def test_the_quantile_loss_is_that_of_rlax():
    head = value_head("quantile", 9)
    quantiles = jax.random.normal(jax.random.key(0), (9,))
    target = 2 * jax.random.normal(jax.random.key(1), (7,))
    levels = (jnp.arange(9) + 0.5) / 9
    expected = rlax.quantile_regression_loss(quantiles, levels, target, huber_param=1.0)
    np.testing.assert_allclose(head.loss(quantiles, target, jnp.full(7, 1 / 7)), expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["mean", "categorical", "quantile"])
def test_a_head_learns_the_mean_of_its_target(kind):
    head = value_head(kind, 21, -3.0, 3.0)
    atoms, probabilities = jnp.array([-1.0, 0.5, 2.0]), jnp.array([0.2, 0.5, 0.3])
    outputs = jnp.zeros(head.outputs) if kind != "quantile" else jnp.linspace(-1, 1, 21)
    step = jax.jit(lambda x: x - 0.2 * jax.grad(lambda x: head.loss(x, atoms, probabilities))(x))
    for _ in range(2000):
        outputs = step(outputs)
    assert (
        abs(float(head.mean(outputs)) - float(atoms @ probabilities))
        < {"mean": 1e-3, "categorical": 0.02, "quantile": 0.1}[kind]
    )
    values, chances = head.atoms(outputs)
    assert abs(float(chances.sum()) - 1) < 1e-5
    np.testing.assert_allclose(values @ chances, head.mean(outputs), atol=1e-4)


@pytest.mark.parametrize(
    ("module", "settings"), [(ddpg, {}), (td3, {"critic": "quantile"}), (sac, {"critic": "mean"}), (td3, {"n_step": 1})]
)
def test_targets_of_a_constant_true_value_are_that_value(module, settings):
    """Critics that say c everywhere, and rewards that make c true: no error, whatever ends inside."""
    c, gamma = 5.0, 0.9
    agent, environment = made(module, discount=gamma, **settings, **PLAIN)
    learner = agent.learners["value"]
    params = agent.init(jax.random.key(0))
    params["critics"] = jax.tree.map(jnp.zeros_like, params["critics"])
    constant = jax.tree.map(jnp.zeros_like, params["critics"])
    for critic in constant.values():
        critic["params"]["Dense_0"]["bias"] = jnp.full_like(critic["params"]["Dense_0"]["bias"], c)
    params["critics"] = constant
    if module is sac:
        params["log_temperature"] = jnp.float32(-1e9)
    trajectory = unrolled(agent, environment, params, 16, learner.experience.length)
    discount, first = trajectory.timesteps.discount, trajectory.timesteps.first()
    reward = jnp.where(first, 0.0, c - gamma * discount * c)
    trajectory = trajectory._replace(timesteps=trajectory.timesteps._replace(reward=reward))
    sample = Sample(trajectory, jnp.ones(16), Ids(jnp.arange(16), jnp.zeros(16, jnp.int32)))
    _, _, feedback = jax.jit(learner.update)(learner.init(params), params, sample, jax.random.key(1))
    np.testing.assert_allclose(feedback.metrics["value/target"], c, rtol=1e-5)
    if settings.get("critic") != "quantile":
        np.testing.assert_allclose(feedback.metrics["loss/value"], 0.0, atol=1e-5)


def test_the_entropy_of_the_next_action_raises_the_target_of_sac():
    """By the temperature times that entropy (equation 3 of Haarnoja et al. 2018); the first policy is a wide one."""
    agent, environment = made(sac, critic="mean", n_step=1)
    learner, params = agent.learners["value"], agent.init(jax.random.key(0))
    trajectory = unrolled(agent, environment, params, 16, 1)
    trajectory = trajectory._replace(
        timesteps=trajectory.timesteps._replace(discount=jnp.ones_like(trajectory.timesteps.discount))
    )
    sample = Sample(trajectory, jnp.ones(16), Ids(jnp.arange(16), jnp.zeros(16, jnp.int32)))
    update, targets = jax.jit(learner.update), []
    for temperature in (1e-9, 1.0, 2.0):
        warmer = params | {"log_temperature": jnp.log(jnp.float32(temperature))}
        _, _, feedback = update(learner.init(warmer), warmer, sample, jax.random.key(1))
        targets.append(float(feedback.metrics["value/target"]))
    once, twice = targets[1] - targets[0], targets[2] - targets[0]
    assert once > 0.5
    assert twice == pytest.approx(2 * once, rel=1e-3)


def test_transitions_count_by_their_importance():
    """One of weight 0 not at all, for the critics; the policy learns from observations alone."""
    agent, environment = made(ddpg, n_step=1, sampler="prioritized", **PLAIN)
    learner, params = agent.learners["value"], agent.init(jax.random.key(0))
    trajectory = unrolled(agent, environment, params, 4, 1)
    others = jnp.arange(4) > 0
    reward = jnp.where(others[:, None], 9.0, trajectory.timesteps.reward)
    altered = trajectory._replace(timesteps=trajectory.timesteps._replace(reward=reward))
    update, found = jax.jit(learner.update), []
    for weights in (~others * 1.0, jnp.ones(4)):
        for one in (trajectory, altered):
            sample = Sample(one, weights, Ids(jnp.arange(4), jnp.zeros(4, jnp.int32)))
            found.append(jax.tree.leaves(update(learner.init(params), params, sample, jax.random.key(1))[1]))
    assert all(np.array_equal(a, b) for a, b in zip(found[0], found[1], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(found[2], found[3], strict=True))


@pytest.mark.parametrize("module", [ddpg, td3, sac])
def test_target_networks_follow_at_their_rate(module):
    agent, environment = made(module, target_rate=0.25, value_learning_rate=0.1, n_step=1)
    learner, params = agent.learners["value"], agent.init(jax.random.key(0))
    trajectory = unrolled(agent, environment, params, 4, 1)
    sample = Sample(trajectory, jnp.ones(4), Ids(jnp.arange(4), jnp.zeros(4, jnp.int32)))
    before = learner.init(params)
    before = before._replace(policy=jax.tree.map(lambda x: x + 1.0, before.policy))
    if module is td3:  # they move with every second update
        before = before._replace(updates=jnp.int32(1))
    after, owned, _ = jax.jit(learner.update)(before, params, sample, jax.random.key(1))
    for old, now, new in (
        (before.critics, after.critics, owned["critics"]),
        (before.policy, after.policy, params["policy"]),
    ):
        jax.tree.map(lambda o, n, w: np.testing.assert_allclose(n, 0.75 * o + 0.25 * w, atol=1e-5), old, now, new)


def test_the_lower_of_two_critics_makes_the_target():
    head = value_head("quantile", 3)
    outputs = jnp.array([[[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]], [[5.0, 0.0, 0.0], [1.0, 1.0, 1.0]]])
    atoms, probabilities = continuous._lowest(head, outputs)
    np.testing.assert_allclose(atoms, [[5.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    np.testing.assert_allclose(probabilities, 1 / 3, rtol=1e-6)


# Exploring


def test_noise_that_lasts_has_unit_variance_and_the_correlation_asked_for():
    agent, environment = made(ddpg, reach(limit=10_000, dimensions=1), noise_correlation=0.9)
    params = agent.init(jax.random.key(0))

    def body(memory, key):
        memory, _, _ = agent.act(params, memory, timestep, key)
        return memory, memory

    timestep = environment.reset(jax.random.key(1))[1]._replace(step_type=jnp.int8(1))
    _, walk = jax.lax.scan(body, jnp.zeros(1), jax.random.split(jax.random.key(2), 20_000))
    walk = np.asarray(walk)[1000:, 0]
    assert abs(walk.std() - 1) < 0.1
    assert abs(np.corrcoef(walk[1:], walk[:-1])[0, 1] - 0.9) < 0.02


def test_actions_are_random_over_the_whole_box_until_the_policy_has_learned():
    agent, environment = made(sac)
    params = agent.init(jax.random.key(0))
    _, timestep = environment.reset(jax.random.key(1))
    act = jax.vmap(lambda key: agent.act(params, (), timestep, key)[1])
    actions = np.asarray(act(jax.random.split(jax.random.key(2), 2000)))
    assert actions.min() < -1.95 and actions.max() > 0.95 and abs(actions.mean() + 0.5) < 0.1


def test_units_are_the_inverse_of_scaling():
    box = Continuous((2, 2), np.array([[-2.0, -np.inf], [0.0, 3.0]]), np.array([[1.0, np.inf], [10.0, 3.0]]))
    units = jax.random.uniform(jax.random.key(0), (5, 4), minval=-1.0)
    units = units.at[:, 3].set(0.0)  # no room
    np.testing.assert_allclose(box.unit(box.scale(units)), units, atol=1e-6)


@pytest.mark.parametrize("module", [ddpg, td3, sac])
def test_what_cannot_be_is_refused(module):
    with pytest.raises(ValueError, match="discrete actions"):
        made(module, catch.make())
    with pytest.raises(ValueError, match=r"agent\.value_low must be below"):
        made(module, critic="categorical", value_low=1.0, value_high=1.0)


# Turns


def learner(name, batch, ratio, insert=None, view=None, priorities=False, capacity=100):
    """Counts its updates in its own group, and notes the ids it saw."""
    wanted = Experience(1, batch, 1, 1, 1, capacity, "uniform", ratio, view=view)

    def update(state, params, sample, key):
        seen = sample.ids.place
        new = {name: params[name] + 1}
        feedback = Feedback({name: jnp.float32(0)}, seen.astype(jnp.float32) if priorities else None)
        return state + seen.sum(), new, feedback

    return Learner((name,), (), wanted, lambda params: jnp.int32(0), update, insert)


def agent_of(**learners):
    return Agent(lambda key: {}, None, None, None, (), learners)  # type: ignore[arg-type]


def test_learners_of_one_replay_share_its_samples():
    agent = agent_of(value=learner("value", 2, 4.0, priorities=True), policy=learner("policy", 4, 4.0))
    assert turns.counts(agent.learners) == {"value": 2, "policy": 1}
    (one,) = turns.together(agent).learners.values()
    assert one.owns == ("value", "policy")
    assert (one.experience.batch, one.experience.samples_per_insert) == (8, 8.0)
    params = {"value": jnp.int32(0), "policy": jnp.int32(0)}
    nothing = Trajectory((), TimeStep((), (), (), (), ()), (), Origin((), (), (), ()))
    sample = Sample(nothing, jnp.ones(8), Ids(jnp.arange(8), jnp.zeros(8, jnp.int32)))
    state, params, feedback = one.update(one.init(params), params, sample, jax.random.key(0))
    assert {name: int(x) for name, x in params.items()} == {"value": 2, "policy": 1}
    assert {name: int(x) for name, x in state.items()} == {"value": 0 + 1 + 2 + 3, "policy": 4 + 5 + 6 + 7}
    np.testing.assert_array_equal(feedback.priorities, [0, 1, 2, 3, *[np.inf] * 4])  # NaN would trip JAX_DEBUG_NANS


def test_learners_with_experience_of_their_own_stay_apart():
    agent = agent_of(a=learner("a", 2, 1.0), b=learner("b", 2, 1.0, capacity=50))
    assert turns.together(agent) is agent


def test_turns_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="ratio of whole numbers"):
        turns.together(agent_of(a=learner("a", 2, 1.0), b=learner("b", 2, 0.0101)))
    insert = lambda params, trajectory: 0.0  # noqa: E731
    with pytest.raises(ValueError, match="may write priorities"):
        turns.together(agent_of(a=learner("a", 2, 1.0, insert), b=learner("b", 2, 1.0, insert)))


def test_targets_of_td3_move_when_its_policy_is_due():
    """Every value_updates / policy_updates of the critics, as the paper's; those of ddpg with every update."""
    for module, often, moved in (
        (td3, {}, [2, 4, 6]),
        (td3, {"value_updates": 3.0, "policy_updates": 2.0}, [2, 3, 5, 6]),
        (ddpg, {"policy_updates": 0.5}, [1, 2, 3, 4, 5, 6]),
    ):
        agent, environment = made(module, **often)
        params = agent.init(jax.random.key(0))
        trajectory = unrolled(agent, environment, params, 4, 6)
        sample = Sample(trajectory, jnp.ones(4), Ids(jnp.arange(4), jnp.zeros(4, jnp.int32)))
        learner, seen = agent.learners["value"], []
        state, update = learner.init(params), jax.jit(learner.update)
        for i in range(1, 7):
            before = state
            state, owned, _ = update(state, params, sample, jax.random.key(i))
            params = params | owned
            still = jax.tree.map(np.array_equal, (before.critics, before.policy), (state.critics, state.policy))
            seen += [] if all(jax.tree.leaves(still)) else [i]
        assert seen == moved, module


def test_checkpoints_of_td3_that_count_no_updates_are_refused_in_one_line(tmp_path):
    """Those of before its targets moved with its policy."""
    agent, _ = made(td3)
    state = agent.learners["value"].init(agent.init(jax.random.key(0)))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, {"value": continuous.ValueState(*state[:3])}, {}, None)
    with pytest.raises(ValueError, match=r"were made by another version .*\(value/updates is new\); go on with that"):
        checkpoints.restore({"value": state})
    checkpoints.close()
    for module in (ddpg, sac):  # whose checkpoints are as they were
        others, _ = made(module)
        kept = jax.eval_shape(others.learners["value"].init, jax.eval_shape(others.init, jax.random.key(0)))
        assert kept._fields == ("optimizer", "critics", "policy")


def test_td3_updates_its_policy_half_as_often():
    agent, environment = made(td3, n_step=1, minimum=8, value_batch=8, policy_batch=8)
    unit = anakin.make(turns.together(agent), environment, 4)
    assert unit.updates_per_iteration == 2  # turns of two and one
    program = anakin.program(unit, devices.mesh(jax.devices()[:1]))
    state, metrics = program.run(program.start(jnp.zeros(1, jnp.int32), {}), 10)
    assert int(metrics["made"].sum()) == int(state.updates[0]) == 2 * 8  # eight windows are there after three pieces
    assert np.isfinite(metrics["loss/policy"]).all()
