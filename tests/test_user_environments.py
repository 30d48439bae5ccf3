"""Users' environments (tests/user_environments.py) learn, or are refused in one message that says what to do."""

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from boonta import envs
from boonta.cli import main
from boonta.core import host
from boonta.core.host import Workers
from boonta.core.settings import Refused
from boonta.core.types import LAST
from boonta.envs import workers
from boonta.experiments import config
from tests.marks import full, in_full, slow, some_of

pytestmark = slow

MODULE = "tests.user_environments"
SMALL = ["--config", "none", "--steps", "64"]
for setting in (
    "agent.unroll=8", "agent.batch=4", "agent.minibatches=1", "agent.epochs=1", "agent.hidden=8", "agent.channels=2",
    "architecture.worker_count=2", "architecture.restarts=0", "run.eval_episodes=0", "run.eval_steps=40",
):  # fmt: skip
    SMALL += ["--set", setting]

# Each class with what its messages say: those that train, and those that are refused.
TRAIN = {
    "Offset": "", "Doubles": "", "Wholes": "", "ZeroD": "", "TwoD": "", "Equal": "",
    "Unbounded": r"1 of 1 numbers of an action have no bounds; agents reach from -1 to 1, and env.action_span=10",
    "Largest": r"1 of 1 numbers of an action have no bounds; agents reach from -1 to 1",
    "HalfBounded": r"agents reach from 0 to 1, and env.action_span=10 widens it",
    "Huge": "", "One": "", "Start": "",
    "RewardInt": "", "RewardBool": "",
    "RewardArray": "rewards are arrays of one number, and are taken as numbers",
    "RewardHuge": "rewards are very large; agent.reward_scale makes them smaller",
    "EndArrays": "", "Both": "", "OneStep": "",
    "Never": r"2 of 2 episodes of the evaluation were cut short after 40 steps \(run.eval_steps\)",
    "FewBytes": "", "Categories": "",
    "Beyond": r"observation has numbers from 255 to 255, beyond its space Box\(0.0, 1.0",
    "First": r"observation \(3, 84, 84\) is read as an image of 84 x 84 with 3 channels",
    "Stack": r"observation \(4, 40, 40, 3\) is read as an image of 40 x 40 with 12 channels",
    "Wide": "",
    "TinyImage": r"observation \(2, 2, 3\) is read as a vector: it is no image that convolutions fit",
    "ImageAndVector": "convolutions read observation/image; the rest by a perceptron",
    "Big": r"observation is as large as 1e\+30; agent.normalize_observations=true gives it",
    "Mask": "", "MaskBinary": "", "MaskInt8": "", "MaskNamed": "",
    "Sqlite": "", "Prints": "",
    "CloseRaises": r"close\(\) raised RuntimeError: cannot close",
    "Draws": "", "DrawsText": "", "DrawsFloats": "", "DrawsRGBA": "",
}  # fmt: skip
USAGE, FAILED = 2, 1
REFUSED = {
    "Multi": (USAGE, r"has actions MultiDiscrete\(\[3 2\]\), which are not supported; allowed: Discrete, and Box"),
    "Binary": (USAGE, r"has actions MultiBinary\(4\), which are not supported"),
    "DictAction": (USAGE, r"has actions Dict\(.*\), which are not supported"),
    "NoNumber": (USAGE, r"has actions of shape \[0\], in which there is no number"),
    "RewardNone": (FAILED, r"the reward must be a number, got None \(NoneType\)"),
    "RewardNaN": (FAILED, r"RewardNaN: reward is not finite at step \d+"),
    "FourTuple": (FAILED, r"step returned 4 values, where Gymnasium's is 5: .*; an environment of the old API needs"),
    "WrongShape": (
        FAILED,
        r"observation is of another shape than its space: it got float32\[1\].*Box\(-1.0, 1.0, \(3,",
    ),
    "Longer": (FAILED, r"observation is of another shape than its space: it got float32\[4\]"),
    "Scalar": (FAILED, r"observation is of another shape than its space: it got float64\[\]"),
    "LaterScalar": (FAILED, r"observation is of another shape than its space: it got float32\[1\]"),
    "FirstStep": (FAILED, r"observation is beyond the bounds of its space: it got int64\[2\] from -1 to 300, where"),
    "LaterBytes": (FAILED, r"observation is beyond the bounds of its space: it got int64\[2\] from 0 to 300, where"),
    "LateAnswer": (FAILED, r"with no settings: TimeoutError: the simulator at port 5 refused"),
    "OddError": (FAILED, r"with no settings: (RuntimeError: )?Odd: .*two words"),
    "FloatsForBytes": (FAILED, r"observation is of another dtype than its space: it got float32\[12, 12, 3\].*uint8"),
    "Cube": (USAGE, r"observation of shape \(64, 64, 64\) looks like images, but its axes are in no order"),
    "Text": (USAGE, r"has the observation/mission Text\(.*; a wrapper such as .* can leave it out or encode it"),
    "Seq": (USAGE, r"has the observation Sequence\(.*; a wrapper"),
    "MixedKeys": (USAGE, r"has the observation with keys of several types \(int, str\); use strings"),
    "TooBig": (FAILED, r"observation is too large for float32; scale it in a wrapper: .* 1e\+39"),
    "NanSeen": (FAILED, r"NanSeen: observation is not finite at step \d+"),
}
THREADS = (
    "Doubles", "Unbounded", "RewardHuge", "Both", "Never", "Beyond", "First", "ImageAndVector", "Big", "MaskNamed",
    "Sqlite",
)  # fmt: skip
ONE_OF_EACH = (
    "Multi", "NoNumber", "RewardNone", "RewardNaN", "FourTuple", "WrongShape", "LaterScalar", "FloatsForBytes",
    "FirstStep", "Cube", "Text", "MixedKeys", "TooBig", "NanSeen", "LateAnswer",
)  # fmt: skip
PROCESSES = ("Offset", "ImageAndVector", "MaskInt8", "CloseRaises", "Signal")


def train(name, workers, *more, agent="ppo"):
    words = ["train", agent, f"{MODULE}:{name}", *SMALL, "--set", f"architecture.workers={workers}", *more]
    return main(words)


def trains(name, workers, words, tmp_path, capfd):
    evaluated = ["--set", "run.eval_episodes=2"] if workers == "processes" or name == "Never" else []
    assert train(name, workers, *evaluated, "--out", str(tmp_path / "run")) == 0, capfd.readouterr().err
    err = capfd.readouterr().err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "done"
    assert err.startswith(f"boonta: ppo on {MODULE}:{name}, sebulba -> ")  # the architecture that fits
    assert re.search(words, err), err
    assert "Traceback" not in err
    assert err.count("close() raised") == (name == "CloseRaises")


def refused(name, workers, expected, tmp_path, capfd):
    code, words = expected
    assert train(name, workers, "--out", str(tmp_path / "run")) == code
    err = capfd.readouterr().err
    last = [line for line in err.splitlines() if line.startswith("boonta: ")][-1]
    assert re.search(words, last), err
    assert f"{MODULE}:{name}" in err


@pytest.mark.parametrize("name", some_of(TRAIN, *THREADS))
def test_it_trains_with_threads(name, tmp_path, capfd):
    trains(name, "threads", TRAIN[name], tmp_path, capfd)


@pytest.mark.parametrize("name", some_of(TRAIN | {"Signal": ""}, *PROCESSES))
def test_it_trains_with_processes(name, tmp_path, capfd):
    trains(name, "processes", (TRAIN | {"Signal": ""})[name], tmp_path, capfd)


@pytest.mark.parametrize("name", some_of(REFUSED, *ONE_OF_EACH))
def test_it_is_refused_with_threads(name, tmp_path, capfd):
    refused(name, "threads", REFUSED[name], tmp_path, capfd)


@pytest.mark.parametrize("name", some_of(REFUSED, "WrongShape", "OddError"))
def test_it_is_refused_with_processes(name, tmp_path, capfd):
    refused(name, "processes", REFUSED[name], tmp_path, capfd)


def test_what_needs_the_main_thread_is_told_of_processes(capfd):
    assert train("Signal", "threads") == FAILED
    assert "architecture.workers=processes makes each environment in the main thread" in capfd.readouterr().err


def test_environments_that_cannot_be_closed_are_measured_and_drawn(tmp_path, capfd):
    """Where nobody says who steps them, they are measured first, and closed then."""
    assert train("CloseRaises", "auto", "--out", str(tmp_path / "run")) == 0
    assert "close() raised RuntimeError: cannot close" in capfd.readouterr().err
    assert main(["watch", str(tmp_path / "run")]) == 0
    assert "close() raised RuntimeError: cannot close" in capfd.readouterr().err
    assert (tmp_path / "run" / "watch.gif").is_file()


def test_a_true_end_at_which_a_time_limit_falls_is_a_true_end():
    batch = envs.make(f"{MODULE}:Both").make(np.arange(1), 0, 0, Workers("serial", 1))
    batch.reset()
    for _ in range(10):
        timestep = batch.step(np.zeros(1, np.int32))
    assert (timestep.step_type[0], timestep.discount[0]) == (LAST, 0.0)
    batch.close()


def test_settings_named_like_ours_are_the_environments(tmp_path, capfd):
    more = ["--set", "env.model=small", "--set", "env.action_span=3", "--set", "env.limit=none"]
    assert train("Settings", "serial", *more, "--out", str(tmp_path / "run")) == 0, capfd.readouterr().err
    assert main(["eval", str(tmp_path / "run"), "--episodes", "2"]) == 0  # what was written is read


@pytest.mark.parametrize("workers", ["serial", "processes"])
def test_the_last_line_is_the_object_whatever_an_environment_prints(workers, tmp_path, capfd):
    assert train("Prints", workers, "--json", "--out", str(tmp_path / "run")) == 0
    out = capfd.readouterr().out.splitlines()
    assert "hello from an environment" in out
    assert json.loads(out[-1])["status"] == "done"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("DrawsFloats", r"got float64\[21, 21, 3\]"),
        *in_full(("Draws", "got NoneType"), ("DrawsText", "its render_mode is not")),
    ],
)
def test_what_is_no_picture_is_refused_in_one_line(name, words, tmp_path, capfd):
    run = tmp_path / "run"
    assert train(name, "serial", "--out", str(run)) == 0
    capfd.readouterr()
    assert main(["watch", str(run)]) == USAGE
    (line,) = capfd.readouterr().err.splitlines()
    assert re.search(words, line)


def test_a_picture_with_transparency_makes_a_film(tmp_path, capfd):
    run = tmp_path / "run"
    assert train("DrawsRGBA", "serial", "--out", str(run)) == 0
    assert main(["watch", str(run)]) == 0
    assert (run / "watch.gif").is_file()


def test_the_range_of_actions_without_bounds_can_be_widened(tmp_path, capfd):
    assert train("Unbounded", "serial", "--set", "env.action_span=50", "--out", str(tmp_path / "run")) == 0
    assert "agents reach from -50 to 50" in capfd.readouterr().err
    assert train("Offset", "serial", "--set", "env.action_span=50") == USAGE
    assert "env.action_span is for actions without bounds" in capfd.readouterr().err


@pytest.mark.parametrize("agent", ["ddpg", "muzero"])
def test_agents_that_cannot_read_images_beside_vectors_refuse(agent, capfd):
    words = ["train", agent, f"{MODULE}:ImageAndVector", "--config", "none", "--on", "sebulba"]
    assert main(words) == USAGE
    (line,) = capfd.readouterr().err.splitlines()
    assert (
        "discrete actions" in line if agent == "ddpg" else "observation/image is an image beside other arrays" in line
    )


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gym:ALE/Pong-v5", "gym:ALE/Pong-v5 is an Atari game, which has a family of its own: take ale:Pong"),
        ("gym:Taxi-v3", "gym:Taxi-v3: Environment version v3 for `Taxi` is deprecated. Please use `Taxi-v4`"),
    ],
)
def test_other_names_are_told_of(name, words, capfd):
    assert main(["train", "ppo", name]) == USAGE
    assert words in capfd.readouterr().err


@pytest.mark.parametrize(
    ("agent", "name", "expected"),
    [
        ("ppo", "gymnax:CartPole-v1", "anakin"),
        ("ppo", "boonta:catch", "anakin"),
        ("vtrace", "gym:Pendulum-v1", "sebulba"),
        ("ppo", "minatar:breakout", "sebulba"),
        ("sac", "gym:HalfCheetah-v5", "split"),  # of the one recipe
        ("ppo", f"{MODULE}:Offset", "sebulba"),
        ("ppo", "examples.own_environment:make", "anakin"),
    ],
)
def test_the_architecture_that_fits_is_taken(agent, name, expected):
    assert config.architecture_for(agent, name) == expected


def test_shared_memory_that_is_too_small_is_told_of(monkeypatch):
    made = envs.make(f"{MODULE}:RewardInt")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 100))  # type: ignore[attr-defined]
    words = (
        r"RewardInt: the time steps of 4 environments need [\d,]+ bytes of shared memory, and /dev/shm has 100; make"
    )
    with pytest.raises(Refused, match=words):
        made.choose(4, Workers("processes"))

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Refused, match=words):
        workers.Processes(made.spec, None, range(4), Workers("processes", 1))  # type: ignore[arg-type]


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    assert host.cores() == 1
    assert envs.make(f"{MODULE}:RewardInt").choose(4, Workers("threads"))[0].count == 1


def test_commands_that_draw_nothing_do_not_warn_of_a_display():
    words = [sys.executable, "-c", "from boonta.envs import dm; dm.names()"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    assert not done.stderr


def test_a_run_without_evaluations(tmp_path, capfd):
    run = tmp_path / "run"
    assert train("RewardInt", "serial", "--json", "--set", "run.eval_episodes=0", "--out", str(run)) == 0
    summary = json.loads(capfd.readouterr().out.splitlines()[-1])
    assert summary["eval_return_mean"] is None
    assert summary["eval_episodes"] == 0
    assert main(["eval", str(run), "--checkpoint", "best"]) == USAGE
    assert "was never evaluated" in capfd.readouterr().err


def made_before(run):
    """As if a version had made it that does not say how observations are read."""
    record = json.loads((run / "run.json").read_text())
    del record["reading"]
    (run / "run.json").write_text(json.dumps(record))


def test_runs_of_versions_that_read_otherwise_are_refused(tmp_path, capfd):
    run = tmp_path / "run"
    assert train("First", "serial", "--out", str(run)) == 0
    made_before(run)
    capfd.readouterr()
    for words in (["eval", str(run)], ["train", "--resume", str(run)]):
        assert main(words) == USAGE
        (line,) = capfd.readouterr().err.splitlines()
        assert "was trained by a version of Boonta that read the observations" in line


def test_runs_with_actions_that_meant_something_else_are_refused(tmp_path, capfd):
    run = tmp_path / "run"
    assert train("HalfBounded", "serial", "--out", str(run)) == 0
    made_before(run)
    assert main(["eval", str(run)]) == USAGE
    assert "boxes with one bound" in capfd.readouterr().err


def test_the_cases_are_all_there():
    import tests.user_environments as module

    named = {name for name, one in vars(module).items() if isinstance(one, type) and issubclass(one, module.Base)}
    helpers = {"Base", "Bytes", "Checked", "Zeros", "Signal", "Settings"}
    assert named - helpers == {*TRAIN, *REFUSED}, Path(module.__file__)


LEARNERS = {
    "ppo": ["agent.batch=16", "agent.unroll=32", "agent.learning_rate=3e-3", "agent.entropy_cost=0.003",
            "agent.anneal=true"],
    "dqn": ["agent.unroll=4", "agent.n_step=1", "agent.minimum=500", "agent.learning_rate=1e-3", "agent.batch=64",
            "agent.target_interval=100", "agent.explore_for=0.3", "agent.replay_ratio=16"],
}  # fmt: skip
BARS = {"SmallTaxi": 0.6, "SmallDict": 9.0, "SmallGrid": 7.0}


@full
@slow
@pytest.mark.parametrize("name", BARS)
@pytest.mark.parametrize(
    ("agent", "architecture", "steps"),
    [("ppo", "sebulba", 60_000), ("ppo", "seed", 60_000), ("ppo", "fleet", 60_000), ("dqn", "split", 12_000)],
)
def test_small_copies_learn_everywhere(name, agent, architecture, steps, tmp_path):
    words = [
        sys.executable,
        "-m",
        "boonta",
        "train",
        agent,
        f"{MODULE}:{name}",
        "--on",
        architecture,
        "--config",
        "none",
        "--steps",
        str(steps),
    ]
    more = [*LEARNERS[agent], "agent.hidden=64", "agent.channels=8", "run.eval_episodes=50", "run.eval_steps=100"]
    if architecture == "fleet":
        more.append("architecture.crew=threads")
    for setting in more:
        words += ["--set", setting]
    words += ["--out", str(tmp_path / "run"), "--json"]
    here = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # other packages bring modules called tests
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False, env=here)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["eval_return_mean"] >= BARS[name]
