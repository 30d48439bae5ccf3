"""Matches: who wins what, exact solvers, every line of play, and Elo."""

import json
from functools import cache
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from boonta.cli import main
from boonta.core.types import LAST
from boonta.experiments import thoughts_page
from boonta.experiments.games import lines, players
from boonta.experiments.games.match import elo, match, played, table
from boonta.experiments.games.players import Followed, Random, Search, player, solver
from boonta.ops.search import Tree
from tests.marks import full, in_full, slow

pytestmark = slow


class Lowest(Followed):
    """The first legal move, of games that OpenSpiel knows."""

    def act(self, timestep, mine):
        return np.argmax(np.asarray(timestep.observation["legal"]), axis=1)


@cache
def tic_tac_toe(family="openspiel"):
    return table(f"{family}:tic_tac_toe", {})


def test_sides_are_swapped_and_wins_are_the_movers():
    """Whoever moves first and always takes the first free cell beats the one who does the same."""
    totals = played(tic_tac_toe(), (Lowest(), Lowest()), 6)
    np.testing.assert_array_equal(totals, [1, -1, 1, -1, 1, -1])


@pytest.mark.parametrize("family", ["openspiel", *in_full("pgx")])
def test_a_solver_never_loses(family):
    perfect = player("solver", f"{family}:tic_tac_toe", 0)
    totals = played(tic_tac_toe(family), (perfect, Random(1)), 60)
    assert totals.min() >= 0 and totals.mean() > 0.7
    assert not played(tic_tac_toe(family), (perfect, player("solver", f"{family}:tic_tac_toe", 3)), 10).any()


def test_search_beats_chance_and_more_search_beats_less():
    assert played(tic_tac_toe(), (Search("tic_tac_toe", 100, 0), Random(1)), 40).mean() > 0.6
    totals = played(table("pgx:connect_four", {}), (Search("connect_four", 200, 0), Search("connect_four", 5, 1)), 20)
    assert totals.mean() > 0.5


def test_openings_are_shared_by_both_sides():
    """After random moves, games of the same pair begin with the same board."""
    seen = []

    class Watching(Random):
        def played(self, action, on):
            seen.append(action.copy())

    played(tic_tac_toe(), (Watching(0), Random(1)), 8, opening=3)
    for ply in range(3):
        np.testing.assert_array_equal(seen[ply][::2], seen[ply][1::2])
    assert len({tuple(x) for x in np.asarray(seen[:3]).T.tolist()}) > 1


def test_tic_tac_toe_is_a_draw_and_its_traps_are_known():
    values = solver("pgx:tic_tac_toe")
    assert set(values(()).values()) == {0}
    corner = values((0,))  # against a corner only the centre holds
    assert corner.pop(4) == 0 and set(corner.values()) == {-1}
    assert values((0, 4, 1))[2] == 0 and values((0, 4, 1))[5] == -1


def test_connect_four_is_known_exactly():
    values = solver("pgx:connect_four")
    first = values(())
    assert first == {0: -1, 1: -1, 2: 0, 3: 1, 4: 0, 5: -1, 6: -1}
    assert values((3, 0, 3, 0, 3, 0))[3] == 1


def test_every_line_against_a_perfect_player():
    """It loses none; and the lines are as many as a walk of the tree finds."""
    values = solver("openspiel:tic_tac_toe")

    class Perfect(Followed):
        def choose(self, moves):
            here = values(tuple(moves))
            return min(here, key=lambda move: (-here[move], move))

    def walk(moves, side):
        """Lines below: wins, draws, losses."""
        import pyspiel

        state = pyspiel.load_game("tic_tac_toe").new_initial_state()
        for move in moves:
            state.apply_action(move)
        if state.is_terminal():
            return np.asarray([state.returns()[side] == x for x in (1, 0, -1)], int)
        if state.current_player() == side:
            return walk([*moves, Perfect().choose(moves)], side)
        return sum(walk([*moves, move], side) for move in state.legal_actions())

    class Playing(Perfect):
        def act(self, timestep, mine):
            mine = np.asarray(timestep.step_type) != LAST
            return super().act(timestep, mine)

    for side in (0, 1):
        agent = Playing()
        counts = lines._lines(Follow(agent), agent, side)
        assert counts["losses"] == 0 < counts["wins"]
        np.testing.assert_array_equal([counts[word] for word in ("wins", "draws", "losses")], walk([], side))


def Follow(agent):
    """The game, whose moves are told to a player that cannot see them."""
    host = tic_tac_toe()

    def make(*args):
        batch = host.make(*args)
        step = batch.step

        def told(action):
            agent.played(action, np.asarray(batch.out.step_type) != LAST)
            return step(action)

        batch.step = told
        return batch

    return host._replace(make=make)


def test_who_knows_a_game_as_it_comes_is_no_opponent_in_another():
    config = SimpleNamespace(env="openspiel:tic_tac_toe", env_settings={"rows": 5, "model": True})
    with pytest.raises(ValueError, match="the settings {}, and the run with {'rows': 5}"):
        match(SimpleNamespace(config=config), "mcts:2", 2)  # type: ignore[arg-type]


def test_elo_of_known_scores():
    even = elo(10, 0, 10)
    assert even["score"] == 0.5 and even["elo"] == 0 and even["elo_low"] == pytest.approx(-even["elo_high"])
    strong = elo(75, 50, 25)  # two thirds of the points
    assert strong["elo"] == pytest.approx(400 * np.log10(2), abs=0.1)
    assert strong["elo_low"] < strong["elo"] < strong["elo_high"]
    perfect = elo(200, 0, 0)
    assert perfect["elo"] is None and perfect["elo_high"] is None and 600 < perfect["elo_low"] < 800
    assert all(elo(n, 0, 0)["elo_high"] is None and elo(0, 0, n)["elo_low"] is None for n in range(2, 500, 2))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("games") / "run"
    small = ["agent.body=mlp", "agent.width=8", "agent.head=8", "agent.simulations=2", "agent.batch=8"]
    small += ["agent.minimum=16", "agent.unroll_steps=1", "agent.n_step=2", "agent.replay_ratio=0.25"]
    small += ["architecture.envs=8", "architecture.devices=1", "run.eval_episodes=0"]
    words = ["train", "muzero", "pgx:tic_tac_toe", "--config", "none", "--steps", "256", "--out", str(folder)]
    assert main([*words, *(word for text in small for word in ("--set", text))]) == 0
    return folder


@pytest.mark.parametrize("opponent", ["mcts:5", "itself", *in_full("random", "solver")])
def test_a_run_plays_matches(run, opponent, capsys):
    assert main(["match", str(run), str(run) if opponent == "itself" else opponent, "--games", "4", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["wins"] + summary["draws"] + summary["losses"] == summary["games"] == 4
    assert {"elo", "elo_low", "elo_high", "score", "opponent"} <= set(summary)


@full  # a program for each width of the tree
def test_a_run_plays_every_line(run, capsys):
    assert main(["match", str(run), "every", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["lines"] > 100 and summary["losses"] > 0  # hardly trained
    assert summary["wins"] == summary["first"]["wins"] + summary["second"]["wins"]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("nobody",), "OPPONENT must be a run folder, random, mcts:N, solver or every, got 'nobody'"),
        (("mcts:many",), "mcts:N needs a number of simulations, at least 1, got 'mcts:many'"),
        (("random", "--games", "3"), "--games must be an even number, at least 2, got 3"),
        (("random", "--opening", "-1"), "--opening must be at least 0, got -1"),
    ],
)
def test_bad_matches_are_refused(run, words, told, capsys):
    assert main(["match", str(run), *words]) == 2
    assert told in capsys.readouterr().err


def test_a_person_sees_the_board_that_is_played_on():
    board = str(players.beginning("openspiel:connect_four", {"rows": 4, "columns": 5})())
    assert [len(line) for line in board.split()] == [5] * 4


def test_there_is_no_solver_for_chess():
    with pytest.raises(ValueError, match="solvers for tic_tac_toe and connect_four, not for pgx:chess"):
        players.solver("pgx:chess")
    with pytest.raises(ValueError, match="without chance"):
        player("mcts:5", "openspiel:backgammon", 0)


def test_a_tree_is_a_page_that_needs_no_network(run, tmp_path, capsys):
    out = tmp_path / "tree.html"
    assert main(["watch", str(run), "--tree", "--out", str(out)]) == 0
    page = out.read_text("utf-8")
    moves = int(capsys.readouterr().out.splitlines()[-1].split(": ")[1].split()[0])
    assert 5 <= moves <= 9
    assert page.count("<section>") == page.count('<svg class="tree"') == page.count("data:image/png") == moves
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "") and "https://" not in page
    for svg in page.split("<svg")[1:]:
        ElementTree.fromstring("<svg" + svg.partition("</svg>")[0] + "</svg>")


def test_a_tree_is_drawn_as_it_is():
    """The root, whose move 1 gives the turn to an opponent who is worse off, and what comes of its move 0."""
    number = lambda *x: np.asarray(x, np.float32)  # noqa: E731
    parent, action, visits = np.asarray([-1, 0, 0, 1]), np.asarray([-1, 1, 0, 0]), np.asarray([5, 3, 1, 0])
    tree = Tree(
        parent, action, number(0, 0.7, 0.3, 0), visits, number(0.5, -0.8, 0.4, 0), number(0, 0, 0, 0),
        number(0, 0, 0, 0), number(0, -1, -1, 0), number(0.3, 0.7),
    )  # fmt: skip
    places = thoughts_page._placed(tree)
    assert set(places) == {0, 1, 2}  # the fourth was not visited
    assert places[1].worth == pytest.approx(0.8) and places[2].worth == pytest.approx(-0.4)
    assert places[2].x < places[0].x < places[1].x and places[1].y == places[2].y > places[0].y
    drawn = ElementTree.fromstring(thoughts_page.drawing(tree, 1))
    kinds = [one.get("style") for one in drawn.iter("{http://www.w3.org/2000/svg}circle")]
    assert kinds.count("fill:var(--good)") == 2 and kinds.count("fill:var(--bad)") == 1
    assert sum(one.get("class") == "chosen" for one in drawn.iter("{http://www.w3.org/2000/svg}path")) == 1


def test_trees_are_of_agents_that_plan(tmp_path, capsys):
    folder = str(tmp_path / "run")
    small = ["--set", "agent.hidden=4", "--set", "agent.batch=4", "--set", "run.eval_episodes=1", "--devices", "1"]
    assert main(["train", "vtrace", "boonta:catch", "--config", "none", "--steps", "200", "--out", folder, *small]) == 0
    assert main(["watch", folder, "--tree"]) == 2
    assert "--tree is for agents that plan, and vtrace does not" in capsys.readouterr().err


@pytest.mark.parametrize("first", [True, *in_full(False)])
def test_a_person_plays(run, first, monkeypatch, capsys):
    """Whoever types the first free cell, after nonsense and a cell that is taken."""
    asked = []

    def typed(prompt):
        asked.append(prompt)
        free = prompt.partition("(")[2].split(",")[0].partition(":")[0]
        return "nonsense" if len(asked) == 1 else free

    monkeypatch.setattr("builtins.input", typed)
    assert main(["play", str(run), *([] if first else ["--second"])]) == 0
    told = capsys.readouterr().out
    assert "'nonsense' is no legal move" in told and "the agent plays" in told
    assert told.strip().splitlines()[-1] in ("you win", "you lose", "a draw")
    assert ("the agent plays" in told.partition("'nonsense'")[0]) != first


def test_a_person_may_leave(run, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda prompt: "q")
    assert main(["play", str(run)]) == 0
