"""The whole way of a run on each architecture of the host: it learns, saves, is ended, and goes on to its end."""

import json
import signal
import time

import pytest

from boonta.cli import main
from boonta.experiments.metrics import read_metrics
from tests.commands import begun
from tests.marks import slow

ENDLESS = 10_000_000  # steps, of a run that is killed
SMALL = {
    "vtrace": {"hidden": 8, "batch": 4, "unroll": 4},
    "dqn": {"hidden": 8, "batch": 8, "minimum": 20, "capacity": 2000, "replay_ratio": 1},
    "r2d2": {
        "batch": 4, "length": 8, "burn_in": 4, "period": 4, "minimum": 10, "core_size": 8, "capacity": 100, "head": 8,
        "replay_ratio": 1,
    },
    "ddpg": {"hidden": 8, "value_batch": 8, "policy_batch": 8, "minimum": 20, "capacity": 2000},
}  # fmt: skip


# Anakin's is in test_training.
@slow
@pytest.mark.parametrize(
    ("architecture", "agent", "env", "more", "number"),
    [
        ("sebulba", "vtrace", "CartPole-v1", {}, signal.SIGTERM),
        ("seed", "r2d2", "CartPole-v1", {"architecture.envs": 4, "architecture.actors": 2}, signal.SIGKILL),
        ("fleet", "dqn", "CartPole-v1", {"architecture.crew": "threads"}, signal.SIGKILL),
        ("split", "ddpg", "Pendulum-v1", {}, signal.SIGKILL),
    ],
)
def test_a_run_that_is_ended_goes_on_to_its_end(architecture, agent, env, more, number, tmp_path, capfd):
    folder = tmp_path / "run"
    settings = {f"agent.{name}": value for name, value in SMALL[agent].items()} | more
    settings |= {"run.checkpoint_every": 200, "run.evaluate_every": ENDLESS, "run.eval_episodes": 2}
    words = ["train", agent, f"gym:{env}", "--on", architecture, "--config", "none", "--steps", str(ENDLESS)]
    words += ["--out", str(folder), *(word for key, x in settings.items() for word in ("--set", f"{key}={x}"))]
    process = begun(words)
    try:
        while not list(folder.glob("checkpoints/[0-9]*/checksums.json")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == (128 + number if number == signal.SIGTERM else -number)
    saved = max(int(path.parent.name) for path in folder.glob("checkpoints/[0-9]*/checksums.json"))
    assert saved > 0
    assert main(["train", "--resume", str(folder), "--steps", str(saved + 400), "--json"]) == 0
    out, err = capfd.readouterr()
    assert f"going on from step {saved}" in err
    summary = json.loads(out.splitlines()[-1])
    assert summary["status"] == "done" and summary["env_steps"] <= saved + 400
    assert summary["eval_return_mean"] is not None
    rows = [row for row in read_metrics(folder) if "updates" in row]
    assert rows[-1]["env_steps"] > saved and rows[-1]["updates"] > 0
    assert architecture != "seed" or rows[-1]["clients/joined"] == 2
