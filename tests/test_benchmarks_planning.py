"""The benchmarks of planning count moves honestly, and know right moves from wrong ones."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.planning import contestants, exact, muzeros_contestants, positions
from boonta import envs
from boonta.agents import muzero
from boonta.experiments.games import players
from tests.marks import full, in_full, slow

pytestmark = slow

SMALL = {"body": "mlp", "width": 8, "head": 8, "simulations": 2}


@pytest.mark.parametrize("agent", ["muzero", *in_full("alphazero")])
def test_moves_of_self_play_are_counted(agent):
    settings = SMALL | ({"history": 0} if agent == "muzero" else {})
    task = {"agent": agent, "game": "pgx:tic_tac_toe", "envs": 4, "steps": 30, "settings": settings}
    mine, theirs = contestants.ours(task).run(0), contestants.plain(task).run(0)
    assert mine["steps"] == theirs["steps"] == 120
    assert 4 * 30 / 11 < mine["idle"] < 4 * 30 / 5  # of each game's five to nine moves one act more
    assert theirs["idle"] == 0


@full
@pytest.mark.parametrize("part", ["play", "learn"])
def test_what_stands_beside_other_muzeros_counts_its_steps(part):
    settings = SMALL | {"history": 0, "batch": 4, "unroll_steps": 2, "n_step": 2, "consistency_coefficient": 2.0}
    task = {"part": part, "environment": "gymnax:CartPole-v1", "envs": 4, "seconds": 0.0, "settings": settings}
    once = muzeros_contestants.ours(task).run(0)
    assert once["steps"] == (160 if part == "play" else 1)
    assert once["seconds"] > 0


def test_positions_are_kept_with_what_their_moves_are_worth():
    kept = [json.loads(line) for line in positions.FILE.read_text("utf-8").splitlines()]
    assert len(kept) >= 500
    assert len({positions._board(one["moves"]) for one in kept}) == len(kept)
    for one in kept:
        assert len(one["moves"]) >= 14
        assert len(set(one["values"].values())) > 1  # or every move would be right


def test_a_right_move_is_one_that_keeps_the_positions_worth(monkeypatch):
    kept = [{"moves": [0], "values": {"1": 1, "2": 0}}, {"moves": [1], "values": {"1": -1, "2": 0, "3": 0}}]
    for chosen, share in (([1, 3], 1.0), ([2, 2], 0.5), ([2, 1], 0.0), ([6, 6], 0.0)):
        monkeypatch.setattr(positions, "choices", lambda run, games, chosen=chosen: chosen)
        assert positions.accuracy(None, kept) == share
    assert np.isclose(positions._luck(kept[1]), 2 / 3)


@pytest.mark.parametrize("history", [0, 2])
def test_an_agent_is_shown_each_position_and_what_it_looks_back_on(monkeypatch, history):
    class Counter:
        def __init__(self, run):
            self.acts = 0

        def begin(self, count):
            assert count == 3

        def act(self, timestep, mine):
            self.acts += 1
            stones = np.asarray(timestep.observation["board"]).reshape(3, -1).sum(1)
            np.testing.assert_array_equal(stones, np.array([2, 4, 7]) - history - 1 + self.acts)
            return stones

    monkeypatch.setattr(players, "Trained", Counter)
    settings = SimpleNamespace(history=history)
    run = SimpleNamespace(config=SimpleNamespace(env="pgx:connect_four", env_settings={}, agent_settings=settings))
    assert positions.choices(run, [[0, 1], [3, 3, 3, 2], [0, 1, 2, 3, 4, 5, 6]]) == [2, 4, 7]


def test_positions_are_made_by_random_play_and_the_solver():
    made = positions.made(3)
    assert made == positions.made(3)
    kept = [json.loads(line) for line in positions.FILE.read_text("utf-8").splitlines()]
    assert made == kept[:3]


def test_what_is_best_is_found_over_all_states():
    graph, starts, begun = exact.graph_of(envs.make("boonta:catch"))
    assert len(starts) == len(begun[1].reward) == 5
    np.testing.assert_allclose(exact.values(graph, 0.9)[starts], 0.9**8, rtol=1e-5)  # each ball can be met, 9 steps on

    grid = envs.make("boonta:gridworld", height=1, width=5, objects=[(1, 1.0, 1.0, 0.0)], limit=9)
    graph, starts, (states, _) = exact.graph_of(grid)
    way = np.abs(states.agent - states.objects[:, 0])
    np.testing.assert_allclose(exact.values(graph, 0.9)[starts], 0.9 ** (way - 1), rtol=1e-5)


def test_an_agent_that_does_not_know_the_task_does_not_solve_it():
    environment = envs.make("boonta:catch")
    agent = muzero.muzero(environment.spec, muzero.Settings(**SMALL))
    run = SimpleNamespace(params=agent.init(jax.random.key(0)), system=SimpleNamespace(agent=agent))
    graph, starts, begun = exact.graph_of(environment)
    best, found = exact.values(graph, 0.9)[starts], exact.returns(run, environment, begun, 0.9)
    assert np.all(found <= best + 1e-5) and np.any(found < best - 1e-5)
