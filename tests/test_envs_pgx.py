"""The bridge to pgx: the contract, its own games step by step, and whose turn it is in the discount."""

import jax
import numpy as np
import pgx
import pytest

from boonta.core.types import LAST
from boonta.envs.pgx import STONES, make, names
from boonta.testing import EnvironmentContract
from tests.marks import full


class TestTicTacToe(EnvironmentContract):
    def make(self):
        return make("tic_tac_toe")


class TestConnectFour(EnvironmentContract):
    def make(self):
        return make("connect_four")


class Test2048(EnvironmentContract):
    episode_ends_within = None

    def make(self):
        return make("2048")


@full
class TestBackgammon(EnvironmentContract):
    """Dice, and doubles with which a player moves again."""

    episode_ends_within = None

    def make(self):
        return make("backgammon")


@pytest.mark.parametrize("name", ["tic_tac_toe", "connect_four", "2048", "backgammon", "minatar-breakout"])
def test_a_game_is_pgxs_own(name):
    """Every step of one game: what is seen, the mover's reward, and a discount that says whose turn is next."""
    environment, game = make(name), pgx.make(name)
    step, theirs_step = jax.jit(environment.step), jax.jit(game.step)
    state, timestep = environment.reset(jax.random.key(0))
    theirs = game.init(jax.random.key(0))
    for i in range(60):
        legal = np.flatnonzero(theirs.legal_action_mask)
        action, key = np.int32(legal[i % len(legal)]), jax.random.key(i)
        mover = int(theirs.current_player)
        state, timestep = step(state, action, key)
        theirs = theirs_step(theirs, action, key)
        np.testing.assert_array_equal(timestep.observation["board"], theirs.observation)
        assert timestep.reward == theirs.rewards[mover]
        assert timestep.discount == (0 if theirs.terminated else 1 if int(theirs.current_player) == mover else -1)
        assert (timestep.step_type == LAST) == bool(theirs.terminated | theirs.truncated)
        if timestep.step_type == LAST:
            break
        np.testing.assert_array_equal(timestep.observation["legal"], theirs.legal_action_mask)


def test_the_winner_is_who_moved():
    """X takes the left column, O the middle one but its last: the third X wins."""
    environment = make("tic_tac_toe")
    state, _ = environment.reset(jax.random.key(0))
    for action in (0, 1, 3, 4):
        state, timestep = environment.step(state, np.int32(action), jax.random.key(0))
        assert (timestep.reward, timestep.discount) == (0, -1)
    _, timestep = environment.step(state, np.int32(6), jax.random.key(0))
    assert (timestep.reward, timestep.discount, timestep.step_type) == (1, 0, LAST)


@pytest.mark.parametrize("name", STONES)
def test_each_player_keeps_a_colour(name):
    environment = make(name)
    state, timestep = environment.reset(jax.random.key(0))
    before = environment.render(state)
    state, _ = environment.step(state, np.int32(np.flatnonzero(timestep.observation["legal"])[0]), jax.random.key(0))
    after = environment.render(state)
    changed = (before != after).any(axis=-1).mean()
    assert 0 < changed < 0.2, "one or two squares"


def test_games_of_hidden_cards_are_not_offered():
    assert "kuhn_poker" not in names()
    with pytest.raises(ValueError, match="tic_tac_toe"):
        make("tictactoe")
