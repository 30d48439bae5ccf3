"""Targets of a model: against a slow reference that walks step by step, through ends, time limits and turns."""

import jax.numpy as jnp
import numpy as np
import pytest

from boonta.core.types import FIRST, LAST, MID, TimeStep
from boonta.ops.imagined import TURNS, search_returns, unroll_targets

T, K, ACTIONS, GAMMA = 30, 5, 3, 0.9


def stream(seed, turns=False):
    """Steps of episodes of 1 to 6 actions, half of which a time limit ends; and what searches said of each."""
    random = np.random.default_rng(seed)
    kinds, discounts = [], []
    while len(kinds) < T + 1:
        n = random.integers(1, 7)
        kinds += [FIRST, *[MID] * (n - 1), LAST]
        middle = random.choice([1.0, -1.0], n - 1) if turns else np.ones(n - 1)
        discounts += [1.0, *middle, random.choice([0.0, 1.0])]
    skip = random.integers(0, 4)
    kinds, discounts = np.asarray(kinds * 2)[skip:][: T + 1], np.asarray(discounts * 2, np.float32)[skip:][: T + 1]
    reward = np.where(kinds == FIRST, 0.0, random.normal(size=T + 1)).astype(np.float32)
    action = random.integers(0, ACTIONS, T + 1).astype(np.int32)
    timesteps = TimeStep(np.zeros(T + 1), action, reward, discounts, kinds.astype(np.int8))
    policy = random.dirichlet(np.ones(ACTIONS), T).astype(np.float32)
    return timesteps, policy, random.normal(size=T).astype(np.float32)


def ended(timesteps, t):
    return timesteps.step_type[t] == LAST and timesteps.discount[t] == 0


def walk(timesteps, value, t, n):
    """The n-step return of step t: forward until LAST, n steps or the last value there is."""
    if ended(timesteps, t):
        return 0.0
    if timesteps.step_type[t] == LAST or t == T - 1:
        return value[t]
    total, factor = 0.0, 1.0
    for i in range(1, n + 1):
        total += factor * timesteps.reward[t + i]
        factor *= GAMMA * timesteps.discount[t + i]
        if timesteps.step_type[t + i] == LAST or i == n or t + i == T - 1:
            return total + factor * value[t + i]
    raise AssertionError


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("n", [1, 3, 10])
def test_returns_are_those_of_a_walk(n, turns):
    for seed in range(5):
        timesteps, _, value = stream(seed, turns)
        got = search_returns(timesteps, jnp.asarray(value), GAMMA, n)
        np.testing.assert_allclose(got, [walk(timesteps, value, t, n) for t in range(T)], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2, 9])
def test_alternating_players_see_the_same_game_with_opposite_signs(n):
    """Values that are right from each mover's side stay right: a win in three moves, seen from all of them."""
    kinds = np.asarray([FIRST, MID, MID, LAST, FIRST], np.int8)
    discounts, reward = np.asarray([1, -1, -1, 0, 1], np.float32), np.asarray([0, 0, 0, 1, 0], np.float32)
    timesteps = TimeStep(np.zeros(5), np.zeros(5, np.int32), reward, discounts, kinds)
    value = jnp.asarray([1.0, -1.0, 1.0, 7.0])  # what is said at the end does not matter
    np.testing.assert_allclose(search_returns(timesteps, value, 1.0, n), [1.0, -1.0, 1.0, 0.0])


def test_a_player_who_moves_twice_keeps_the_sign():
    kinds = np.asarray([FIRST, MID, MID, LAST, FIRST], np.int8)
    discounts, reward = np.asarray([1, 1, -1, 0, 1], np.float32), np.asarray([0, 0, 0, 1, 0], np.float32)
    timesteps = TimeStep(np.zeros(5), np.zeros(5, np.int32), reward, discounts, kinds)
    returns = search_returns(timesteps, jnp.zeros(4), 1.0, 9)
    np.testing.assert_allclose(returns, [-1.0, -1.0, 1.0, 0.0])


@pytest.mark.parametrize("dummy", [False, True])
def test_targets_are_those_of_a_walk(dummy):
    for seed in range(6):
        timesteps, policy, value = stream(seed, turns=True)
        if dummy:
            policy = np.concatenate([policy, np.zeros((T, 1), np.float32)], axis=1)
        returns = np.asarray(search_returns(timesteps, jnp.asarray(value), GAMMA, 3))
        for root in range(T - 1 - K):
            action, aim = unroll_targets(timesteps, jnp.asarray(policy), returns, jnp.int32(root), K, dummy)
            state = "on"  # or "ended", or "unknown" beyond a time limit
            for k in range(K + 1):
                t = root + k
                here = f"seed {seed}, root {root}, k {k}: {state}"
                assert aim.known[k] == (state != "unknown"), here
                assert aim.has_turn[k] == (state == "on" and not (dummy and ended(timesteps, t))), here
                if state == "on":
                    assert aim.value[k] == returns[t], here
                    assert aim.reward[k] == timesteps.reward[t], here
                    assert np.asarray(TURNS)[np.argmax(aim.turn[k])] == timesteps.discount[t], here
                elif state == "ended":
                    assert aim.value[k] == 0, here
                    assert aim.reward[k] == 0, here
                done = state == "ended" or (state == "on" and ended(timesteps, t))
                if state == "on" and timesteps.step_type[t] != LAST:
                    assert aim.has_policy[k] == 1, here
                    np.testing.assert_array_equal(aim.policy[k], policy[t])
                else:
                    assert aim.has_policy[k] == (dummy and done), here
                    if dummy and done:
                        np.testing.assert_array_equal(aim.policy[k], np.eye(ACTIONS + 1)[ACTIONS])
                if k < K:
                    assert action[k] == (ACTIONS if dummy and done else timesteps.action[t + 1]), here
                if state == "on" and timesteps.step_type[t] == LAST:
                    state = "ended" if timesteps.discount[t] == 0 else "unknown"
