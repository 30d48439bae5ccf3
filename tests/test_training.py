"""A run survives what ends it: signals, damaged checkpoints, full disks, NaN; and goes on exactly."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from boonta.cli import main
from boonta.core.environment import Environment, proceed, start
from boonta.core.spec import Discrete, Spec
from boonta.experiments import agreement, claim, runs, systems
from boonta.experiments import config as configuration
from boonta.experiments.checkpoint import Checkpoints
from boonta.experiments.metrics import read_metrics
from tests.marks import full, in_full, slow

pytestmark = slow

AGENTS = ("ppo", "vtrace")
STEPS, SAVE_EVERY = 3840, 640
PATIENCE = 120.0


def assigned(**values):
    return [word for key, value in values.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]


TINY = assigned(agent__body="mlp", agent__hidden=16, agent__batch=8, agent__unroll=8, run__eval_episodes=8)
REPLAY = assigned(agent__minimum=64, agent__capacity=1000, agent__replay_ratio=1)


def command(agent, out, *more, env="boonta:catch"):
    sizes = assigned(run__log_every=128, run__checkpoint_every=SAVE_EVERY, run__evaluate_every=2 * SAVE_EVERY)
    return [
        "train",
        agent,
        env,
        "--steps",
        str(STEPS),
        "--devices",
        "1",
        "--json",
        "--out",
        str(out),
        *TINY,
        *(REPLAY if agent == "dqn" else ()),
        *sizes,
        *more,
    ]


def test_what_is_due_shortly_before_the_end_waits_for_it(tmp_path):
    words = assigned(run__log_every=320, run__evaluate_every=320)
    assert main([*command("ppo", tmp_path / "run", *words), "--steps", "704"]) == 0
    rows = read_metrics(tmp_path / "run")
    assert [row["env_steps"] for row in rows if "steps_per_second" in row] == [320, 704]
    assert [row["env_steps"] for row in rows if "eval/return_mean" in row] == [320, 704]


def final(folder, which="latest"):
    """Everything in a checkpoint, by path, with what it says of the counters."""
    config = configuration.alone(configuration.load(runs.config_of(folder)))
    checkpoints = Checkpoints(folder, config.run.keep)
    found = checkpoints.restore(systems.build(config).shapes(), which)
    checkpoints.close()
    assert not found.passed_over
    arrays = {
        jax.tree_util.keystr(path): np.asarray(
            jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x
        )
        for path, x in jax.tree_util.tree_leaves_with_path(found.state)
    }
    return arrays | {key: np.asarray(found.facts[key]) for key in ("env_steps", "iterations", "updates", "score")}


def rows(folder):
    """The log without what the clock says."""
    clock = ("seconds", "steps_per_second")
    return [{key: value for key, value in row.items() if key not in clock} for row in read_metrics(folder)]


def assert_same_run(folder, other):
    one, two = final(folder), final(other)
    assert one.keys() == two.keys()
    for part in (".params['network']", ".learners", ".actors", ".key", ".updates"):
        assert any(name.startswith(part) for name in one)
    for name in one:
        np.testing.assert_array_equal(one[name], two[name], err_msg=name)
    assert rows(folder) == rows(other)
    assert steps_of(folder)[-3:] == steps_of(other)[-3:]


def steps_of(folder):
    return sorted(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit())


def status(folder):
    return json.loads((folder / "run.json").read_text())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of each agent that nothing interrupted."""
    made = {}

    def run(agent):
        if agent not in made:
            made[agent] = tmp_path_factory.mktemp("whole") / agent
            assert main(command(agent, made[agent])) == 0
        return made[agent]

    return run


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole("vtrace"), tmp_path / "run"))


@pytest.mark.parametrize(
    ("agent", "number"),
    [
        ("dqn", signal.SIGKILL),
        *in_full(
            ("vtrace", signal.SIGINT),
            ("vtrace", signal.SIGKILL),
            ("ppo", signal.SIGKILL),
            ("ppo", signal.SIGTERM),
            ("dqn", signal.SIGTERM),
        ),
    ],
)
def test_ended_half_way_and_resumed_is_never_ended(agent, number, whole, tmp_path, capfd):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "boonta", *command(agent, folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not (folder / "checkpoints" / str(SAVE_EVERY)).is_dir():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "no checkpoint in time"
            time.sleep(0.005)
        process.send_signal(number)
        _, errors = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    half = steps_of(folder)[-1]
    assert half < STEPS
    if number == signal.SIGKILL:
        assert process.returncode == -number
        assert status(folder)["status"] == "running"
    else:
        assert process.returncode == 128 + number
        name = signal.Signals(number).name
        assert errors == f"boonta: {name} at step {half}; saved, go on with: boonta train --resume {folder}\n"
        assert status(folder)["status"] == "interrupted"
        assert name in status(folder)["cause"]
    assert main(["train", "--resume", str(folder), "--json"]) == 0
    out, err = capfd.readouterr()
    assert err == f"boonta: going on from step {half} of {folder}\n"
    assert json.loads(out.splitlines()[-1])["env_steps"] == STEPS
    assert status(folder)["status"] == "done"
    assert_same_run(folder, whole(agent))


def test_a_finished_run_resumes_to_itself(copy, whole):
    assert main(["train", "--resume", str(copy), "--json"]) == 0
    assert_same_run(copy, whole("vtrace"))


# --- damage ----------------------------------------------------------------------------------------------------------


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    data = bytearray(path.read_bytes())
    for i in range(0, len(data), 7):
        data[i] ^= 0xFF
    path.write_bytes(data)


def swap(path):
    """What no file format notices: the same bytes, in another order."""
    data = path.read_bytes()
    path.write_bytes(data[::-1])


def damage(folder, step, how):
    files = [path for path in (folder / "checkpoints" / str(step) / "state").rglob("d/*") if path.is_file()]
    assert files
    for path in files:
        how(path)


@pytest.mark.parametrize("how", [swap, *in_full(Path.unlink, truncate, flip)])
def test_a_damaged_checkpoint_is_passed_over(how, copy, whole, capfd):
    before, last = steps_of(copy)[-2:]
    damage(copy, last, how)
    assert main(["train", "--resume", str(copy), "--json"]) == 0
    warning, onward, *rest = capfd.readouterr().err.splitlines()
    assert warning.startswith(f"boonta: WARNING: checkpoint {last} cannot be read")
    assert warning.endswith("going on from the one before")
    assert onward == f"boonta: going on from step {before} of {copy}"
    assert not rest
    assert (copy / "checkpoints" / f"damaged-{last}").is_dir()
    assert_same_run(copy, whole("vtrace"))


def test_damaged_facts_are_passed_over_too(copy, whole, capfd):
    before, last = steps_of(copy)[-2:]
    truncate(copy / "checkpoints" / str(last) / "facts" / "metadata")
    assert main(["train", "--resume", str(copy), "--json"]) == 0
    assert f"going on from step {before}" in capfd.readouterr().err
    assert_same_run(copy, whole("vtrace"))


def test_a_run_without_a_readable_checkpoint_does_not_start_again(copy, capfd):
    log = (copy / "metrics.jsonl").read_bytes()
    for step in steps_of(copy):
        damage(copy, step, truncate)
    assert main(["train", "--resume", str(copy)]) == 1
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("boonta: no checkpoint")]
    assert "can be read" in line
    assert all(f"checkpoint {step} cannot be read" in line for step in steps_of(copy))
    assert (copy / "metrics.jsonl").read_bytes() == log
    assert main(["eval", str(copy)]) == 2
    assert "can be read" in capfd.readouterr().err
    shutil.rmtree(copy / "checkpoints")
    assert main(["train", "--resume", str(copy)]) == 1
    assert "there is no checkpoint in" in capfd.readouterr().err
    assert (copy / "metrics.jsonl").read_bytes() == log


def test_checkpoints_of_another_structure_are_refused_in_one_line(copy, capfd):
    """As those of another version are: here the optimiser, which keeps other things, is exchanged."""
    text = (copy / "config.toml").read_text()
    assert 'optimizer = "adam"' in text
    (copy / "config.toml").write_text(text.replace('optimizer = "adam"', 'optimizer = "sgd"'))
    assert main(["train", "--resume", str(copy)]) == 1
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("boonta: ")]
    assert "were made by another version of Boonta or of the agent, which keeps other things" in line
    assert "learners/vtrace/optimizer/1/count is no more" in line


def test_evaluating_a_run_with_a_damaged_checkpoint_uses_the_one_before(copy, capfd):
    before, last = steps_of(copy)[-2:]
    damage(copy, last, flip)
    assert main(["eval", str(copy), "--episodes", "4", "--json"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out.splitlines()[-1])["env_steps"] == before
    assert f"WARNING: checkpoint {last} cannot be read" in err
    assert main(["eval", str(copy), "--checkpoint", str(last)]) == 2
    assert f"checkpoint {last} cannot be read" in capfd.readouterr().err


def test_the_best_checkpoint_is_the_best(copy, capsys):
    kept = steps_of(copy)
    scores = {step: final(copy, step)["score"].item() for step in kept}
    scores = {step: score for step, score in scores.items() if score is not None}  # not each was evaluated
    assert main(["eval", str(copy), "--checkpoint", "best", "--episodes", "4", "--json"]) == 0
    step = json.loads(capsys.readouterr().out.splitlines()[-1])["env_steps"]
    assert scores[step] == max(scores.values())
    assert len(kept) <= 4  # three latest, and the best


# --- a full disk -----------------------------------------------------------------------------------------------------


def test_a_full_disk_ends_the_run_and_leaves_it_whole(tmp_path, whole, monkeypatch, capfd):
    folder, save, calls = tmp_path / "run", ocp.CheckpointManager.save, []

    def full(self, step, **kwargs):
        calls.append(step)
        if len(calls) == 3:
            (folder / "checkpoints" / f"{step}.orbax-checkpoint-tmp").mkdir()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(self, step, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(ocp.CheckpointManager, "save", full)
        assert main(command("vtrace", folder)) == 1
    failed, good = 3 * SAVE_EVERY, 2 * SAVE_EVERY
    (line,) = capfd.readouterr().err.splitlines()
    assert f"the checkpoint at step {failed} could not be saved" in line
    assert "No space left on device" in line
    assert status(folder)["status"] == "failed"
    assert "No space left on device" in status(folder)["cause"]
    assert [path.name for path in (folder / "checkpoints").glob(f"{failed}*")] == []
    assert steps_of(folder)[-1] == good
    assert main(["train", "--resume", str(folder), "--json"]) == 0
    assert_same_run(folder, whole("vtrace"))


@pytest.fixture
def small_disk(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0 or not shutil.which("mount"):
        pytest.skip("needs root, to mount a small tmpfs")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", place],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"a small tmpfs cannot be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", place], timeout=10, check=True)


@full
def test_a_really_full_disk(small_disk, whole, monkeypatch, capfd):
    folder, filler, save = small_disk / "run", small_disk / "filler", Checkpoints.save

    def fill(self, env_steps, *args):
        if env_steps == 3 * SAVE_EVERY and not filler.exists():
            with filler.open("wb", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 4096)
                except OSError:
                    pass
        return save(self, env_steps, *args)

    monkeypatch.setattr(Checkpoints, "save", fill)
    assert main(command("vtrace", folder)) == 1
    *before, line = capfd.readouterr().err.splitlines()
    assert all("run.json could not be written" in one for one in before)
    assert line.startswith("boonta: the checkpoint at step ") and line.endswith(": No space left on device")
    assert steps_of(folder)[-1] == 2 * SAVE_EVERY
    filler.unlink()
    monkeypatch.undo()
    assert main(["train", "--resume", str(folder), "--json"]) == 0
    assert_same_run(folder, whole("vtrace"))


# --- what is not finite ----------------------------------------------------------------------------------------------


def broken(where="reward", after=200):
    """One long episode that emits NaN at step `after`."""
    spec = Spec("broken", jax.ShapeDtypeStruct((1,), jnp.float32), Discrete(2))

    def observe(count):
        return jnp.where((count == after) & (where == "observation"), jnp.nan, count / after)[None]

    def step(state, action, key):
        reward = jnp.where((state + 1 == after) & (where == "reward"), jnp.nan, 0.1 * action)
        return state + 1, proceed(observe(state + 1), action, reward, state + 1 >= after + 20)

    return Environment(spec, lambda key: (jnp.int32(0), start(observe(jnp.int32(0)), spec.action)), step)


SHORT = ("--steps", "2560")


@pytest.mark.parametrize("where", ["reward", *in_full("observation")])
def test_nan_ends_the_run(where, tmp_path, capfd):
    folder = tmp_path / "run"
    words = command("vtrace", folder, *SHORT, *assigned(env__where=where), env="tests.test_training:broken")
    assert main(words) == 1
    (line,) = capfd.readouterr().err.splitlines()
    step, good = 200 * 8, 2 * SAVE_EVERY
    assert line.startswith(f"boonta: broken: {where} is not finite at step {step}")
    assert f"checkpoints/{good}" in line
    assert status(folder)["status"] == "failed"
    assert f"{where} is not finite at step {step}" in status(folder)["cause"]
    assert steps_of(folder)[-1] == good
    assert main(["eval", str(folder), "--episodes", "2"]) == 0


def test_nan_may_be_ignored(tmp_path, capfd):
    folder = tmp_path / "run"
    words = command("vtrace", folder, *SHORT, "--on-nan", "ignore", env="tests.test_training:broken")
    assert main(words) == 0
    out, err = capfd.readouterr()
    assert not err

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    summary = json.loads(out.splitlines()[-1], parse_constant=refuse)
    assert summary["status"] == "done"
    assert summary["eval_return_mean"] is None
    assert status(folder)["status"] == "done"


def test_a_loss_that_is_not_finite_ends_the_run_before_the_first_checkpoint(tmp_path, capfd):
    folder = tmp_path / "run"
    assert main(command("vtrace", folder, *SHORT, *assigned(agent__learning_rate=1e30))) == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert "boonta: loss/" in line
    assert "no checkpoint was made yet" in line
    assert status(folder)["status"] == "failed"


def test_the_member_that_is_not_finite_is_named(tmp_path, capfd):
    words = command("vtrace", tmp_path / "run", *SHORT, "--sweep", "learning_rate=1e-3,1e30")
    assert main(words) == 1
    assert "of learning_rate=1e+30,seed=0 is not finite" in capfd.readouterr().err


def raising():
    """An environment whose step has a fault."""
    environment = broken()

    def step(state, action, key):
        raise ValueError("the corridor has no end")

    return environment._replace(step=step)


def test_a_fault_of_the_users_own_code_fails_the_run_with_its_traceback(tmp_path, capfd):
    folder = tmp_path / "run"
    assert main(command("vtrace", folder, *SHORT, env="tests.test_training:raising")) == 1
    err = capfd.readouterr().err
    assert "Traceback" in err and err.splitlines()[-1] == "boonta: ValueError: the corridor has no end"


@full
def test_devices_are_chosen_that_divide_the_batch_as_well(tmp_path, capfd):
    words = ("--set", "architecture.envs=64", "--set", "agent.batch=1")
    assert main(["train", "vtrace", "boonta:catch", *SHORT, "--out", str(tmp_path / "run"), "--json", *words]) == 0


def test_more_minibatches_than_a_device_has_trajectories_are_refused(tmp_path, capfd):
    words = ("--devices", "2", *assigned(agent__core="gru", agent__batch=4, agent__minibatches=4))
    assert main(["train", "ppo", "boonta:catch", *SHORT, "--out", str(tmp_path / "run"), "--json", *words]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "agent.minibatches must be at most 2" in line


@full
def test_a_batch_in_which_nothing_happened_is_no_fault(tmp_path, capfd):
    words = assigned(agent__unroll=1, agent__batch=4)
    assert main(["train", "vtrace", "boonta:catch", *SHORT, "--out", str(tmp_path / "run"), "--json", *words]) == 0


def test_a_run_that_is_done_is_left_as_it_is(copy, capfd):
    before = (copy / "run.json").read_bytes()
    assert main(["train", "--resume", str(copy), "--json"]) == 0
    told = capfd.readouterr()
    assert "made all its steps already" in told.err
    assert json.loads(told.out.splitlines()[-1])["status"] == "done"
    assert (copy / "run.json").read_bytes() == before


def test_a_folder_says_why_it_cannot_be_used(copy, tmp_path, capfd):
    file = tmp_path / "file"
    file.write_text("")
    shutil.rmtree(copy / "checkpoints")
    other = tmp_path / "other"
    other.mkdir()
    (other / "thing").write_text("")
    for folder, words in (
        (copy, "before its first checkpoint; delete it"),
        (file, "is a file"),
        (other, "no run is in"),
    ):
        assert main(["train", "--out", str(folder)]) == 2
        assert words in capfd.readouterr().err


def test_a_checkpoint_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    state = {"x": jnp.arange(3)}

    def scores():
        return [Checkpoints(tmp_path).restore(state).facts["score"], sorted(p.name for p in tmp_path.glob("*/*"))]

    checkpoints.save(10, state, {}, None)
    checkpoints.save(10, state, {}, 1.0)
    assert scores() == [1.0, ["10"]]

    def full(path, value):
        raise OSError(errno.ENOSPC, "disk full")

    with monkeypatch.context() as patch:
        patch.setattr("boonta.experiments.files.write_json", full)
        with pytest.raises(OSError, match="could not be saved"):
            checkpoints.save(10, state, {}, 2.0)
    assert scores() == [1.0, ["10"]]
    checkpoints.save(20, state, {}, 3.0)
    (tmp_path / "checkpoints" / "20").rename(tmp_path / "checkpoints" / "replaced-20")  # killed just then
    Checkpoints(tmp_path).recover()
    assert scores() == [3.0, ["10", "20"]]


def test_a_state_that_is_not_what_was_saved_is_not_read(tmp_path):
    """Also where the run was killed before the checksums of files were written."""
    checkpoints, state = Checkpoints(tmp_path), {"x": jnp.arange(3)}
    checkpoints.save(10, state, {}, None)
    folder = tmp_path / "checkpoints" / "10"
    (folder / "checksums.json").unlink()
    assert checkpoints.restore(state).facts["env_steps"] == 10
    facts = json.loads((folder / "facts" / "metadata").read_text())
    (folder / "facts" / "metadata").write_text(json.dumps(facts | {"checksum": facts["checksum"] ^ 1}))
    with pytest.raises(ValueError, match="its checksum is"):
        checkpoints.restore(state)


def test_arrays_without_entries_come_back(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    state = {"x": jnp.arange(3), "nothing": [jnp.zeros((2, 0), jnp.float32), None], "key": jax.random.key(0)}
    checkpoints.save(10, state, {}, None)
    back = checkpoints.restore(jax.eval_shape(lambda: state)).state
    assert jax.tree.structure(back) == jax.tree.structure(state)
    assert (back["nothing"][0].shape, back["nothing"][0].dtype) == ((2, 0), jnp.float32)
    np.testing.assert_array_equal(back["x"], state["x"])


def test_hosts_that_drift_apart_are_noticed_when_the_run_is_saved(tmp_path, monkeypatch, capfd):
    checks = iter([True, False])
    monkeypatch.setattr(agreement, "same", lambda mine: next(checks))
    folder = tmp_path / "run"
    assert main(command("vtrace", folder)) == 1
    assert "hosts no longer hold the same state" in capfd.readouterr().err.splitlines()[-1]
    assert [path.parent.name for path in folder.glob("checkpoints/[0-9]*/checksums.json")] == [str(SAVE_EVERY)]


def test_one_process_at_a_time_writes_to_a_run(copy, capfd):
    with claim.claimed(copy):
        for words in (["train", "--resume", str(copy)], command("vtrace", copy)):
            capfd.readouterr()
            assert main(words) == 2
            assert f"process {os.getpid()} writes to it" in capfd.readouterr().err
    assert main(["train", "--resume", str(copy)]) == 0


def test_a_folder_with_nothing_of_a_run_in_it_is_as_good_as_empty(tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / claim.NAME).touch()
    assert main(command("vtrace", folder, "--steps", "640")) == 0


@full
def test_what_is_compiled_is_kept_for_the_next_time(tmp_path):
    """By a process of its own: this one's cache is where the tests' is."""
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    words = [sys.executable, "-m", "boonta", *command("vtrace", tmp_path / "run", "--steps", "640")]
    subprocess.run(words, check=True, env=environment | {"HOME": str(tmp_path)}, stdout=subprocess.DEVNULL, timeout=300)
    assert any((tmp_path / ".cache" / "boonta" / "jax").iterdir())


@full
def test_a_run_that_learned_nothing_says_so(tmp_path, capfd):
    sizes = assigned(agent__minimum=5000, agent__capacity=5000, agent__hidden=16, run__eval_episodes=8)
    assert main(["train", "dqn", "boonta:catch", "--steps", "640", "--out", str(tmp_path / "run"), *sizes]) == 0
    assert "WARNING: no update was made" in capfd.readouterr().err
    assert main(["train", "dqn", "boonta:catch", *sizes, "--set", "agent.minimum=5001"]) == 2
    assert "agent.minimum must be at most agent.capacity" in capfd.readouterr().err


@full
def test_what_learners_report_is_of_the_updates_that_were_made(tmp_path, capfd):
    """And returns that a categorical critic cannot say are told of, once."""
    sizes = assigned(
        agent__minimum=256, agent__hidden=16, agent__critic="categorical", architecture__envs=1, run__log_every=64,
        run__eval_episodes=1,
    )  # fmt: skip
    words = ["train", "sac", "gymnax:Pendulum-v1", "--config", "none", "--steps", "512", "--out", str(tmp_path / "run")]
    assert main([*words, *sizes]) == 0
    told = [row for row in read_metrics(tmp_path / "run") if "updates" in row]
    for key in ("loss/value", "value/mean", "policy/temperature"):
        assert all((row[key] is None) == (row["updates"] == 0) for row in told)
    assert told[0]["updates"] == 0 and 0.9 < told[-1]["policy/temperature"] <= 1.0
    assert told[0]["value/clipped_share"] is None and told[-1]["value/clipped_share"] > 0.01
    assert capfd.readouterr().err.count("lie beyond what the network can say") == 1
