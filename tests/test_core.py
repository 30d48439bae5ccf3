"""The laws of acting, ownership, devices and bookkeeping."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from jax.sharding import PartitionSpec as P

from boonta.agents import ppo
from boonta.architectures import anakin
from boonta.core import acting, agent, devices, episodes, health
from boonta.core.environment import Environment, advance, check, proceed, start
from boonta.core.flat import ravel
from boonta.core.settings import Refused
from boonta.core.spec import Continuous, Discrete, Spec
from boonta.core.trees import batch_size, select
from boonta.core.types import FIRST, LAST, MID, Sample
from boonta.envs import catch
from boonta.envs.wrappers import time_limit

E, T = 4, 9
KINDS = {
    "feed-forward": {},
    "lstm": {"core": "lstm", "core_size": 4, "previous": True},
    "normalised": {"normalize_observations": True},
    "normalised lstm": {"normalize_observations": True, "core": "lstm", "core_size": 4},
}
kinds = pytest.mark.parametrize("kind", KINDS)


@cache
def environment():
    return catch.make(rows=4, columns=3)


@cache
def made(kind):
    """A PPO of plain SGD with a single step an update, and its parameters."""
    plain = {"optimizer": "sgd", "epochs": 1, "minibatches": 1, "max_grad_norm": 1e9}
    settings = ppo.Settings(body="mlp", hidden=(8,), unroll=T, batch=E, share=True, **plain, **KINDS[kind])
    made = ppo.ppo(environment().spec, settings)
    params = jax.jit(made.init)(jax.random.key(0))
    if "normalizer" in params:
        params["normalizer"] |= {"count": jnp.float32(20), "mean": params["normalizer"]["mean"] + 0.3}
    # Weights that matter: the policy's head starts close to zero.
    params["network"]["policy"] = jax.tree.map(lambda x: 30 * x, params["network"]["policy"])
    return made, params


@cache
def begun(kind):
    begin = partial(acting.begin, made(kind)[0], environment(), made(kind)[1], count=E, key=jax.random.key(1))
    return jax.jit(jax.vmap(lambda index: begin(index=index)))(jnp.arange(E, dtype=jnp.int32))


@cache
def unroll(kind):
    run = partial(acting.unroll, made(kind)[0], environment(), length=T, version=jnp.int32(3))
    return jax.jit(lambda params, actors: run(params=params, actors=actors))


@cache
def collected(kind):
    """Two unrolls in a row: actors before, between and after, trajectories, and sums of episodes."""
    params, actors = made(kind)[1], [begun(kind)]
    trajectories, finished = [], []
    for _ in range(2):
        after, trajectory, ended = unroll(kind)(params, actors[-1])
        actors.append(after)
        trajectories.append(trajectory)
        finished.append(ended)
    return actors, trajectories, finished


def numbers(tree):
    return jax.tree.map(
        lambda x: np.asarray(jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x), tree
    )


def equal(actual, expected):
    jax.tree.map(np.testing.assert_array_equal, numbers(actual), numbers(expected))


def close(actual, expected, tolerance=1e-6):
    def one(a, b):
        exact = not np.issubdtype(b.dtype, np.floating)
        np.testing.assert_allclose(a, b, rtol=0 if exact else tolerance, atol=0 if exact else tolerance)

    jax.tree.map(one, numbers(actual), numbers(expected))


# Acting


@pytest.mark.parametrize("kind", ["feed-forward", "normalised lstm"])
def test_many_environments_are_each_alone(kind):
    """Laws 1 and 3: one random key per environment, so company changes nothing."""
    actors, (together, _), _ = collected(kind)
    for i in range(E):
        one = jax.tree.map(lambda x, i=i: x[i : i + 1], actors[0])
        after, alone, _ = unroll(kind)(made(kind)[1], one)
        mine = jax.tree.map(lambda x, i=i: x[i : i + 1], (actors[1], together))
        equal(alone.timesteps, mine[1].timesteps)
        equal(alone.extras["sample"], mine[1].extras["sample"])
        close((after, alone), mine)


def test_no_key_is_used_twice():
    """Not by the run, an environment's lives, its resets, its memory, its steps or those who act in it."""
    keys = []
    for life in (0, 1):
        streams = acting.streams(jax.random.key(7), life)
        keys += [streams.actors, *([streams.params, streams.updates] if life == 0 else [])]
        own = jax.vmap(acting.own_keys, (None, 0))(streams.actors, jnp.arange(3))
        steps = [jnp.full(3, step) for step in range(5)]
        keys += [*own, *(made(own[0], step) for step in steps for made in (acting.act_keys, acting.step_keys))]
    numbers = np.concatenate([np.asarray(jax.random.key_data(key)).reshape(-1, 2) for key in keys])
    assert len({*map(tuple, numbers.tolist())}) == len(numbers) == 4 + 2 * 3 * (3 + 2 * 5)


def test_environments_differ():
    _, (trajectory, _), _ = collected("feed-forward")
    samples = np.asarray(trajectory.extras["sample"])
    assert len(np.unique(samples, axis=0)) == E


def test_an_environment_has_the_same_stream_whatever_their_number():
    """Its key comes from its own global index; only its rank depends on the others."""
    begin = partial(
        acting.begin, made("feed-forward")[0], environment(), made("feed-forward")[1], key=jax.random.key(1)
    )
    equal(begin(index=jnp.int32(2), count=99), jax.tree.map(lambda x: x[2], begun("feed-forward")))


def test_memory_is_told_the_rank():
    ranks = [
        float(acting.begin(remember_rank(), environment(), {}, jnp.int32(i), n, jax.random.key(0)).memory)
        for i, n in ((0, 1), (0, 5), (2, 5), (4, 5))
    ]
    assert ranks == [0.0, 0.0, 0.5, 1.0]


def remember_rank():
    return made("feed-forward")[0]._replace(memory=lambda params, rank, key: rank)


def test_after_last_comes_first_and_the_final_observation_is_kept():
    _, trajectories, _ = collected("feed-forward")
    kinds = np.concatenate([trajectories[0].timesteps.step_type[:, :-1], trajectories[1].timesteps.step_type], axis=1)
    expected = np.tile([FIRST, MID, MID, LAST], 2 * T)[: 2 * T + 1]
    np.testing.assert_array_equal(kinds, np.broadcast_to(expected, kinds.shape))
    timesteps = trajectories[0].timesteps
    seen, last = np.asarray(timesteps.observation[..., 0]), np.asarray(timesteps.step_type) == LAST
    # At the end ball and paddle are both in the last row, and it shows a catch just where the reward does.
    assert not seen[last][:, :-1].any()
    np.testing.assert_array_equal(seen[last][:, -1].sum(-1) == 1, np.asarray(timesteps.reward)[last] == 1)
    assert np.all(seen[np.asarray(timesteps.step_type) == FIRST][:, 0].any(-1))


def test_the_last_step_of_a_trajectory_is_the_first_of_the_next():
    actors, (first, second), _ = collected("lstm")
    equal(jax.tree.map(lambda x: x[:, -1], first.timesteps), jax.tree.map(lambda x: x[:, 0], second.timesteps))
    equal(actors[1].memory, second.memory)
    equal(actors[1].timestep, jax.tree.map(lambda x: x[:, 0], second.timesteps))


def test_origin_says_where_and_when():
    _, trajectories, _ = collected("feed-forward")
    for i, trajectory in enumerate(trajectories):
        origin = numbers(trajectory.origin)
        np.testing.assert_array_equal(origin.environment, np.arange(E))
        np.testing.assert_array_equal(origin.life, 0)
        np.testing.assert_array_equal(origin.step, i * T)
        np.testing.assert_array_equal(origin.version, 3)


def test_time_steps_come_back_with_the_action_taken():
    _, (trajectory, _), _ = collected("feed-forward")
    timesteps = numbers(trajectory.timesteps)
    taken = np.where(timesteps.step_type[:, 1:] == FIRST, 0, trajectory.extras["sample"])
    np.testing.assert_array_equal(timesteps.action[:, 1:], taken)


@kinds
def test_reanalysing_with_the_same_parameters_gives_the_same_extras(kind):
    """Law 2: the stored past is all that acting depends on. Bit for bit."""
    actors, trajectories, _ = collected(kind)
    agent_, params = made(kind)
    again = jax.jit(jax.vmap(partial(acting.reanalyse, agent_), (None, 0, 0, 0)))
    for before, after, trajectory in zip(actors[:-1], actors[1:], trajectories, strict=True):
        steps = trajectory.origin.step[:, None] + jnp.arange(T)
        keys = jax.vmap(acting.act_keys, (None, 1), 1)(before.key, steps)
        acted = jax.tree.map(lambda x: x[:, :-1], trajectory.timesteps)
        memory, extras = again(params, trajectory.memory, acted, keys)
        equal(extras, trajectory.extras)
        equal(memory, after.memory)


def test_reanalysing_with_newer_parameters_gives_other_values():
    actors, (trajectory, _), _ = collected("lstm")
    agent_, params = made("lstm")
    newer = params | {"network": jax.tree.map(lambda x: x + 0.1, params["network"])}
    acted = jax.tree.map(lambda x: x[:, :-1], trajectory.timesteps)
    keys = jax.vmap(lambda key: jax.random.split(key, T))(actors[0].key)
    again = jax.jit(jax.vmap(partial(acting.reanalyse, agent_), (None, 0, 0, 0)))
    _, extras = again(newer, trajectory.memory, acted, keys)
    assert not np.allclose(extras["value"], trajectory.extras["value"])


# Environments and time steps


def test_time_steps_of_an_episode():
    spec = Discrete(3)
    first = start(jnp.ones(2), spec)
    assert first.first() and not first.last()
    assert (first.reward, first.discount, first.action) == (0, 1, 0)
    for terminated, truncated, discount, kind in (
        (False, False, 1, MID),
        (True, False, 0, LAST),
        (False, True, 1, LAST),
        (True, True, 0, LAST),
    ):
        step = proceed(jnp.ones(2), jnp.int32(2), 0.5, terminated, truncated)
        assert (step.discount, step.step_type, step.action, step.reward) == (discount, kind, 2, 0.5)
        assert step.last() == (kind == LAST) and not step.first()
        assert [x.dtype for x in step[2:]] == [jnp.float32, jnp.float32, jnp.int8]
        assert [x.dtype for x in first] == [x.dtype for x in step]


def test_actions_of_nothing():
    box = Continuous((2, 3), np.zeros((2, 3), np.float32), np.ones((2, 3), np.float32))
    assert box.zero().shape == (2, 3) and box.zero().dtype == jnp.float32
    assert Discrete(4).zero().shape == () and Discrete(4).zero().dtype == jnp.int32
    np.testing.assert_allclose(box.scale(jnp.zeros((5, 6))), np.full((5, 2, 3), 0.5))


@pytest.mark.parametrize("limit", [2, 99])
def test_advancing_through_the_end(limit):
    """A time limit is LAST with discount 1, a true end LAST with discount 0; the action after either is ignored."""
    env = time_limit(environment(), limit)
    go = jax.jit(partial(advance, env))
    state, timestep = env.reset(jax.random.key(0))
    while not timestep.last():
        state, timestep = go(state, timestep, jnp.int32(1), jax.random.key(1))
    assert timestep.discount == (1.0 if limit == 2 else 0.0)
    fresh = [go(state, timestep, jnp.int32(action), jax.random.key(2)) for action in (0, 2)]
    equal(*fresh)
    _, first = fresh[0]
    assert first.first() and (first.action, first.reward, first.discount) == (0, 0, 1)


def test_select_and_batch_size():
    a, b = {"x": jnp.zeros((3, 2)), "k": jax.random.key(0)}, {"x": jnp.ones((3, 2)), "k": jax.random.key(1)}
    equal(select(jnp.bool_(True), a, b), a)
    equal(select(jnp.bool_(False), a, b), b)
    assert batch_size(a["x"]) == 3


# Episodes


@pytest.mark.parametrize("limit", [2, 99])
def test_episodes_are_those_of_plain_bookkeeping(limit):
    """Through the seams of unrolls; an episode that goes on counts later."""
    env = time_limit(environment(), limit)
    agent_, params = made("feed-forward")
    run = jax.jit(lambda a: acting.unroll(agent_, env, params, a, 5, jnp.int32(0)))
    begin = partial(acting.begin, agent_, env, params, count=E, key=jax.random.key(4))
    actors = jax.vmap(lambda index: begin(index=index))(jnp.arange(E, dtype=jnp.int32))
    total, length = np.zeros(E), np.zeros(E, int)
    for _ in range(3):
        actors, trajectory, finished = run(actors)
        returns, lengths = [], []
        for t in range(1, 6):
            step = jax.tree.map(lambda x, t=t: np.asarray(x[:, t]), trajectory.timesteps)
            first, last = step.step_type == FIRST, step.step_type == LAST
            total, length = np.where(first, 0, total + step.reward), np.where(first, 0, length + 1)
            returns += list(total[last])
            lengths += list(length[last])
        assert finished.count == len(returns) > 0
        report = episodes.summary(finished)
        np.testing.assert_allclose(report["episode/return_mean"], np.mean(returns), atol=1e-6)
        np.testing.assert_allclose(report["episode/return_std"], np.std(returns), atol=1e-3)
        np.testing.assert_allclose(report["episode/length_mean"], np.mean(lengths), atol=1e-6)
        equal(actors.episode, episodes.Episode(total.astype(np.float32), length.astype(np.int32)))


def test_sums_of_episodes_add_up():
    both = episodes.merge(episodes.Finished(*jnp.array([[1.0, 3.0, 0.0, 5.0], [1.0, 1.0, 0.0, 7.0]]).T))
    report = episodes.summary(both)
    assert [float(x) for x in report.values()] == [2.0, 1.0, 6.0, 2.0]
    far = np.random.default_rng(0).normal(10_000, 1, (8, 64)).astype(np.float32)  # squares would lose the spread
    ones = jnp.ones((8, 64))
    rows = jax.vmap(episodes.merge)(episodes.Finished(ones, jnp.asarray(far), 0 * ones, ones))
    np.testing.assert_allclose(episodes.summary(episodes.merge(rows))["episode/return_std"], far.std(), rtol=1e-2)
    none = episodes.summary(episodes.Finished(*jnp.zeros(4)))
    assert np.isnan(none["episode/return_mean"]) and none["episode/count"] == 0


def test_a_raveled_tree_comes_back():
    tree = {"a": jnp.arange(6.0).reshape(2, 3), "b": (jnp.float32(7.0), jnp.ones((2, 1)))}
    flat, unravel = ravel(tree)
    np.testing.assert_array_equal(flat, ravel_pytree(tree)[0])
    equal(unravel(flat), tree)


# Ownership


def with_learners(**owned):
    base, _ = made("feed-forward")
    return base._replace(
        learners={name: base.learners["ppo"]._replace(owns=owns, reads=()) for name, owns in owned.items()}
    )


def test_a_good_agent_passes():
    agent.check(*made("normalised lstm"))
    agent.check(with_learners(a=("network",), b=("settings",)), made("feed-forward")[1])


def test_a_group_has_one_owner():
    twice = with_learners(actor=("network",), critic=("network",))
    with pytest.raises(ValueError, match="'network' is owned by the learners 'actor' and 'critic'"):
        agent.check(twice, made("feed-forward")[1])


def test_groups_must_exist():
    with pytest.raises(ValueError, match=r"learner 'actor' names the groups \['policy'\]"):
        agent.check(with_learners(actor=("policy",)), made("feed-forward")[1])
    reader = made("feed-forward")[0]._replace(reads=("network", "rule"))
    with pytest.raises(ValueError, match=r"reads the groups \['rule'\]"):
        agent.check(reader, made("feed-forward")[1])


# Devices


OWN = P(devices.LEARNERS)


def on(mesh, function, specs=OWN, out=OWN):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=out, check_vma=False))


def test_alone_the_average_is_the_identity():
    tree = {"a": jnp.arange(3.0), "b": jnp.float32(2)}
    for same in (devices.average, devices.total):
        equal(same(tree), tree)
    assert devices.count() == 0 and devices.rank() == 0 and devices.lowest(jnp.int32(4)) == 4


def test_together_the_average_is_the_mean_over_learners():
    x = jnp.arange(8.0).reshape(4, 2)
    mesh = devices.mesh(jax.devices()[:4])
    tree = on(mesh, lambda x: devices.average({"x": x, "y": 2 * x[0, 0]}), out=P())(x)
    np.testing.assert_allclose(tree["x"][0], x.mean(0))
    np.testing.assert_allclose(tree["y"], 2 * x[:, 0].mean())
    np.testing.assert_allclose(on(mesh, devices.total, out=P())(x)[0], x.sum(0))
    np.testing.assert_allclose(on(mesh, devices.lowest, out=P())(x)[0], x.min(0))
    np.testing.assert_allclose(on(mesh, devices.gather, out=P())(x)[:, 0], x)
    np.testing.assert_array_equal(on(mesh, lambda x: x[:, 0] * 0 + devices.rank())(x), np.arange(4))
    np.testing.assert_array_equal(on(mesh, lambda x: x[:, 0] * 0 + devices.count())(x), 4)


def test_the_first_tensor_that_went_bad_is_named_on_several_devices():
    codes = jnp.array([0, 3, 1, 0])
    assert on(devices.mesh(jax.devices()[:4]), lambda x: health.everywhere(x[0]), out=P())(codes) == 1
    assert health.earliest(codes) == 1 and health.earliest(0 * codes) == 0


def test_gradients_under_the_average_are_those_of_the_whole_batch():
    """Law 4: neither summed nor scaled."""
    x = jnp.arange(8.0)
    mesh = devices.mesh(jax.devices()[:4])
    grad = on(mesh, lambda x: devices.average(jax.grad(lambda w: jnp.mean((w * x) ** 2))(2.0)), out=P())(x)
    np.testing.assert_allclose(grad, jax.grad(lambda w: jnp.mean((w * x) ** 2))(2.0))


def test_populations_do_not_meet():
    mesh = devices.mesh(jax.devices()[:8], population=2)
    assert dict(mesh.shape) == {"population": 2, "learners": 4}
    axes = P((devices.POPULATION, devices.LEARNERS))
    np.testing.assert_allclose(on(mesh, devices.average, axes, axes)(jnp.arange(8.0)), np.repeat([1.5, 5.5], 4))


def test_a_mesh_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="got 3 and 2"):
        devices.mesh(jax.devices()[:3], population=2)


# Health


def test_health_names_the_bad_tensor():
    tree = {"a": jnp.ones(3), "b": {"c": jnp.arange(4), "d": jnp.zeros((2, 2))}, "e": jnp.ones(())}
    names = health.names(tree)
    assert names == ["a", "b/d", "e"]
    assert jax.jit(health.first_bad)(tree) == 0
    for bad in (jnp.nan, jnp.inf, -jnp.inf):
        sick = tree | {"b": tree["b"] | {"d": tree["b"]["d"].at[1, 0].set(bad)}, "e": jnp.float32(bad)}
        assert names[health.first_bad(sick) - 1] == "b/d"


def test_integers_alone_are_healthy():
    assert health.first_bad({"board": jnp.arange(3)}) == 0


def test_infinities_of_both_signs_are_found():
    assert health.first_bad({"x": jnp.array([jnp.inf, -jnp.inf])}) == 1


# Settings and statistics in an update


@cache
def update(kind):
    return jax.jit(jax.vmap(made(kind)[0].learners["ppo"].update, (None, 0, None, None)))


def updated(kind, **settings):
    """One update for each of the settings' values, side by side."""
    agent_, params = made(kind)
    n = len(next(iter(settings.values()))) if settings else 1
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (n, *jnp.shape(x))), params)
    many["settings"] |= {name: jnp.asarray(values, jnp.float32) for name, values in settings.items()}
    sample = Sample(collected(kind)[1][1], jnp.ones(E), jnp.arange(E))
    state = agent_.learners["ppo"].init(params)
    return params, *update(kind)(state, many, sample, jax.random.key(5))


def test_the_step_size_is_a_parameter():
    """Law 7: three at once in one program, and plain SGD moves in proportion."""
    rates = [0.0, 1e-2, 2e-2]
    params, _, owned, feedback = updated("feed-forward", learning_rate=rates)
    np.testing.assert_allclose(feedback.metrics["loss/learning_rate"], rates)
    moved = [jax.tree.map(lambda x, y, i=i: x[i] - y, owned["network"], params["network"]) for i in range(3)]
    assert not any(np.any(x) for x in jax.tree.leaves(moved[0]))
    assert all(np.any(x) for x in jax.tree.leaves(moved[1]))
    close(jax.tree.map(lambda x: 2 * x, moved[1]), moved[2])
    assert "settings" not in owned


def test_anakin_starts_with_the_settings_it_is_told():
    unit = anakin.make(made("feed-forward")[0], environment(), E)
    state = jax.eval_shape(unit.init, jax.random.key(0), {"learning_rate": jnp.float32(0.5)})
    assert set(state.params["settings"]) == set(made("feed-forward")[1]["settings"])
    told = made("feed-forward")[1]["settings"] | {"learning_rate": jnp.float32(0.5)}
    ready = made("feed-forward")[0]._replace(init=lambda key: dict(made("feed-forward")[1]))
    unit = anakin.make(ready, environment(), E)
    equal(unit.init(jax.random.key(0), {"learning_rate": jnp.float32(0.5)}).params["settings"], told)


@kinds
def test_the_first_importance_ratio_is_one(kind):
    """Law 8: an update normalises with the old statistics and writes the new ones last."""
    params, _, owned, feedback = updated(kind)
    assert abs(float(feedback.metrics["loss/kl"][0])) < 1e-6
    assert feedback.metrics["loss/clipped"][0] == 0
    if "normalizer" in params:
        assert owned["normalizer"]["count"][0] == 20 + E * T
        assert not np.allclose(owned["normalizer"]["mean"][0], params["normalizer"]["mean"])


def test_annealing_ends_at_zero():
    plain = ppo.Settings(
        body="mlp", hidden=(8,), unroll=T, batch=E, share=True, optimizer="sgd", epochs=1, minibatches=1
    )
    agent_ = ppo.ppo(environment().spec, plain, total_updates=4)
    _, params = made("feed-forward")
    sample = Sample(collected("feed-forward")[1][0], jnp.ones(E), jnp.arange(E))
    run = jax.jit(agent_.learners["ppo"].update)
    state, rates = agent_.learners["ppo"].init(params), []
    for _ in range(5):
        state, _, feedback = run(state, params, sample, jax.random.key(0))
        rates.append(float(feedback.metrics["loss/learning_rate"]))
    np.testing.assert_allclose(
        np.array(rates) / float(params["settings"]["learning_rate"]), [1, 0.75, 0.5, 0.25, 0], atol=1e-6
    )


@pytest.mark.parametrize(("shape", "dtype"), [((3,), jnp.float32), ((2,), jnp.int32)])
@pytest.mark.parametrize("which", ["reset", "step"])
def test_observations_are_held_to_the_spec(which, shape, dtype):
    spec = Spec("corridor", jax.ShapeDtypeStruct((2,), jnp.float32), Discrete(2))
    right, wrong = jnp.zeros(2), jnp.zeros(shape, dtype)

    def reset(key):
        return (), start(wrong if which == "reset" else right, spec.action)

    def step(state, action, key):
        return (), proceed(wrong if which == "step" else right, action, 0.0, False)

    told = rf"corridor: {which} returns the observation {np.dtype(dtype).name}\[{shape[0]}\], but .* float32\[2\]"
    with pytest.raises(Refused, match=told):
        check(Environment(spec, reset, step))
