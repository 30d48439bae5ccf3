"""Seeds and settings that no one program holds: each a run of its own, in one folder."""

import json
import signal
import subprocess
import sys
import time

import pytest

from boonta import cli
from boonta.experiments import config, curves, members, runs
from tests.marks import full, slow

TINY = ["agent.hidden=8", "agent.batch=4", "agent.unroll=8", "run.eval_episodes=4", "architecture.envs=4"]
SET = [word for text in TINY for word in ("--set", text)]
TRAIN = ["train", "ppo", "boonta:catch", "--on", "sebulba", "--steps", "640", *SET]
GRID = ["--sweep", "learning_rate=1e-3,2e-3"]


def resolved(*words, sweep=(), seeds=1, on="sebulba"):
    return config.resolve("ppo", "boonta:catch", on, "none", [*words], {"sweep": sweep, "seeds": seeds})


@pytest.mark.parametrize(
    ("on", "seeds", "sweep", "apart"),
    [
        ("anakin", 1, [], False),
        ("anakin", 2, ["learning_rate=1e-3,2e-3"], False),
        ("anakin", 1, ["hidden=[8],[16]"], True),
        ("anakin", 1, ["architecture.envs=8,16"], True),
        ("sebulba", 1, [], False),
        ("sebulba", 2, [], True),
        ("sebulba", 1, ["learning_rate=1e-3,2e-3"], True),
    ],
)
def test_members_are_runs_of_their_own_where_no_program_holds_them(on, seeds, sweep, apart):
    assert config.apart(resolved(on=on, seeds=seeds, sweep=sweep)) == apart


def test_any_key_of_any_table_is_swept():
    swept = resolved(sweep=["agent.hidden=[8,8],[16]", "env.rows=5,6", "run.steps=100,200"], seeds=2)
    points = config.points(swept)
    assert len(points) == 16
    assignments = ["agent.hidden=[8,8]", "env.rows=5", "run.steps=100"]
    assert points[0] == (0, assignments, "hidden=[8,8],env.rows=5,run.steps=100,seed=0")


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        (["learning_rat=1,2"], "unknown key agent.learning_rat: did you mean 'agent.learning_rate'"),
        (["learning_rate=1,1.0"], "names a value of 'learning_rate' twice"),
        (["learning_rate=1,2", "agent.learning_rate=3,4"], "names 'learning_rate' twice"),
        (["run.seed=1,2"], "'run.seed' cannot be swept"),
        (["nothing.lr=1,2"], "'nothing.lr' cannot be swept"),
        (["learning_rate=-1,2"], "agent.learning_rate must be above 0"),
        (["learning_rate"], "must look like key=v1,v2"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(sweep, said):
    with pytest.raises(ValueError, match=said):
        resolved(sweep=sweep)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--jobs", "0", *GRID], "--jobs must be at least 1, got 0"),
        (["--jobs", "2", "--on", "anakin"], "trained side by side, in one program"),
        ([*GRID, "--from", "RUN"], "without --from"),
    ],
)
def test_members_that_cannot_be_are_refused(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main([*TRAIN, *words]) == 2
    assert said in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_more_processes_than_memory_are_told(monkeypatch):
    monkeypatch.setattr(members.machine, "machine", lambda: {"memory": 2e9})
    assert not members._crowded(1)
    assert members._crowded(3) == ("--jobs 3: 3 processes of about 1.2 GB each are 3.6 GB, and this machine has 2.0 GB")


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """The folder of a grid of two, and what its command said."""
    folder = tmp_path_factory.mktemp("members") / "grid"
    words = [sys.executable, "-P", "-m", "boonta", *TRAIN, *GRID, "--jobs", "2", "--out", str(folder), "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)
    return folder, json.loads(done.stdout.splitlines()[-1]), done.stderr


@slow
def test_a_grid_is_trained_evaluated_and_drawn(grid, capsys):
    folder, summary, said = grid
    assert "begins anew" not in said
    assert [one["name"] for one in summary["members"]] == ["learning_rate=1e-3,seed=0", "learning_rate=2e-3,seed=0"]
    assert summary["env_steps"] == 2 * 640 and summary["status"] == "done"
    for i, (rate, seed) in enumerate([(1e-3, 0), (2e-3, 0)]):
        found = config.load(folder / "members" / str(i) / "config.toml")
        assert (found.agent_settings.learning_rate, found.run.seed, found.run.seeds) == (rate, seed, 1)
    run = runs.open_run(folder, member=1)
    assert run.config.agent_settings.learning_rate == 2e-3
    with pytest.raises(ValueError, match="--member must be 0 to 1, got 2"):
        runs.open_run(folder, member=2)
    assert len(runs.inspect(folder)["members"]) == 2
    tracks = curves.tracks(curves.load([folder]))
    assert [(track.label, len(track.members)) for track in tracks] == [
        ("learning_rate=1e-3", 1), ("learning_rate=2e-3", 1)
    ]  # fmt: skip
    assert (folder / "report.html").is_file()
    for words in (["--steps", "1000"], ["--set", "agent.clip=0.3"]):
        assert cli.main(["train", "--resume", str(folder), *words]) == 2


@full
@pytest.mark.parametrize("ends", [signal.SIGTERM, signal.SIGKILL])
def test_a_grid_that_was_ended_goes_on_as_a_whole(ends, tmp_path):
    folder = tmp_path / "grid"
    words = [sys.executable, "-P", "-m", "boonta", *TRAIN, "--seeds", "3", "--out", str(folder), "--json"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
        until = time.monotonic() + 300
        while not (folder / "members" / "1" / "metrics.jsonl").exists() and time.monotonic() < until:
            time.sleep(0.1)
        process.send_signal(ends)
        assert process.wait(120) == (128 + ends if ends == signal.SIGTERM else -ends)
    time.sleep(5.0 if ends == signal.SIGKILL else 0.0)  # for the member that runs to save
    assert json.loads((folder / "members" / "0" / "run.json").read_text())["status"] == "done"
    assert cli.main(["train", "--resume", str(folder), "--json"]) == 0
    assert len(json.loads((folder / "run.json").read_text())["result"]["members"]) == 3
