"""Processes that act and processes that learn: their counts, their deaths, and runs that go on."""

import json
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import psutil
import pytest
from hypothesis import given, settings

from boonta.agents import ddpg, ppo
from boonta.architectures.split_pace import pace
from boonta.core.spec import Continuous, Shape, Spec

SPEC = Spec("a box", Shape((3,), np.float32), Continuous((1,), -np.ones(1), np.ones(1)))
SMALL = [
    "agent.hidden=16", "agent.value_batch=16", "agent.policy_batch=8", "agent.minimum=20", "agent.capacity=2000",
    "run.eval_episodes=2",
]  # fmt: skip


def agent(module=ddpg, **values):
    factory = getattr(module, module.__name__.split(".")[-1])
    return factory(SPEC, module.Settings(**values))


# Counts


@settings(max_examples=100, deadline=None)
@given(
    moved=st.integers(1, 20),
    minimum=st.integers(0, 30),
    ratios=st.tuples(*[st.sampled_from([0.1, 0.5, 1.0, 1.5, 4.0])] * 2),
    choices=st.lists(st.integers(0, 2), min_size=300, max_size=300),
)
def test_somebody_may_always_move_and_counts_stay_in_their_band(moved, minimum, ratios, choices):
    made = agent(value_updates=ratios[0], policy_updates=ratios[1])
    held = pace(made, minimum, moved)
    steps, updates = 0, {"value": 0, "policy": 0}
    for choice in choices:
        may = [held.may_step(steps, updates), *(held.may_update(name, steps, updates[name]) for name in updates)]
        assert any(may), "all wait for ever"
        which = choice if may[choice] else may.index(True)
        if which == 0:
            steps += moved
        else:
            updates[("value", "policy")[which - 1]] += 1
        for name, ratio in zip(updates, ratios, strict=True):
            ahead = Fraction(ratio).limit_denominator(10) * max(steps - minimum, 0) - updates[name]
            slack = Fraction(ratio).limit_denominator(10) * moved  # what was made while the minimum came
            assert 0 <= ahead <= held.bands[name] + slack


def test_updates_are_those_asked_for():
    held = pace(agent(value_updates=2.0, policy_updates=0.5), minimum=10, moved=4)
    updates = {"value": 0, "policy": 0}
    for _ in range(1000):
        for name in updates:
            updates[name] += held.may_update(name, 110, updates[name])
    assert updates == {"value": 200, "policy": 50}


def test_nobody_waits_where_all_run_free():
    held = pace(agent(), minimum=10, moved=4, free=True)
    assert not held.may_update("value", 9, 0)
    assert held.may_update("value", 10, 10**6)
    assert held.may_step(10**6, {"value": 0, "policy": 0})


def test_bands_and_agents_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"architecture\.band must be at least 5"):
        pace(agent(), 0, 4, band=2.0)
    with pytest.raises(ValueError, match="split is for learners with replay"):
        pace(ppo.ppo(SPEC, ppo.Settings()), 0, 4)


# Whole runs


def command(folder, *more, agent="ddpg", env="gym:Pendulum-v1", steps=240):
    return [
        sys.executable, "-m", "boonta", "train", agent, env, "--on", "split", "--config", "none", "--json",
        "--steps", str(steps), "--out", str(folder),
        *(part for one in SMALL for part in ("--set", one)), *more,
    ]  # fmt: skip


def run(arguments, seconds=400):
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def last(folder, key):
    return [row[key] for row in rows(folder) if key in row][-1]


def workers(folder=None):
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if "split-worker" in line and process.status() != psutil.STATUS_ZOMBIE:
            found.append((line[line.index("--role") + 1], process.pid, process.ppid()))
    return found


def of(parent):
    return {role: pid for role, pid, ppid in workers() if ppid == parent}


def test_a_run_makes_the_updates_asked_for(tmp_path):
    summary, _ = run(
        command(
            tmp_path / "run", "--set", "agent.value_updates=2", "--set", "agent.policy_updates=0.5",
            "--set", "architecture.environments=2", "--set", "architecture.envs=2", agent="sac",
        )
    )  # fmt: skip
    assert summary["status"] == "done" and summary["env_steps"] == 240
    # Each piece is of one step, and the last of 20 windows is complete a piece after it began.
    learned = 240 - 20 - 2 * 4
    assert last(tmp_path / "run", "updates/value") == 2 * learned
    assert last(tmp_path / "run", "updates/policy") == learned // 2
    assert summary["updates"] == 2 * learned + learned // 2
    assert last(tmp_path / "run", "lost/value") == 0
    assert np.isfinite(last(tmp_path / "run", "loss/value")) and np.isfinite(last(tmp_path / "run", "loss/policy"))


def test_dqn_is_a_value_learner_alone(tmp_path):
    more = ["agent.batch=16", "agent.replay_ratio=16", "agent.unroll=1"]
    arguments = [
        sys.executable, "-m", "boonta", "train", "dqn", "gymnax:CartPole-v1", "--on", "split", "--config", "none",
        "--json", "--steps", "200", "--out", str(tmp_path / "run"), "--set", "agent.minimum=20",
        "--set", "agent.hidden=16", "--set", "run.eval_episodes=2",
        *(part for one in more for part in ("--set", one)),
    ]  # fmt: skip
    summary, _ = run(arguments)
    assert summary["status"] == "done"
    assert 170 <= last(tmp_path / "run", "updates/dqn") <= 180
    told = [row["loss/exploration"] for row in rows(tmp_path / "run") if row.get("loss/exploration")]
    assert told[0] > 0.5 and told[-1] < 0.06  # it falls in the first tenth of the run's updates


def test_several_processes_share_the_batch_of_the_value(tmp_path):
    summary, _ = run(command(tmp_path / "run", "--set", "architecture.value_processes=2", steps=120))
    assert summary["status"] == "done"
    assert last(tmp_path / "run", "updates/value") == 120 - 20 - 2


def test_processes_that_are_killed_are_replaced_and_counted(tmp_path):
    folder = tmp_path / "run"
    arguments = command(
        folder, "--set", "run.log_every=100", "--set", "run.checkpoint_every=500", "--set", "architecture.restarts=4",
        steps=6000,
    )  # fmt: skip
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            for role in ("environment/0", "value/0", "policy/0"):
                wait(lambda: learning(folder), process)
                victim = of(process.pid)[role]
                os.kill(victim, signal.SIGKILL)
                seen = len(rows(folder))
                wait(lambda seen=seen: len(rows(folder)) > seen + 2, process)
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["env_steps"] == 6000
    assert err.count("is replaced") == 3 and "exit status -9" in err
    assert last(folder, "restarts") == 3
    assert last(folder, "updates/value") == 6000 - 20 - 2
    assert not of(process.pid)


def test_a_driver_that_is_killed_leaves_nothing_and_the_run_goes_on(tmp_path):
    folder = tmp_path / "run"
    before = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    arguments = command(folder, "--set", "run.log_every=50", "--set", "run.checkpoint_every=100", steps=1500)
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait(lambda: any(folder.glob("checkpoints/*/checksums.json")), process)
        theirs = of(process.pid)
        assert set(theirs) == {"environment/0", "value/0", "policy/0"}
        process.kill()
        process.wait(10)
    until = time.monotonic() + 20
    alive = lambda: [pid for pid in theirs.values() if pid in {pid for _, pid, _ in workers()}]  # noqa: E731
    while alive() and time.monotonic() < until:
        time.sleep(0.2)
    assert not alive(), "processes outlive their run"
    assert not before or set(os.listdir("/dev/shm")) <= before
    summary, done = run([sys.executable, "-m", "boonta", "train", "--resume", str(folder), "--json"])
    assert summary["env_steps"] == 1500
    assert last(folder, "updates/value") == 1500 - 20 - 2
    assert "replay" not in done.stderr  # nothing of it was lost


def test_what_cannot_be_is_refused_before_anything_starts(tmp_path):
    for more, message in (
        (["--set", "architecture.transport=carrier-pigeons"], "architecture.transport must be"),
        (["--set", "architecture.band=0.1"], "architecture.band must be at least"),
        (["--set", "architecture.value_processes=3"], "value's batch must be a multiple of its devices"),
    ):
        done = subprocess.run(command(tmp_path / "run", *more), capture_output=True, text=True, timeout=120)
        assert done.returncode == 2 and message in done.stderr, done.stderr
    done = subprocess.run(
        [sys.executable, "-m", "boonta", "train", "ppo", "gymnax:CartPole-v1", "--on", "split", "--out",
         str(tmp_path / "run")],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2 and "agents that learn from replay" in done.stderr


def learning(folder):
    return (folder / "metrics.jsonl").is_file() and any(row.get("updates", 0) > 20 for row in rows(folder))


def wait(condition, process, seconds=240):
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read() if process.stderr else "it ended"
        assert time.monotonic() < until, "not in time"
        time.sleep(0.05)
