"""SEED: sessions come and go, rows are reset, runs learn, stop and go on."""

import functools
import json
import os
import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta import envs
from boonta.agents import ppo
from boonta.architectures import seed, seed_inference, seed_threads
from boonta.architectures.batching import Closed
from boonta.architectures.seed_inference import Plan
from boonta.architectures.seed_threads import Taken, Threads
from boonta.cli import main
from boonta.core import random
from boonta.core.host import Workers
from boonta.core.trace import Trace
from boonta.envs.served import serve
from boonta.experiments import config, systems
from tests.marks import full, slow

pytestmark = slow

LENGTH = 5


@functools.cache
def compiled():
    """A unit for catch, its parameters, and what its threads compile."""
    environment = envs.make("boonta:catch")
    agent = ppo.ppo(environment.spec, ppo.Settings(batch=4, unroll=LENGTH, hidden=(8,), minibatches=1))
    unit = seed.make(agent, environment.spec, 8, 4)
    params = jax.jit(agent.init)(random.key(0))
    threads = threads_of(unit)
    threads.compile(params)
    return unit, params, threads.compiled


def threads_of(unit):
    return Threads(unit, envs.make("boonta:catch").spec, Plan(jax.devices()[:1], 8, 4, 1, 4, 0.01), 0, Trace())


@pytest.fixture
def running():
    """Inference threads for catch, and clients of them."""
    environment, device = envs.make("boonta:catch"), jax.devices()[0]
    unit, params, programs = compiled()
    threads = threads_of(unit)
    threads.compiled |= programs
    threads.publish(jax.device_put(params, device), jnp.int32(3))
    threads.start()
    clients = []

    def play(session, steps):
        batch = serve(environment).make(np.arange(session.count) + session.first, 0, session.life, Workers())
        timestep = batch.reset()
        for _ in range(steps):
            try:
                timestep = batch.step(session.act(timestep))
            except Closed:
                return

    def client(session, steps=10**9):
        clients.append(threading.Thread(target=play, args=(session, steps), name="client", daemon=True))
        clients[-1].start()
        return clients[-1]

    yield threads, client
    threads.stop()
    for one in clients:
        one.join(20)
        assert not one.is_alive()


def chunks(threads, count):
    taken = []
    while len(taken) < count:
        if item := threads.take(20.0):
            taken.append(jax.device_get(item.chunk))
    return taken


def test_trajectories_are_consecutive_and_of_one_life(running):
    threads, client = running
    client(threads.join(3, 0, "a"))
    client(threads.join(2, 5, "b"))
    due = dict.fromkeys((0, 1, 2, 5, 6), 0)
    while min(due.values()) < 4 * LENGTH:  # clients compile their environments first, maybe one long before the other
        (chunk,) = chunks(threads, 1)
        for environment, life, step, version in zip(*chunk.origin, strict=True):
            assert step == due[int(environment)] and life == 0 and version == 3
            due[int(environment)] = step + LENGTH
    (whole, rest) = (max(due[i] for i in part) - min(due[i] for i in part) for part in ((0, 1, 2), (5, 6)))
    assert whole <= LENGTH and rest <= LENGTH  # one client's environments complete theirs together


def test_a_client_that_comes_again_begins_a_new_life(running):
    threads, client = running
    first = threads.join(4, 0, "a")
    client(first, steps=LENGTH + 2).join(20)  # one trajectory, and a part that is dropped
    first.leave("it left")
    again = threads.join(4, 0, "a")
    assert (first.life, again.life) == (0, 1)
    client(again)
    seen = [
        (int(life), int(step)) for chunk in chunks(threads, 4) for _, life, step, _ in zip(*chunk.origin, strict=True)
    ]
    assert seen[:4] == [(0, 0)] * 4 and seen[4:8] == [(1, 0)] * 4 and seen[8:12] == [(1, LENGTH)] * 4
    assert threads.told() == ["environments 0 to 3 (a): it left"]


def test_a_batch_waits_for_as_many_as_the_smallest_client_has(running):
    threads, _ = running
    (part,) = threads.parts
    threads.plan = threads.plan._replace(minimum=0)
    assert part._least() == 0
    clients = [threads.join(count, -1, "a") for count in (3, 2)]
    assert part._least() == 2
    clients[1].leave("it left")
    assert part._least() == 3
    threads.plan = threads.plan._replace(minimum=8)
    assert part._least() == 3


def test_environments_are_no_ones_twice(running):
    threads, _ = running
    mine = threads.join(3, 2, "a")
    for first in (0, 2, 4):
        with pytest.raises(Taken, match="environments 2 to 4 are another client's") as caught:
            threads.join(3, first, "b")
        assert caught.value.why == "there"
    assert threads.join(3, -1, "c").first == 5
    with pytest.raises(Taken, match="no 3 environments are free"):
        threads.join(3, -1, "d")
    with pytest.raises(Taken, match="environments 7 to 8 are not within 0 to 7") as caught:
        threads.join(2, 7, "e")
    assert caught.value.why == "never"
    with pytest.raises(Taken, match="at most 4 environments a client, got 5") as caught:
        threads.join(5, -1, "f")
    assert caught.value.why == "never"
    mine.leave("it left")
    assert threads.join(3, 0, "g").first == 0


def test_a_thread_that_dies_is_told(running, monkeypatch):
    threads, client = running

    def broken(self, requests):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(seed_inference.Inference, "_answer", broken)
    client(threads.join(1, 0, "a"))
    with pytest.raises(seed_threads.Failed, match="no such luck"):
        for _ in range(100):
            threads.take()


SMALL = ["--config", "none", "--set", "agent.hidden=8", "--set", "run.eval_episodes=2", "--json"]
AGENTS = {
    "ppo": ["agent.batch=8", "agent.unroll=8"],
    "vtrace": ["agent.batch=8", "agent.unroll=8"],
    "dqn": ["agent.batch=8", "agent.unroll=4", "agent.minimum=50", "agent.capacity=500", "agent.replay_ratio=0.5"],
    "r2d2": [
        "agent.batch=4", "agent.length=8", "agent.burn_in=4", "agent.period=4", "agent.minimum=10", "agent.core_size=8",
        "agent.capacity=100", "agent.head=8", "agent.replay_ratio=1",
    ],
}  # fmt: skip


@pytest.mark.parametrize("agent", AGENTS)
@full
def test_every_agent_runs_with_actors_of_its_own(agent, tmp_path, capfd):
    words = [part for setting in AGENTS[agent] for part in ("--set", setting)]
    words += ["--set", "architecture.envs=4", "--set", "architecture.chunk=8", "--set", "architecture.actors=2"]
    run = ["train", agent, "gym:CartPole-v1", "--on", "seed", "--steps", "1200", "--out", str(tmp_path)]
    code = main([*run, *SMALL, *words])
    out, err = capfd.readouterr()
    assert code == 0, err
    summary = json.loads(out.splitlines()[-1])
    assert summary["status"] == "done" and 1000 < summary["env_steps"] <= 1200 and summary["updates"] > 3
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if "updates" in row][-1]
    assert last["clients/joined"] == 2 and last["policy_lag_mean"] >= 0


def test_a_server_that_others_can_reach_is_refused_before_anything_begins(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("BOONTA_TOKEN", "")
    words = ["serve", "ppo", "gym:CartPole-v1", "--address", "0.0.0.0:0", "--out", str(tmp_path / "run"), *SMALL]
    assert main(words) == 2
    assert capfd.readouterr().err.strip().endswith("127.0.0.1:PORT and unix:PATH do not")
    assert main([*words, "--certificate", "x"]) == 2
    assert "--certificate and --key go together" in capfd.readouterr().err
    assert main([*words, "--certificate", "no.pem", "--key", "no.pem", "--token", "x"]) == 2
    assert "no.pem cannot be read" in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


@full
@pytest.mark.parametrize("agent", ["ppo", "r2d2"])
def test_a_server_waits_for_actors_until_it_is_asked_to_end(agent, tmp_path, capfd, monkeypatch):
    """It is saved, and says nothing that is secret."""
    monkeypatch.setenv("BOONTA_TOKEN", "hunter2")
    monkeypatch.setattr("sys.argv", ["boonta", "serve", "--token=hunter2"])
    settings = [word for setting in [*AGENTS[agent], "architecture.timeout=1"] for word in ("--set", setting)]
    over = threading.Event()

    def end():
        while not (tmp_path / "s").exists() and not over.wait(0.05):
            pass
        if not over.wait(2.0):  # longer than the timeout
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end, daemon=True).start()
    words = ["serve", agent, "gym:CartPole-v1", "--address", f"unix:{tmp_path}/s", "--out", str(tmp_path / "run")]
    try:
        assert main([*words, *SMALL, *settings]) == 128 + signal.SIGTERM
    finally:
        over.set()
    err = capfd.readouterr().err
    assert "environments in all: boonta actor gym:CartPole-v1 --server unix:" in err
    assert f"SIGTERM at step 0; saved, go on with: boonta serve --resume {tmp_path}/run" in err
    assert main(["serve", "--resume", str(tmp_path / "run"), "--address", f"unix:{tmp_path}/none/s"]) == 2
    assert "none/s: unix:PATH must name a file in a folder that is there" in capfd.readouterr().err
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["status"] == "interrupted" and record["command"] == "boonta serve '--token=***'"


def test_who_is_not_let_in_is_told_of_in_one_line(running):
    threads, _ = running
    for i in range(3):
        threads.refused(f"reason {i}")
    assert threads.told() == ["3 clients were not let in, the last: reason 2"] and threads.told() == []


def test_a_client_that_only_greets_does_not_play(running):
    threads, _ = running
    mine = threads.join(2, -1, "a")
    assert threads.present() == 2 and not threads.playing()
    mine.fresh = False
    assert threads.playing()
    mine.leave("it left")


def made(agent="ppo", *assignments):
    words = ["agent.batch=8", "agent.unroll=8", "agent.hidden=8", *assignments]
    return systems.build(
        config.resolve(agent, "gym:CartPole-v1", "seed", "none", assignments=words, run={"steps": 999})
    )


@pytest.mark.parametrize(("there", "envs", "actors"), [(6, 32, 4), (12, 64, 8), (2, 5, 1), (3, 6, 3)])
def test_as_many_actors_as_cores_that_divide_the_environments(there, envs, actors, monkeypatch):
    monkeypatch.setattr("boonta.experiments.systems.seed.cores", lambda: there)
    dear = ["architecture.workers=threads", "architecture.worker_count=1"]  # so that nothing is measured
    assert made("ppo", f"architecture.envs={envs}", *dear).actors == actors


@pytest.mark.parametrize(("microseconds", "actors"), [(10, 1), (1000, 2)])
def test_one_actor_where_stepping_costs_little(microseconds, actors, monkeypatch):
    monkeypatch.setattr("boonta.experiments.systems.seed.cores", lambda: 2)
    monkeypatch.setattr("boonta.envs.workers.MANY", 9)  # CartPole has a form that steps so many in one call
    monkeypatch.setattr("boonta.envs.workers._probe", lambda *_: microseconds * 1e-6)
    assert made("ppo", "architecture.envs=8").actors == actors


@pytest.mark.parametrize(
    ("agent", "assignments", "words"),
    [
        ("ppo", ["architecture.envs=8", "architecture.actors=3"], "architecture.actors must be one of 1, 2, 4, 8"),
        ("ppo", ["architecture.envs=8", "architecture.actors=1", "architecture.maximum=4"], "one of 2, 4, 8.*got 1"),
        ("ppo", ["architecture.envs=9", "architecture.inference=2"], "must be a multiple of the number of inference"),
        ("ppo", ["architecture.certificate=x"], "set architecture.local=false"),
        ("dqn", ["agent.replay_ratio=0"], "agent.replay_ratio must be at least 0.001"),
        (
            "dqn",
            ["agent.batch=9", "architecture.learners=2", "architecture.inference=1"],
            "agent.batch must be a multiple of the learner devices",
        ),
    ],
)
def test_who_does_what_must_fit(agent, assignments, words):
    with pytest.raises(ValueError, match=words):
        made(agent, *assignments)


def test_learner_devices_share_samples_where_there_is_replay():
    few = ["agent.minimum=50", "agent.capacity=500", "architecture.inference=1"]
    assert made("dqn", "agent.batch=9", "architecture.chunk=8", *few).describe()["learners"] == [1, 2, 3]


@full
def test_a_run_on_many_devices_is_evaluated_on_one(tmp_path, capfd):
    more = ["--set", "architecture.envs=4", "--set", "agent.batch=4", "--set", "agent.unroll=4", "--steps", "200"]
    words = ["train", "vtrace", "boonta:catch", "--on", "seed", "--inference", "[0,1]", "--learners", "2"]
    assert main([*words, *more, "--out", str(tmp_path / "run"), *SMALL]) == 0
    assert main(["eval", str(tmp_path / "run"), "--episodes", "2", "--json"]) == 0
    assert json.loads(capfd.readouterr().out.splitlines()[-1])["eval_episodes"] == 2
