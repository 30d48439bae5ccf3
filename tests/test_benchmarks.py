"""The benchmarks run, count honestly and write whole files; what they measure is for quiet machines."""

import ast
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import common, gpu, pictures, reading, tables
from benchmarks.anakin import contestants, convolution, gridworld, memory, peers, scaling
from benchmarks.sebulba import contestants as hosted
from benchmarks.sebulba import efficiency, pong, shapes, soak
from tests.marks import full, in_full, slow

pytestmark = slow

TINY = peers.AGENT | {"hidden": [8], "unroll": 32, "epochs": 1, "minibatches": 1}
KEYS = {
    *("name", "cell", "contestant", "median", "min", "max", "rounds", "compile_seconds", "peak_rss_mb"),
    *("machine", "versions", "commit", "command", "date"),
}
MACHINE = {
    "cpu": "some",
    "cores": 2,
    "memory_gb": 1.0,
    "system": "Linux",
    "backend": "cpu",
    "device": "cpu",
    "devices": 1,
}


@pytest.fixture(autouse=True)
def known_machine(monkeypatch):
    """What JAX runs on takes a process to find out."""
    monkeypatch.setattr(common, "machine", lambda: MACHINE)
    for module in (peers, scaling, gridworld, pong):
        monkeypatch.setattr(module, "machine", lambda: MACHINE)


def test_idle_acts_are_counted_exactly():
    # The run ends on a LAST: the idle act that follows is still to come.
    task = {"environment": "boonta:catch", "envs": 2, "devices": 1, "agent": TINY | {"unroll": 29}, "steps": 0}
    answer = contestants.ours(task).run(0)
    cycle = 10  # nine steps down ten rows, and the idle act
    assert answer["steps"] == 2 * 29
    assert answer["idle"] == 2 * (29 // cycle)


def test_who_only_acts_counts_idle_acts_too():
    task = {"environment": "boonta:catch", "envs": 2, "devices": 1, "agent": TINY, "steps": 64}
    answer = contestants.acting(task).run(0)
    assert (answer["steps"], answer["idle"]) == (64, 2 * (32 // 10))


def test_contestants_take_turns_in_processes_of_their_own():
    task = {"kind": "ceiling", "environment": "boonta:catch", "envs": 2, "agent": TINY, "steps": 128, "devices": 2}
    outcome = common.compete({"ceiling@2": task}, rounds=2, hurry=True)["ceiling@2"]
    assert [run["idle"] for run in outcome.runs] == [2 * (64 // 10)] * 2
    assert all(rate < raw for rate, raw in zip(outcome.rates(), outcome.rates(idle=True), strict=True))
    assert outcome.ready["compile_seconds"] > 0
    assert outcome.runs[0]["peak_rss_mb"] > 50


def test_a_dead_contestant_says_why():
    with pytest.raises(RuntimeError, match="no_such_kind"):
        common.compete({"x": {"kind": "no_such_kind"}}, rounds=1)


def fake_compete(tasks, rounds, pythons=None, hurry=False):
    """Twice the devices, twice the speed; a tenth of the acts is idle, memory grows by a kilobyte a step."""
    outcomes = {}
    for name, task in tasks.items():
        size = task["envs"] * task["agent"]["unroll"]
        run = {"seconds": 1.0 / task["devices"], "steps": 1000, "idle": 100, "peak_rss_mb": 300 + size / 1e3}
        ready = {"compile_seconds": 1.0, "compile_peak_mb": 250.0, "versions": {"jax": "0"}, "own_peak": True}
        ready |= {"trajectory_mb": size * 40 / 1e6, "planned_mb": size * 900 / 1e6}
        outcomes[name] = common.Outcome(task, ready, [run] * rounds)
    return outcomes


@pytest.mark.parametrize("benchmark", [peers, scaling, gridworld, memory, gpu])
def test_rows_are_complete_and_replace_the_file(benchmark, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(benchmark, "compete", fake_compete)
    argv = ["--json", "--out", str(tmp_path)]
    assert benchmark.main(argv)
    rows = benchmark.main(argv)
    name = benchmark.__name__.rpartition(".")[2]
    assert [path.name for path in tmp_path.iterdir()] == [f"{name}.jsonl"]
    assert [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()] == rows
    captured = capsys.readouterr()
    assert json.loads(captured.out.splitlines()[-1]) == {"name": name, "rows": rows}
    assert f"replaces {len(rows)} rows in {name}.jsonl" in captured.err
    assert all(row.keys() >= KEYS and row["min"] <= row["median"] <= row["max"] for row in rows)
    assert str(tmp_path) not in rows[0]["command"]


def test_some_cells_replace_their_own_rows_alone(tmp_path):
    one, other = ({"cell": cell, "date": "1", "commit": "c"} for cell in ("one", "other"))
    path = tmp_path / "results.jsonl"
    common._write(path, [one, other], some=False)
    common._write(path, [one | {"date": "2"}], some=True)
    assert [json.loads(line) for line in path.read_text("utf-8").splitlines()] == [other, one | {"date": "2"}]


def test_peers_are_missed_loudly_and_the_fastest_of_ours_is_chosen(monkeypatch, capsys):
    monkeypatch.setattr(peers, "compete", fake_compete)
    rows = peers.main(["--quick", "--devices", "1,2"])
    assert "NO PEERS" in capsys.readouterr().err
    assert {row["contestant"]: row["chosen"] for row in rows} == {
        "ours@1": False, "ours@2": True, "ceiling@1": False, "ceiling@2": True,
    }  # fmt: skip
    assert rows[0]["median"] == 900
    assert rows[0]["median_with_idle"] == 1000


def test_memory_finds_the_line(monkeypatch):
    monkeypatch.setattr(memory, "compete", fake_compete)
    fit = memory.main(["--quick"])[-1]
    assert (fit["median"], fit["fixed_mb"]) == (pytest.approx(1000), pytest.approx(300))
    assert (fit["trajectory_bytes_per_env_step"], fit["planned_bytes_per_env_step"]) == (
        pytest.approx(40), pytest.approx(900),
    )  # fmt: skip


def test_convolutions_run_in_all_ways(monkeypatch):
    monkeypatch.setattr(convolution, "NETWORKS", {"GridCNN": (convolution.GridCNN, (10, 10, 4), 8)})
    monkeypatch.setattr(convolution, "MODES", ("gradient in scan",))
    rows = convolution.main(["--quick"])
    assert {(row["cell"], row["contestant"]) for row in rows} == {
        (f"GridCNN/{mode}/whole", way) for mode in convolution.MODES for way in ("direct", "matmul")
    }
    assert all(row.keys() >= KEYS and row["median"] > 0 for row in rows)


def fake_hosts(tasks, rounds, pythons=None, hurry=False):
    """Environments make 4000 steps/s, acting 2000, learning 4000, Sample Factory 500, whole runs 800."""
    rates = {"environments": 4000, "acting": 2000, "learning": 4000, "sample_factory": 500}
    ready = {"compile_seconds": 1.0, "versions": {"jax": "0"}}
    return {
        name: common.Outcome(
            task,
            ready,
            [{"seconds": 1.0, "steps": rates.get(task["kind"], 800), "idle": 0, "peak_rss_mb": 1.0}] * rounds,
        )
        for name, task in tasks.items()
    }


@pytest.mark.parametrize("benchmark", [pong, shapes])
def test_benchmarks_of_sebulba_write_complete_rows(benchmark, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "compete", fake_hosts)
    more = ["--sample-factory", "python"] if benchmark is pong else []
    rows = benchmark.main(["--out", str(tmp_path), *more])
    assert all(row.keys() >= KEYS for row in rows)
    if benchmark is pong:
        ours = rows[0]
        assert (ours["limit"], ours["of_limit"], ours["of_peer"]) == (pytest.approx(1000), pytest.approx(0.8), 1.6)


@pytest.mark.parametrize("kind", ["ours", *in_full("environments", "acting", "learning")])
def test_contestants_of_sebulba_run(kind, monkeypatch):
    ends = []
    monkeypatch.setattr(hosted, "SECONDS", 0.1)
    monkeypatch.setattr(hosted.atexit, "register", ends.append)
    words = ["vtrace", "gym:CartPole-v1", "agent.batch=4", "agent.unroll=4", "agent.hidden=8"]
    try:
        answer = hosted.KINDS[kind]({"words": words, "iterations": 3}).run(0)
    finally:
        for end in ends:
            end()
    assert answer["steps"] > 0
    assert answer["seconds"] > 0


def test_flat_is_what_stays():
    assert soak.thirds([900.0, 1000.0, 1049.0], memory=True) == (1000.0, 1049.0, True)
    assert soak.thirds([900.0, 1000.0, 1051.0], memory=True)[2] is False
    assert soak.thirds([9000.0, 10000.0, 10299.0], memory=True)[2] is True
    assert soak.thirds([5, 5, 7, 7, 7, 9], memory=False) == (7, 7, True), "something that came and went"
    assert soak.thirds([5, 5, 7, 7, 8, 8], memory=False) == (7, 8, False)


@full
def test_a_run_is_watched_and_can_be_resumed(tmp_path):
    folder = tmp_path / "run"
    words = ["ppo", "gym:CartPole-v1", "--on", "sebulba", "--steps", "1e9", "--out", str(folder)]
    watch = ["--quick", "--minutes", "0.05", "--every", "0.3", "--out", str(tmp_path)]
    rows = soak.main([*watch, *words, "--set", "run.eval_episodes=1", "--set", "run.log_every=1000"])
    assert [row["cell"] for row in rows] == ["memory", "threads", "files"]
    assert all(row.keys() >= KEYS and row["min"] > 0 and row["code"] == 143 for row in rows)
    assert json.loads((folder / "run.json").read_text())["status"] == "interrupted"


def test_a_run_that_ends_is_not_watched_in_vain(tmp_path):
    with pytest.raises(RuntimeError, match="ended"):
        soak.main(["--quick", "--out", str(tmp_path), "no-such-agent", "gym:CartPole-v1"])


def test_choices_of_network_and_batch_are_compared_and_drawn(tmp_path, monkeypatch):
    asked = set()

    def train(task, seed, folder):
        asked.add((task.arguments, seed))
        folder.mkdir(exist_ok=True)
        rows = [{"env_steps": 100 * i, "episode/return_mean": i + seed, "episode/count": 2} for i in range(1, 6)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        record = {"commit": "abc", "result": {"eval_return_mean": 5.0 + seed, "seconds": 7.0}}
        (folder / "run.json").write_text(json.dumps(record))

    monkeypatch.setattr(efficiency, "train", train)
    rows = efficiency.main(["--rounds", "2", "--steps", "500", "--runs", str(tmp_path), "--out", str(tmp_path)])
    assert len(asked) == 2 * 7  # of three axes with three values each, two share the usual choice
    assert all(row.keys() >= KEYS and (row["min"], row["max"]) == (5.0, 6.0) for row in rows)
    assert rows[0]["curve_mean"][-1] == pytest.approx(5.5)
    monkeypatch.setattr(tables.common, "RESULTS", tmp_path)
    monkeypatch.setattr(pictures, "PICTURES", tmp_path)
    assert pictures.main() == [tmp_path / "efficiency.png"]


def test_reading_counts_what_a_reader_meets():
    text = "def outer():\n    x = 1\n\n    def inner():\n        return x\n\n    return inner\n"
    assert reading.functions(ast.parse(text)) == [("outer", 5), ("inner", 2)]
    lines = [f"x{i} = {i}" for i in range(8)]
    assert reading.pairs(["\n".join(lines)]) == 0
    assert reading.pairs(["\n".join(lines), "\n\n".join(["# a comment", *lines[:7]])]) == 1
    assert reading.pairs(["\n".join([*lines[:6], "y = 1", *lines[:6], "z = 1", *lines[:6]])]) == 3
    trees = [
        ast.parse("class Link: ...\nclass _Own: ...\nclass State: ..."),
        ast.parse("class Link: ...\nclass State: ..."),
    ]
    assert reading.shared_names(trees) == {"Link"}
    found = reading.counts(reading.ROOT, still=True)
    assert found["lines of src"] > 10_000
