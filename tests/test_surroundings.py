"""What surrounds a run: variables, streams, folders, servers, numbers of 64 bits, and what a killed process leaves."""

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from boonta import envs
from boonta.architectures import anakin
from boonta.architectures.turns import together
from boonta.cli import main
from boonta.core import random, waiting
from boonta.experiments import claim, process, registry, replays
from tests.marks import full, slow, some_of


def boonta(*words, **variables):
    """A command in a process of its own: its exit status, and what it said."""
    command = [sys.executable, "-m", "boonta", *words]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"} | variables
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=200)
    return done.returncode, done.stdout, done.stderr


@slow
def test_a_platform_that_is_not_there_is_one_line():
    code, _, err = boonta("train", "--steps", "1000", JAX_PLATFORMS="cuda")
    (line,) = err.splitlines()
    assert code == 1 and "JAX_PLATFORMS=cuda" in line and "boonta doctor" in line
    code, out, err = boonta("doctor", JAX_PLATFORMS="cuda")
    assert code == 1 and "none: JAX finds no device (JAX_PLATFORMS=cuda)" in out and "Traceback" not in err


def test_what_a_terminal_cannot_show_is_spelt_in_plain_letters():
    said = "from boonta.experiments import process; process.mend_streams(); print('1 ± 2 – 3 …')"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, env=environment, check=True)
    assert done.stdout == "1 +- 2 - 3 ...\n"


def test_what_is_said_where_stderr_is_closed_is_not_said_on_stdout():
    said = (
        "import sys; from boonta.experiments import process; process.mend_streams(); print('notice', file=sys.stderr)"
    )
    words = ["sh", "-c", f'exec "{sys.executable}" -c "{said}" 2>&-']
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment, check=True).stdout == ""


def test_a_cluster_that_is_not_there_is_one_line(tmp_path, capfd):
    pytest.importorskip("ray")
    words = ["train", "ppo", "gym:CartPole-v1", "--on", "fleet", "--cluster", "127.0.0.1:1"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("boonta: there is no Ray cluster at 127.0.0.1:1 (architecture.cluster)")


def test_what_does_not_answer_has_a_deadline(monkeypatch, capfd):
    monkeypatch.setattr(waiting, "SOON", 0.0)
    with pytest.raises(waiting.Late, match="the coordinator did not answer in 0.3 s"):
        waiting.patiently(lambda: time.sleep(5.0), "the coordinator", 0.3)
    assert "waiting for the coordinator" in capfd.readouterr().err
    assert waiting.patiently(lambda: 3, "a number", 5.0) == 3


# Numbers


def tried(agent):
    """The unit of an agent with its defaults, in an environment of others that it suits."""
    env = {"alphazero": "pgx:tic_tac_toe"}.get(agent, "gymnax:CartPole-v1")
    env = "gymnax:Pendulum-v1" if agent in ("ddpg", "td3", "sac") else env
    entry = registry.agent(agent)
    environment = envs.make(env, **entry.env)
    return anakin.make(together(entry.factory(environment.spec, entry.settings(), 100)), environment, 64)


@pytest.mark.parametrize("agent", some_of(registry.AGENTS, "dqn"))
def test_where_jax_computes_in_64_bits_agents_train_in_32(agent):
    with jax.enable_x64(True):
        unit = tried(agent)
        state = jax.eval_shape(lambda: unit.init(random.key(0), {}))
        after, metrics = jax.eval_shape(unit.step, state)
    assert jax.tree.structure(after) == jax.tree.structure(state)
    for one in jax.tree.leaves((state, after, metrics)):
        assert one.dtype not in (jnp.float64, jnp.complex128)


LEARN = [
    "--steps", "320", "--json", "--devices", "1", "--config", "none", "--set", "run.eval_episodes=0",
    "--set", "run.log_every=40",
]  # fmt: skip
SMALL = {"hidden": "[8]", "capacity": 200, "minimum": 20}
SHORT = {
    "ppo": {"hidden": "[8]", "unroll": 4, "batch": 4, "minibatches": 2, "epochs": 1},
    "vtrace": {"hidden": "[8]", "unroll": 4, "batch": 4},
    "dqn": SMALL | {"batch": 8},
    "sac": SMALL | {"value_batch": 8, "policy_batch": 8, "sampler": "prioritized"},
}


@full
@pytest.mark.parametrize(
    ("agent", "architecture"),
    [(a, b) for a in SHORT for b in ("anakin", "sebulba")],
)
def test_agents_train_where_jax_looks_for_what_is_not_a_number(agent, architecture, tmp_path):
    """Also while no episode has ended, and where a learner says no priorities."""
    env = ("gymnax" if architecture == "anakin" else "gym") + (":Pendulum-v1" if agent == "sac" else ":CartPole-v1")
    words = ["train", agent, env, "--on", architecture, *LEARN, "--out", str(tmp_path / "run")]
    words += ["--set", f"architecture.envs={4 if architecture == 'anakin' else 2}"]
    words += [word for name, value in SHORT[agent].items() for word in ("--set", f"agent.{name}={value}")]
    jax.config.update("jax_debug_nans", True)
    try:
        assert main(words) == 0
    finally:
        jax.config.update("jax_debug_nans", False)


# Folders


def test_runs_that_begin_in_the_same_second_have_folders_of_their_own(tmp_path):
    made = [claim.fresh(tmp_path / "20260101-000000") for _ in range(3)]
    assert len({*made}) == 3 and all(one.is_dir() for one in made)


def test_what_others_wrote_column_by_column_is_read_as_it_was(tmp_path):
    rows = np.arange(6.0).reshape(2, 3)
    np.savez(tmp_path / "a.npz", rows=rows, columns=np.asfortranarray(rows))
    found = replays._mapped(tmp_path / "a.npz")
    np.testing.assert_array_equal(found["rows"], found["columns"])


@pytest.mark.parametrize(
    ("words", "place"),
    [(["report", "runs/a"], "report.write_report"), (["watch", "runs/a"], "runs.watch")],
)
def test_what_cannot_be_written_in_a_run_folder_can_be_written_elsewhere(words, place, monkeypatch, capsys):
    def refuse(*_):
        raise PermissionError(errno.EACCES, "Permission denied", "runs/a/made")

    monkeypatch.setattr("boonta.experiments.runs.open_run", lambda *_: None)
    monkeypatch.setattr(f"boonta.experiments.{place}", refuse)
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "Permission denied: 'runs/a/made'; name a place that can be written with --out" in line


# Processes


def test_a_text_of_any_length_can_be_inherited():
    text = "x" * (1 << 20)
    descriptor = process.readable(text)
    words = [sys.executable, "-c", f"print(len(open('/dev/fd/{descriptor}').read()))"]
    out = subprocess.run(words, pass_fds=(descriptor,), capture_output=True, text=True, check=True, timeout=20).stdout
    os.close(descriptor)
    assert int(out) == len(text)


@slow
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc, which shows whose a process is")
def test_what_a_killed_process_has_started_is_ended_and_what_it_has_released_is_not():
    """Also a child that hides its variables, as some of Ray's do."""
    hides = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], env={})"
    starts = f"import subprocess, sys, time; print({hides}.pid, flush=True); time.sleep(60)"
    begin = f"""
import os, subprocess, sys
from boonta.transport.reaper import Reaper
reaper = Reaper()
one = subprocess.Popen([sys.executable, "-c", {starts!r}], stdout=subprocess.PIPE, text=True)
print(one.pid, one.stdout.readline(), flush=True)
if sys.argv[1] == "released":
    reaper.release()
os._exit(9)
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = {}
    for how in ("killed", "released"):
        words = [sys.executable, "-c", begin, how]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
            line = process.stdout.readline() + process.stdout.readline()
            started[how] = [psutil.Process(int(pid)) for pid in line.split()]
    assert [len(started[how]) for how in ("killed", "released")] == [2, 2]
    psutil.wait_procs(started["killed"], timeout=30)
    assert not any(one.is_running() for one in started["killed"])
    assert all(one.is_running() for one in started["released"])
    for one in started["released"]:
        one.kill()
