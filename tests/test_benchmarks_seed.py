"""SEED's benchmarks and drills run, and write complete rows; what they measure is for quiet machines."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import common
from benchmarks.sebulba import contestants as hosted
from benchmarks.seed import contestants, cost, drills, fuzz, latency, paper, replay, stage, stores, throughput
from boonta import envs
from tests.marks import full, in_full, slow, some_of
from tests.test_benchmarks import KEYS, MACHINE

pytestmark = slow

STEPS = {"seed": 1000, "sebulba": 1100, "rllib": 100, "rllib, wide": 500, "near": 500, "SEED": 1000}


@pytest.fixture(autouse=True)
def known_machine(monkeypatch):
    """What JAX runs on takes a process to find out."""
    for module in (common, cost):
        monkeypatch.setattr(module, "machine", lambda: MACHINE)


def fake(tasks, rounds, pythons=None, hurry=False):
    """Whole runs by name, round trips of 2 ms through our servers and 1 ms through others."""
    del pythons, hurry
    ready = {"compile_seconds": 1.0, "versions": {"jax": "0"}, "bytes_per_frame": 7056.0}
    return {
        name: common.Outcome(
            task,
            ready,
            [{"seconds": 1.0, "steps": STEPS.get(name, 10), "idle": 0, "peak_rss_mb": 1.0, "latency": _latency(name)}]
            * rounds,
        )
        for name, task in tasks.items()
    }


def _latency(name):
    return 0.002 if name.startswith("ours") else 0.001


@pytest.mark.parametrize("benchmark", [latency, throughput, replay, cost])
def test_benchmarks_of_seed_write_complete_rows(benchmark, monkeypatch, tmp_path):
    monkeypatch.setattr(benchmark, "compete", fake)
    more = ["--rllib", "python"] if benchmark is throughput else []
    rows = benchmark.main(["--out", str(tmp_path), *more])
    assert all(row.keys() >= KEYS for row in rows)
    found = {(row["cell"], row["contestant"]): row for row in rows}
    if benchmark is latency:
        assert found["wire", "ours tcp"]["of_raw"] == pytest.approx(2.0)
    if benchmark is throughput:
        ours = found["ale:Pong", "seed"]
        assert ours["of"] == {"sebulba": pytest.approx(1 / 1.1), "rllib": 10.0, "rllib, wide": 2.0}
    if benchmark is replay:
        assert all(row["of_frame"] == 1.0 for row in rows)
    if benchmark is cost:
        assert found["default", "near"]["dollars_per_billion"] == pytest.approx(2 * 0.0475 / 3600 / 2000 * 1e9)


def test_the_papers_run_is_projected_from_its_updates(monkeypatch, tmp_path):
    def run(words, **_):
        rows = [{"env_steps": 200_000, "seconds": 90.0, "updates": 0}]
        rows += [
            {"env_steps": 200_000 + 7_000 * i, "seconds": 90.0 + 10 * i, "updates": i, "loss/td": 0.1} for i in (1, 5)
        ]
        folder = Path(words[words.index("--out") + 1])
        folder.mkdir()
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    monkeypatch.setattr(paper, "subprocess", SimpleNamespace(run=run))
    (row,) = paper.main(["--out", str(tmp_path)])
    assert row.keys() >= KEYS
    assert (row["updates"], row["updates_per_second"], row["steps_per_second"]) == (5, 0.1, 700)
    assert row["projected_hours"] == pytest.approx(10e9 / 700 / 3600)


@pytest.fixture
def ends(monkeypatch):
    """What contestants leave for the end of their process."""
    monkeypatch.setattr(contestants, "SECONDS", 0.1)
    monkeypatch.setattr(hosted, "SECONDS", 0.1)
    left = []
    monkeypatch.setattr(contestants.atexit, "register", left.append)
    yield
    for end in reversed(left):
        end()


NETWORK = ["vtrace", "gym:CartPole-v1", "agent.batch=2", "agent.unroll=4", "agent.hidden=8", "architecture.envs=2"]
TASKS = {
    "ours": {"kind": "wire", "server": "ours", "to": "unix", "count": 2},
    "raw": {"kind": "wire", "server": "raw", "to": "tcp", "count": 2},
    "near": {"kind": "local", "words": [*NETWORK, "architecture.threads=1"]},
    "far": {"kind": "remote", "words": [*NETWORK, "architecture.actors=1"], "clients": 2, "count": 1},
    "whole": {"kind": "ours", "on": "seed", "words": [*NETWORK, "architecture.actors=2"], "iterations": 2},
}


@pytest.mark.parametrize("name", some_of(TASKS, "ours", "whole"))
def test_contestants_of_seed_run(name, ends):
    answer = contestants.KINDS[TASKS[name]["kind"]](TASKS[name]).run(0)
    assert answer["steps"] > 0 and answer["seconds"] > 0
    if name != "whole":
        assert answer["latency"] > 0


@pytest.mark.parametrize("what", ["sample", *in_full("insert")])
@pytest.mark.parametrize("store", ["compressed", *in_full("host", "device")])
def test_stores_are_filled_and_measured(store, what, ends):
    task = {"store": store, "what": what, "capacity": 16, "batch": 2}
    made = contestants.store(task)
    assert made.run(0)["steps"] > 0
    if store != "compressed":
        assert made.facts["bytes_per_frame"] >= 84 * 84
    assert stores.frames_held(16) == 640 + 960


@full
def test_a_drill_harms_a_run_that_goes_on(monkeypatch, tmp_path):
    monkeypatch.setattr(stage.Stage, "bar", -1.0)
    monkeypatch.setattr(stage, "ACTORS", 2)
    small = {"run.evaluate_every": 4_000, "run.checkpoint_every": 4_000, "run.log_every": 1_000, "run.eval_episodes": 1}
    more = {"architecture.envs": 24, "architecture.silence": 60.0, "agent.hidden": 8}
    monkeypatch.setattr(stage, "SETTINGS", stage.SETTINGS | small | more)
    (row,) = drills.main(["--only", "duplicate", "--out", str(tmp_path)])
    assert row.keys() >= KEYS and row["facts"]["refused"] >= 1


def test_everything_that_the_fuzzer_tries_is_tried():
    fuzzer = fuzz.Fuzzer("unix:/nowhere", envs.make("gym:CartPole-v1").spec)
    fuzzer._said = lambda *said, hello=b"": f"{len(said)} {hello == b''}"
    fuzzer._kinds = [kind for kind in fuzzer._kinds if kind.__name__ != "_noise"]
    tried = fuzzer.attempts(200)
    assert len({name.split(":")[0] for name in tried}) == len(fuzzer._kinds)
    fuzzer.close()
