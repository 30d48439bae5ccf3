"""Sebulba: what moves, what it does when something fails, and whole runs of it."""

import functools
import gc
import json
import re
import threading
import time
import weakref

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from boonta import envs
from boonta.agents import vtrace
from boonta.architectures import sebulba, sebulba_split
from boonta.architectures.sebulba_split import Split, Times
from boonta.architectures.sebulba_threads import Failed, Plan, Threads
from boonta.cli import main
from boonta.core.host import Workers
from boonta.core.trace import Trace
from boonta.envs.served import serve
from boonta.experiments import config, systems
from boonta.experiments.metrics import read_metrics
from boonta.experiments.tables import patience
from tests.marks import full, in_full, slow
from tests.watching import watched

pytestmark = slow

LENGTH, ENVS = 4, 4


@functools.cache
def compiled(pieces, actors, learners):
    """The unit for batches of so many pieces, what its threads compile, and the state that they begin with."""
    environment = envs.make("boonta:catch")
    agent = vtrace.vtrace(environment.spec, vtrace.Settings(batch=ENVS * pieces, unroll=LENGTH, hidden=(8,)))
    unit = sebulba.make(agent, environment.spec, ENVS, learners)
    plan = Plan(jax.devices()[:actors], jax.devices()[-learners:], pieces // actors, ENVS, 1, 0, 20.0)
    threads = Threads(unit, lambda *_: None, plan, 0, Trace())
    state = threads.init()
    threads.compile(state, environment.spec)
    return unit, threads._acting, threads._update, state


def threads_of(make=None, *, count=2, actors=1, learners=1, lag=1, restarts=0, timeout=20.0, trace=None):
    unit, acting, update, state = compiled(actors * count, actors, learners)
    host = serve(envs.make("boonta:catch"))
    plan = Plan(jax.devices()[:actors], jax.devices()[-learners:], count, ENVS, lag, restarts, timeout)
    make = make or (lambda index, life: host.make(index, 0, life, Workers()))
    threads = Threads(unit, make, plan, 0, trace or Trace())
    threads._acting, threads._update = {**acting}, update
    return threads, jax.tree.map(jnp.copy, state)  # which learning uses up


class Fragile:
    """A batch of catch that fails at a step of a life."""

    def __init__(self, index, life, fails):
        self.batch = serve(envs.make("boonta:catch")).make(index, 0, life, Workers())
        self.life, self.fails, self.steps = life, fails, 0

    def reset(self):
        return self.batch.reset()

    def step(self, action):
        self.steps += 1
        self.fails(self.life, self.steps)
        return self.batch.step(action)

    def close(self):
        self.batch.close()


@pytest.mark.parametrize(("actors", "learners"), [(2, 2), *in_full((1, 1), (2, 1), (1, 2), (1, 4))])
def test_devices_act_and_learn_in_any_split(actors, learners):
    threads, state = threads_of(actors=actors, learners=learners)
    items = watched(threads)
    threads.start(state)
    try:
        for i in range(6):
            items.clear()
            state, metrics, told = threads.iterate(state)
            assert int(state.updates) == i + 1
            assert len(items) == len(told) == 2 * actors
            assert 0 <= metrics["policy_lag_mean"] <= metrics["policy_lag_max"] <= 1
            assert metrics["health"] == 0
            shown = {device for leaf in jax.tree.leaves(items[0].trajectory) for device in leaf.devices()}
            assert shown == set(threads.plan.learners)
    finally:
        threads.stop()


@pytest.mark.parametrize("lag", [1, *in_full(0, 3)])
def test_lag_is_bounded_and_actors_wait_for_a_slow_learner(lag):
    threads, state = threads_of(lag=lag)
    threads.start(state)
    try:
        for _ in range(8):
            time.sleep(0.05)
            assert threads.depth() <= (lag + 1) * len(threads.placed)
            state, metrics, _ = threads.iterate(state)
            assert metrics["policy_lag_max"] <= lag
    finally:
        threads.stop()


@pytest.mark.parametrize("hold", [True, *in_full(False)])
def test_parameters_may_be_held_for_an_unroll(hold):
    threads, state = threads_of(count=1, lag=3)
    threads.plan = threads.plan._replace(hold=hold)
    (device,), seen = threads.plan.actors, []
    compiled = threads._acting[device]

    def act(params, version, *rest):
        seen.append(int(version))
        if not hold and len(seen) == 2:  # in the middle of an unroll
            threads._latest = {device: (params, np.int32(7))}
        return compiled.act(params, version, *rest)

    threads._acting[device] = compiled._replace(act=act)
    threads.start(state)
    try:
        for _ in range(6):
            state, _, _ = threads.iterate(state)
    finally:
        threads.stop()
    unrolls = [seen[i : i + LENGTH] for i in range(0, 6 * LENGTH, LENGTH)]
    assert all(len(set(one)) == 1 for one in unrolls) == hold
    assert len({one[0] for one in unrolls}) > 1


def test_no_thread_outlives_a_run():
    threads, state = threads_of()
    threads.start(state)
    threads.iterate(state)
    threads.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("actor", "learner"))]


def once(life, steps):
    if life == 0 and steps == 3:
        raise RuntimeError("the sky fell")


def test_environments_are_made_anew_within_a_budget_and_their_piece_is_dropped():
    threads, state = threads_of(lambda index, life: Fragile(index, life, once), lag=0, restarts=2)
    items = watched(threads)
    threads.start(state)
    try:
        for _ in range(5):
            state, _, _ = threads.iterate(state)
        assert [int(item.trajectory.origin.life[0]) for item in items] == [1] * 10
        assert int(items[-1].trajectory.origin.step[0]) == 4 * LENGTH
    finally:
        threads.stop()
    told = threads.supervisor.told()
    assert [f"{n} of 2" in one and "the sky fell" in one for n, one in enumerate(told, 1)] == [True, True]
    assert threads.supervisor.incidents == 2


def test_environments_that_cannot_be_closed_are_made_anew_all_the_same():
    class Unclosable(Fragile):
        def close(self):
            raise OSError("the connection is gone")

    threads, state = threads_of(lambda index, life: Unclosable(index, life, once), restarts=2)
    threads.start(state)
    try:
        for _ in range(3):
            state, _, _ = threads.iterate(state)
    finally:
        threads.stop()
    assert sum("the connection is gone" in one for one in threads.supervisor.told()) == 4  # in failing, and at the end


def test_experience_is_let_go_of():
    threads, state = threads_of(lag=0)
    items, kept = watched(threads), []
    threads.start(state)
    try:
        for _ in range(6):
            state, _, told = threads.iterate(state)
            kept.append(told)
            old = [weakref.ref(leaf) for item in items for leaf in jax.tree.leaves(item.trajectory)]
            items.clear()
    finally:
        threads.stop()
    gc.collect()
    assert old
    assert not any(one() is not None for one in old)


def test_a_bug_in_acting_ends_the_run():
    threads, state = threads_of()

    def broken(*args):
        raise TypeError("a bug")

    for device, compiled in threads._acting.items():
        threads._acting[device] = compiled._replace(act=broken)
    threads.start(state)
    with pytest.raises(Failed, match="a bug"):
        threads.iterate(state)
    with pytest.raises(Failed, match="a bug"):
        threads.check()
    threads.stop()


def test_a_failing_update_ends_the_run():
    threads, state = threads_of()
    update = threads._update
    threads._update = lambda *args: (update(*args)[0], {})  # what it made is asked for, and is not there
    threads.start(state)
    with pytest.raises(KeyError, match="made"):
        for _ in range(3):
            state, _, _ = threads.iterate(state)
    threads.stop()


def test_actors_that_wait_for_an_update_are_not_silent():
    threads, state = threads_of(lag=0, timeout=1.0)
    publish = threads._publish

    def late(*args):
        time.sleep(1.5)
        publish(*args)

    threads.start(state)
    threads._publish = late
    try:
        for _ in range(2):
            state, metrics, _ = threads.iterate(state)
        assert metrics["policy_lag_max"] == 0
    finally:
        threads.stop()


def always(life, steps):
    raise RuntimeError("the sky fell")


@pytest.mark.parametrize("fails", [once, *in_full(always)])
def test_past_the_budget_the_run_ends_with_the_cause(fails):
    threads, state = threads_of(lambda index, life: Fragile(index, life, fails), restarts=0 if fails is once else 5)
    threads.start(state)
    with pytest.raises(Failed, match="the sky fell"):
        for _ in range(3):
            state, _, _ = threads.iterate(state)
    threads.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("actor")]


def hang(life, steps):
    if steps == 2:
        time.sleep(2)


def test_silence_ends_the_run():
    threads, state = threads_of(lambda index, life: Fragile(index, life, hang), timeout=0.5)
    threads.start(state)
    with pytest.raises(Failed, match=r"no experience came from actor 0 for 0.5 s \(architecture.timeout\)"):
        threads.iterate(state)
    threads.stop()


def dawdle(life, steps):
    time.sleep(0.4)


def test_environments_have_the_time_at_every_step():
    threads, state = threads_of(lambda index, life: Fragile(index, life, dawdle), count=1, timeout=1.0)
    threads.start(state)
    state, metrics, _ = threads.iterate(state)  # after LENGTH steps, which take longer than the limit
    assert metrics["health"] == 0
    threads.stop()


def test_a_run_waits_longer_for_slow_environments_unless_told():
    for name in ("sebulba", "seed", "fleet", "split"):
        slow = "architecture.worker_timeout=300"
        for given, seconds in (([], 120), ([slow], 600), ([slow, "architecture.timeout=30"], 30)):
            agent = "ddpg" if name == "split" else "ppo"
            settings = config.resolve(agent, "gym:Pendulum-v1", name, assignments=given)
            assert patience(settings.architecture_settings) == seconds


def test_spans_are_summed_by_thread_and_drawn():
    trace = Trace(keep=True)
    threads, state = threads_of(trace=trace)
    threads.start(state)
    for _ in range(3):
        state, _, _ = threads.iterate(state)
    threads.stop()
    sums = trace.sums()
    assert sums["actor 0"]["act"] > 0
    assert {"wait for experience", "learn", "publish"} <= sums["learner"].keys()
    events = json.loads(trace.timeline())["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M"}
    assert {"actor 0", "actor 1", "learner"} <= names
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def splits_of(count, batch=64, shared=False):
    def divides(envs, learners):
        return envs % learners == 0

    return sebulba_split.candidates(count, lambda threads: batch // threads or None, divides, shared)


def times(splits, alone, together, act, learn, shared=False):
    """As of a device that acts in 64 environments in `act` seconds, and learns from an iteration's steps in `learn`."""
    acts = {split.envs: act * split.envs / 64 for split in splits}
    learns = {split.learners: learn / split.learners for split in splits}
    return Times(alone, together, acts, learns, 64 * 20, shared)


@pytest.mark.parametrize(
    ("alone", "act", "learn", "favours"),
    [
        (1e6, 1e-3, 2.0, lambda split: split.learners > 4),  # learning is slow
        (1e6, 2e-2, 0.02, lambda split: split.actors > split.learners),  # acting is
        (1e3, 1e-3, 1e-3, lambda split: split.actors * split.threads == 1),  # environments are: more would not help
    ],
)
def test_the_slowest_part_gets_the_devices(alone, act, learn, favours):
    splits = [split for split in splits_of(8) if not split.both]
    split, why = sebulba_split.choose(splits, times(splits, alone, alone, act, learn))
    assert favours(split)
    assert f"{split.learners} learn" in why


def test_a_second_thread_acts_while_the_first_steps():
    one = [split for split in splits_of(1) if split.threads < 4]
    split, _ = sebulba_split.choose(one, times(one, 64e2, 128e2, 1e-2, 1e-3))
    assert split.threads == 2
    split, _ = sebulba_split.choose(one, times(one, 64e4, 128e4, 1e-2, 1e-3))
    assert split.threads == 1


def test_shared_cores_leave_one_way():
    (only,) = splits_of(8, shared=True)
    assert only == Split(1, 1, 1, 64, True)
    made = sebulba_split.predict(only, times([only], 3000.0, 3000.0, 64 / 6000, 64 * 20 / 2000, True))
    assert made.whole == pytest.approx(1000.0)


@full
def test_a_split_is_measured_on_real_devices():
    environment = envs.make("boonta:catch")
    agent = vtrace.vtrace(environment.spec, vtrace.Settings(batch=8, unroll=4, hidden=(8,)))
    host = serve(environment)
    splits = splits_of(2, batch=8)
    measured = sebulba_split.measure(
        splits,
        jax.local_devices(),
        lambda envs, learners: sebulba.make(agent, environment.spec, envs, learners),
        environment.spec,
        lambda index: host.make(index, 0, 0, Workers()),
        steps=32,
        shared=False,
    )
    split, why = sebulba_split.choose(splits, measured)
    assert split in splits
    assert "steps/s" in why


TINY = ["--set", "agent.hidden=8", "--set", "agent.batch=4", "--set", "agent.unroll=4", "--set", "run.eval_episodes=2"]


def train(folder, *more, env="gym:CartPole-v1", agent="vtrace"):
    return main(
        ["train", agent, env, "--on", "sebulba", "--config", "none", "--json", "--out", str(folder), *TINY, *more]
    )


@full
@pytest.mark.parametrize("agent", ["vtrace", "ppo"])
def test_a_run_trains_evaluates_and_goes_on(agent, tmp_path, capsys):
    folder = tmp_path / "run"
    trace = tmp_path / "trace.json"
    assert train(folder, "--steps", "400", "--trace", str(trace), agent=agent) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["status"] == "done"
    assert summary["env_steps"] == 400
    assert json.loads(trace.read_text())["traceEvents"]
    rows = read_metrics(folder)
    assert rows[-1]["eval/episodes"] == 2
    assert any("time/actor/act" in row for row in rows)
    record = json.loads((folder / "run.json").read_text())
    assert record["devices"]["threads"] == 1
    assert main(["eval", str(folder), "--episodes", "3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["eval_episodes"] == 3


@slow
def test_the_split_is_measured_told_and_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr("boonta.architectures.sebulba_split.SECONDS", 0.05)
    assert train(tmp_path / "run", "--steps", "400", "--devices", "auto", "--seed", "1") == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["devices"]["split"].startswith("1 device acts (1 thread of 4 environments each), the same learn;")


def test_synchronous_runs_repeat_bit_for_bit(tmp_path):
    logs = []
    for name in ("one", "other"):
        assert train(tmp_path / name, "--steps", "320", "--synchronous") == 0
        logs.append(
            [
                {k: v for k, v in row.items() if not k.startswith(("seconds", "steps_per", "time/", "idle/", "queue"))}
                for row in read_metrics(tmp_path / name)
            ]
        )
    assert logs[0] == logs[1]


class Poisoned(gymnasium.Env):
    """An environment whose observation is not finite in the end."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.full(2, np.nan if self.steps > 30 else 0.0, np.float32), 1.0, False, False, {}


def test_an_observation_that_is_not_finite_ends_the_run_by_name(tmp_path, capfd):
    assert train(tmp_path / "run", "--steps", "4000", env="tests.test_sebulba:Poisoned") == 1
    assert "observation is not finite" in capfd.readouterr().err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--actors", "99"], "architecture.actors must be auto, a count from 1 to 8"),
        (["--learners", "[0,0]"], "architecture.learners must be auto"),
        (["--devices", "auto", "--actors", "1"], "--devices auto) chooses actors, learners and threads, got"),
        (["--set", "architecture.lag=-1"], "architecture.lag must be at least 0"),
        (["--set", "architecture.workers=fork"], "architecture.workers must be one of"),
        (["--set", "architecture.envs=3"], "must divide one another"),
        (["--devices", "99"], "architecture.devices is 99, but there are 8"),
        (["--trace", "/proc/no/such"], "architecture.trace must be a file that can be written, got /proc/no/such"),
    ],
)
def test_bad_input_is_refused_in_one_line(more, words, tmp_path, capfd):
    assert train(tmp_path / "run", "--steps", "400", *more) == 2
    told = capfd.readouterr().err.strip().splitlines()
    assert words in told[-1]


@full
def test_one_count_of_devices_is_enough(tmp_path, capfd):
    assert train(tmp_path / "run", "--steps", "64", "--actors", "1") == 0  # 4 of the other 7 share a batch of 4
    assert len(json.loads((tmp_path / "run" / "run.json").read_text())["devices"]["learners"]) == 4
    assert "3 devices stay idle: those that learn must divide" in capfd.readouterr().err
    assert train(tmp_path / "two", "--steps", "64", "--devices", "2", "--actors", "1") == 0
    assert json.loads((tmp_path / "two" / "run.json").read_text())["devices"]["learners"] == [1]


def test_threads_that_would_wait_are_told_of(tmp_path, capfd):
    more = ["--set", "architecture.threads=4", "--set", "architecture.envs=4"]
    assert train(tmp_path / "run", "--steps", "64", *more) == 0
    assert "4 threads act, but only 2 trajectories may be begun" in capfd.readouterr().err


def test_anakin_refuses_what_steps_on_the_host(tmp_path, capfd):
    assert main(["train", "ppo", "gym:CartPole-v1", "--on", "anakin", "--out", str(tmp_path / "run")]) == 2
    assert "use --on sebulba" in capfd.readouterr().err


def test_replay_knows_the_environments_of_all_threads():
    settings = ["agent.batch=8", "agent.unroll=4", "agent.n_step=1", "agent.minimum=1000000", "agent.hidden=8"]
    settings += ["agent.capacity=1000000", "agent.sampler=uniform"]
    where = ["architecture.threads=2", "architecture.envs=4", "architecture.lag=1"]
    resolved = config.resolve(
        "dqn", "boonta:catch", "sebulba", "none", assignments=[*settings, *where], run={"steps": 10**6}
    )
    system = systems.build(resolved)
    try:
        state, made, _ = system.advance(system.start(), 8, lambda: False)
        (replay,) = state.replays.values()
        pieces = int(jax.device_get(replay.written)[0])
        assert made.iterations[0] == 8 and pieces >= 4 * 8
        assert int(jax.device_get(replay.count)[0]) == 4 * (pieces - 8)  # the last piece of each waits for another
    finally:
        system.close()


def test_an_update_copies_no_replay():
    settings = ["agent.minimum=10", "agent.hidden=8", "agent.capacity=10000"]
    resolved = config.resolve(
        "ddpg", "boonta:probe-reach", "sebulba", "none", assignments=[*settings, "architecture.envs=1"],
        run={"steps": 10**6},
    )  # fmt: skip
    system = systems.build(resolved)
    try:
        state, *_ = system.advance(system.start(), 1, lambda: False)
        (replay,) = state.replays.values()
        places = replay.generation.shape[0]
        copies = re.findall(r"= (\w+\[[\d,]*\])\S* copy\(", system.threads._update.as_text())
        assert copies and not [shape for shape in copies if str(places) in shape]
    finally:
        system.close()
