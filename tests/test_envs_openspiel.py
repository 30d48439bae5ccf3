"""The bridge to OpenSpiel: its own games step by step, pgx's games, and whose turn it is in the discount."""

import numpy as np
import pyspiel
import pytest

from boonta import envs
from boonta.core.host import Workers, random_actions
from boonta.core.types import FIRST, LAST
from boonta.envs import openspiel


def batch(name, count=1, seed=0, **settings):
    return envs.make(f"openspiel:{name}", **settings).make(np.arange(count), seed, 0, Workers("serial"))


@pytest.mark.parametrize("name", ["tic_tac_toe", "connect_four", "2048", "mancala", "backgammon", "catch"])
def test_a_game_is_openspiels_own(name):
    """Every step of some episodes: what is seen, the mover's reward, and a discount that says whose turn is next."""
    random, made = np.random.default_rng(0), batch(name)
    game, state, turns = pyspiel.load_game(name), None, set()
    timestep = made.reset()
    for _ in range(120):
        if timestep.step_type[0] == FIRST:
            assert timestep.reward[0] == 0 and timestep.discount[0] == 1 and timestep.action[0] == 0
            state = made.states[0].clone()
        legal = np.flatnonzero(timestep.observation["legal"][0])
        if timestep.step_type[0] == LAST:
            assert len(legal) == game.num_distinct_actions()
            timestep = made.step(np.zeros(1, np.int32))
            assert timestep.step_type[0] == FIRST
            continue
        np.testing.assert_array_equal(legal, state.legal_actions())
        mover, before = state.current_player(), state.returns()
        action = int(random.choice(legal))
        timestep = made.step(np.asarray([action], np.int32))
        state = made.states[0].clone()
        assert timestep.action[0] == action
        assert timestep.reward[0] == pytest.approx(state.returns()[mover] - before[mover])
        if state.is_terminal():
            assert timestep.step_type[0] == LAST and timestep.discount[0] == 0
            continue
        seen = np.asarray(state.observation_tensor(state.current_player()), np.float32)
        board = timestep.observation["board"][0]
        np.testing.assert_array_equal(
            np.moveaxis(board, -1, 0) if board.ndim == 3 else board, seen.reshape(game.observation_tensor_shape())
        )
        assert timestep.discount[0] == (1 if state.current_player() == mover else -1)
        turns.add(float(timestep.discount[0]))
    if name == "mancala":
        assert turns == {1.0, -1.0}  # a player may move twice


def test_what_steps_a_game_is_chosen_by_legal_moves():
    made = envs.make("openspiel:tic_tac_toe")
    workers, told = made.choose(64, Workers("auto", 2))
    assert workers.kind in ("serial", "threads", "processes") and "a step takes" in told


def test_random_moves_are_legal_ones_each_alike():
    made, generator = batch("tic_tac_toe", count=500), np.random.default_rng(0)
    spec, timestep = envs.make("openspiel:tic_tac_toe").spec, made.reset()
    for taken in range(3):
        action = random_actions(spec, generator, timestep)
        assert np.all(np.take_along_axis(timestep.observation["legal"], action[:, None], axis=1))
        if not taken:
            assert np.all(np.bincount(action, minlength=9) > 30)
        timestep = made.step(action)


def test_two_bridges_play_the_same_game():
    """The same moves of tic-tac-toe: the same rewards, turns, ends and legal moves as in pgx."""
    import jax

    from boonta.envs import pgx

    theirs, ours, random = pgx.make("tic_tac_toe"), batch("tic_tac_toe"), np.random.default_rng(1)
    step = jax.jit(theirs.step)
    timestep = ours.reset()
    state, other = theirs.reset(jax.random.key(0))
    for _ in range(60):
        if timestep.step_type[0] == LAST:
            timestep = ours.step(np.zeros(1, np.int32))
            state, other = theirs.reset(jax.random.key(0))
        np.testing.assert_array_equal(timestep.observation["legal"][0], other.observation["legal"])
        action = random.choice(np.flatnonzero(other.observation["legal"])).astype(np.int32)
        timestep = ours.step(action[None])
        state, other = step(state, action, jax.random.key(0))
        for field in ("reward", "discount", "step_type"):
            assert getattr(timestep, field)[0] == getattr(other, field)


def test_environments_have_their_own_chance():
    made, other = batch("2048", 4), batch("2048", 4)
    boards = made.reset().observation["board"].copy()
    assert len(np.unique(boards.reshape(4, -1), axis=0)) > 1
    np.testing.assert_array_equal(boards, other.reset().observation["board"])


def test_parameters_of_a_game():
    assert envs.make("openspiel:connect_four", rows=5).spec.observation["board"].shape == (5, 7, 3)
    with pytest.raises(ValueError, match="openspiel:connect_four cannot be made"):
        envs.make("openspiel:connect_four", colums=5)


def test_games_that_hide_something_are_not_there():
    assert "kuhn_poker" not in openspiel.names() and "tic_tac_toe" in openspiel.names()
    with pytest.raises(ValueError, match="did you mean 'openspiel:tic_tac_toe'"):
        envs.make("openspiel:tictactoe")


def test_a_board_can_be_drawn():
    made = batch("tic_tac_toe")
    made.reset()
    assert made.frame().dtype == np.uint8 and made.frame().ndim == 3
    with pytest.raises(ValueError, match="openspiel:backgammon cannot be drawn"):
        made = batch("backgammon")
        made.reset()
        made.frame()
