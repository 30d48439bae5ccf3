"""Processes that act and processes that learn: their counts, their deaths, and runs that go on."""

import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import time
from fractions import Fraction
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import hypothesis.strategies as st
import jax
import numpy as np
import psutil
import pytest
from hypothesis import given, settings

from boonta import envs
from boonta.agents import ddpg, ppo
from boonta.architectures import split, split_roles
from boonta.architectures.fleet_roles import Parts
from boonta.architectures.split import Failed, _Post
from boonta.architectures.split_pace import pace
from boonta.architectures.split_wiring import BEGUN
from boonta.architectures.turns import together
from boonta.cli import main
from boonta.core import devices
from boonta.core.crew import Resources
from boonta.core.exchange import Disconnected
from boonta.core.faults import Supervisor
from boonta.core.settings import Refused
from boonta.core.spec import Continuous, Shape, Spec
from boonta.experiments import config as configuration
from boonta.experiments import runs, systems
from boonta.experiments.checkpoint import Checkpoints
from boonta.experiments.systems import split as system
from boonta.experiments.systems import split_cluster, split_processes
from boonta.experiments.tables import Split as Options
from boonta.testing import redis_servers
from boonta.transport import ray
from boonta.transport.inline import Inline
from boonta.transport.shm import SharedMemory
from tests.marks import full, needs_redis, slow

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
    lost=st.booleans(),
)
def test_somebody_may_always_move_and_counts_stay_in_their_band(moved, minimum, ratios, choices, lost):
    made = agent(value_updates=ratios[0], policy_updates=ratios[1])
    held = pace(made, minimum, moved)
    steps, updates, begun = 0, {"value": 0, "policy": 0}, 0
    for i, choice in enumerate(choices):
        if lost and i == 150:
            begun = steps  # what there was to learn from is there no more
        may = [
            held.may_step(steps, updates, begun),
            *(held.may_update(name, steps, updates[name], begun) for name in updates),
        ]
        assert any(may), "all wait for ever"
        assert may == [True, False, False] or steps >= begun + minimum
        which = choice if may[choice] else may.index(True)
        if which == 0:
            steps += moved
        else:
            updates[("value", "policy")[which - 1]] += 1
        for name, ratio in zip(updates, ratios, strict=True):
            ahead = Fraction(ratio).limit_denominator(10) * max(steps - minimum, 0) - updates[name]
            slack = Fraction(ratio).limit_denominator(10) * moved  # what was made while the minimum came
            again = Fraction(ratio).limit_denominator(10) * (minimum + moved) * (begun > 0)
            assert 0 <= ahead <= held.bands[name] + slack + again


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


COMMAND = 3  # where the words of the command line begin, after the interpreter's


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


def workers(address=""):
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
        except psutil.Error:
            continue
        if "split-worker" in line and address in " ".join(line) and process.status() != psutil.STATUS_ZOMBIE:
            found.append((line[line.index("--role") + 1], process.pid, process.ppid()))
    return found


def of(parent):
    return {role: pid for role, pid, ppid in workers() if ppid == parent}


@full
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


@full
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


@full
def test_several_processes_share_the_batch_of_the_value(tmp_path):
    """And count their updates as one: TD3's targets move when its policy is due."""
    summary, _ = run(command(tmp_path / "run", "--set", "architecture.value_processes=2", agent="td3", steps=120))
    assert summary["status"] == "done"
    made = 120 - 20 - 2
    assert last(tmp_path / "run", "updates/value") == made
    config = configuration.alone(configuration.load(runs.config_of(tmp_path / "run")))
    state = Checkpoints(tmp_path / "run", config.run.keep).restore(systems.build(config).shapes()).state
    assert int(state.learners["value"].learners["value"].updates) == made


@full
def test_what_is_killed_is_replaced_and_a_driver_that_is_killed_leaves_nothing_and_the_run_goes_on(tmp_path):
    folder = tmp_path / "run"
    arguments = command(folder, "--set", "run.log_every=100", "--set", "run.checkpoint_every=100", steps=2000)
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait(lambda: learning(folder), process)
            theirs = of(process.pid)
            assert set(theirs) == {"environment/0", "value/0", "policy/0"}
            for pid in theirs.values():
                os.kill(pid, signal.SIGKILL)
            wait(lambda: rows(folder)[-1]["restarts"] == 3, process)
            seen = len(rows(folder))
            wait(lambda: len(rows(folder)) > seen + 2, process)
            theirs = of(process.pid)
            for pid in (process.pid, *theirs.values()):  # nothing that has a name can be left
                maps = Path(f"/proc/{pid}/maps")
                mapped = maps.read_text().splitlines() if maps.exists() else []
                assert not [line for line in mapped if "/dev/shm/" in line and not line.endswith("(deleted)")]
        finally:
            process.kill()
        _, err = process.communicate(timeout=30)
    assert err.count("is replaced") == 3 and "exit status -9" in err
    until = time.monotonic() + 20
    alive = lambda: [pid for pid in theirs.values() if pid in {pid for _, pid, _ in workers()}]  # noqa: E731
    while alive() and time.monotonic() < until:
        time.sleep(0.2)
    assert not alive(), "processes outlive their run"
    summary, done = run([sys.executable, "-m", "boonta", "train", "--resume", str(folder), "--json"])
    assert summary["env_steps"] == 2000
    assert last(folder, "updates/value") == 2000 - 20 - 2
    assert "replay" not in done.stderr  # nothing of it was lost


@full
def test_a_run_goes_on_without_its_replay(tmp_path):
    folder, more = tmp_path / "run", ["--set", "agent.value_updates=2", "--set", "architecture.envs=2"]
    more += ["--set", "run.save_replay=false", "--set", "run.log_every=50"]
    with subprocess.Popen(command(folder, *more, steps=2000), stdout=subprocess.DEVNULL) as process:
        wait(lambda: learning(folder), process)
        process.terminate()
        assert process.wait(120) == 128 + signal.SIGTERM
    summary, _ = run([sys.executable, "-m", "boonta", "train", "--resume", str(folder), "--json"])
    assert summary["env_steps"] == 2000  # of which the minimum came first again, and what was due was made up
    assert last(folder, "updates/value") == 2 * (2000 - 20 - 2 * 2)


# The driver


def test_one_of_several_that_stands_still_is_seen():
    post = _Post(["value/0", "value/1"])
    post.beats, post.silent = {"value/0": 5, "value/1": 7}, {"value/0", "value/1"}
    post.since = dict.fromkeys(post.roles, 600.0)
    post.see({"value/0": 6, "value/1": 7}, 10.0)  # the second still compiles, and the first may wait for it
    assert post.since == {"value/0": 600.0, "value/1": 600.0}
    post.see({"value/0": 6, "value/1": 8}, 20.0)
    assert post.since == {"value/0": 20.0, "value/1": 20.0}
    post.see({"value/0": 6, "value/1": 9}, 30.0)
    assert post.since == {"value/0": 20.0, "value/1": 30.0}


@pytest.fixture
def driver():
    """A driver and its system; nobody is started."""
    one = system.Split(configuration.resolve("ddpg", "gym:Pendulum-v1", "split", assignments=SMALL))
    exchange = SharedMemory(one.wiring.layout)
    yield split.Split(one.wiring, exchange, lambda roles, life: [Standing() for _ in roles], Supervisor(0), 0.1), one
    exchange.close()


class Standing:
    """A process that runs, until it is killed, or is not to be seen."""

    def __init__(self, gone=False):
        self.gone, self.killed = gone, False

    def poll(self):
        if self.gone:
            raise Disconnected("no server")
        return -9 if self.killed else None

    def kill(self):
        self.killed = True

    def wait(self, timeout):
        assert self.killed


def states_of(one):
    whole = jax.device_get(one.start())
    return {name: state._replace(params=whole.params) for name, state in whole.learners.items()}


def test_who_is_dead_is_replaced_in_a_new_life(driver):
    running, one = driver
    running._supervisor = Supervisor(1)
    running.restore(states_of(one), None, 0)
    begun, processes = [], {}

    def begin(roles, life):
        begun.append((roles, life))
        processes[roles[0]] = Standing()
        return [processes[roles[0]]]

    running._begin = begin
    for post in running._posts:
        running._start(post)
    running.look_after()
    assert begun == [(["environment/0"], 0), (["value/0"], 0), (["policy/0"], 0)]
    processes["value/0"].killed = True
    until = time.monotonic() + 20.0
    while not begun[3:] and time.monotonic() < until:  # after a while
        running.look_after()
    assert begun[3:] == [(["value/0"], 1)]
    assert "value/0 died (exit status -9) and is replaced (1 of 1 within an hour)" in running._supervisor.told()
    processes["value/0"].killed = True
    with pytest.raises(Failed, match="value/0 died, after 1 restarts within an hour .*: exit status -9"):
        running.look_after()


def test_the_minimum_is_of_the_experience_that_is_there(driver):
    running, one = driver
    states, nothing = states_of(one), np.zeros((3, one.wiring.pieces.nbytes), np.uint8)
    for arrays, begun in ((None, 50), ({"pieces/0": nothing, "begin/0": np.asarray(47)}, 47)):
        running.restore(states, arrays, 50)
        assert running.exchange.totals()[BEGUN] == begun * one.wiring.quota
        assert running.exchange.length("pieces/0") == 50


def test_nobody_goes_on_with_parameters_that_are_too_old(driver):
    running, one = driver
    wiring, exchange, states = one.wiring, running.exchange, states_of(one)
    running.restore(states, None, 0)
    parts = Parts(together(wiring.agent), envs.make("gym:Pendulum-v1"), lambda params, episodes: None)
    acting = split_roles.Acting(lambda: parts, wiring, exchange, 0, 0)
    value = split_roles.Learning(wiring, exchange, "value", 0, devices.mesh(jax.devices()[:1]))
    for role in (acting, value):
        assert role._read(exchange.totals())
    exchange.put("updates/policy", wiring.plan.lag + 1)
    for role in (acting, value):
        assert not role._read(exchange.totals())
    policy = {group: states["policy"].params[group] for group in wiring.agent.learners["policy"].owns}
    exchange.publish("params/policy", 1, wiring.params["policy"].pack(policy))
    for role in (acting, value):
        assert role._read(exchange.totals())


def test_every_step_of_slow_environments_is_a_move(driver, monkeypatch):
    monkeypatch.setattr(split_roles, "BEAT", 0.0)
    running, one = driver
    running.restore(states_of(one), None, 0)
    parts = Parts(together(one.wiring.agent), envs.make("gym:Pendulum-v1"), lambda params, episodes: None)
    acting = split_roles.Acting(lambda: parts, one.wiring, running.exchange, 0, 0)
    acting._move()
    assert running.exchange.totals()["beat/environment/0"] == one.wiring.actor.unroll
    acting.rollout.close()


def test_a_learner_without_a_state_to_go_on_from_is_refused(driver, monkeypatch):
    monkeypatch.setattr(split_roles, "HANDED", 0.1)
    running, one = driver
    with pytest.raises(Refused, match="value/0 finds no state to go on from"):
        split_roles.Learning(one.wiring, running.exchange, "value", 0, devices.mesh(jax.devices()[:1]))


def test_who_begins_is_waited_for_and_standing_still_ends_the_run(driver, monkeypatch):
    monkeypatch.setattr(split, "STUCK", 0.1)
    running, one = driver
    running.restore(states_of(one), None, 0)
    assert not running.start(lambda: True)
    since = time.monotonic()

    def asked():
        if time.monotonic() > since + 1.0:
            for post in running._posts:
                post.silent = set()
        return False

    with pytest.raises(Failed, match="no environment stepped and no learner made an update"):
        running.stage(10, asked)
    assert time.monotonic() > since + 1.0


def test_all_are_ended_though_some_are_not_to_be_seen(driver, monkeypatch):
    monkeypatch.setattr(split, "ENDING", 0.1)
    running, _ = driver
    elsewhere, here = Standing(gone=True), Standing()
    running._posts[0].processes, running._posts[1].processes = [elsewhere], [here]
    running.close()
    assert here.killed and not elsewhere.killed


def test_processes_of_one_machine_share_its_accelerators():
    everyone = ["environment/0", "value/0", "value/1", "policy/0"]
    options = Options(devices=2, remote=("value/1",))
    there = lambda role, here: split_processes.accelerators(options, everyone, role, here)  # noqa: E731
    assert there("policy/0", ["0", "1", "2", "3"]) == (1.0, ["2", "3"])
    assert there("value/0", ["0", "1"]) == there("policy/0", ["0", "1"]) == (0.5, ["0", "1"])
    assert there("value/0", ["0"]) == (0.5, []) and there("value/0", []) == (0.5, [])
    options = Options(value_processes=2)  # two share a batch, and each has an accelerator that is not the other's
    assert [there(role, ["0", "1"]) for role in everyone[1:]] == [(0.5, ["0"]), (1.0, ["1"]), (0.5, ["0"])]
    found = split_processes.surroundings("value/0", 0.5, ["1", "2"])
    assert found["CUDA_VISIBLE_DEVICES"] == "1,2" and found["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.450"
    assert split_processes.surroundings("environment/0", 1.0)["JAX_PLATFORMS"] == "cpu"


def test_processes_that_share_a_batch_need_an_accelerator_each(monkeypatch):
    roles = ["environment/0", "value/0", "value/1", "policy/0"]
    monkeypatch.setattr(split_processes, "accelerators_here", lambda: ["0"])
    with pytest.raises(
        ValueError, match=r"value_processes must be at most 1 of this machine, whose .* are 1: .*; got 2"
    ):
        split_processes.check(Options(value_processes=2), roles)
    split_processes.check(Options(), [one for one in roles if one != "value/1"])
    away = Options(value_processes=2, transport="rediss://host:1/0", coordinator="host:2", remote=("value/1",))
    split_processes.check(away, roles)
    monkeypatch.setattr(split_processes, "accelerators_here", list)
    split_processes.check(Options(value_processes=2), roles)


def test_accelerators_are_those_that_jax_may_use(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(metadata, "entry_points", lambda group: metadata.EntryPoints())
    assert split_processes.accelerators_here() == []
    there = metadata.EntryPoints([metadata.EntryPoint("xla_cuda12", "jax_plugins.xla_cuda12", "jax_plugins")])
    monkeypatch.setattr(metadata, "entry_points", lambda group: there)
    assert split_processes.accelerators_here() == ["3", "5"]
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert split_processes.accelerators_here() == []
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")
    assert split_processes.accelerators_here() == ["3", "5"]


def test_who_has_other_settings_of_agent_or_environment_is_no_part_of_the_run():
    def fingerprint(*assignments, again=False):
        config = configuration.resolve("ddpg", "gym:Pendulum-v1", "split", assignments=[*SMALL, *assignments])
        config = configuration.loaded(configuration.write(config), "text") if again else config
        return system.wired(system._Member(config)).layout.fingerprint()

    usual = fingerprint()
    assert fingerprint(again=True) == fingerprint("architecture.band=100") == usual
    assert usual not in (fingerprint("agent.discount=0.9"), fingerprint("env.hide=[1]"))


@full
@needs_redis
@slow
def test_over_redis_others_join_and_a_server_that_forgets_all_is_told_again(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    monkeypatch.setenv("BOONTA_REDIS_PASSWORD", "secret")
    with redis_servers.serving(tmp_path, "--requirepass", "secret") as server:
        worker = [sys.executable, "-m", "boonta", "split-worker", "--transport", server.address, "--role"]
        arguments = command(
            folder, "--set", "run.log_every=100", "--set", "architecture.environments=2",
            "--set", "architecture.remote=environment/1", "--transport", server.address, steps=2000,
        )  # fmt: skip
        driver = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            wait(lambda: server.left(), driver)
            refused = subprocess.run([*worker, "value/0"], capture_output=True, text=True, timeout=120)
            assert refused.returncode == 2 and "--role must be one of architecture.remote" in refused.stderr
            joined = subprocess.Popen([*worker, "environment/1"], stderr=subprocess.PIPE, text=True)
            try:
                wait(lambda: learning(folder), driver)
                assert set(of(driver.pid)) == {"environment/0", "value/0", "policy/0"}
                server.stop()
                seen = len(rows(folder))
                time.sleep(0.5)
                server.start()
                wait(lambda: len(rows(folder)) > seen + 2, driver)
                out, err = driver.communicate(timeout=300)
                assert joined.wait(30) == 0, joined.stderr.read()
            finally:
                joined.kill()
                joined.communicate()
        finally:
            driver.kill()
            driver.communicate()
        assert driver.returncode == 0, err
        assert "waits for environment/1: boonta split-worker --role ROLE --transport redis://" in err
        assert json.loads(out.splitlines()[-1])["env_steps"] == 2000 and last(folder, "restarts") == 0
        assert last(folder, "updates/value") == 2000 - 20 - 2 * 2
        assert not server.left()


@full
@needs_redis
def test_a_cluster_starts_the_processes_and_replaces_them(tmp_path):
    pytest.importorskip("ray")
    folder = tmp_path / "run"
    with redis_servers.serving(tmp_path) as server:
        arguments = command(
            folder, "--set", "run.log_every=100", "--set", "architecture.cpus=0.5", "--cluster", "local",
            "--set", "architecture.band=100", "--set", "architecture.lag=5", "--transport", server.address, steps=2000,
        )  # fmt: skip
        driver = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            wait(lambda: learning(folder), driver)
            assert not of(driver.pid)  # but of members of the crew
            victim = next(pid for role, pid, _ in workers(server.address) if role == "value/0")
            os.kill(victim, signal.SIGKILL)
            out, err = driver.communicate(timeout=300)
        finally:
            driver.kill()
            driver.communicate()
        assert driver.returncode == 0, err
        assert "value/0 died (exit status -9) and is replaced (1 of 3 within an hour)" in err
        assert json.loads(out.splitlines()[-1])["env_steps"] == 2000
        assert last(folder, "updates/value") == 2000 - 20 - 2
        assert max(row["lag/value_max"] for row in rows(folder) if row.get("lag/value_max") is not None) <= 5
        assert not workers(server.address) and not server.left()


def test_processes_of_a_cluster_meet_at_the_address_by_which_the_cluster_knows_their_machine(monkeypatch):
    """A machine's own name often stands for loopback in its own table of hosts."""
    keeper = split_cluster.Keeper([], "", {}, lambda: "127.0.0.2")
    monkeypatch.setattr(socket, "gethostbyname", lambda name: "127.0.0.1")
    host, port = keeper.place().split(":")
    assert host == "127.0.0.2" and int(port) > 0
    assert inspect.signature(split_cluster.Keeper).parameters["address"].default is ray.address_here


def test_members_of_a_crew_start_processes_and_say_when_they_have_ended():
    config = configuration.resolve("ddpg", "gym:Pendulum-v1", "split", "none")
    code = (
        "import sys, time; text = open(sys.argv[-1]).read(); time.sleep(60 * ('wait' in sys.argv)); sys.exit(len(text))"
    )
    crew = Inline()
    ends, waits = (
        crew.hire(name, partial(split_cluster.Keeper, ["-c", code], "abc", {"A": "b"}), Resources(1.0)) for name in "ab"
    )
    one, other = split_cluster.Kept(crew, ends), split_cluster.Kept(crew, waits)
    for keeper, words in ((ends, []), (waits, ["wait"])):
        crew.get(crew.ask(keeper, "start", words), 60.0)
    deadline = time.monotonic() + 60
    while one.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert one.poll() == 3 and other.poll() is None  # the configuration was read
    other.kill()
    while other.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert other.poll() == -signal.SIGKILL
    one.wait(1.0)
    other.wait(1.0)
    gone = split_cluster.Kept(crew, ends)
    gone.wait(1.0)
    assert gone.poll() == split_cluster.ENDED
    crew.close()
    meeting = split_processes.Place(None, ["--transport", "unix:///s"])
    asked = []

    class Here(Inline):
        def ask(self, member, method, *args, answers=1):
            asked.append((member.name, method, *args))
            return self.put("127.0.0.1:5" if method == "place" else None)

    found = split_cluster.started(here := Here(), config, meeting, ["value/0", "value/1"], 2)
    here.close()
    assert len(found) == 2 and asked == [
        ("value 0", "place"),
        *(
            (f"value {i}", "start", ["--coordinator", "127.0.0.1:5", "--processes", "2", "--process", str(i)])
            for i in range(2)
        ),
    ]


def test_a_process_that_does_not_end_when_it_is_killed_ends_the_run_with_the_cause():
    class Undying:
        def poll(self):
            return None

        def kill(self):
            pass

        def wait(self, timeout):
            raise subprocess.TimeoutExpired("boonta", timeout)

    with pytest.raises(Failed, match="a process that was killed has not ended in"):
        split.Split._end(SimpleNamespace(), Undying())


def test_a_cluster_without_room_is_told_of(capsys):
    class Full:
        def hire(self, name, make, resources):
            return name

        def here(self, member):
            return member

        def wait(self, refs, seconds):
            return []

    config = configuration.resolve("ddpg", "gym:Pendulum-v1", "split", assignments=["architecture.cpus=3"])
    meeting = split_processes.Place(None, [])
    with pytest.raises(Failed, match=r"no room for policy/0 \(architecture.cpus=3, architecture.gpus=0\) in 600 s"):
        split_cluster.started(Full(), config, meeting, ["policy/0"], 0)
    assert "policy/0 waits for room" in capsys.readouterr().err


def test_what_cannot_be_is_refused_before_anything_starts(tmp_path, capfd):
    for more, message in (
        (["--set", "architecture.transport=carrier-pigeons"], "architecture.transport must be"),
        (["--set", "architecture.remote=value/0"], "architecture.remote needs a transport that other machines reach"),
        (["--set", "architecture.band=0.1"], "architecture.band must be at least"),
        (["--set", "architecture.publish=9", "--set", "architecture.lag=8"], "architecture.lag must be at least"),
        (["--set", "architecture.value_processes=3"], "value's batch must be a multiple of its devices"),
    ):
        assert main(command(tmp_path / "run", *more)[COMMAND:]) == 2
        assert message in capfd.readouterr().err
    assert main(["train", "ppo", "gymnax:CartPole-v1", "--on", "split", "--out", str(tmp_path / "run")]) == 2
    assert "agents that learn from replay" in capfd.readouterr().err


def test_a_run_that_is_refused_as_it_begins_leaves_no_folder(tmp_path, capfd):
    pytest.importorskip("redis")
    assert main(command(tmp_path / "run", "--transport", "redis://127.0.0.1:1/0")[COMMAND:]) == 2
    assert "Redis at redis://127.0.0.1:1/0" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def learning(folder):
    return (folder / "metrics.jsonl").is_file() and any(row.get("updates", 0) > 20 for row in rows(folder))


def wait(condition, process, seconds=240):
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.stderr.read() if process.stderr else "it ended"
        assert time.monotonic() < until, "not in time"
        time.sleep(0.05)
