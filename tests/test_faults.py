"""Whole runs of Sebulba whose environments fail, that are ended or killed, and that go on."""

import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from subprocess import PIPE, Popen

import gymnasium
import numpy as np
import pytest

from boonta.architectures.sebulba_threads import Threads
from boonta.cli import main
from boonta.core import signals
from boonta.core.faults import Broken
from boonta.experiments import evaluation
from boonta.experiments.metrics import read_metrics
from tests.commands import begun
from tests.faulty import fail
from tests.marks import full, in_full, slow

pytestmark = slow

PATIENCE = 120.0


class Troubled(gymnasium.Env):
    """Ten steps an episode, and a fault: at the step of that number, or wherever `marker` is not there yet."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault, where, marker):
        self.fault, self.where, self.marker, self.steps = fault, where, Path(marker), 0
        self.sound = "spawn_main" not in " ".join(sys.orig_argv) or self.first()
        self.trouble("construction")

    def first(self):
        """Whether it is made in the trial, before the run's own workers make theirs."""
        with contextlib.suppress(FileExistsError), self.marker.with_name("tried").open("x"):
            return True
        return False

    def trouble(self, where):
        """The environments of the run's own process and of the trial are none of those that fail."""
        if where != self.where or self.marker.exists() or self.sound:
            return
        self.marker.touch()
        fail(self.fault)

    def reset(self, *, seed=None, options=None):
        self.trouble("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 30:
            self.trouble("step")
        bad = self.fault == "poisons" and self.steps == 30 and not self.marker.exists()
        if bad:
            self.marker.touch()
        observation = np.full(2, np.nan if bad else 0.1, np.float32)
        return observation, float(action), self.steps % 10 == 0, False, {}


def troubled(fault: str = "", where: str = "step", marker: str = ""):
    return Troubled(fault, where, marker)


def words(folder, *more, env="gym:CartPole-v1", steps=1600):
    tiny = {"agent.hidden": 8, "agent.batch": 4, "agent.unroll": 4, "run.eval_episodes": 2, "run.log_every": 80}
    settings = [word for key, value in tiny.items() for word in ("--set", f"{key}={value}")]
    return ["train", "vtrace", env, "--on", "sebulba", "--config", "none", "--json", "--steps", str(steps),
            "--out", str(folder), *settings, *more]  # fmt: skip


def gone(process):
    """Whether nothing is left of a process and its children."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def trouble(fault, where, tmp_path, restarts):
    return [
        *("--set", f"env.fault={fault}", "--set", f"env.where={where}", "--set", f"env.marker={tmp_path / 'marker'}"),
        *("--set", "architecture.workers=processes", "--set", "architecture.worker_count=2"),
        *("--set", "architecture.worker_timeout=8", "--set", f"architecture.restarts={restarts}"),
        *("--set", "run.evaluate_every=1600"),
    ]


TOLD = {
    "raises": "the sky fell",
    "exits": "exit code 7",
    "segfaults": "exit code -11 (SIGSEGV)",
    "hangs": "did not answer",
}


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        *in_full(
            ("segfaults", "step"), ("raises", "step"), ("exits", "reset"), ("hangs", "step"), ("hangs", "construction")
        ),
    ],
)
def test_a_worker_that_fails_is_made_anew_and_the_run_goes_on(fault, where, tmp_path):
    folder = tmp_path / "run"
    more = trouble(fault, where, tmp_path, restarts=2)
    process = begun(words(folder, *more, env="tests.test_faults:troubled"))
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert json.loads(out.splitlines()[-1])["env_steps"] == 1600
    assert TOLD[fault] in err
    assert "failed and are made anew (1 of 2 within an hour)" in err
    assert max(row.get("restarts", 0) for row in read_metrics(folder)) == 1
    assert gone(process)


@full
def test_past_the_budget_the_run_ends_with_the_cause(tmp_path):
    folder = tmp_path / "run"
    more = trouble("segfaults", "step", tmp_path, restarts=0)
    process = begun(words(folder, *more, env="tests.test_faults:troubled", steps=10**8))
    while not (tmp_path / "marker").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert "Traceback" in err
    record = json.loads((folder / "run.json").read_text())
    assert record["status"] == "failed"
    first, *_ = record["cause"].splitlines()
    cause = r"Died: environment worker \d ended with exit code -11 \(SIGSEGV\)"
    assert re.fullmatch(
        rf"actor 0 died: environments of actor 0, after 0 restarts .*\(architecture.restarts=0\): {cause}", first
    )
    assert gone(process)


def test_what_is_not_finite_is_dropped_with_its_environments(tmp_path, capfd):
    folder = tmp_path / "run"
    marker = ["--set", "env.fault=poisons", "--set", f"env.marker={tmp_path / 'marker'}"]
    marker += ["--set", "architecture.workers=serial"]  # nothing is measured, and no step made, before the run
    assert main(words(folder, "--on-nan", "drop", *marker, env="tests.test_faults:troubled")) == 0
    assert re.search(
        r"made anew \(1 of 3 within an hour\): observation of environment \d of this batch is not finite",
        capfd.readouterr().err,
    )
    assert max(row.get("restarts", 0) for row in read_metrics(folder)) == 1


def test_a_learner_that_raises_ends_the_run(tmp_path, monkeypatch, capfd):
    learn, calls = Threads.iterate, []

    def fails(self, state):
        calls.append(1)
        if len(calls) == 5:
            raise RuntimeError("the learner fell")
        return learn(self, state)

    monkeypatch.setattr(Threads, "iterate", fails)
    assert main(words(tmp_path / "run")) == 1
    err = capfd.readouterr().err
    assert "the learner fell" in err
    assert "Traceback" in err
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("actor")]


@pytest.mark.parametrize(("restarts", "code"), [(1, 0), *in_full((0, 1))])
def test_environments_of_an_evaluation_are_made_anew_too(restarts, code, tmp_path, monkeypatch, capfd):
    play, calls = evaluation.on_host, []

    def fails(*args):
        calls.append(1)
        if len(calls) == 2:
            raise Broken("the sky fell")
        return play(*args)

    monkeypatch.setattr(evaluation, "on_host", fails)
    assert main(words(tmp_path / "run", "--set", f"architecture.restarts={restarts}")) == code
    err = capfd.readouterr().err
    assert ("of an evaluation failed and are made anew (1 of 1 within an hour): the sky fell" in err) == (code == 0)
    assert "the sky fell" in err


@full
def test_a_signal_does_not_wait_for_an_evaluation(tmp_path, monkeypatch, capfd):
    begun, freed = threading.Event(), threading.Event()

    def endless(greedy, params, make, count, most, ended, tell):
        begun.set()
        while not ended():
            time.sleep(0.05)
        freed.set()
        raise evaluation.GivenUp

    def interrupt():
        begun.wait(PATIENCE)
        os.kill(os.getpid(), signal.SIGTERM)

    play = evaluation.on_host
    monkeypatch.setattr(evaluation, "on_host", endless)
    threading.Thread(target=interrupt, daemon=True).start()
    folder = tmp_path / "run"
    assert main(words(folder)) == 128 + signal.SIGTERM
    assert freed.is_set()  # nothing plays on
    assert re.search(r"the evaluation of step \d+ was given up", capfd.readouterr().err)
    assert not any("eval/episodes" in row for row in read_metrics(folder))
    monkeypatch.setattr(evaluation, "on_host", play)
    assert main(["train", "--resume", str(folder), "--json"]) == 0
    assert sum("eval/episodes" in row for row in read_metrics(folder)) >= 9


R2D2 = {
    "agent.hidden": 8, "agent.batch": 4, "agent.length": 8, "agent.burn_in": 4, "agent.period": 4, "agent.minimum": 10,
    "agent.core_size": 8, "agent.capacity": 100, "agent.head": 8, "agent.replay_ratio": 1, "run.eval_episodes": 2,
    "run.log_every": 80, "run.checkpoint_every": 800, "run.evaluate_every": 400, "architecture.envs": 4,
    "architecture.chunk": 4, "architecture.actors": 4, "architecture.restarts": 0,
}  # fmt: skip


@full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_seed_ended_or_killed_goes_on_with_its_replay(number, tmp_path):
    """Its actors get the signal too, and end with the run, not before it."""
    folder, steps = tmp_path / "run", 2_500
    settings = [word for key, value in R2D2.items() for word in ("--set", f"{key}={value}")]
    begin = ["train", "r2d2", "gym:CartPole-v1", "--on", "seed", "--config", "none", "--json", "--steps", str(steps)]
    process = begun([*begin, "--out", str(folder), *settings])
    while not list(folder.glob("checkpoints/[0-9]*/checksums.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    os.killpg(process.pid, number) if number == signal.SIGTERM else process.kill()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == (128 + number if number == signal.SIGTERM else -number), err
    assert gone(process)
    saved = max(int(path.parent.name.split("-")[-1]) for path in folder.glob("checkpoints/[0-9]*/checksums.json"))
    before = [row for row in read_metrics(folder) if row["env_steps"] <= saved and "updates" in row][-1]
    process = begun(["train", "--resume", str(folder), "--json"])
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and "begins empty" not in err, err
    assert f"going on from step {saved}" in err
    rows = [row for row in read_metrics(folder) if "updates" in row]
    after = next(row for row in rows if row["env_steps"] > saved)
    assert 0.7 * before["replay/windows"] < after["replay/windows"] <= 130  # some wait for their last pieces
    assert before["updates"] < after["updates"] < before["updates"] + 200
    assert abs(after["replay/samples_per_insert"] - before["replay/samples_per_insert"]) < 0.2
    assert json.loads(out.splitlines()[-1])["status"] == "done"


def test_a_tied_process_hears_no_signal_before_it_is_tied():
    words = "from boonta.experiments import process; process.tie(); print('tied')"
    with signals.held():
        process = Popen([sys.executable, "-c", words], stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    for number in signals.ENDING:
        process.send_signal(number)
    code = process.wait(PATIENCE)  # its standard input does not end before it does
    out, err = process.communicate()
    assert (out, code) == ("tied\n", 0), err


@full
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ended_or_killed_a_run_goes_on_where_it_was(number, tmp_path):
    folder = tmp_path / "run"
    processes = ["--set", "architecture.workers=processes", "--set", "architecture.restarts=0"]
    process = begun(words(folder, "--set", "run.checkpoint_every=1600", *processes, steps=8_000))
    while not list(folder.glob("checkpoints/[0-9]*/checksums.json")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    # A terminal, or a cluster, asks all processes of a run to end.
    if number == signal.SIGTERM:
        os.killpg(process.pid, number)
    else:
        process.kill()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == (128 + number if number == signal.SIGTERM else -number), err
    assert gone(process)
    saved = max(int(path.parent.name) for path in folder.glob("checkpoints/[0-9]*/checksums.json"))
    process = begun(["train", "--resume", str(folder), "--json"])
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    assert f"going on from step {saved}" in err
    summary = json.loads(out.splitlines()[-1])
    assert (summary["env_steps"], summary["updates"]) == (8_000, 8_000 // 16)
    steps = [row["env_steps"] for row in read_metrics(folder) if "updates" in row]
    assert steps == sorted(set(steps))
    assert [row["updates"] for row in read_metrics(folder) if "updates" in row] == [n // 16 for n in steps]
    rates = [row["loss/learning_rate"] for row in read_metrics(folder) if "updates" in row]
    assert rates == sorted(rates, reverse=True)  # annealing went on where it was
