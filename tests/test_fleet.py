"""The fleet: its crew, its members, its driver, and whole runs of which members die."""

import contextlib
import functools
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time

import jax
import numpy as np
import psutil
import pytest

from boonta import envs
from boonta.agents import dqn, muzero, ppo, r2d2, vtrace
from boonta.architectures import fleet_staff
from boonta.architectures.fleet import Asked, Fleet
from boonta.architectures.fleet_plan import Plan
from boonta.architectures.fleet_roles import Parts, Rollout
from boonta.architectures.fleet_staff import Failed
from boonta.cli import main
from boonta.core import random
from boonta.core.crew import Gone, Lost, Raised, Resources
from boonta.core.faults import Broken
from boonta.core.host import Workers
from boonta.envs.served import serve
from boonta.experiments.metrics import read_metrics
from boonta.experiments.systems.fleet import _half
from boonta.replay.windows import windows
from boonta.transport.inline import Inline
from tests.commands import begun
from tests.counter import Counter
from tests.marks import full, in_full, slow, some_of

pytestmark = slow

PATIENCE = 300.0


# Crews


@pytest.fixture(scope="module")
def cluster():
    ray = pytest.importorskip("ray")
    from boonta.transport.ray import Cluster

    crew = Cluster("", 4)
    yield crew
    crew.close()
    assert not ray.is_initialized()


@pytest.fixture(params=["threads", pytest.param("ray", marks=slow)])
def crew(request):
    if request.param == "ray":
        yield request.getfixturevalue("cluster")
    else:
        crew = Inline()
        yield crew
        crew.close()


def hired(crew, start=0):
    return crew.hire("counter", functools.partial(Counter, start), Resources(0.5))


def test_a_member_answers_one_call_after_the_other(crew):
    one, other = hired(crew), hired(crew, 10)
    refs = [crew.ask(one, "add", 1) for _ in range(5)]
    assert [crew.get(ref, PATIENCE) for ref in refs] == [1, 2, 3, 4, 5]
    assert crew.get(crew.ask(other, "add", 1), PATIENCE) == 11
    assert crew.wait(refs, PATIENCE)


def test_what_is_heavy_travels_from_member_to_member(crew):
    one, other = hired(crew), hired(crew)
    array, count = crew.ask(one, "both", answers=2)
    assert crew.get(count, PATIENCE) == 0
    assert crew.get(crew.ask(other, "length", array), PATIENCE) == 100_000
    assert crew.get(crew.ask(other, "length", crew.put([1, 2])), PATIENCE) == 2


def test_what_raises_says_so_and_answers_on(crew):
    one = hired(crew)
    with pytest.raises(Raised, match="no more") as caught:
        crew.get(crew.ask(one, "fail"), PATIENCE)
    assert isinstance(caught.value.why, Broken)
    assert crew.get(crew.ask(one, "add", 2), PATIENCE) == 2


def test_what_cannot_be_given_is_lost(crew):
    one, other, third = hired(crew), hired(crew), hired(crew)
    with pytest.raises(Raised, match="no more"):
        crew.get(crew.ask(other, "length", crew.ask(one, "fail")), PATIENCE)
    never = crew.ask(third, "sleep")
    asked = crew.ask(other, "length", never)
    crew.dismiss(third)
    with pytest.raises(Lost):
        crew.get(asked, PATIENCE)
    assert crew.get(crew.ask(other, "add", 1), PATIENCE) == 1


def test_who_is_dismissed_is_gone(crew):
    one = hired(crew)
    assert crew.get(crew.ask(one, "add", 1), PATIENCE) == 1
    asleep = crew.ask(one, "sleep")
    assert not crew.wait([asleep], 0.2)
    with pytest.raises(TimeoutError):
        crew.get(asleep, 0.2)
    crew.dismiss(one)
    with pytest.raises(Gone):
        crew.get(asleep, PATIENCE)
    with pytest.raises(Gone):
        crew.get(crew.ask(one, "add", 1), PATIENCE)


def test_what_waits_behind_a_long_call_is_not_late(monkeypatch):
    monkeypatch.setattr(fleet_staff, "READY", 0.4)  # which a first answer has, too
    crew = Inline()
    try:
        staff = fleet_staff.Staff(crew, restarts=0, timeout=0.2)
        post = staff.hire("counter", lambda life: Counter(life), Resources(0.5), 0)
        assert staff.begin(lambda: False)
        heard: list[int] = []
        staff.ask(post, "sleep", 1.2, patience=PATIENCE)
        staff.ask(post, "add", 1, then=heard.append)
        while not heard:
            staff.receive()
        with pytest.raises(Failed, match="no answer to 'sleep'"):
            staff.ask(post, "sleep", 1.2)
            for _ in range(100):
                staff.receive()
    finally:
        crew.close()


def test_who_waits_for_room_is_told_and_a_signal_ends_it(monkeypatch):
    class Full(Inline):
        def wait(self, refs, seconds):
            return []

    monkeypatch.setattr(fleet_staff, "ROOM", 0.0)
    crew = Full()
    try:
        staff = fleet_staff.Staff(crew, restarts=0, timeout=PATIENCE)
        staff.hire("counter", lambda life: Counter(life), Resources(0.5), 0)
        assert not staff.begin(lambda: bool(staff.notices))
        staff.receive()
        assert staff.notices == ["counter waits for room (0.5 cores, 0 accelerators)"]
    finally:
        crew.close()


def test_a_driver_that_is_killed_takes_its_member_along():
    """Whose whole run, which waits for Ray's own processes as well, is in `make test-all`."""
    driver = subprocess.Popen([sys.executable, "-m", "tests.counter"], stdout=subprocess.PIPE, text=True)
    try:
        assert driver.stdout is not None
        member = int(driver.stdout.readline())
        assert psutil.pid_exists(member)
    finally:
        driver.kill()
        driver.communicate()
    deadline = time.monotonic() + PATIENCE
    while psutil.pid_exists(member):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_process_that_dies_is_gone(cluster):
    one = hired(cluster)
    with pytest.raises(Gone):
        cluster.get(cluster.ask(one, "die"), PATIENCE)


# The driver, in threads


AGENTS = {
    "vtrace": (vtrace.vtrace, vtrace.Settings, {"batch": 16, "unroll": 10, "hidden": (32,)}),
    "ppo": (ppo.ppo, ppo.Settings, {"batch": 16, "unroll": 10, "hidden": (32,), "minibatches": 2, "epochs": 1}),
    "dqn": (
        dqn.dqn, dqn.Settings,
        {"body": "mlp", "batch": 32, "minimum": 200, "capacity": 2000, "replay_ratio": 2.0, "learning_rate": 1e-3},
    ),
    "r2d2": (
        r2d2.r2d2, r2d2.Settings,
        {"hidden": (16,), "core_size": 16, "head": 16, "length": 12, "period": 6, "burn_in": 4, "batch": 16,
         "minimum": 40, "capacity": 500, "replay_ratio": 2.0},
    ),
    "muzero": (
        muzero.muzero, muzero.Settings,
        {"body": "mlp", "simulations": 4, "batch": 32, "minimum": 200, "capacity": 2000, "unroll": 4, "unroll_steps": 2,
         "n_step": 3, "replay_ratio": 1.0, "reanalyse": 0.5, "sampler": "prioritized"},
    ),
}  # fmt: skip


def made(name, role="testing"):
    factory, settings, values = AGENTS[name]
    environment = envs.make("boonta:catch")
    return Parts(factory(environment.spec, settings(**values)), serve(environment), lambda params, n: ("scores", n))


def planned(name, **changes):
    (one,) = made(name).agent.learners.values()
    wanted, sizes = one.experience, windows(one.experience)
    plan = Plan(2, 8, simulators=Workers("serial"))
    if wanted.capacity:
        plan = plan._replace(
            reanalysers=int(wanted.reanalyse > 0), batch=wanted.batch, ratio=wanted.samples_per_insert,
            minimum=wanted.minimum, each=sizes.each, reanalyse=wanted.reanalyse,
            capacity=wanted.capacity + 16 * sizes.pieces * sizes.each, devices=1,
        )  # fmt: skip
    return plan._replace(devices=1, **changes)


def state_of(name, plan):
    parts = made(name)
    state = jax.jit(_half(parts.agent, plan, parts.host.spec).init)(random.key(0), {})
    return jax.device_get(random.without_keys(state))


@pytest.fixture
def begin():
    crews = []

    def start(name, make=made, **changes):
        plan = planned(name, **changes)
        crews.append(Inline())
        members = Fleet(crews[-1], functools.partial(make, name), plan, 0, state_of(name, plan))
        members.begin({})
        return members

    yield start
    for one in crews:
        one.close()


def iterated(members, count):
    told, metrics = [], []
    for i in range(count):
        row, new = members.iterate(count - i)
        metrics.append(row)
        told += new
    return metrics, told


def wait_until(what, members):
    """Let the members answer until `what()` is true."""
    deadline = time.monotonic() + 60.0
    while not what():
        assert time.monotonic() < deadline
        members.staff.receive()


@pytest.mark.parametrize("name", some_of(AGENTS, "vtrace"))
def test_every_agent_learns_on_it(name, begin):
    members = begin(name)
    metrics, told = iterated(members, 30)
    assert not members.under_way()
    assert all(np.isfinite(row["loss/value"] if "loss/value" in row else row["loss/td"]) for row in metrics)
    assert sum(int(one.finished.count) for one in told) > 0
    state = members.state()
    before = state_of(name, members.plan)
    assert int(state.iterations) == 30
    assert any(
        (a != b).any() for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(before.params), strict=True)
    )
    assert members.learning > 0.0 and members.acting > 0.0 and members.staff.supervisor.incidents == 0


@pytest.mark.parametrize("name", ["dqn", *in_full("muzero", "r2d2")])
def test_samples_keep_to_their_ratio(name, begin):
    members = begin(name)
    iterated(members, 40)
    plan = members.plan
    ahead = (members.inserted - plan.minimum) * plan.ratio - members.sampled
    assert -plan.batch <= ahead <= plan.ahead * plan.batch + 2 * plan.workers * plan.pieces() * plan.ratio
    deadline = time.monotonic() + PATIENCE
    while plan.reanalysers and not members.renewed and time.monotonic() < deadline:
        iterated(members, 1)
    assert (members.renewed > 0.0) == bool(plan.reanalysers)


def test_nothing_is_asked_of_a_replay_that_can_give_nothing(begin):
    members = begin("dqn")
    members.inserted = members.plan.minimum + 1
    assert not members._may_sample()
    members.windows = 1
    assert members._may_sample()


@pytest.mark.parametrize(("pause", "publish"), [(0.2, 3), *in_full((0.0, 1), (0.0, 3), (0.2, 1))])
def test_on_policy_experience_is_never_far_behind(begin, monkeypatch, pause, publish):
    run = Rollout.run

    def late(self, params, version):
        time.sleep(pause * (self.index[0] == 0))  # the first worker, while the second could make all there is to learn
        return run(self, params, version)

    monkeypatch.setattr(Rollout, "run", late)
    members = begin("vtrace", publish=publish)
    metrics, _ = iterated(members, 20)
    assert max(row["policy_lag_max"] for row in metrics) <= 2 * members.plan.ahead + publish


def test_greedy_episodes_are_played_beside(begin):
    members = begin("vtrace")
    scores = members.examine(members.state().params, 7)
    iterated(members, 5)
    wait_until(lambda: scores.done(), members)
    assert scores.result() == ("scores", 7)


def test_it_goes_on_from_state_and_replay(begin):
    members = begin("dqn")
    iterated(members, 10)
    state, arrays = members.state(), members.arrays()
    plan = members.plan
    crew = Inline()
    try:
        again = Fleet(crew, functools.partial(made, "dqn"), plan, 0, state, 1 << 16)
        again.begin(arrays)
        assert (again.inserted, again.sampled) == tuple(arrays["counts"])
        assert plan.minimum <= again.windows < again.inserted  # all but those that teach nothing
        iterated(again, 3)
        assert int(again.state().iterations) == 13
        odd = arrays | {"written": "nonsense"}
        odd.pop(next(iter(arrays)))
        other = Fleet(crew, functools.partial(made, "dqn"), plan, 0, state)
        other.begin(odd)
        assert "replay begins empty" in " ".join(other.told())
    finally:
        crew.close()


@pytest.mark.parametrize(
    ("who", "agent"),
    [
        ("_server", "dqn"),
        ("_memory", "dqn"),
        ("_workers", "dqn"),
        ("_tester", "dqn"),
        *in_full(("_reanalysers", "muzero")),
    ],
)
def test_who_is_gone_is_replaced(who, agent, begin):
    members = begin(agent, restarts=1)
    iterated(members, 5)
    members.state()
    post = getattr(members, who)
    post = post[0] if isinstance(post, list) else post
    members.staff.crew.dismiss(post.member)
    lost = members.examine({}, 3)
    iterated(members, 60 if who == "_memory" else 20)
    wait_until(lambda: lost.done(), members)
    assert isinstance(lost.exception(), Gone) if who == "_tester" else lost.result() == ("scores", 3)
    deadline = time.monotonic() + PATIENCE
    while (
        not members.staff.supervisor.incidents and time.monotonic() < deadline
    ):  # a reanalyse worker is not asked all the time
        iterated(members, 1)
    assert members.staff.supervisor.incidents == 1
    assert f"{post.name} is replaced (1 of 1 within an hour)" in members.told()[0]
    wait_until(lambda: post.ready, members)
    scores = members.examine({}, 4)
    iterated(members, 5)
    wait_until(lambda: scores.done(), members)
    assert scores.result() == ("scores", 4)


def test_too_many_end_the_run(begin):
    members = begin("vtrace", restarts=0)
    iterated(members, 2)
    members.staff.crew.dismiss(members._workers[1].member)
    with pytest.raises(Failed, match="training worker 1, after 0 restarts within an hour .* ended"):
        iterated(members, 20)


class Faulty:
    """Environments of which the second batch that is made breaks, or hangs, at its thirtieth step."""

    count = itertools.count()
    fault = ""

    def __init__(self, host):
        self.host = host

    def make(self, index, seed, life, workers):
        batch = self.host.make(index, seed, life, workers)
        return Breaking(batch) if next(Faulty.count) == 1 else batch


class Breaking:
    def __init__(self, batch):
        self.batch, self.steps = batch, 0

    def reset(self):
        return self.batch.reset()

    def step(self, action):
        self.steps += 1
        if self.steps == 30 and Faulty.fault == "raises":
            raise RuntimeError("the simulator fell over")
        if self.steps == 30 and Faulty.fault == "hangs":
            time.sleep(20)
        return self.batch.step(action)

    def close(self):
        self.batch.close()


def troubled(name, role):
    parts = made(name)
    return parts._replace(host=parts.host._replace(make=Faulty(parts.host).make))


@pytest.mark.parametrize("fault", ["raises", *in_full("hangs")])
def test_environments_that_fail_are_made_anew_with_their_worker(fault, begin, monkeypatch):
    monkeypatch.setattr(Faulty, "count", itertools.count())
    monkeypatch.setattr(Faulty, "fault", fault)
    monkeypatch.setattr(fleet_staff, "READY", 60.0)
    members = begin("vtrace", make=troubled, timeout=5.0)
    deadline = time.monotonic() + PATIENCE
    while not members.staff.supervisor.incidents and time.monotonic() < deadline:
        iterated(members, 1)
    iterated(members, 10)
    assert members.staff.supervisor.incidents == 1, members.told()
    wanted = "simulator fell over" if fault == "raises" else "no answer to 'run'"
    assert wanted in members.told()[0]


def broken(name, role):
    parts = made(name)

    def init(key):
        raise ValueError("that cannot be")

    return parts._replace(agent=parts.agent._replace(init=init)) if role == "server" else parts


def test_a_member_that_cannot_begin_ends_the_run(begin):
    with pytest.raises(Failed, match="(?s)parameter server, asked to 'ready': .*that cannot be"):
        begin("vtrace", make=broken)


def test_it_ends_where_it_is_asked_to(begin):
    members = begin("vtrace")
    asked = threading.Event()
    members.asked = asked.is_set
    iterated(members, 2)
    asked.set()
    with pytest.raises(Asked):
        for _ in range(1000):
            members.iterate(10)


# Whole runs


def words(folder, *more, agent="vtrace", env="boonta:catch", steps=4000):
    tiny = {"run.eval_episodes": 2, "run.log_every": 400, "architecture.training_workers": 2}
    tiny |= {"agent.hidden": 8, "agent.batch": 8, "agent.unroll": 5} if agent == "vtrace" else {}
    settings = [word for key, value in tiny.items() for word in ("--set", f"{key}={value}")]
    return ["train", agent, env, "--on", "fleet", "--config", "none", "--json", "--steps", str(steps),
            "--out", str(folder), *settings, *more]  # fmt: skip


def ended(process):
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def members_of(process):
    """Process numbers of the members of a run, by what they were hired as."""
    found = {}
    parents = {one.pid: one for one in psutil.Process(process.pid).children(recursive=True)}
    for one in parents.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            title = " ".join(one.cmdline())
            if title.startswith("ray::") and not title.startswith("ray::IDLE"):
                found[title.removeprefix("ray::").partition(".")[0].strip()] = one.pid
    return found


def wait_for(what, process):
    """Wait until `what()` is true of a run that has not ended."""
    deadline = time.monotonic() + PATIENCE
    while not (found := what()):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


def logged(folder):
    return (folder / "metrics.jsonl").is_file() and len(read_metrics(folder)) > 3


ENDLESS = 10_000_000  # steps, of runs that are ended


def interrupted(process):
    """What a run said that was ended by a signal."""
    process.send_signal(signal.SIGINT)
    code, _, err = ended(process)
    assert code == 128 + signal.SIGINT, err
    return err


@full
def test_members_that_are_killed_are_replaced_and_a_run_that_is_ended_goes_on(tmp_path):
    folder = tmp_path / "run"
    process = begun(words(folder, agent="dqn", steps=ENDLESS))
    try:
        wait_for(lambda: logged(folder), process)
        there = members_of(process)
        assert {"ParameterServer", "ReplayBuffer", "TestingWorker", "TrainingWorker0", "TrainingWorker1"} <= {*there}
        killed = ("TrainingWorker1", "ReplayBuffer", "ParameterServer")
        for name in killed:
            os.kill(there[name], signal.SIGKILL)
        wait_for(lambda: all(members_of(process).get(name, there[name]) != there[name] for name in killed), process)
        rows = len(read_metrics(folder))
        wait_for(lambda: len(read_metrics(folder)) > rows + 4, process)
        said = interrupted(process)
    finally:
        process.kill()
    for name in ("training worker 1", "replay buffer", "parameter server"):
        assert f"{name} is replaced (1 of 3 within an hour)" in said
    last = [row for row in read_metrics(folder) if "replay/windows" in row][-1]
    assert last["policy_lag_mean"] >= 0  # nothing is newer than the parameters
    process = begun(["train", "--resume", str(folder), "--json"])
    try:
        wait_for(lambda: read_metrics(folder)[-1]["env_steps"] > last["env_steps"], process)
        said = interrupted(process)
    finally:
        process.kill()
    assert "replay begins empty" not in said
    after = next(row for row in read_metrics(folder) if row["env_steps"] > last["env_steps"])
    assert after["replay/windows"] >= 0.9 * last["replay/windows"]


@full
def test_a_driver_that_is_killed_takes_its_members_along(tmp_path):
    folder = tmp_path / "run"
    process = begun(words(folder, "--set", "run.checkpoint_every=2000", agent="dqn", steps=ENDLESS))
    try:
        saved = folder / "checkpoints"
        wait_for(lambda: logged(folder) and any(one.name.isdigit() for one in saved.iterdir()), process)
        there = members_of(process)
        process.kill()
        process.communicate(timeout=PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while any(psutil.pid_exists(pid) for pid in there.values()):
            assert time.monotonic() < deadline, there
            time.sleep(0.2)
    finally:
        process.kill()
    last = max(int(one.name) for one in saved.iterdir() if one.name.isdigit())
    process = begun(["train", "--resume", str(folder), "--json"])
    try:
        rows = len(read_metrics(folder))
        wait_for(lambda: len(read_metrics(folder)) > rows + 1, process)
        assert "going on from step" in interrupted(process)
    finally:
        process.kill()
    assert max(int(one.name) for one in saved.iterdir() if one.name.isdigit()) > last


@full
def test_a_run_in_threads_that_ended_before_its_last_evaluation_is_evaluated_when_resumed(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(words(folder, "--set", "architecture.crew=threads", steps=1600)) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert result["env_steps"] == 1600 and result["updates"] == 40
    assert {"busy/server", "busy/training", "restarts"} <= {key for row in read_metrics(folder) for key in row}
    record = json.loads((folder / "run.json").read_text("utf-8"))
    record["status"] = "running"
    (folder / "run.json").write_text(json.dumps(record), "utf-8")
    assert main(["train", "--resume", str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["eval_episodes"] == 2
