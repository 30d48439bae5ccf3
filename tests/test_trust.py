"""Whose modules are imported: of run folders, of a Redis server, and of the current folder."""

import importlib
import json
import os
import subprocess
import sys
import zipfile

import cloudpickle
import numpy as np
import pytest

from boonta.cli import main
from boonta.core import own_modules
from boonta.envs import registry as environments
from boonta.experiments import claim, curves, members, process, trust
from boonta.experiments import config as configuration
from boonta.experiments.replays import Replays
from boonta.experiments.systems import split_processes
from boonta.experiments.tables import Split
from boonta.testing import redis_servers
from boonta.transport import ray, redis_server
from tests.marks import full, needs_redis, slow

OWN = ["train", "theirs_agent:agent", "theirs_env:env"]
SMALL = [
    "architecture.envs=8", "agent.unroll=4", "agent.batch=8", "agent.epochs=1", "agent.minibatches=1", "agent.hidden=8",
    "run.eval_episodes=2",
]  # fmt: skip
MODULES = {
    "theirs_env": "from boonta.envs import catch\ndef env(): return catch.make()\n",
    "theirs_agent": "from boonta.agents.ppo import Settings, ppo as agent\n",
}


def sets(settings):
    return [word for one in settings for word in ("--set", one)]


def as_by_another_process(monkeypatch):
    """Forget what this one has imported and agreed to."""
    monkeypatch.setattr(trust, "_accepted", set())
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def mark(tmp_path, monkeypatch):
    """A current folder with modules, which write to this file when they are imported."""
    here, mark = tmp_path / "here", tmp_path / "imported"
    here.mkdir()
    for name, text in MODULES.items():
        told = f"with open({str(mark)!r}, 'a') as file:\n    file.write('{name} ')\n"
        (here / f"{name}.py").write_text(told + text)
    monkeypatch.chdir(here)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    as_by_another_process(monkeypatch)
    yield mark
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def run(mark, tmp_path, monkeypatch):
    """A run of this user's, in a folder."""
    folder = tmp_path / "run"
    assert main([*OWN, "--steps", "64", "--out", str(folder), *sets(SMALL)]) == 0
    assert {*mark.read_text().split()} == {*MODULES}
    as_by_another_process(monkeypatch)
    mark.unlink()
    return folder


@slow
def test_a_run_of_ones_own_needs_no_flag_and_one_of_somebody_else_needs_it_once(
    run, mark, tmp_path, monkeypatch, capfd
):
    assert (tmp_path / "home" / "boonta" / "seal.key").stat().st_mode & 0o777 == 0o600
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    assert main(["train", "--resume", str(run), "--steps", "128"]) == 0
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "theirs"))
    for words in (
        ["eval", run], ["watch", run], ["match", run, "random"], ["play", run], ["train", "--resume", run],
        ["serve", "--resume", run], ["train", "ppo", "boonta:catch", "--from", run, "--out", tmp_path / "new"],
    ):  # fmt: skip
        as_by_another_process(monkeypatch)
        mark.unlink(missing_ok=True)
        capfd.readouterr()
        assert main([*map(str, words), *(sets(SMALL) if "--from" in words else [])]) == 2
        (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("boonta: ")]
        assert f"{run}: its config.toml names modules that would be imported (theirs_agent, theirs_env)" in line
        assert "you have not sealed it" in line and "--trust seals it" in line
        assert not mark.exists()
    assert main(["doctor", str(run)]) == 0 and main(["report", str(run)]) == 0
    assert not mark.exists()
    assert main(["eval", str(run), "--episodes", "2", "--trust"]) == 0
    assert "is trusted from now on: theirs_agent, theirs_env" in capfd.readouterr().err
    as_by_another_process(monkeypatch)
    assert main(["eval", str(run), "--episodes", "2"]) == 0
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))  # whose seal is there as well
    as_by_another_process(monkeypatch)
    assert main(["eval", str(run), "--episodes", "2"]) == 0


def written(folder, agent="theirs_agent:agent", env="theirs_env:env"):
    """A run folder that was never one, with names in it that nobody has looked at."""
    config = configuration.resolve("ppo", "boonta:catch", assignments=SMALL)
    folder.mkdir()
    text = configuration.write(config).replace('"ppo"', f'"{agent}"').replace('"boonta:catch"', f'"{env}"')
    (folder / "config.toml").write_text(text)
    (folder / "run.json").write_text('{"status": "done", "cause": null}')
    return folder


@pytest.mark.parametrize(
    ("agent", "env", "named"),
    [
        ("theirs_agent:agent", "boonta:catch", "theirs_agent"),
        ("ppo", "theirs_env:env", "theirs_env"),
        ("ppo", "gym:GymV21Environment-v0", "GymV21Environment-v0"),
    ],
)
def test_a_strange_folder_is_not_opened_whatever_names_the_module(agent, env, named, mark, tmp_path, capfd):
    folder = written(tmp_path / "run", agent, env)
    assert main(["eval", str(folder)]) == 2
    assert f"would be imported ({named})" in capfd.readouterr().err
    assert not mark.exists()


def test_what_was_edited_by_hand_is_sealed_anew(mark, tmp_path, monkeypatch, capfd):
    folder = written(tmp_path / "run")
    assert configuration.trusted(folder / "config.toml") == ["theirs_agent", "theirs_env"]
    as_by_another_process(monkeypatch)
    configuration.load(folder / "config.toml")
    path = folder / "config.toml"
    path.write_text(path.read_text().replace("epochs = 1", "epochs = 2"))
    with pytest.raises(trust.Untrusted, match="was edited; --trust seals it"):
        configuration.load(path)
    configuration.trusted(path)
    as_by_another_process(monkeypatch)
    assert configuration.load(path).agent_settings.epochs == 2
    (one,) = (folder / trust.SEALS).iterdir()
    one.write_bytes(b"\xff nonsense\n" * 1000)
    as_by_another_process(monkeypatch)
    with pytest.raises(trust.Untrusted):
        configuration.load(path)
    key = tmp_path / "home" / "boonta" / "seal.key"
    key.chmod(0o644)
    with pytest.raises(trust.Untrusted, match=r"seal.key must be yours alone \(chmod 600\)"):
        configuration.load(path)
    key.write_text("7")
    key.chmod(0o600)
    with pytest.raises(trust.Untrusted, match=r"seal.key is no key of ours; delete it"):
        configuration.load(path)


@pytest.mark.parametrize(
    ("architecture", "place"),
    [
        ("fleet", "cluster=10.0.0.1:6379"), ("split", "transport=rediss://there/0"), ("sebulba", "trace=/etc/passwd"),
        ("seed", "address=127.0.0.1:1"),
    ],
)  # fmt: skip
def test_a_strange_run_goes_on_nowhere_beyond_its_folder(architecture, place, mark, tmp_path, monkeypatch, capfd):
    agent, env = ("ddpg", "gym:Pendulum-v1") if architecture == "split" else ("vtrace", "gym:CartPole-v1")
    config = configuration.resolve(agent, env, architecture, "none", [f"architecture.{place}"])
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(configuration.write(config))
    (folder / "run.json").write_text('{"status": "done", "cause": null}')
    assert main(["train", "--resume", str(folder)]) == 2
    key, _, value = place.partition("=")
    assert f"names places beyond the run (architecture.{key}='{value}')" in capfd.readouterr().err
    configuration.load(folder / "config.toml")  # to be evaluated, it goes nowhere
    configuration.trusted(folder / "config.toml")
    as_by_another_process(monkeypatch)
    configuration.load(folder / "config.toml", beyond=True)


def test_a_cluster_is_no_module(capfd):
    with pytest.raises(ValueError, match="architecture.cluster must be auto, local or HOST:PORT, got 'this://x'"):
        ray.Cluster("this://x", 1.0)
    assert "this" not in sys.modules


def test_links_in_a_strange_run_folder_lead_nowhere(mark, tmp_path):
    folder, mine = written(tmp_path / "run", "ppo", "boonta:catch"), tmp_path / "mine"
    mine.write_text("precious")
    (folder / "replay" / "7").mkdir(parents=True)
    for name in (".lock", "metrics.jsonl", "checkpoints", "replay/7/host-0.tmp"):
        (folder / name).symlink_to(tmp_path if name == "checkpoints" else mine)
        with pytest.raises(ValueError, match=f"{name} is a link"), claim.claimed(folder):
            pass
        (folder / name).unlink()
    (folder / "replay" / "8").mkdir()
    (folder / "replay" / "8" / "host-0.tmp").symlink_to(mine)
    Replays(folder).save(8, {"a": np.zeros(2)})
    assert mine.read_text() == "precious"


def test_only_the_replays_of_other_steps_are_forgotten(tmp_path):
    for name in ("7", "8", "photos"):
        (tmp_path / "replay" / name).mkdir(parents=True)
    Replays(tmp_path).forget_all_but(8)
    assert {path.name for path in (tmp_path / "replay").iterdir()} == {"8", "photos"}


def test_a_replay_of_somebody_else_holds_numbers_alone(tmp_path):
    place = tmp_path / "replay" / "7" / "host-0.npz"
    place.parent.mkdir(parents=True)
    header = b"{'descr': '|O', 'fortran_order': False, 'shape': (2,), }"
    array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + b"A" * 16  # addresses of objects
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("weights.npy", array)
    found, why = Replays(tmp_path).restore(7)
    assert found is None and "weights.npy holds object, which is no number" in why


def test_what_is_trusted_is_named_as_a_whole(mark, tmp_path):
    folder = written(tmp_path / "run")
    text = (folder / "config.toml").read_text().replace('name = "anakin"', 'name = "sebulba"\ntrace = "/etc/theirs"')
    text = text.replace("envs = 0\n", "").replace("devices = 1\n", "")
    (folder / "config.toml").write_text(text)
    with pytest.raises(trust.Untrusted, match="theirs_env.* and places .*architecture.trace='/etc/theirs'"):
        configuration.load(folder / "config.toml")


def test_a_report_reads_files_of_the_folder_alone(tmp_path):
    folder = written(tmp_path / "run", "ppo", "boonta:catch")
    (tmp_path / "secret.toml").write_text('[run]\nname = "secret"\n')
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").unlink()
    (folder / "config.toml").symlink_to(tmp_path / "secret.toml")
    with pytest.raises(OSError, match="symbolic links"):
        curves.load([folder])
    (folder / "config.toml").unlink()
    (folder / "config.toml").write_text(text)
    os.mkfifo(folder / "metrics.jsonl")
    with pytest.raises(OSError, match="metrics.jsonl is not a file"):
        curves.load([folder])


@pytest.mark.parametrize("command", ["report", "doctor", "eval"])
def test_nested_text_is_refused_in_one_line(command, tmp_path, capfd):
    folder = written(tmp_path / "run", "ppo", "boonta:catch")
    (folder / "config.toml").write_text("a = " + "[" * 5000 + "]" * 5000)
    assert main([command, str(folder)]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "config.toml" in line


def test_what_others_say_moves_no_terminal(tmp_path, capfd):
    folder = written(tmp_path / "run", "ppo", "boonta:catch")
    (folder / "run.json").write_text(json.dumps({"status": "failed", "cause": "\x1b]52;c;stolen\x07"}))
    main(["doctor", str(folder)])
    out, err = capfd.readouterr()
    assert "\x1b" not in out + err and "\\x1b]52" in out


def test_how_reports_look_is_not_up_to_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\n")
    monkeypatch.chdir(tmp_path)
    code = "from boonta.experiments import charts; import matplotlib; print(matplotlib.rcParams['text.usetex'])"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False\n"


def test_a_folder_without_a_module_in_it_hides_none(mark, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "theirs_env").mkdir()  # what Python takes for a namespace
    assert own_modules.own_module("theirs_env").env


def test_a_member_of_a_crew_goes_on_with_the_path_of_the_driver(mark, monkeypatch):
    here = os.getcwd()
    path = list(sys.path)
    member = ray._Host(([], [here]), cloudpickle.dumps(lambda: importlib.import_module("theirs_env")))
    assert member.here() and not mark.exists()  # nothing is imported before it is asked for
    assert member.call("env").spec.name == "boonta:catch"
    assert sys.path == [*path, here] and {*mark.read_text().split()} == {"theirs_env"}


def test_processes_that_start_side_by_side_do_not_look_here(monkeypatch):
    monkeypatch.delenv(own_modules.SAFE_PATH, raising=False)
    with own_modules.no_modules_from_here():
        with own_modules.no_modules_from_here():
            pass
        assert os.environ[own_modules.SAFE_PATH] == own_modules.OURS
    assert own_modules.SAFE_PATH not in os.environ
    monkeypatch.setenv(own_modules.SAFE_PATH, "1")
    with own_modules.no_modules_from_here():
        pass
    assert os.environ[own_modules.SAFE_PATH] == "1"


def test_where_no_seal_can_be_kept_the_flag_is_for_one_command(mark, tmp_path, monkeypatch, capfd):
    folder = written(tmp_path / "run")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    configuration.trusted(folder / "config.toml")
    assert "cannot be sealed" in capfd.readouterr().err
    configuration.load(folder / "config.toml")
    as_by_another_process(monkeypatch)
    with pytest.raises(trust.Untrusted):
        configuration.load(folder / "config.toml")
    assert main(["train", "ppo", "boonta:catch", "--trust"]) == 2
    assert "--trust is for run folders, and this command names none" in capfd.readouterr().err


@needs_redis
def test_the_word_of_a_redis_server_is_not_enough_to_import_a_module(mark, tmp_path, monkeypatch, capfd):
    config = configuration.resolve("ddpg", "gym:Pendulum-v1", "split", "none", ["architecture.remote=environment/1"])
    plain = configuration.write(config)
    text = plain.replace('"ddpg"', '"theirs_agent:agent"').replace('"gym:Pendulum-v1"', '"theirs_env:env"')
    with redis_servers.serving(tmp_path) as server:
        client = redis_server.client(server.address)

        def joined(told, given=None, **own):
            redis_server.swept(client, "a")
            redis_server.tell(client, "a", told)
            return split_processes.invited(server.address, "environment/1", given, "a", None, process.Hosts(), own)

        with pytest.raises(ValueError, match=r"modules that would be imported: --agent 'theirs_agent:agent' --env "):
            joined({"config": text, "life": "0"})
        with pytest.raises(ValueError, match="modules that would be imported: --env 'theirs_env:env' agrees"):
            joined({"config": text, "life": "0"}, agent="theirs_agent:agent")
        with pytest.raises(ValueError, match="--env other:env: the run's is 'theirs_env:env'"):
            joined({"config": text, "life": "0"}, agent="theirs_agent:agent", env="other:env")
        with pytest.raises(ValueError, match="--config must be the run's config.toml, whose fingerprint is "):
            joined({"config": text, "life": "0"}, plain)
        with pytest.raises(ValueError, match="as Redis tells it, is damaged"):
            joined({"life": "0"})
        with pytest.raises(ValueError, match="tells no life of run a, got 'soon'"):
            joined({"config": plain, "life": "soon"})
        words = ["split-worker", "--transport", server.address, "--role", "environment/1"]
        redis_server.tell(client, "a", {"config": text, "life": "0"})
        assert main(words) == 2
        assert "as Redis tells it, names modules that would be imported" in capfd.readouterr().err
        assert not mark.exists()
        assert joined({"config": plain, "life": "0"}).config.agent == "ddpg"  # whose name is the package's own
        assert joined({"config": plain, "life": "3"}, plain).life == 3
        agreed = plain.replace('"gym:Pendulum-v1"', '"theirs_env:env"')
        assert joined({"config": agreed, "life": "0"}, env="theirs_env:env").config.env == "theirs_env:env"
        shared = plain.replace("value_processes = 1", "value_processes = 2").replace('"environment/1"', '"value/1"')
        redis_server.tell(
            client, "a", {"config": shared.replace('coordinator = ""', 'coordinator = "evil:1"'), "life": "0"}
        )
        about = (server.address, "value/1", None, "a", None)
        with pytest.raises(ValueError, match="has the coordinator 'evil:1': --coordinator 'evil:1' agrees to that"):
            split_processes.invited(*about, process.Hosts(), {})
        hosts = split_processes.invited(*about, process.Hosts("evil:1"), {}).hosts
        assert hosts == process.Hosts("evil:1", 2, 1)
        client.close()


@pytest.mark.parametrize("address", ["redis:///0?host=evil.example", "rediss://there/0?ssl_cert_reqs=none"])
def test_an_address_of_redis_redirects_nobody(address):
    with pytest.raises(ValueError, match=r"unknown option '(host|ssl_cert_reqs)' of .*; allowed: db, ssl_ca_certs"):
        redis_server.private(address, False)


@pytest.mark.parametrize("address", ["redis://10.0.0.1:6379/0", "redis://simulators/0", "redis://[fe80::1]:1/0"])
def test_clear_text_beyond_this_machine_is_asked_for(address, capfd):
    with pytest.raises(ValueError, match=r"is clear text beyond this machine.*--insecure"):
        split_processes.check(Split(transport=address), [])
    split_processes.check(Split(transport=address, insecure=True), [])
    assert "is clear text: whoever is on the way" in redis_server.private(address, True)
    assert main(["split-worker", "--transport", address, "--role", "environment/0"]) == 2
    assert "--insecure" in capfd.readouterr().err


@pytest.mark.parametrize(
    "address",
    ["redis://127.0.0.1:1/0", "redis://localhost/0", "redis://[::1]:1/0", "rediss://far.away:1/0", "unix:///s"],
)
def test_what_nobody_can_read_on_its_way_needs_no_flag(address):
    assert redis_server.private(address, False) == ""


HOSTILE = (
    "sitecustomize",
    "usercustomize",
    "optax",
    "jax",
    "grpc",
    "ray",
    "redis",
    "gymnasium",
    "numpy",
    "random",
    "pickle",
    "multiprocessing",
    "mctx",
)
WAYS = {
    "anakin": ["ppo", "boonta:catch", *sets(SMALL)],
    "seed": [
        "vtrace", "gym:CartPole-v1", "--on", "seed",
        *sets(["architecture.envs=4", "architecture.actors=2", "architecture.workers=processes", "agent.hidden=8",
               "agent.batch=4", "agent.unroll=4", "run.eval_episodes=0"]),
    ],
    "split": [
        "ddpg", "gym:Pendulum-v1", "--on", "split",
        *sets(["agent.hidden=8", "agent.value_batch=8", "agent.policy_batch=8", "agent.minimum=20",
               "agent.capacity=2000", "run.eval_episodes=0"]),
    ],
    "fleet": [
        "vtrace", "gym:CartPole-v1", "--on", "fleet",
        *sets(["architecture.training_workers=2", "agent.hidden=8", "agent.batch=8", "agent.unroll=4",
               "run.eval_episodes=0"]),
    ],
}  # fmt: skip


@pytest.fixture
def hostile(tmp_path):
    """A current folder with modules in it that are called as others are."""
    mark = tmp_path / "hostile"
    told = f"import os\nos.close(os.open({str(mark)!r}, os.O_CREAT))\n"
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text(f"{told}raise ImportError('hostile')\n")
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").write_text(told)
    (tmp_path / "benchmarks" / "own.py").write_text("def main(): ...\n")
    return tmp_path


@full
@pytest.mark.parametrize("way", WAYS)
def test_nothing_of_the_current_folder_is_imported(way, hostile):
    path = os.pathsep.join(one for one in sys.path if one and one != os.getcwd())
    words = [sys.executable, "-m", "boonta", "train", *WAYS[way], "--config", "none", "--steps", "400", "--out", "run"]
    done = subprocess.run(
        words, cwd=hostile, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert not (hostile / "hostile").exists()


def test_a_look_at_an_own_environment_runs_nothing_else_of_the_folder(mark, hostile, monkeypatch):
    """In a process of its own, in which Python would run a sitecustomize that it finds."""
    here = mark.parent / "here"
    for name in ("sitecustomize", "usercustomize"):
        (here / f"{name}.py").write_text((hostile / f"{name}.py").read_text())
    assert environments.compiles("theirs_env:env", {}, 120.0)
    assert not (hostile / "hostile").exists()


def test_for_an_installed_module_the_current_folder_is_not_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert own_modules.own_module("json").loads("1") == 1
    assert str(tmp_path) not in sys.path


def test_benchmarks_are_those_of_the_clone(hostile, monkeypatch, capfd):
    monkeypatch.chdir(hostile)
    assert main(["bench", "own"]) == 2
    assert "unknown benchmark 'own'" in capfd.readouterr().err
    assert not (hostile / "hostile").exists()


def test_an_own_module_that_is_called_as_an_installed_one_is_told_of(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "optax.py").write_text("def env(): ...\n")
    assert main(["train", "ppo", "optax:env"]) == 2
    err = capfd.readouterr().err
    assert "module optax is" in err and "not that of the current folder, which comes last; rename yours" in err
    assert str(tmp_path) not in sys.path


def test_to_trust_several_runs_is_to_trust_each(mark, tmp_path, capfd):
    folder = written(tmp_path / "grid")
    (folder / "members").mkdir()
    one = written(folder / "members" / "0")
    (folder / "members" / "1").symlink_to(tmp_path)
    assert members.folders(folder) == [one]
    main(["doctor", str(folder)])
    assert main(["eval", str(folder), "--member", "1"]) == 2
    with pytest.raises(trust.Untrusted):
        configuration.load(one / "config.toml")
    main(["eval", str(folder), "--trust", "--episodes", "1"])
    assert capfd.readouterr().err.count("is trusted from now on") == 2
