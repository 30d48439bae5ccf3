"""The command line: what it refuses, in one line, and what it does."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

import pytest

from boonta import cli
from boonta.envs import catch
from boonta.experiments import config, registry, systems
from tests.marks import slow, some_of
from tests.test_defaults import example

TINY = [
    word
    for text in ("agent.body=mlp", "agent.hidden=16", "agent.batch=8", "agent.unroll=8", "run.eval_episodes=8")
    for word in ("--set", text)
]
TRAIN = ["train", "ppo", "boonta:catch", "--steps", "640", "--devices", "1", *TINY]
KEYS = ("out", "env_steps", "seconds", "steps_per_second", "updates")
EVALUATION = ("eval_return_mean", "eval_return_std", "eval_episodes")


def blind():
    """An environment that cannot be drawn."""
    seen = catch.make()
    return seen._replace(spec=seen.spec._replace(name="blind"), render=None)


def on_host():
    class Game:
        def reset(self): ...

        def step(self, action): ...

    return Game()


def setting(text):
    return [*TRAIN, "--out", "{new}", "--set", text]


def sweep(text):
    return [*TRAIN, "--out", "{new}", "--sweep", text]


def devices(count):
    return [*TRAIN, "--out", "{new}", "--devices", count]


def file(name):
    return ["train", "--out", "{new}", "--config", f"{{files}}/{name}"]


EVERY_AGENT = "alphazero, ddpg, dqn, module:factory, muzero, ppo, r2d2, sac, td3, vtrace"
ACTOR = ["actor", "gym:CartPole-v1", "--server"]
RUN, BLIND = ["--out", "{new}.gif"], ["watch", "{blind}"]
BAD = {
    "agent": (["train", "pppo", "boonta:catch"], ["unknown agent 'pppo'", "did you mean 'ppo'", "vtrace"]),
    "agent of no module": (["train", "nomodule:agent", "boonta:catch"], ["'nomodule:agent'", "no module 'nomodule'"]),
    "agent of no name": (["train", ":agent", "boonta:catch"], ["':agent'", EVERY_AGENT]),
    "agent relative": (["train", "..my:agent", "boonta:catch"], ["'..my:agent'", EVERY_AGENT]),
    "agent that is none": (["train", "json:dumps", "boonta:catch"], ["'json:dumps'", "Settings"]),
    "environment as agent": (["train", "gymnax:CartPole-v1"], ["'gymnax:CartPole-v1'", "is an environment"]),
    "body beyond the image": (
        ["train", "ppo", "boonta:catch", "--set", "agent.body=nature_cnn"],
        ["'nature_cnn' needs at least 36 x 36 pixels, got 10 x 5"],
    ),
    "environment": (["train", "ppo", "boonta:cach"], ["boonta:cach", "did you mean 'boonta:catch'", "tmaze"]),
    "environment without family": (["train", "ppo", "catch"], ["'catch'", "'boonta:catch'"]),
    "family": (["train", "ppo", "gmnax:CartPole-v1"], ["'gmnax'", "did you mean 'gymnax'", "boonta"]),
    "environment of a family": (["train", "ppo", "gymnax:CartPole-v2"], ["gymnax:CartPole-v2", "'gymnax:CartPole-v1'"]),
    "factory": (["train", "ppo", "json:nothing"], ["json", "'nothing'", "allowed"]),
    "environment of no kind": (["train", "ppo", "tests.test_cli:on_host"], ["tests.test_cli:on_host", "gymnasium.Env"]),
    "architecture": (["train", "--on", "anakim"], ["'anakim'", "did you mean 'anakin'"]),
    "key": (setting("agent.learning_rat=1"), ["agent.learning_rat", "did you mean 'agent.learning_rate'"]),
    "key of run": (setting("run.step=1"), ["run.step", "did you mean 'run.steps'"]),
    "key of env": (setting("env.rws=5"), ["'rws'", "did you mean 'rows'", "columns"]),
    "key of architecture": (setting("architecture.env=5"), ["architecture.env", "did you mean 'architecture.envs'"]),
    "table": (setting("agnt.learning_rate=1"), ["agnt.learning_rate=1", "run, agent, env, architecture", "'agent'"]),
    "no table": (setting("learning_rate=1"), ["learning_rate=1", "table.key=value"]),
    "no value": (setting("agent.learning_rate"), ["agent.learning_rate", "table.key=value"]),
    "another agent by --set": (setting("agent.name=vtrace"), ["agent.name=vtrace", "'ppo'"]),
    "type number": (setting("agent.learning_rate=fast"), ["agent.learning_rate", "a number", "'fast'"]),
    "type integer": (setting("agent.batch=1.5"), ["agent.batch", "an integer", "1.5"]),
    "type bool": (setting("agent.anneal=3"), ["agent.anneal", "true or false", "'3'"]),
    "type of env": (setting("env.rows=many"), ["env.rows", "'many'", "an integer"]),
    "range": (setting("agent.learning_rate=-1"), ["agent.learning_rate", "above 0", "-1.0"]),
    "range above": (setting("agent.discount=1.5"), ["agent.discount", "from 0.0 to 1.0", "1.5"]),
    "range nan": (setting("agent.learning_rate=nan"), ["agent.learning_rate", "above 0", "nan"]),
    "range of a tuple": (setting("agent.hidden=16,0"), ["agent.hidden", "at least 1", "0"]),
    "range of env": (setting("env.rows=1"), ["rows", "at least 2", "1"]),
    "choice": (setting("agent.optimizer=sdg"), ["agent.optimizer", "'sdg'", "adam, rmsprop, sgd", "mean 'sgd'"]),
    "no steps": (["train", "--steps", "0"], ["run.steps", "at least 1", "0"]),
    "steps in words": (["train", "--steps", "many"], ["--steps", "whole number", "'many'"]),
    "half a step": (["train", "--steps", "0.5"], ["--steps", "whole number", "'0.5'"]),
    "too many steps": ([*TRAIN, "--out", "{new}", "--steps", "1e30"], ["run.steps", "at most", "got 10000000000"]),
    "seed": (["train", "--seed", "-1"], ["run.seed", "from 0 to", "-1"]),
    "seeds": (["train", "--seeds", "0"], ["run.seeds", "at least 1", "0"]),
    "seeds too large": (["train", "--seed", "2147483647", "--seeds", "2"], ["run.seeds", "at most 1", "2"]),
    "option": (["train", "--stepz"], ["--stepz"]),
    "choice of an option": (["train", "--on-nan", "maybe"], ["--on-nan", "'maybe'", "stop", "ignore"]),
    "drop on anakin": (["train", "--on-nan", "drop"], ["run.on_nan", "'drop'", "stop or ignore on anakin"]),
    "command": (["trian"], ["'trian'", "train", "eval"]),
    "list": (["list", "agnts"], ["'agnts'", "agents", "recipes"]),
    "sweep unknown": (sweep("learning_rat=1,2"), ["agent.learning_rat", "did you mean 'agent.learning_rate'"]),
    "sweep of nothing": (sweep("learning_rate"), ["run.sweep", "key=v1,v2", "'learning_rate'"]),
    "sweep type": (sweep("learning_rate=1e-3,fast"), ["learning_rate", "a number", "'fast'"]),
    "sweep range": (sweep("discount=0.9,1.5"), ["discount", "from 0.0 to 1.0", "1.5"]),
    "sweep none": (
        ["train", "ddpg", "gymnax:Pendulum-v1", "--out", "{new}", "--sweep", "max_grad_norm=1,none"],
        ["run.sweep", "'max_grad_norm'", "numbers", "'1,none'"],
    ),
    "sweep twice": ([*sweep("clip=1"), "--sweep", "clip=2"], ["run.sweep", "'clip'", "twice"]),
    "devices that do not divide": (devices("3"), ["architecture.envs", "multiple of the number of devices", "8 and 3"]),
    "more devices than there are": (devices("9"), ["architecture.devices", "9", "there are 8", "1 to 8"]),
    "devices below": (devices("-1"), ["architecture.devices", "at least 0", "-1"]),
    "devices in words": (devices("two"), ["architecture.devices", "an integer", "'two'"]),
    "environments and batch": (setting("architecture.envs=12"), ["architecture.envs", "divide", "8 and 12"]),
    "out of another run": ([*TRAIN, "--out", "{run}"], ["--out", "{run}", "not empty", "--resume {run}"]),
    "out is a file": ([*TRAIN, "--out", "{files}/bad.toml"], ["--out", "bad.toml"]),
    "out in a file": ([*TRAIN, "--out", "{files}/bad.toml/run"], ["bad.toml/run"]),
    "resume of no run": (["train", "--resume", "{new}"], ["--resume {new}", "no config.toml"]),
    "resume with a setting": (
        ["train", "--resume", "{run}", "--set", "agent.learning_rate=1"], ["agent.learning_rate: 0.005 -> 1.0"]
    ),
    "resume with fewer steps": (["train", "--resume", "{run}", "--steps", "9"], ["--steps must be at least 640", "9"]),
    "resume with another agent": (["train", "vtrace", "--resume", "{run}"], ["agent.name: 'ppo' -> 'vtrace'"]),
    "resume elsewhere": (["train", "--resume", "{run}", "--out", "{new}"], ["--out {new}", "in its folder {run}"]),
    "resume with a bad key": (
        ["train", "--resume", "{run}", "--set", "agent.learning_rat=1"], ["agent.learning_rat", "did you mean"]
    ),
    "recipe": (["train", "--config", "ppo-cartpol"], ["--config ppo-cartpol", "did you mean 'ppo-cartpole'"]),
    "file": (file("nothing.toml"), ["--config", "nothing.toml", "neither a file nor a recipe"]),
    "malformed TOML": (file("bad.toml"), ["--config", "bad.toml", "line 1"]),
    "not text": (file("binary.toml"), ["--config", "binary.toml", "utf-8"]),
    "unknown table": (file("table.toml"), ["table.toml", "'runs'", "did you mean 'run'", "agent, architecture, env"]),
    "no table in the file": (file("flat.toml"), ["flat.toml", "'run'", "must be a table"]),
    "type in the file": (file("type.toml"), ["run.steps", "an integer", "'many'"]),
    "recipe of another agent": (["train", "vtrace", "--config", "ppo-cartpole"], ["'vtrace'", "'ppo' in ppo-cartpole"]),
    "hosts": (["train", "--coordinator", "localhost:1"], ["--coordinator, --processes and --process"]),
    "process": (
        ["train", "--coordinator", "here:1", "--processes", "2", "--process", "2"], ["--process", "0 to 1, got 2"]
    ),
    "synchronous": (["train", "--synchronous", "--out", "{new}"], ["--synchronous is for sebulba", "anakin"]),
    "where serve runs": (["serve", "ppo", "--on", "seed"], ["there is no option --on"]),
    "actor of no environments": ([*ACTOR, "127.0.0.1:1", "--envs", "0"], ["--envs", "at least 1", "0"]),
    "actor of no server": ([*ACTOR, "nonsense"], ["'nonsense'", "unix:PATH or HOST:PORT"]),
    "setting of an actor": ([*ACTOR, "127.0.0.1:1", "--set", "hide=[1]"], ["--set hide=[1]", "env.KEY=VALUE"]),
    "from and resume": (["train", "--from", "{run}", "--resume", "{run}"], ["--from and --resume"]),
    "checkpoint of nothing": (["train", "--checkpoint", "best"], ["--checkpoint and --member", "--from RUN"]),
    "resume with no steps": (["train", "--resume", "{run}", "--steps", "0"], ["--steps", "at least 1", "0"]),
    "from no run": ([*TRAIN, "--out", "{new}", "--from", "{files}"], ["--from {files}", "not a run folder"]),
    "from a member": ([*TRAIN, "--out", "{new}", "--from", "{run}", "--member", "7"], ["--member", "0 to 1", "7"]),
    "from a step": ([*TRAIN, "--out", "{new}", "--from", "{run}", "--checkpoint", "7"], ["--from {run}", "'7'", "640"]),
    "actor of half a certificate": (
        [*ACTOR, "127.0.0.1:1", "--certificate", "c.pem"], ["--certificate and --key go together"]
    ),
    "eval of no run": (["eval", "{new}"], ["{new}", "not a run folder"]),
    "eval of a member": (["eval", "{run}", "--member", "2"], ["--member", "0 to 1", "2"]),
    "eval of a step": (["eval", "{run}", "--checkpoint", "7"], ["'7'", "latest, best", "576, 640"]),
    "eval of a word": (["eval", "{run}", "--checkpoint", "first"], ["'first'", "latest, best", "640"]),
    "eval of nothing": (["eval", "{run}", "--episodes", "0"], ["--episodes", "at least 1", "0"]),
    "watch of no run": (["watch", "{new}", *RUN], ["{new}", "not a run folder"]),
    "watch of a member": (["watch", "{run}", "--member", "-1", *RUN], ["--member", "0 to 1", "-1"]),
    "watch of a step": (["watch", "{run}", "--checkpoint", "7", *RUN], ["'7'", "latest, best", "640"]),
    "watch of nothing": (["watch", "{run}", "--steps", "0", *RUN], ["--steps", "at least 1", "0"]),
    "watch into a text": (["watch", "{run}", "--out", "{new}.txt"], ["--out", ".gif or .mp4", ".txt"]),
    "watch without render": (BLIND, ["blind", "cannot be drawn", "render"]),
    "report of no run": (["report", "{new}"], ["{new}", "not a run folder"]),
    "report into a text": (["report", "{run}", "--out", "{new}.txt"], ["out", ".html", ".txt"]),
    "doctor of no run": (["doctor", "{new}"], ["{new}", "not a run folder"]),
    "bench": (["bench", "anakin.peer"], ["'anakin.peer'", "did you mean 'anakin.peers'"]),
}  # fmt: skip
FILES = {
    "bad.toml": b"[run\nsteps = 3\n",
    "binary.toml": b"\xff\xfe",
    "table.toml": b"[runs]\nsteps = 3\n",
    "flat.toml": b"run = 3\n",
    "type.toml": b'[run]\nsteps = "many"\n',
    "damaged/config.toml": b"[run]\nsteps = 3\n",
}


def call(words):
    try:
        return cli.main(words)
    except SystemExit as end:  # argparse's way
        return end.code


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Bad files, and a folder that is not there."""
    root = tmp_path_factory.mktemp("cli")
    for name, text in FILES.items():
        (root / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "files" / name).write_bytes(text)
    return {name: str(root / name) for name in ("run", "blind", "files", "new")}


@pytest.fixture(scope="module")
def places(files):
    """A run of two members, and one that cannot be drawn, too."""
    at = files
    often = ["--set", "run.checkpoint_every=64"]
    assert call([*TRAIN, *often, "--seeds", "2", "--out", at["run"], "--json"]) == 0
    settings = shutil.copytree(at["run"], Path(at["blind"])) / "config.toml"
    settings.write_text(settings.read_text().replace('"boonta:catch"', '"tests.test_cli:blind"'))
    config.trusted(settings)
    return at


@pytest.fixture
def run(places):
    return places["run"]


def needs_a_run(words):
    return any(place in word for word in words for place in ("{run}", "{blind}"))


@pytest.mark.parametrize("case", [pytest.param(case, marks=[slow] * needs_a_run(BAD[case][0])) for case in BAD])
def test_bad_input_is_refused_in_one_line(case, files, request, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words, expected = BAD[case]
    places = request.getfixturevalue("places") if needs_a_run(words) else files
    capsys.readouterr()
    assert call([word.format(**places) for word in words]) == 2
    out, err = capsys.readouterr()
    assert not out
    (line,) = err.splitlines()
    assert line.startswith("boonta")
    for text in expected:
        assert text.format(**places) in line
    assert not list(tmp_path.iterdir())  # no run folder was begun
    assert not list(Path(places["new"]).parent.glob("new*"))


def last(out):
    return json.loads(out.splitlines()[-1])


def test_train_makes_a_run_folder(tmp_path, capsys):
    folder = tmp_path / "deep" / "run"
    assert call([*TRAIN, "--out", str(folder), "--json"]) == 0
    out, err = capsys.readouterr()
    assert not err
    summary = last(out)
    assert {*KEYS, *EVALUATION, "status"} <= summary.keys()
    assert (summary["out"], summary["env_steps"], summary["updates"]) == (str(folder), 640, 10)
    assert (summary["status"], summary["eval_episodes"]) == ("done", 8)
    assert {path.name for path in folder.iterdir()} == {
        "config.toml", "run.json", "metrics.jsonl", "tensorboard", "checkpoints", "report.html", "report.png",
        ".lock",
    }  # fmt: skip
    record = json.loads((folder / "run.json").read_text())
    assert {"versions", "devices", "machine", "commit", "command", "seed", "status", "cause"} <= record.keys()
    assert (record["status"], record["cause"], record["seed"]) == ("done", None, 0)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    keys = {"env_steps", "frames", "seconds", "updates", "steps_per_second", "episode/return_mean", "policy_lag_mean"}
    assert keys <= rows[0].keys()
    assert [row["env_steps"] for row in rows if "updates" in row] == list(range(64, 641, 64))
    assert rows[-1]["eval/return_mean"] == summary["eval_return_mean"]
    assert (folder / "checkpoints" / "640").is_dir()
    loaded = config.load(folder / "config.toml")
    assert (loaded.agent, loaded.env, loaded.run.steps, loaded.agent_settings.hidden) == (
        "ppo",
        "boonta:catch",
        640,
        (16,),
    )
    assert config.write(loaded) == (folder / "config.toml").read_text()


def test_train_tells_a_person(tmp_path, capsys):
    assert call([*TRAIN, "--out", str(tmp_path / "run")]) == 0
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert first == f"boonta: ppo on boonta:catch, anakin -> {tmp_path / 'run'}"
    assert second.startswith(
        "boonta: 8 environments, 10 updates of 32 gradient steps each; WARNING: so few may teach it little"
    )
    assert [line.split(":")[0] for line in out.splitlines()] == ["evaluation", "training", "time", "report"]


def test_a_population_tells_of_its_members(tmp_path, capsys):
    words = [*TRAIN, "--sweep", "learning_rate=1e-3,1e-2", "--seed", "3", "--out", str(tmp_path / "run"), "--json"]
    assert call(words) == 0
    summary = last(capsys.readouterr().out)
    names = [f"learning_rate={rate},seed=3" for rate in ("0.001", "0.01")]
    assert [member["name"] for member in summary["members"]] == names
    assert (summary["env_steps"], summary["eval_episodes"]) == (2 * 640, 2 * 8)


def test_eval(run, capsys):
    for which in ("latest", "best", "576"):
        assert call(["eval", run, "--checkpoint", which, "--member", "1", "--episodes", "8", "--json"]) == 0
        summary = last(capsys.readouterr().out)
        assert {*EVALUATION, "env_steps", "out"} <= summary.keys()
        assert summary["eval_episodes"] == 8
    assert summary["env_steps"] == 576
    assert call(["eval", run, "--episodes", "8"]) == 0
    assert "over 8 episodes" in capsys.readouterr().out


def test_eval_says_what_training_said(run, capsys):
    for member, said in enumerate(json.loads(Path(run, "run.json").read_text())["result"]["members"]):
        assert call(["eval", run, "--member", str(member), "--episodes", "8", "--json"]) == 0
        assert last(capsys.readouterr().out)["eval_return_mean"] == said["eval_return_mean"]


@pytest.mark.parametrize("ending", ["gif", "mp4"])
def test_watch(ending, run, capsys, tmp_path):
    film = tmp_path / "films" / f"film.{ending}"
    assert call(["watch", run, "--out", str(film)]) == 0
    assert film.stat().st_size > 500
    assert [path.name for path in film.parent.iterdir()] == [film.name]
    assert "frames, return" in capsys.readouterr().out


def test_report(run, places, capsys, tmp_path):
    page = tmp_path / "page.html"
    assert call(["report", run, places["blind"], "--out", str(page)]) == 0
    assert capsys.readouterr().out.strip() == str(page)
    assert "boonta:catch" in page.read_text()


def test_doctor(run, capsys):
    assert call(["doctor", "--json"]) == 0
    facts = last(capsys.readouterr().out)
    assert {"devices", "machine", "versions", "extras"} <= facts.keys()
    assert call(["doctor", run, "--json"]) == 0
    facts = last(capsys.readouterr().out)
    assert (facts["agent"], facts["status"], facts["checkpoints"][-1]) == ("ppo", "done", 640)
    assert call(["doctor", run]) == 0
    assert "status: done" in capsys.readouterr().out


def test_list(capsys):
    listed = {}
    for what in ("agents", "envs", "architectures", "recipes"):
        assert call(["list", what]) == 0
        listed[what] = capsys.readouterr().out.splitlines()
    assert listed["agents"] == ["alphazero", "ddpg", "dqn", "muzero", "ppo", "r2d2", "sac", "td3", "vtrace"]
    assert "boonta:catch" in listed["envs"]
    assert listed["architectures"] == ["anakin", "sebulba", "seed", "fleet", "split"]
    assert [line.split()[0] for line in listed["recipes"]] == list(registry.recipes())
    assert call(["list"]) == 0
    everything = capsys.readouterr().out
    assert all(line in everything for lines in listed.values() for line in lines)


PAIRS = [(agent, architecture) for agent in registry.AGENTS for architecture in registry.ARCHITECTURES]


@pytest.mark.parametrize(("agent", "architecture"), some_of(PAIRS, *PAIRS[::5], ("r2d2", "sebulba")))
def test_every_agent_has_defaults_that_go_together(agent, architecture):
    """On every architecture, in an environment of the host where there are hosts; but on-policy agents on split."""
    if architecture == "split" and agent in ("ppo", "vtrace", "r2d2"):
        return
    family = "gymnax" if architecture == "anakin" else "gym"
    env = f"{family}:{'Pendulum-v1' if agent in ('ddpg', 'td3', 'sac') else 'CartPole-v1'}"
    env = "pgx:tic_tac_toe" if agent == "alphazero" else env
    systems.build(config.resolve(agent, env, architecture, "none")).close()


def test_settings_that_do_not_go_together_name_the_nearest_that_do(capsys):
    words = ["train", "r2d2", "gymnax:CartPole-v1", "--config", "none", "--set"]
    assert call([*words, "agent.replay_ratio=0.37"]) == 2
    said = capsys.readouterr().err
    assert "must be a fraction with 1 above or at most 64 below, got 0.185 (64 environments" in said
    factor = float(re.search(r"with ([\d.]+) times the agent's replay ratio it is \d+/\d+", said)[1])
    config_of = partial(config.resolve, "r2d2", "gymnax:CartPole-v1", "anakin", "none")
    systems.build(config_of(assignments=[f"agent.replay_ratio={0.37 * factor}"]))
    envs = re.search(r"; nearest environments: (\d+)", said)[1]
    systems.build(config_of(assignments=["agent.replay_ratio=0.37", f"architecture.envs={envs}"]))
    words = ["train", "ppo", "gymnax:CartPole-v1", "--config", "none", "--set", "architecture.envs=48"]
    words += ["--set", "agent.batch=64"]
    assert call(words) == 2
    assert "must divide one another, got 64 and 48; nearest environments: 32 or 64" in capsys.readouterr().err


@pytest.mark.parametrize("name", registry.recipes())
def test_every_recipe_resolves(name):
    kind = registry.recipes()[name]["env"]["name"]
    by_name = config.resolve(env=example(kind) if registry.is_pattern(kind) else None, file=name)
    found = config.resolve(by_name.agent, by_name.env, by_name.architecture)
    assert by_name.run.recipe == found.run.recipe == name
    assert by_name == found
    assert config.resolve(by_name.agent, by_name.env, by_name.architecture, "none").run.recipe == ""


def test_recipes_are_there():
    assert len(registry.recipes()) >= 5
    assert config.resolve() == config.resolve(file="ppo-cartpole")
