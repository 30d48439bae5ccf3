"""MuZero and AlphaZero: the contract on its variants, what the loss may look at, and targets that are made anew."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta import envs
from boonta.agents import alphazero, muzero, planning
from boonta.architectures import anakin
from boonta.core import acting
from boonta.core.types import MID, Sample
from boonta.envs import catch, pgx, wrappers
from boonta.testing import AgentContract
from tests.marks import full, in_full, slow

pytestmark = slow

TINY = {"body": "mlp", "width": 16, "head": 8, "simulations": 4, "unroll_steps": 2, "n_step": 3, "batch": 4}
PLAIN = {"optimizer": "sgd", "learning_rate": 1.0, "max_grad_norm": 1e9}


def made(environment, **settings):
    return muzero.muzero(environment.spec, muzero.Settings(**TINY | settings)), environment


class MuZeroContract(AgentContract):
    of_the_action = ("policy",)  # of a search at an episode's end
    rounding = 1e-3


def decided(agent, environment):
    """The agent with a network that tells states apart: what an untrained one says of them differs by little more than
    rounding, and searches look at differences."""

    def init(key):
        params = agent.init(key)
        networks = {name: params[name] for name in ("network", "target") if name in params}
        return params | jax.tree.map(lambda x: 10 * x, networks)

    return agent._replace(init=init), environment


class TestMuZero(MuZeroContract):
    one_device_is_two = True

    def make(self):
        losses = {"consistency_coefficient": 2.0, "sampler": "prioritized"}
        return decided(*made(catch.make(rows=4, columns=3), roots=4, **losses, **PLAIN))


@full
class TestMuZeroWithItsOwnSearch(MuZeroContract):
    def make(self):
        return decided(*made(pgx.make("tic_tac_toe"), search="puct", roots=9, history=3, target_interval=10))


@full
class TestMuZeroWithADummyAction(MuZeroContract):
    one_device_is_two = True

    def make(self):
        return decided(*made(pgx.make("tic_tac_toe"), beyond="dummy", roots=9, history=0, explore=0.5, **PLAIN))


@full
class TestMuZeroResidual(MuZeroContract):
    """Batch normalisation is over a device's own batch, so two devices differ from one."""

    def make(self):
        small = {"body": "resnet", "channels": 4, "blocks": (1, 0, 0), "norm": "batch"}
        return decided(*made(catch.make(rows=4, columns=3), roots=4, temperature_moves=2, **small))


def zero(environment, **settings):
    known = {key: value for key, value in TINY.items() if key != "unroll_steps"}
    return alphazero.alphazero(environment.spec, alphazero.Settings(**known | {"layers": (1,)} | settings)), environment


class TestAlphaZero(MuZeroContract):
    one_device_is_two = True

    def make(self):
        return decided(*zero(envs.make("pgx:tic_tac_toe", model=True), roots=9, sampler="ranked", **PLAIN))


@full
class TestAlphaZeroResidual(MuZeroContract):
    def make(self):
        small = {"body": "resnet", "channels": 4, "blocks": (1,), "norm": "batch", "search": "puct"}
        return decided(*zero(envs.make("pgx:tic_tac_toe", model=True), roots=9, **small))


def collected(agent, environment, envs, length):
    params = jax.jit(agent.init)(jax.random.key(0))
    begin = jax.vmap(lambda i: acting.begin(agent, environment, params, i, envs, jax.random.key(1)))
    actors = jax.jit(begin)(jnp.arange(envs))
    unroll = jax.jit(lambda params, actors: acting.unroll(agent, environment, params, actors, length, jnp.int32(0)))
    return params, unroll(params, actors)[1]


def plain(maker):
    """Settings without what hides a gradient, and without past observations."""
    return PLAIN | ({"history": 0} if maker is made else {})


@cache
def learning(maker=made):
    """A small agent, its parameters, what four environments made with them, and its update compiled."""
    environment = envs.make("pgx:tic_tac_toe", model=True) if maker is zero else catch.make(rows=4, columns=3)
    agent, _ = maker(environment, **plain(maker))
    (learner,) = agent.learners.values()
    params, trajectory = collected(agent, environment, 4, learner.experience.length)
    return environment, learner, params, trajectory, jax.jit(learner.update)


def whole(trajectory):
    n = len(trajectory.origin.life)
    return Sample(trajectory, jnp.ones(n), (jnp.zeros(n), jnp.zeros(n)))


def test_steps_after_an_end_do_not_reach_the_loss():
    """Another episode's rewards, policies and values change nothing for the roots before it."""
    _, learner, params, trajectory, update = learning()
    last = np.asarray(trajectory.timesteps.last())
    assert last[:, 2].all() or last[:, 3].all()  # catch ends after rows - 1 steps, all at once
    end = int(np.argmax(last[0]))
    later = jnp.arange(last.shape[1]) > end
    timesteps = trajectory.timesteps._replace(reward=jnp.where(later, 9.0, trajectory.timesteps.reward))
    extras = {"policy": jnp.where(later[:-1, None], 0.5, trajectory.extras["policy"])}
    extras["value"] = jnp.where(later[:-1], 9.0, trajectory.extras["value"])
    altered = trajectory._replace(timesteps=timesteps, extras=extras)
    state = learner.init(params)
    updates = [update(state, params, whole(one), jax.random.key(2)) for one in (trajectory, altered)]
    jax.tree.map(np.testing.assert_array_equal, updates[0][1], updates[1][1])


@pytest.mark.parametrize("maker", [made, *in_full(zero)])
def test_windows_count_by_their_importance(maker):
    """One of weight 0 not at all."""
    _, learner, params, trajectory, update = learning(maker)
    others = jnp.arange(4) > 0
    policy = trajectory.extras["policy"]
    extras = trajectory.extras | {"policy": jnp.where(others[:, None, None], jnp.roll(policy, 1, -1), policy)}
    state, found = learner.init(params), []
    for weights in (~others * 1.0, jnp.ones(4)):
        for one in (trajectory, trajectory._replace(extras=extras)):
            sample = whole(one)._replace(weights=weights)
            found.append(jax.tree.leaves(update(state, params, sample, jax.random.key(0))[1]["network"]))
    assert all(np.array_equal(a, b) for a, b in zip(found[0], found[1], strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(found[2], found[3], strict=True))


def test_the_network_that_acts_is_copied_every_so_often():
    agent, environment = made(catch.make(rows=4, columns=3), target_interval=3)
    (learner,) = agent.learners.values()
    params, trajectory = collected(agent, environment, 4, learner.experience.length)
    state, update = learner.init(params), jax.jit(learner.update)
    for i in range(1, 5):
        before = params["target"]
        state, owned, _ = update(state, params, whole(trajectory), jax.random.key(0))
        params |= owned
        newest = {name: params[name] for name in ("network", "statistics")}
        assert any(not np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (newest, before)), strict=True))
        jax.tree.map(np.testing.assert_array_equal, params["target"], newest if i == 3 else before)


def test_the_dummy_action_is_not_taken_while_the_game_is_on():
    agent, environment = made(pgx.make("tic_tac_toe"), beyond="dummy")
    _, trajectory = collected(agent, environment, 8, 24)
    on = ~np.asarray(trajectory.timesteps.last()[:, :-1])
    assert np.all(np.asarray(trajectory.timesteps.action) < 9)
    assert np.all(np.asarray(trajectory.extras["policy"])[on][:, 9] == 0)


@pytest.mark.parametrize("maker", [made, *in_full(zero)])
def test_a_search_at_a_time_limit_takes_no_illegal_action(maker):
    agent, environment = maker(wrappers.time_limit(envs.make("pgx:tic_tac_toe", model=maker is zero), 3))
    _, trajectory = collected(agent, environment, 8, 8)
    timesteps = jax.tree.map(lambda x: x[:, :-1], trajectory.timesteps)
    cut = np.asarray(timesteps.last() & (timesteps.discount != 0))
    assert cut.sum() >= 8
    policy, board = np.asarray(trajectory.extras["policy"])[cut], np.asarray(timesteps.observation["board"])[cut]
    assert np.all(policy[board.any(-1).reshape(len(board), 9)] == 0)


def test_rewards_losses_may_be_averaged_as_values_are():
    """K = 2: half of the sums of reward and turn, and everything else as it was."""
    environment, learner, params, trajectory, update = learning()
    averaging = made(environment, average_reward_loss=True, **plain(made))[0].learners["muzero"]
    losses = [
        one(learner.init(params), params, whole(trajectory), jax.random.key(0))[2].metrics
        for one in (update, jax.jit(averaging.update))
    ]
    for name in ("loss/policy", "loss/value"):
        np.testing.assert_array_equal(losses[0][name], losses[1][name])
    for name in ("loss/reward", "loss/turn"):
        np.testing.assert_allclose(losses[1][name], losses[0][name] / 2, rtol=1e-5)


@pytest.mark.parametrize("maker", [made, *in_full(zero)])
def test_the_share_of_clipped_values_is_reported(maker):
    """Of returns of 20 none with the default support, all with one that ends at 4.6."""
    environment, _, _, trajectory, _ = learning(maker)
    going_on = trajectory.timesteps._replace(
        step_type=jnp.full_like(trajectory.timesteps.step_type, MID),
        discount=jnp.ones(trajectory.timesteps.discount.shape),
    )
    extras = trajectory.extras | {"value": jnp.full_like(trajectory.extras["value"], 20.0)}
    trajectory = trajectory._replace(timesteps=going_on, extras=extras)
    for limit, share in ((5.0, 0.0), (1.5, 1.0)):
        agent, _ = maker(environment, support_limit=limit, **plain(maker))
        (learner,) = agent.learners.values()
        params = jax.jit(agent.init)(jax.random.key(0))
        _, _, feedback = jax.jit(learner.update)(learner.init(params), params, whole(trajectory), jax.random.key(0))
        np.testing.assert_allclose(feedback.metrics["value/clipped_share"], share)


def test_a_norm_without_running_state_has_no_statistics():
    for norm, there in (("layer", False), ("none", False), ("batch", True)):
        agent, _ = made(catch.make(), norm=norm)
        assert bool(agent.init(jax.random.key(0))["statistics"]) == there


@pytest.mark.parametrize("agent", [made, zero])
def test_actions_must_be_discrete(agent):
    with pytest.raises(ValueError, match="discrete actions, but gymnax:Pendulum-v1 has continuous"):
        agent(envs.make("gymnax:Pendulum-v1"))


def test_alphazero_needs_a_model():
    with pytest.raises(ValueError, match=r"boonta:catch needs env.model=true"):
        zero(catch.make())
    with pytest.raises(
        ValueError, match=r"gym:CartPole-v1 does not compile, so agents cannot plan with the game itself"
    ):
        envs.make("gym:CartPole-v1", model=True)


def test_alphazero_sees_a_win_with_any_network():
    """One move wins, and a search of the true game finds it."""
    environment = envs.make("pgx:tic_tac_toe", model=True)
    agent, _ = zero(environment, simulations=64)
    state, timestep = environment.reset(jax.random.key(0))
    for action in (0, 3, 1, 4):  # three in a row by 2
        state, timestep = environment.step(state, jnp.int32(action), jax.random.key(0))
    params = agent.init(jax.random.key(0))
    _, action, extras = jax.jit(agent.exploit)(params, agent.memory(params, 0, None), timestep, jax.random.key(0))
    assert action == 2 and extras["value"] > 0.3


def test_a_greedy_search_may_look_further():
    agent, environment = made(catch.make(rows=4, columns=3), simulations=4, simulations_greedy=9)
    params = agent.init(jax.random.key(0))
    _, timestep = environment.reset(jax.random.key(0))
    inputs = params, agent.memory(params, 0, None), timestep, jax.random.key(0)
    _, _, greedy = agent.exploit(*inputs)
    assert greedy["tree"].visits.shape == (10,)
    assert np.sum(greedy["tree"].visits > 0) == 10


def test_blocks_are_three_numbers():
    with pytest.raises(ValueError, match=r"agent.blocks must be three numbers, of .*, got \[1, 2\]"):
        made(catch.make(), blocks=(1, 2))


SMALL = {"batch": 8, "unroll": 4, "capacity": 256, "minimum": 8, "temperature": 0.0, "replay_ratio": 1.0}


def anakin_of(*steps, **settings):
    """A unit's states after so many iterations each."""
    agent, environment = made(catch.make(rows=4, columns=3), **SMALL | settings)
    unit = anakin.make(agent, environment, 8)
    state, step = jax.jit(lambda key: unit.init(key, {}))(jax.random.key(0)), jax.jit(unit.step)
    for i in range(max(steps) + 1):
        if i in steps:
            yield state
        state, metrics = step(state)
    yield metrics


def test_what_is_acted_on_again_has_what_the_newest_parameters_say_of_it():
    after, metrics = anakin_of(6, learning_rate=1e-2, reanalyse=0.75)
    agent, _ = made(catch.make(rows=4, columns=3), **SMALL)
    pieces = after.replays["muzero"].pieces
    renewed = np.flatnonzero(pieces.origin.version == np.max(pieces.origin.version))
    past = jax.tree.map(lambda x: x[renewed], pieces)
    again = jax.jit(jax.vmap(partial(acting.reanalyse, agent, after.params)))
    _, extras = again(past.memory, past.timesteps, jax.random.split(jax.random.key(0), past.timesteps.reward.shape))
    assert metrics["replay/reanalysed"] > 0.5 and len(renewed) > 4 and np.std(extras["value"]) > 5e-3
    for name in ("policy", "value"):
        np.testing.assert_allclose(past.extras[name], extras[name], atol=1e-3)


@full
def test_the_same_parameters_find_again_what_they_found():
    """Searches without chance, by frozen parameters: the targets that are renewed are those that were there."""
    before, _ = anakin_of(6, learning_rate=0.0, l2_coefficient=0.0, reanalyse=0.0)
    again, metrics = anakin_of(6, learning_rate=0.0, l2_coefficient=0.0, reanalyse=0.75)
    assert metrics["replay/reanalysed"] > 0.5
    for name in ("policy", "value"):
        old, new = (state.replays["muzero"].pieces.extras[name] for state in (before, again))
        np.testing.assert_allclose(new, old, atol=1e-3)


@full
def test_newer_parameters_renew_the_targets():
    before, _ = anakin_of(6, learning_rate=1e-2, reanalyse=0.0)
    again, _ = anakin_of(6, learning_rate=1e-2, reanalyse=0.75)
    old, new = (np.asarray(state.replays["muzero"].pieces.extras["value"]) for state in (before, again))
    there = np.asarray(before.replays["muzero"].generation) > 0
    assert np.mean(np.abs(new - old)[there] > 1e-3) > 0.3
    # What was done before anything could be learned from newer targets: the first two pieces of 8 environments.
    actions = [state.replays["muzero"].pieces.timesteps.action[:16] for state in (before, again)]
    np.testing.assert_array_equal(*actions)


@full
def test_a_large_batch_of_experience_makes_several_updates_in_a_row():
    """On-policy, an iteration of 8 environments and batches of 2 is four plain updates, one after the other."""
    environment = catch.make(rows=4, columns=3)
    agent, _ = made(environment, batch=2, capacity=0, roots=4, **PLAIN | {"learning_rate": 0.1})
    learner, unit = agent.learners["muzero"], anakin.make(agent, environment, 8)
    assert unit.updates_per_iteration == 4
    state = jax.jit(lambda key: unit.init(key, {}))(jax.random.key(0))
    after, _ = jax.jit(unit.step)(state)
    length = learner.experience.length
    _, trajectory, _ = acting.unroll(agent, environment, state.params, state.actors, length, jnp.int32(0))
    params, private = state.params, state.learners["muzero"]
    for i in range(4):
        part = jax.tree.map(lambda x, i=i: x[2 * i : 2 * i + 2], trajectory)
        private, owned, _ = jax.jit(learner.update)(private, params, whole(part), jax.random.key(0))
        params = params | owned
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), after.params, params)


@pytest.mark.parametrize(("maker", "blocks"), [(zero, (1,)), *in_full((made, (1, 0, 0)))])
def test_a_gradient_made_in_blocks_is_that_of_the_whole_batch(maker, blocks, monkeypatch):
    environment = envs.make("pgx:tic_tac_toe", model=maker is zero)
    agent, _ = maker(environment, body="resnet", channels=4, blocks=blocks, **PLAIN)
    (learner,) = agent.learners.values()
    params, trajectory = collected(agent, environment, 8, learner.experience.length)
    found = []
    for rows in (8, 2):
        monkeypatch.setattr(planning, "GRADIENT_ROWS", rows)
        update = jax.jit(lambda *inputs: learner.update(*inputs))  # anew: the rows are read when it is traced
        _, improved, feedback = update(learner.init(params), params, whole(trajectory), jax.random.key(2))
        found.append((improved["network"], feedback.metrics))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *found)
