"""Split's benchmarks: what their contestants do, small."""

import json

import pytest

from benchmarks.common import compete
from benchmarks.split import contestants, value_batch
from tests.marks import full, needs_redis, slow

pytestmark = slow


@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac"])
def test_products_are_those_of_an_update(algorithm):
    task = {"algorithm": algorithm, "observation": 3, "action": 2, "hidden": [8, 8], "batch": 4, "steps": 3}
    assert contestants.products(task).run(0)["steps"] == 3


@full
def test_one_process_makes_an_update_of_the_critics_for_each_step():
    words = ["ddpg", "gym:Pendulum-v1", "agent.hidden=[8]", "agent.value_batch=8", "agent.policy_batch=8"]
    words += ["agent.minimum=20", "agent.unroll=1", "architecture.envs=1", "architecture.lag=0"]
    task = {"module": "benchmarks.split.contestants", "kind": "updates", "words": words, "on": "sebulba"}
    (run,) = compete({"ours": task | {"warm": 60, "iterations": 30}}, 1)["ours"].runs
    assert run["steps"] == run["env_steps"] == 30


@pytest.mark.parametrize(
    "carriers", [("in-process", "shm"), pytest.param(("redis", "pipelines"), marks=[needs_redis, full])]
)
def test_carriers_lose_nothing(carriers):
    task = {"module": "benchmarks.split.contestants", "kind": "carrier", "size": 64, "seconds": 0.5}
    for name, outcome in compete({by: task | {"by": by} for by in carriers}, 1).items():
        (run,) = outcome.runs
        assert run["steps"] > 0 and not run.get("lost"), name


@full
def test_who_is_taught_goes_on_and_is_evaluated():
    words = ["ddpg", "gym:Pendulum-v1", "agent.hidden=[8]", "agent.value_batch=8", "agent.policy_batch=8"]
    words += ["agent.minimum=20", "agent.unroll=1", "architecture.envs=1"]
    task = {"module": "benchmarks.split.contestants", "kind": "taught", "words": words, "on": "sebulba"}
    (run,) = compete({"ours": task | {"steps": 60, "episodes": 2}}, 1)["ours"].runs
    assert run["steps"] == 60 and -2000 < run["return"] < 0


def test_the_experiment_makes_the_runs_that_it_has_not_and_reads_them_all(tmp_path, monkeypatch):
    made = []

    def train(words, seconds, folder):
        made.append(words)
        folder.mkdir(parents=True)
        steps = int(words[words.index("--steps") + 1])
        line = {"loss/value": 2.0, "loss/value_variance": 4.0, "loss/policy": 1.0, "episode/return_mean": -5.0}
        rows = [{"env_steps": n, "seconds": n / 100, "updates/value": 2 * n} | line for n in (steps // 2, steps)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        result = {"eval_return_mean": float(words[words.index("--seed") + 1])}
        (folder / "run.json").write_text(json.dumps({"status": "done", "commit": "abc", "result": result}))

    def experiment(*words):
        where = ["--runs", str(tmp_path / "runs"), "--out", str(tmp_path)]
        return value_batch.main(["--rounds", "2", "--only", "halfcheetah,value-updates", *where, *words])

    monkeypatch.setattr(value_batch, "_train", train)
    rows = experiment()
    cheetah, pendulum = (value_batch.ASKED[name] for name in ("halfcheetah", "value-updates"))
    count = len(cheetah.values) + len(pendulum.values)
    assert (len(rows), len(made)) == (count, 2 * count)
    assert [row["env_steps"] for row in rows] == [cheetah.steps] * 4 + [pendulum.steps] * 4
    assert [row["diverged"] for row in rows] == [0.5] * 4 + [0.0] * 4  # a return of 0 is nothing on HalfCheetah alone
    assert (rows[0]["values"], rows[0]["updates_per_second"], rows[0]["value_loss"]) == ([0.0, 1.0], 200.0, 2.0)
    assert rows[0]["curves"]["return"] == [[-5.0] * 25, [0.0] * 25]
    assert all(("--synchronous" in words) == (cheetah.env in words) for words in made)
    assert all(("split" in words) == (pendulum.env in words) for words in made)
    experiment()
    assert len(made) == 2 * count
    experiment("--steps", "500")
    assert len(made) == 4 * count
