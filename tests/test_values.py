"""DQN and R2D2 against slow plain references, and against the traps that others fell into."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from boonta.agents import dqn, r2d2
from boonta.agents.values import best, explore, normalized_weights
from boonta.architectures import anakin
from boonta.core import acting
from boonta.core.agent import Experience
from boonta.core.spec import Continuous, Discrete, Shape, Spec
from boonta.core.types import FIRST, LAST, MID, Ids, Origin, Sample, TimeStep, Trajectory
from boonta.envs import tmaze, wrappers
from boonta.nets.q_network import Heads, q_network
from boonta.ops.rescaling import squash, unsquash
from boonta.replay.ring import ring
from tests.test_wrappers import narrow

SPEC = Spec("three", Shape((2,), np.float32), Discrete(3))
SMALL = {"hidden": (8,), "core_size": 4, "head": 0, "batch": 3}
# In 9 steps: a true end, a time limit, and two more beginnings.
KINDS = np.array([MID, MID, LAST, FIRST, MID, MID, LAST, FIRST, MID, MID], np.int8)


def a_sample(batch=3, seed=0, memory=None, extras=None, weights=None):
    rng, n = np.random.default_rng(seed), len(KINDS)
    kinds = np.tile(KINDS, (batch, 1))
    first, ends = kinds == FIRST, np.where(kinds == LAST, [[0.0] * 6 + [1.0] * (n - 6)], 1.0)  # the second is a limit
    timesteps = TimeStep(
        jnp.asarray(rng.normal(size=(batch, n, 2)), jnp.float32),
        jnp.asarray(np.where(first, 0, rng.integers(3, size=(batch, n))), jnp.int32),
        jnp.asarray(np.where(first, 0, rng.normal(size=(batch, n))), jnp.float32),
        jnp.asarray(np.where(first, 1.0, ends), jnp.float32),
        jnp.asarray(kinds),
    )
    zeros = jnp.zeros(batch, jnp.int32)
    weights = jnp.ones(batch) if weights is None else jnp.asarray(weights, jnp.float32)
    trajectory = Trajectory(memory, timesteps, extras, Origin(zeros, zeros, zeros, zeros))
    return Sample(trajectory, weights, Ids(zeros, zeros))


def h(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + 1e-3 * x


def h_inverse(x):
    """Proposition A.2 of Pohlen et al. 2018, in float64."""
    e = 1e-3
    return np.sign(x) * (((np.sqrt(1 + 4 * e * (np.abs(x) + 1 + e)) - 1) / (2 * e)) ** 2 - 1)


def test_rescaling_is_the_papers():
    x = np.concatenate([-np.logspace(-6, 6, 200), [0.0], np.logspace(-6, 6, 200)])
    np.testing.assert_allclose(squash(jnp.asarray(x, jnp.float32)), h(x), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(unsquash(jnp.asarray(h(x), jnp.float32)), x, rtol=2e-4, atol=1e-6)
    y = np.linspace(-50, 50, 101)
    np.testing.assert_allclose(unsquash(jnp.asarray(y, jnp.float32)), h_inverse(y), rtol=1e-4, atol=1e-5)


def reference(timesteps, q, target_q, settings):
    """TD errors [T] of one sequence, one by one, as the paper says it (section 2.3 and equation 1)."""
    out, mask, n = [], [], len(timesteps.reward)
    gamma = settings.discount
    for t in range(n - 1):
        if timesteps.step_type[t] == LAST:  # nothing was done
            out.append(0.0)
            mask.append(0.0)
            continue
        total, discount, k = 0.0, 1.0, t
        while k < n - 1 and k < t + settings.n_step and timesteps.step_type[k] != LAST:
            k += 1
            total += discount * timesteps.reward[k]
            discount *= gamma * timesteps.discount[k]
        chooser = q if settings.double else target_q
        value = target_q[k][np.argmax(chooser[k])]
        goal = h(total + discount * h_inverse(value)) if settings.rescale else total + discount * value
        out.append(goal - q[t][timesteps.action[t + 1]])
        mask.append(1.0)
    return np.array(out), np.array(mask)


def priority(error, mask, eta):
    return eta * np.abs(error).max() + (1 - eta) * np.abs(error).sum() / mask.sum()


@pytest.mark.parametrize("double", [True, False])
def test_a_target_at_a_time_limit_takes_no_illegal_action(double):
    """Of values (0, 100) only the first is of a legal action."""
    environment = wrappers.time_limit(narrow(), 1)
    settings = dqn.Settings(hidden=(4,), dueling=False, double=double, n_step=1, unroll=2, reward_scale=1e-9)
    agent = dqn.dqn(environment.spec, settings)
    params = jax.tree.map(jnp.zeros_like, agent.init(jax.random.key(0))["network"])
    params["advantage"]["params"]["Dense_0"]["bias"] = jnp.array([0.0, 100.0])
    params = agent.init(jax.random.key(0)) | {"network": params}
    actors = jax.vmap(lambda i: acting.begin(agent, environment, params, i, 4, jax.random.key(1)))(jnp.arange(4))
    _, trajectory, _ = acting.unroll(agent, environment, params, actors, 1, jnp.int32(0))
    assert np.all(trajectory.timesteps.last()[:, 1]) and np.all(trajectory.timesteps.discount == 1)
    learner = agent.learners["dqn"]
    sample = Sample(trajectory, jnp.ones(4), Ids(jnp.arange(4), jnp.zeros(4, jnp.int32)))
    _, _, feedback = jax.jit(learner.update)(learner.init(params), params, sample, jax.random.key(0))
    np.testing.assert_allclose(feedback.metrics["loss/error"], 0.0, atol=1e-5)


def test_what_is_fed_to_the_memory_is_the_transformed_reward():
    """With reward_clip 1, a reward of 1000 is for the network what a reward of 1 is."""
    agent, _ = an_agent(reward_clip=1.0)
    params = agent.init(jax.random.key(1))
    memory = agent.memory(params, jnp.float32(0.0), jax.random.key(0))
    step = jax.tree.map(lambda x: x[0, 1], a_sample(memory=remembered(agent, params)).trajectory.timesteps)
    step = step._replace(step_type=MID)
    q = [agent.act(params, memory, step._replace(reward=jnp.float32(r)), jax.random.key(0))[2]["q"] for r in (1, 1000)]
    np.testing.assert_array_equal(*q)
    agent, _ = an_agent(reward_scale=0.001)
    scaled = agent.act(params, memory, step._replace(reward=jnp.float32(1000)), jax.random.key(0))[2]["q"]
    np.testing.assert_allclose(scaled, q[0], rtol=1e-6)


def an_agent(**settings):
    made = r2d2.Settings(**SMALL | {"length": 9, "burn_in": 3, "period": 3} | settings)
    return r2d2.r2d2(SPEC, made), made


def remembered(agent, params, batch=3, seed=5):
    memory = jax.vmap(agent.memory, (None, 0, None))(params, jnp.arange(batch) / 2.0, jax.random.key(0))
    noise = np.random.default_rng(seed)
    return memory._replace(core=jax.tree.map(lambda x: x + noise.normal(size=x.shape).astype(np.float32), memory.core))


def q_values(agent, params, trajectory, weights=None):
    """Values of every time step [B, T+1, A], step by step, from the stored memory."""
    params = params if weights is None else params | {"network": weights}
    act, out = jax.jit(agent.act), []
    for b in range(len(trajectory.timesteps.reward)):
        memory, values = jax.tree.map(lambda x, b=b: x[b], trajectory.memory), []
        for t in range(trajectory.timesteps.reward.shape[1]):
            step = jax.tree.map(lambda x, b=b, t=t: x[b, t], trajectory.timesteps)
            memory, _, extras = act(params, memory, step, jax.random.key(0))
            values.append(np.asarray(extras["q"], np.float64))
        out.append(values)
    return np.array(out)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"n_step": 1},
        {"n_step": 2, "double": False},
        {"rescale": False, "core": "gru"},
        {"burn_in": 0, "dueling": False},
    ],
)
def test_r2d2_priorities_are_the_papers(settings):
    agent, made = an_agent(**settings)
    params = agent.init(jax.random.key(1))
    learner = agent.learners["r2d2"]
    state = learner.init(params)
    target = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(2), x.shape), params["network"])
    sample = a_sample(memory=remembered(agent, params))
    _, _, feedback = jax.jit(learner.update)(state._replace(target=target), params, sample, jax.random.key(0))
    q, target_q = q_values(agent, params, sample.trajectory), q_values(agent, params, sample.trajectory, target)
    for b in range(3):
        timesteps = jax.tree.map(lambda x, b=b: np.asarray(x[b, made.burn_in :]), sample.trajectory.timesteps)
        error, mask = reference(timesteps, q[b, made.burn_in :], target_q[b, made.burn_in :], made)
        np.testing.assert_allclose(feedback.priorities[b], priority(error, mask, 0.9), rtol=1e-4)


def test_first_priorities_are_those_of_acting_time():
    """The same formula, on the values that acting saw; the step after the last was not acted on, so one less."""
    agent, made = an_agent()
    params = agent.init(jax.random.key(1))
    sample = a_sample(memory=remembered(agent, params))
    q = q_values(agent, params, sample.trajectory)
    trajectory = sample.trajectory._replace(extras={"q": jnp.asarray(q[:, :-1], jnp.float32)})
    found = jax.vmap(agent.learners["r2d2"].insert, (None, 0))(params, trajectory)
    for b in range(3):
        timesteps = jax.tree.map(lambda x, b=b: np.asarray(x[b, made.burn_in : -1]), trajectory.timesteps)
        acted = q[b, made.burn_in : -1]
        np.testing.assert_allclose(found[b], priority(*reference(timesteps, acted, acted, made), 0.9), rtol=1e-4)


def test_no_gradient_goes_through_the_burn_in():
    """What the burn-in saw changes the memory that training begins with, and no gradient flows back to it.

    One step of it, so that the episode, and with it the memory, goes on where training begins.
    """
    agent, _ = an_agent(optimizer="sgd", learning_rate=1.0, max_grad_norm=1e9, burn_in=1)
    params = agent.init(jax.random.key(1))
    learner = agent.learners["r2d2"]
    sample = a_sample(memory=remembered(agent, params))
    _, moved, _ = jax.jit(learner.update)(learner.init(params), params, sample, jax.random.key(0))
    act, cores = jax.jit(agent.act), []
    for b in range(3):
        memory = jax.tree.map(lambda x, b=b: x[b], sample.trajectory.memory)
        first = jax.tree.map(lambda x, b=b: x[b, 0], sample.trajectory.timesteps)
        cores.append(act(params, memory, first, jax.random.key(0))[0])
    after = jax.tree.map(lambda *xs: jnp.stack(xs), *cores)
    cut = sample.trajectory._replace(
        memory=after, timesteps=jax.tree.map(lambda x: x[:, 1:], sample.trajectory.timesteps)
    )
    plain, _ = an_agent(optimizer="sgd", learning_rate=1.0, max_grad_norm=1e9, length=8, period=4, burn_in=0)
    again = plain.learners["r2d2"]
    _, expected, _ = jax.jit(again.update)(
        again.init(params), params, sample._replace(trajectory=cut), jax.random.key(0)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), moved, expected)


@pytest.mark.parametrize("name", ["r2d2", "dqn"])
def test_importance_weights_are_divided_by_the_highest(name):
    np.testing.assert_allclose(normalized_weights(jnp.array([0.5, 2.0, 1.0])), [0.25, 1.0, 0.5])
    agent = an_agent()[0] if name == "r2d2" else dqn.dqn(SPEC, dqn.Settings(hidden=(8,), batch=3, n_step=9))
    params, learner = agent.init(jax.random.key(1)), agent.learners[name]
    memory = remembered(agent, params) if name == "r2d2" else ()
    state, update = learner.init(params), jax.jit(learner.update)
    runs = [
        update(state, params, a_sample(memory=memory, weights=weights), jax.random.key(0))
        for weights in ([1.0, 0.5, 0.25], [8.0, 4.0, 2.0], [1.0, 1.0, 1.0])
    ]
    same = [jax.tree.leaves(run[1]) for run in runs]
    for a, b in zip(same[0], same[1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert any(not np.array_equal(a, b) for a, b in zip(same[0], same[2], strict=True))


def test_exploration_goes_by_the_environments_rank():
    agent, made = an_agent()
    params = agent.init(jax.random.key(0))
    epsilon = [float(agent.memory(params, acting.rank(jnp.int32(i), 8), jax.random.key(0)).epsilon) for i in range(8)]
    np.testing.assert_allclose(epsilon, [0.4 ** (1 + 7 * i / 7) for i in range(8)], rtol=1e-5)
    alone = agent.memory(params, acting.rank(jnp.int32(0), 1), jax.random.key(0))
    np.testing.assert_allclose(alone.epsilon, 0.4, rtol=1e-6)
    assert made.explore_evaluation == 1e-3


def test_the_stored_memory_is_that_of_the_episodes_beginning():
    """The memory that a window begins with is the one recomputed from the episode's start, by the same parameters."""
    environment = tmaze.make(length=6)
    made = r2d2.Settings(**SMALL | {"length": 6, "burn_in": 2, "period": 2, "batch": 8})
    agent = r2d2.r2d2(environment.spec, made)
    params = agent.init(jax.random.key(0))
    begin = jax.vmap(lambda i: acting.begin(agent, environment, params, i, 4, jax.random.key(1)))
    actors = begin(jnp.arange(4, dtype=jnp.int32))
    unroll = jax.jit(lambda actors: acting.unroll(agent, environment, params, actors, 2, jnp.int32(0)))
    replay = ring(Experience(6, 8, period=2, capacity=60, sampler="uniform"), 8, 60, 4, 4)
    insert, draw, act = jax.jit(replay.insert), jax.jit(replay.sample), jax.jit(agent.act)
    stream, state = [], None
    for _ in range(20):
        actors, pieces, _ = unroll(actors)
        state = replay.init(jax.tree.map(lambda x: x[0], pieces)) if state is None else state
        state, _ = insert(state, pieces)
        stream.append(pieces.timesteps)
    whole = jax.tree.map(lambda *xs: jnp.concatenate([x[:, :-1] for x in xs], axis=1), *stream)
    key = jax.random.key(0)
    for seed in range(4):
        _, sample = draw(state, jax.random.key(seed))
        for b in range(8):
            origin = jax.tree.map(lambda x, b=b: int(x[b]), sample.trajectory.origin)
            kinds = np.asarray(whole.step_type[origin.environment, : origin.step + 1])
            start = int(np.flatnonzero(kinds == FIRST)[-1])
            memory = agent.memory(params, acting.rank(jnp.int32(origin.environment), 4), key)
            for t in range(start, origin.step):
                step = jax.tree.map(lambda x, e=origin.environment, t=t: x[e, t], whole)
                memory, _, _ = act(params, memory, step, key)
            if start < origin.step:  # at FIRST whatever is stored is forgotten
                stored = jax.tree.map(lambda x, b=b: x[b], sample.trajectory.memory)
                jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), stored, memory)


@pytest.mark.parametrize("settings", [{}, {"n_step": 1}, {"n_step": 9, "double": False}, {"huber": None}])
def test_dqn_errors_are_the_papers(settings):
    made = dqn.Settings(hidden=(8,), batch=3, **{"n_step": 4} | settings)
    agent = dqn.dqn(SPEC, made)
    params = agent.init(jax.random.key(1))
    learner = agent.learners["dqn"]
    state = learner.init(params)
    target = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(2), x.shape), params["network"])
    full = a_sample(memory=())
    for begin in range(9 - made.n_step + 1):
        steps = jax.tree.map(lambda x, a=begin: x[:, a : a + made.n_step + 1], full.trajectory.timesteps)
        sample = full._replace(trajectory=full.trajectory._replace(timesteps=steps))
        _, _, feedback = jax.jit(learner.update)(state._replace(target=target), params, sample, jax.random.key(0))
        for b in range(3):
            own = jax.tree.map(lambda x, b=b: np.asarray(x[b]), steps)
            q, target_q = (plain_values(params | {"network": w}, own) for w in (params["network"], target))
            plain = r2d2.Settings(rescale=False, double=made.double, n_step=made.n_step, discount=made.discount)
            error, mask = reference(own, q, target_q, plain)
            np.testing.assert_allclose(feedback.priorities[b], abs(error[0]) * mask[0], rtol=1e-4, atol=1e-6)


def plain_values(params, timesteps):
    """Values [T, A] of time steps [T]."""
    net = q_network(SPEC, dqn.Settings(hidden=(8,)).options(), Heads(True, 0))
    return np.stack(
        [
            net.step(params["network"], (), jax.tree.map(lambda x, t=t: x[t], timesteps))[1]
            for t in range(len(timesteps.reward))
        ]
    )


def test_illegal_actions_are_never_best_and_never_tried():
    observation = {"seen": jnp.zeros((2, 1)), "legal": jnp.array([[False, True, True], [True, False, False]])}
    q = jnp.array([[9.0, 1.0, 2.0], [-5.0, 7.0, 8.0]])
    np.testing.assert_array_equal(best(q, q, observation), [2.0, -5.0])
    one = {"seen": jnp.zeros(1), "legal": jnp.array([False, True, True])}
    for epsilon in (0.0, 1.0):
        keys = jax.random.split(jax.random.key(0), 200)
        chosen = jax.vmap(lambda key, e=epsilon: explore(key, q[0], one, jnp.float32(e)))(keys)
        assert set(chosen.tolist()) == ({2} if epsilon == 0 else {1, 2})


def test_dqn_explores_less_and_less():
    made = dqn.Settings(hidden=(8,), batch=3, n_step=4, explore_for=0.5)
    agent = dqn.dqn(SPEC, made, total_updates=20)
    params = agent.init(jax.random.key(0))
    assert float(params["exploration"]) == 1.0
    learner = agent.learners["dqn"]
    state, update, seen = learner.init(params), jax.jit(learner.update), []
    sample = a_sample(memory=())
    sample = sample._replace(
        trajectory=sample.trajectory._replace(timesteps=jax.tree.map(lambda x: x[:, :5], sample.trajectory.timesteps))
    )
    for _ in range(12):
        state, owned, _ = update(state, params, sample, jax.random.key(0))
        params |= owned
        seen.append(float(params["exploration"]))
    np.testing.assert_allclose(seen[:10], 1 - 0.95 * np.arange(1, 11) / 10, rtol=1e-5)
    np.testing.assert_allclose(seen[10:], 0.05, rtol=1e-5)
    assert float(dqn.dqn(SPEC, made).init(jax.random.key(0))["exploration"]) == pytest.approx(0.05)


def test_annealing_ends_at_zero():
    made = r2d2.Settings(**SMALL | {"length": 9, "burn_in": 3, "period": 3, "optimizer": "sgd", "anneal": True})
    agent = r2d2.r2d2(SPEC, made, total_updates=2)
    params = agent.init(jax.random.key(0))
    learner = agent.learners["r2d2"]
    state, update, moved = learner.init(params), jax.jit(learner.update), []
    sample = a_sample(memory=remembered(agent, params))
    for _ in range(3):  # from the same parameters each time
        state, owned, _ = update(state, params, sample, jax.random.key(0))
        moved.append(optax.tree.norm(jax.tree.map(jnp.subtract, owned["network"], params["network"])))
    assert moved[0] > 0 and moved[2] == 0
    np.testing.assert_allclose(moved[1] / moved[0], 0.5, rtol=1e-3)


@pytest.mark.parametrize("name", ["r2d2", "dqn"])
def test_targets_are_copied_every_so_often(name):
    if name == "r2d2":
        agent, _ = an_agent(target_interval=3)
        params = agent.init(jax.random.key(0))
        sample = a_sample(memory=remembered(agent, params))
    else:
        agent = dqn.dqn(SPEC, dqn.Settings(hidden=(8,), batch=3, n_step=9, target_interval=3))
        params, sample = agent.init(jax.random.key(0)), a_sample(memory=())
    learner = agent.learners[name]
    state, update = learner.init(params), jax.jit(learner.update)
    for i in range(1, 8):
        before = state.target
        state, owned, _ = update(state, params, sample, jax.random.key(0))
        params |= owned
        expected = params["network"] if i % 3 == 0 else before
        jax.tree.map(np.testing.assert_array_equal, state.target, expected)


@pytest.mark.parametrize("module", [dqn, r2d2])
def test_continuous_actions_are_refused(module):
    box = Spec("box", Shape((2,), np.float32), Continuous((1,), -np.ones(1), np.ones(1)))
    with pytest.raises(ValueError, match="values of actions need discrete ones"):
        getattr(module, module.__name__.split(".")[-1])(box, module.Settings())


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"agent.burn_in must be at most agent.length 9 - 2, got 8"):
        an_agent(burn_in=8)
    with pytest.raises(ValueError, match="use r2d2"):
        dqn.dqn(SPEC, dqn.Settings(core="lstm"))


def test_updates_for_each_unroll_may_be_a_fraction():
    """Three of them after two unrolls: 4 environments, windows of 4 steps each, and 12 trained on of every 16."""
    environment = tmaze.make(length=3)
    settings = dqn.Settings(hidden=(4,), batch=8, unroll=4, minimum=8, replay_ratio=0.75, sampler="uniform")
    unit = anakin.make(dqn.dqn(environment.spec, settings), environment, 4)
    assert (unit.steps_per_iteration, unit.updates_per_iteration) == (2 * 4 * 4, 3)
    state = unit.init(jax.random.key(0), {})
    state, metrics = jax.jit(lambda state: jax.lax.scan(lambda state, _: unit.step(state), state, length=4))(state)
    np.testing.assert_array_equal(metrics["made"], 3)
    assert int(state.updates) == 12
