"""Two processes with a device each learn what one process with two devices learns."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from boonta.cli import main
from boonta.experiments import agreement
from tests.marks import full, slow
from tests.test_training import TINY, assigned, final, rows, status

pytestmark = slow

PATIENCE = 300.0
SGD = assigned(agent__optimizer="sgd", agent__learning_rate=0.1, run__checkpoint_every=1280)


def words(out):
    return ["train", "vtrace", "boonta:catch", "--steps", "3200", "--json", "--out", str(out), *TINY, *SGD]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def started(arguments):
    """One command in two processes that meet."""
    flags = re.sub(r"device_count=\d+", "device_count=1", os.environ["XLA_FLAGS"])
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    meet = ["--coordinator", f"127.0.0.1:{free_port()}", "--processes", "2", "--process"]
    return [
        subprocess.Popen(
            [sys.executable, "-m", "boonta", *arguments, *meet, str(i)],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for i in range(2)
    ]  # fmt: skip


def together(arguments):
    """Run one command in two processes that meet; their (exit code, stdout, stderr)."""
    processes = started(arguments)
    try:
        ends = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [(process.returncode, *end) for process, end in zip(processes, ends, strict=True)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert main([*words(folder), "--devices", "2"]) == 0
    return folder


def assert_close_runs(folder, other):
    one, two = final(folder), final(other)
    assert one.keys() == two.keys()
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=0, atol=1e-5, err_msg=name)
    assert [row["env_steps"] for row in rows(folder)] == [row["env_steps"] for row in rows(other)]


def test_two_processes_learn_what_two_devices_learn(alone, tmp_path):
    folder = tmp_path / "run"
    (code, out, err), (other_code, other_out, other_err) = together(words(folder))
    assert (code, other_code) == (0, 0), err + other_err
    summary = json.loads(out.splitlines()[-1])
    assert summary["env_steps"] == 3200
    assert summary["status"] == "done"
    assert "env_steps" not in other_out
    devices = status(folder)["devices"]
    assert (devices["count"], devices["processes"]) == (2, 2)
    assert_close_runs(folder, alone)


def sebulba(out):
    return ["train", "vtrace", "boonta:catch", "--on", "sebulba", "--synchronous", "--steps", "3200", "--json",
            "--out", str(out), *TINY, *SGD]  # fmt: skip


@full
def test_two_replicas_of_sebulba_learn_what_two_learner_devices_learn(tmp_path):
    alone, folder = tmp_path / "alone", tmp_path / "run"
    assert main([*sebulba(alone), "--learners", "2", "--actors", "1"]) == 0
    (code, out, err), (other_code, other_out, other_err) = together(sebulba(folder))
    assert (code, other_code) == (0, 0), err + other_err
    assert json.loads(out.splitlines()[-1])["env_steps"] == 3200
    assert "env_steps" not in other_out
    assert status(folder)["devices"]["processes"] == 2
    assert_close_runs(folder, alone)
    for one, two in zip(rows(folder), rows(alone), strict=True):
        assert one.get("episode/count") == two.get("episode/count")


@full
@pytest.mark.parametrize("agent", ["ppo", "r2d2"])
def test_two_hosts_of_seed_learn_together(agent, tmp_path):
    """From each trajectory once, and from replay in the memory of each host."""
    folder = tmp_path / "run"
    small = {
        "ppo": assigned(agent__batch=8, agent__unroll=8, agent__minibatches=2),
        "r2d2": assigned(
            agent__batch=8, agent__length=8, agent__burn_in=4, agent__period=4, agent__core_size=8, agent__head=8,
            agent__minimum=16, agent__capacity=128, agent__replay_ratio=1,
        ),
    }[agent]  # fmt: skip
    words = ["train", agent, "gym:CartPole-v1", "--on", "seed", "--config", "none", "--steps", "2000", "--json"]
    more = assigned(architecture__envs=8, architecture__actors=1, agent__hidden=8, run__eval_episodes=2)
    (code, out, err), (other_code, other_out, other_err) = together([*words, "--out", str(folder), *small, *more])
    assert (code, other_code) == (0, 0), err + other_err
    summary = json.loads(out.splitlines()[-1])
    assert 1500 < summary["env_steps"] <= 2000 and summary["updates"] > 5
    assert "env_steps" not in other_out
    assert status(folder)["devices"]["processes"] == 2
    assert next(row for row in reversed(rows(folder)) if "batch_mean" in row)["clients/environments"] == 4


@full
def test_evaluations_beside_training_are_saved_by_all_hosts_and_one_signal_ends_them(tmp_path):
    folder = tmp_path / "run"
    words = [word for word in sebulba(folder) if word != "--synchronous"]
    words = [word if word != "3200" else "100000000" for word in words]
    processes = started([*words, *assigned(run__log_every=320, run__evaluate_every=640, run__checkpoint_every=640)])
    try:
        deadline = time.monotonic() + PATIENCE
        while not ((folder / "metrics.jsonl").is_file() and sum("eval/episodes" in row for row in rows(folder)) > 2):
            assert all(process.poll() is None for process in processes), processes[0].communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        processes[1].send_signal(signal.SIGTERM)
        ends = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [128 + signal.SIGTERM] * 2, ends
    assert "saved, go on with" in ends[0]
    assert status(folder)["status"] == "interrupted"


@full
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_replica_ends_the_other_and_both_go_on(victim, tmp_path):
    folder = tmp_path / "run"
    long = [word if word != "3200" else "100000000" for word in sebulba(folder)]
    processes = started([*long, *assigned(run__log_every=1280, run__evaluate_every=10**9)])
    try:
        deadline = time.monotonic() + PATIENCE
        while not (list(folder.glob("checkpoints/[0-9]*/checksums.json")) or time.monotonic() > deadline):
            time.sleep(0.1)
        processes[victim].kill()
        _, err = processes[1 - victim].communicate(timeout=PATIENCE)
        assert processes[1 - victim].returncode == 1, err
        assert f"host {1 - victim} of 2 could not reach another one, which may have died" in err.splitlines()[-1]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    before = max(row["env_steps"] for row in rows(folder))
    saved = max(int(path.parent.name) for path in folder.glob("checkpoints/[0-9]*/checksums.json"))
    again = started(["train", "--resume", str(folder), "--json"])
    try:
        while max(row["env_steps"] for row in rows(folder)) <= before + 1280:
            assert all(process.poll() is None for process in again), again[0].communicate()
            assert time.monotonic() < deadline + PATIENCE
            time.sleep(0.1)
    finally:
        for process in again:
            process.send_signal(signal.SIGTERM)
        ends = [process.communicate(timeout=PATIENCE)[1] for process in again]
    assert [process.returncode for process in again] == [128 + signal.SIGTERM] * 2
    assert f"going on from step {saved}" in ends[0]


def test_hosts_agree_on_what_one_of_them_knows(monkeypatch):
    """With another host's word beside this one's."""
    other = []
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda mine: np.stack([mine, np.asarray(other[-1])]))
    monkeypatch.setattr(multihost_utils, "broadcast_one_to_all", lambda tree: jax.tree.map(lambda x: x + 1, tree))
    monkeypatch.setattr(multihost_utils, "sync_global_devices", other.append)
    agreement.meet("here")
    assert other == ["here"]
    for received, theirs, number in (([], 0, 0), ([15], 0, 15), ([], 2, 2)):
        other.append(theirs)
        assert agreement.agreed(received) == number
    other.append(False)
    assert not agreement.together(True)
    other.append(7)
    assert agreement.same(7) and not agreement.same(8) and agreement.total(3) == 10
    assert agreement.shared({"a": np.zeros(2)})["a"].tolist() == [1.0, 1.0]
    assert agreement.lost(ValueError("mine")) is None
    told = agreement.lost(RuntimeError("Gloo: Connection reset\nby peer"))
    assert told.startswith("host 1 of 2 could not reach another one, which may have died (Gloo: Connection reset)")
