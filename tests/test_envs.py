"""Our own environments: the contract, and the returns that their docstrings promise."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta.core.environment import advance
from boonta.core.spec import Discrete
from boonta.core.types import LAST
from boonta.envs import catch, chain, gridworld, memory, probes, tmaze
from boonta.testing import EnvironmentContract

SMALL: dict[str, Any] = {"objects": [(2, 1.0, 0.0, 0.5), (1, -1.0, 0.5, 0.0)], "height": 4, "width": 3, "limit": 20}


class TestCatch(EnvironmentContract):
    def make(self):
        return catch.make(rows=6, columns=4, width=3)


class TestChain(EnvironmentContract):
    def make(self):
        return chain.make(length=4, noise=1.0, distractors=3)


class TestMemory(EnvironmentContract):
    def make(self):
        return memory.make(length=3)


class TestTMaze(EnvironmentContract):
    def make(self):
        return tmaze.make(length=3)


class TestGridworldVector(EnvironmentContract):
    def make(self):
        return gridworld.make(**SMALL)


class TestGridworldIndex(EnvironmentContract):
    def make(self):
        return gridworld.make(**SMALL, observation="index", actions=5)


class TestGridworldImage(EnvironmentContract):
    def make(self):
        return gridworld.make(**SMALL, walls=["....", ".##.", "...."], observation="image", random=True)


class TestProbeValue(EnvironmentContract):
    def make(self):
        return probes.value()


class TestProbeContext(EnvironmentContract):
    def make(self):
        return probes.context()


class TestProbeDiscount(EnvironmentContract):
    def make(self):
        return probes.discount()


class TestProbeReach(EnvironmentContract):
    def make(self):
        return probes.reach(size=2)


def returns(environment, policy, steps, episodes=2000):
    """The first episode's return of `episodes` environments, float32; they must all end within `steps`.

    `policy` maps (the first observation, the last one, the time, a key) to an action.
    """

    def play(key):
        reset_key, key = jax.random.split(key)
        state, first = environment.reset(reset_key)

        def body(carry, inputs):
            state, timestep, total, over = carry
            key, t = inputs
            act_key, step_key = jax.random.split(key)
            action = policy(first.observation, timestep.observation, t, act_key)
            state, timestep = advance(environment, state, timestep, action, step_key)
            return (state, timestep, total + timestep.reward * ~over, over | timestep.last()), None

        carry = (state, first, jnp.zeros(()), jnp.array(False))
        carry, _ = jax.lax.scan(body, carry, (jax.random.split(key, steps), jnp.arange(steps)))
        return carry[2:]

    total, over = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), episodes))
    assert np.all(over)
    return np.asarray(total)


def uniformly(n):
    return lambda first, observation, t, key: jax.random.randint(key, (), 0, n)


def test_catch_pays_what_it_says():
    environment = catch.make()

    def follow(first, observation, t, key):
        ball = jnp.argmax(jnp.any(observation[:-1, :, 0], axis=0))
        paddle = jnp.argmax(observation[-1, :, 0])
        return jnp.sign(ball - paddle) + 1

    assert np.all(returns(environment, follow, 9) == 1)
    assert np.mean(returns(environment, uniformly(3), 9)) == pytest.approx(-0.6, abs=0.06)


def test_chain_pays_for_the_first_action_alone():
    environment = chain.make(length=5)
    for first_action in (0, 1):
        paid = returns(
            environment, lambda first, observation, t, key, a=first_action: jnp.where(t == 0, a, 1 - a), 5, episodes=8
        )
        assert np.all(paid == 2 * first_action - 1)
    noisy = returns(chain.make(length=5, noise=1.0), lambda first, observation, t, key: 1, 5)
    assert np.mean(noisy) == pytest.approx(1, abs=0.2) and np.std(noisy) == pytest.approx(2, abs=0.2)


def test_memory_needs_the_first_observation():
    environment = memory.make(length=4)
    assert np.all(returns(environment, lambda first, observation, t, key: (first[2] > 0).astype(int), 5) == 1)
    assert np.mean(returns(environment, lambda first, observation, t, key: 1, 5)) == pytest.approx(0, abs=0.08)
    assert np.mean(returns(environment, uniformly(2), 5)) == pytest.approx(0, abs=0.08)


def test_memory_shows_the_bit_once_and_asks_at_the_end():
    environment = memory.make(length=2)
    state, timestep = environment.reset(jax.random.key(0))
    seen = [timestep.observation]
    for _ in range(2):
        state, timestep = environment.step(state, jnp.int32(0), jax.random.key(0))
        seen.append(timestep.observation)
    assert abs(seen[0][2]) == 1
    np.testing.assert_array_equal(np.stack(seen)[:, :2], [[1, 0], [0.5, 0], [0, 1]])
    np.testing.assert_array_equal(np.stack(seen)[1:, 2], 0)


def test_tmaze_pays_what_it_says():
    environment = tmaze.make(length=6)

    def to_the_junction(turn):
        def policy(first, observation, t, key):
            return jnp.where(observation[1] * (1 - observation[0]) * (1 - observation[2]) == 1, turn(first), 1)

        return policy

    knows = returns(environment, to_the_junction(lambda first: jnp.where(first[0] == 0, 0, 2)), 7)
    assert np.all(knows == 1)
    guesses = returns(environment, to_the_junction(lambda first: 0), 7)
    assert np.mean(guesses) == pytest.approx(0.45, abs=0.04)
    assert np.mean(returns(tmaze.make(), uniformly(4), 44)) == pytest.approx(-2.49, abs=0.1)


def test_tmaze_time_limit_is_no_termination():
    environment = tmaze.make(length=2, limit=3)
    state, timestep = environment.reset(jax.random.key(0))
    for _ in range(3):
        state, timestep = environment.step(state, jnp.int32(3), jax.random.key(0))
        assert timestep.reward == np.float32(-0.1)
    assert timestep.last() and timestep.discount == 1


def test_probes_pay_what_they_say():
    assert np.all(returns(probes.value(reward=3.0), uniformly(2), 1, episodes=8) == 3)
    assert np.all(returns(probes.discount(length=3), uniformly(2), 3, episodes=8) == 1)
    look = returns(probes.context(), lambda first, observation, t, key: (observation[0] > 0).astype(int), 1)
    assert np.all(look == 1)
    assert np.mean(returns(probes.context(), lambda *_: 1, 1)) == pytest.approx(0, abs=0.08)
    assert np.all(returns(probes.reach(), lambda first, observation, t, key: observation, 1) == 0)
    blind = returns(probes.reach(), lambda first, observation, t, key: jnp.zeros(1), 1)
    assert np.mean(blind) == pytest.approx(-1 / 3, abs=0.03)


def corridor(limit=100, **settings):
    """A gridworld of two cells, the object in the one and the agent at the start in the other."""
    return gridworld.make(height=1, width=2, limit=limit, actions=5, **settings)


def towards(environment, state):
    """The action that leads to the only object of a corridor."""
    return jnp.where(state.objects[0] > state.agent, 2, 4)


def test_gridworld_termination_and_respawn_have_their_probabilities():
    environment = corridor(objects=[(1, 2.0, 0.3, 0.2)])

    def play(key):
        reset_key, step_key, wait_key = jax.random.split(key, 3)
        state, _ = environment.reset(reset_key)
        state, timestep = environment.step(state, towards(environment, state), step_key)
        waited, next_timestep = environment.step(state, jnp.int32(0), wait_key)
        return timestep, state.present[0], waited.present[0], next_timestep.reward

    timestep, present, back, reward = jax.jit(jax.vmap(play))(jax.random.split(jax.random.key(0), 5000))
    assert np.all(timestep.reward == 2) and not np.any(present) and np.all(reward == 0)
    assert np.mean(timestep.discount == 0) == pytest.approx(0.3, abs=0.03)
    np.testing.assert_array_equal(timestep.discount == 0, timestep.step_type == LAST)
    assert np.mean(back) == pytest.approx(0.2, abs=0.03)


def test_gridworld_walls_and_border_stop_the_agent():
    environment = gridworld.make(walls=["...", ".#.", "..."], objects=[(1, 1.0, 0.0, 0.0)], observation="image")
    state, timestep = environment.reset(jax.random.key(0))
    assert timestep.observation.shape == (3, 3, 3)
    np.testing.assert_array_equal(np.argwhere(timestep.observation[..., 1]), [[1, 1]])
    places = {"corner": 0, "left": 3, "right": 5}
    # Stay, up, right, down, left, then the corners from the upper right on, clockwise.
    wanted = {
        "corner": [0, 0, 1, 3, 0, 0, 0, 0, 0],
        "left": [3, 0, 3, 6, 3, 1, 7, 3, 3],
        "right": [5, 2, 5, 8, 5, 5, 5, 7, 1],
    }
    step = jax.jit(environment.step)
    for name, cell in places.items():
        at = state._replace(agent=jnp.int32(cell))
        reached = [int(step(at, jnp.int32(a), jax.random.key(0))[0].agent) for a in range(9)]
        assert reached == wanted[name], name


def test_gridworld_time_limit_is_no_termination():
    environment = corridor(objects=[(1, 1.0, 0.0, 0.0)], limit=2)
    state, _ = environment.reset(jax.random.key(0))
    state, timestep = environment.step(state, jnp.int32(0), jax.random.key(0))
    assert not timestep.last()
    _, timestep = environment.step(state, jnp.int32(0), jax.random.key(0))
    assert timestep.last() and timestep.discount == 1
    _, timestep = corridor(objects=[(1, 1.0, 1.0, 0.0)], limit=2).step(
        state, towards(environment, state), jax.random.key(0)
    )
    assert timestep.last() and timestep.discount == 0


def test_gridworld_places_objects_apart_and_anew_only_when_random():
    keys = jax.random.split(jax.random.key(0), 50)
    for random in (False, True):
        state, _ = jax.jit(jax.vmap(gridworld.make(**SMALL, observation="image", random=random).reset))(keys)
        cells = np.concatenate([state.agent[:, None], state.objects], axis=1)
        assert all(len(set(row)) == 4 for row in cells.tolist())
        assert (len(np.unique(state.objects, axis=0)) > 1) is random


def test_gridworld_index_numbers_every_state_once():
    environment = gridworld.make(**SMALL, observation="index")
    state, _ = environment.reset(jax.random.key(0))
    step = jax.jit(environment.step)
    seen = set()
    for cell in range(12):
        if cell in np.asarray(state.objects):
            continue
        for bits in range(8):
            at = state._replace(agent=jnp.int32(cell), present=jnp.array([bits >> i & 1 for i in range(3)], bool))
            after, timestep = step(at, jnp.int32(0), jax.random.key(0))
            bits = sum(int(p) << i for i, p in enumerate(after.present))
            assert timestep.observation == cell + 12 * bits
            seen.add(int(timestep.observation))
    assert max(seen) < 12 * 8


@pytest.mark.parametrize("preset", gridworld.PRESETS)
def test_gridworld_presets_are_made(preset):
    spec = gridworld.make(preset=preset).spec
    base = gridworld.PRESETS[preset]
    assert spec.observation.shape == (base.height * base.width + sum(row[0] for row in base.objects),)
    assert spec.action == Discrete(9)


@pytest.mark.parametrize(
    ("make", "settings", "message"),
    [
        (catch.make, {"rows": 1}, "rows must be at least 2, got 1"),
        (catch.make, {"width": 2}, "width must be odd and at least 1, got 2"),
        (chain.make, {"length": 0}, "length must be at least 1, got 0"),
        (memory.make, {"length": 0}, "length must be at least 1, got 0"),
        (tmaze.make, {"length": 5, "limit": 5}, "limit must be more than the length, 5, got 5"),
        (probes.reach, {"size": 0}, "size must be at least 1, got 0"),
        (gridworld.make, {"preset": "spare"}, "did you mean 'sparse'"),
        (gridworld.make, {"observation": "images"}, "did you mean 'image'"),
        (gridworld.make, {"random": True}, "observation must be 'image' when objects are placed at random"),
        (gridworld.make, {"actions": 4}, "actions must be 5 or 9, got 4"),
        (gridworld.make, {"height": 2, "width": 2}, "objects must be fewer than the 4 free cells, got 4"),
        (gridworld.make, {"objects": [(1, 1.0, 2.0, 0.0)]}, "objects must be rows of"),
        (gridworld.make, {"walls": ["..", "."]}, "walls must be strings of one length"),
    ],
)
def test_settings_out_of_range_are_refused(make, settings, message):
    with pytest.raises(ValueError, match=message):
        make(**settings)
