"""Split's benchmarks: what their contestants do, small."""

import pytest

from benchmarks.common import compete
from benchmarks.split import contestants
from boonta.testing import redis_servers

NEEDED = pytest.mark.skipif(not redis_servers.installed(), reason="redis-server is not installed")


@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac"])
def test_products_are_those_of_an_update(algorithm):
    task = {"algorithm": algorithm, "observation": 3, "action": 2, "hidden": [8, 8], "batch": 4, "steps": 3}
    assert contestants.products(task).run(0)["steps"] == 3


def test_one_process_makes_an_update_of_the_critics_for_each_step():
    words = ["ddpg", "gym:Pendulum-v1", "agent.hidden=[8]", "agent.value_batch=8", "agent.policy_batch=8"]
    words += ["agent.minimum=20", "architecture.envs=1", "architecture.lag=0"]
    task = {"module": "benchmarks.split.contestants", "kind": "updates", "words": words, "on": "sebulba"}
    (run,) = compete({"ours": task | {"warm": 60, "iterations": 30}}, 1)["ours"].runs
    assert run["steps"] == run["env_steps"] == 30


@pytest.mark.parametrize("carriers", [("in-process", "shm"), pytest.param(("redis", "pipelines"), marks=NEEDED)])
def test_carriers_lose_nothing(carriers):
    task = {"module": "benchmarks.split.contestants", "kind": "carrier", "size": 64, "seconds": 0.5}
    for name, outcome in compete({by: task | {"by": by} for by in carriers}, 1).items():
        (run,) = outcome.runs
        assert run["steps"] > 0 and not run.get("lost"), name


def test_who_is_taught_goes_on_and_is_evaluated():
    words = ["ddpg", "gym:Pendulum-v1", "agent.hidden=[8]", "agent.value_batch=8", "agent.policy_batch=8"]
    words += ["agent.minimum=20", "architecture.envs=1"]
    task = {"module": "benchmarks.split.contestants", "kind": "taught", "words": words, "on": "sebulba"}
    (run,) = compete({"ours": task | {"steps": 60, "episodes": 2}}, 1)["ours"].runs
    assert run["steps"] == 60 and -2000 < run["return"] < 0
