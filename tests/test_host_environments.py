"""Environments of the host, step by step beside the plain libraries, and what becomes of them when they fail."""

import os
import re
import subprocess
import sys
from functools import partial
from multiprocessing.context import SpawnProcess
from pathlib import Path

import dm_env
import gymnasium
import jax
import numpy as np
import pytest

from boonta import envs
from boonta.core import host, signals
from boonta.core.faults import Unclosed
from boonta.core.host import Workers
from boonta.core.settings import Refused
from boonta.core.spec import Continuous
from boonta.core.types import FIRST, LAST, MID
from boonta.envs import dm, gym, trials, workers
from boonta.envs.errors import Failing
from tests.faulty import fail
from tests.marks import full, slow

pytestmark = slow

KINDS = ("serial", "threads", "processes")


def copied(timestep):
    return timestep._replace(
        **{field: np.array(getattr(timestep, field)) for field in timestep._fields if field != "observation"},
        observation=jax.tree.map(np.array, timestep.observation),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "settings"),
    [("CartPole-v1", {}), ("CartPole-v1", {"max_episode_steps": 7}), ("Pendulum-v1", {"max_episode_steps": 20})],
)
def test_gymnasium_is_what_it_is_alone(name, settings, kind):
    made = envs.make(f"gym:{name}", **settings)
    indices, generator = np.array([4, 9, 2]), np.random.default_rng(0)
    batch = made.make(indices, 11, 1, Workers(kind, 2))
    plain = [gymnasium.make(name, **settings) for _ in indices]
    try:
        timestep = batch.reset()
        for i, one in enumerate(plain):
            observation, _ = one.reset(seed=host.seed_of(11, int(indices[i]), 1))
            np.testing.assert_allclose(timestep.observation[i], observation)
        kinds = set()
        for _ in range(60):
            before, action = copied(timestep), host.random_actions(made.spec, generator, timestep)
            timestep = batch.step(action)
            for i, one in enumerate(plain):
                if before.step_type[i] == LAST:
                    observation, _ = one.reset()
                    expected = (0.0, 1.0, FIRST, np.zeros_like(action[i]))
                else:
                    given = action[i] if isinstance(made.spec.action, Continuous) else int(action[i])
                    observation, reward, terminated, truncated, _ = one.step(given)
                    ends = terminated or truncated
                    expected = (np.float32(reward), 0.0 if terminated else 1.0, LAST if ends else MID, action[i])
                    kinds.add((terminated, truncated))
                actual = (timestep.reward[i], timestep.discount[i], timestep.step_type[i], timestep.action[i])
                for a, b in zip(actual, expected, strict=True):
                    np.testing.assert_array_equal(a, b)
                np.testing.assert_allclose(timestep.observation[i], np.asarray(observation, np.float32))
        assert (False, True) in kinds or (True, False) in kinds
    finally:
        batch.close()
        batch.close()


def test_a_vectorized_form_is_what_the_single_environments_are():
    made = envs.make("gym:CartPole-v1")
    chosen, why = made.choose(8, Workers())
    assert (chosen.kind, why) == ("vectorized", "all of them step in one call")
    assert made.choose(8, Workers("threads", 3))[0] == Workers("threads", 3)
    batch = made.make(np.arange(8), 11, 1, Workers())
    again, other = made.make(np.arange(8), 11, 1, Workers()), made.make(np.arange(8), 11, 2, Workers())
    plain = [gymnasium.make("CartPole-v1").unwrapped for _ in range(8)]
    generator, begun = np.random.default_rng(0), copied(batch.reset())
    np.testing.assert_array_equal(begun.observation, again.reset().observation)
    assert (begun.observation != other.reset().observation).any(axis=-1).all()
    assert len(np.unique(begun.observation, axis=0)) == 8
    timestep, ends = begun, 0
    for one in plain:
        one.reset()
    for _ in range(60):
        before, action = copied(timestep), host.random_actions(made.spec, generator, timestep)
        timestep = batch.step(action)
        for i, one in enumerate(plain):
            if before.step_type[i] == LAST:
                expected = (0.0, 1.0, FIRST, 0)
                assert (abs(timestep.observation[i]) <= 0.05).all()
            else:
                one.state, one.steps_beyond_terminated = before.observation[i].astype(float), None
                observation, reward, over, _, _ = one.step(int(action[i]))
                expected = (reward, 0.0 if over else 1.0, LAST if over else MID, action[i])
                np.testing.assert_allclose(timestep.observation[i], observation, rtol=1e-5, atol=1e-6)
                ends += over
            assert (timestep.reward[i], timestep.discount[i], timestep.step_type[i], timestep.action[i]) == expected
    assert ends > 8
    np.testing.assert_array_equal(begun.observation, batch.reset().observation)


class Many(gymnasium.vector.VectorEnv):
    """Environments that pay 1 a step, and end after three."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012 -- as Gymnasium's
    fault = ""

    def __init__(self, num_envs, max_episode_steps):
        self.num_envs, self.steps = num_envs, np.zeros(num_envs, int)
        low = -2.0 if self.fault == "space" else -1.0
        self.single_observation_space = gymnasium.spaces.Box(low, 1.0, (2,), np.float32)
        self.single_action_space = gymnasium.spaces.Discrete(2)
        if self.fault == "reset":
            self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps[:] = 0
        return np.zeros((self.num_envs, 3 if self.fault == "shape" else 2), np.float32), {}

    def step(self, actions):
        if self.fault == "raises":
            raise OSError("the sky fell")
        self.steps = (self.steps + 1) % 4
        observation = np.zeros((self.num_envs, 2), np.float32)
        reward = np.ones(self.num_envs + (self.fault == "reward"))
        return observation, reward, self.steps == 3, np.full(self.num_envs, False), {}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("space", "its spaces must be .* got Box.-2.0"),
        ("reset", "autoreset_mode must be AutoresetMode.NEXT_STEP, got AutoresetMode.SAME_STEP"),
        ("shape", "observation is of another shape than its space"),
        ("reward", r"rewards, terminated and truncated must be arrays \[2\]"),
        ("raises", "OSError: the sky fell"),
    ],
)
def test_a_vectorized_form_that_does_not_fit_is_not_used(fault, words, monkeypatch):
    class Faulted(Many):
        pass

    Faulted.fault = fault
    many(monkeypatch, Faulted)
    made = envs.make("gym:Many-v0")
    assert len(made.remarks) == 1
    assert re.search(f"gym:Many-v0: its vectorized form is not used: .*{words}", made.remarks[0])
    assert made.choose(8, Workers())[0].kind != "vectorized"
    with pytest.raises(Refused, match=r"architecture\.workers must be one of .* for gym:Many-v0.* got vectorized"):
        made.make(np.arange(8), 0, 0, Workers("vectorized"))


def test_a_vectorized_form_is_used_where_nothing_else_is_asked(monkeypatch):
    many(monkeypatch, Many)
    made = envs.make("gym:Many-v0")
    assert not made.remarks
    assert [made.choose(count, Workers())[0].kind == "vectorized" for count in (7, 8)] == [False, True]
    assert made.choose(2, Workers("vectorized"))[0].kind == "vectorized"
    batch = made.make(np.arange(2), 0, 0, Workers("vectorized"))
    batch.reset()
    kinds = [copied(batch.step(np.zeros(2, int))).step_type.tolist() for _ in range(8)]
    assert kinds == [[kind, kind] for kind in (MID, MID, LAST, FIRST) * 2]
    other = envs.make("gym:Many-v0", max_episode_steps=2)
    assert other.choose(8, Workers())[0].kind != "vectorized"


def many(monkeypatch, vectorized):
    """Register Many-v0, whose vectorized form is this one, for a test."""

    class One(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.zeros(2, np.float32), 1.0, False, False, {}

    monkeypatch.setattr(gymnasium.envs.registration, "registry", dict(gymnasium.registry))
    gymnasium.register("Many-v0", entry_point=One, vector_entry_point=vectorized, max_episode_steps=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "settings"), [("cartpole-swingup", {"time_limit": 0.2}), ("ball_in_cup-catch", {"time_limit": 0.5})]
)
def test_the_control_suite_is_what_it_is_alone(name, settings, kind):
    from dm_control import suite

    made = envs.make(f"dm:{name}", **settings)
    indices, generator = np.array([4, 9]), np.random.default_rng(0)
    batch = made.make(indices, 11, 1, Workers(kind, 2))
    seeds = [host.seed_of(11, int(i), 1) for i in indices]
    plain = [suite.load(*name.split("-"), task_kwargs=settings | {"random": seed}) for seed in seeds]
    try:
        timestep, action, ends = batch.reset(), np.zeros((2, *made.spec.action.shape)), 0
        expected = [one.reset() for one in plain]
        for _ in range(60):
            for i, one in enumerate(expected):
                actual = jax.tree.map(lambda x, i=i: x[i], timestep)
                for key, value in one.observation.items():
                    np.testing.assert_allclose(actual.observation[key], np.asarray(value, np.float32))
                assert int(actual.step_type) == int(one.step_type)
                assert actual.reward == np.float32(one.reward or 0.0)
                assert actual.discount == (1.0 if one.first() else one.discount)
                np.testing.assert_array_equal(actual.action, np.zeros_like(action[i]) if one.first() else action[i])
                ends += one.last()
            action = host.random_actions(made.spec, generator, timestep)
            timestep = batch.step(action)
            expected = [plain[i].reset() if one.last() else plain[i].step(action[i]) for i, one in enumerate(expected)]
        assert ends > 2
    finally:
        batch.close()


class Count(dm_env.Environment):
    """Three steps, the last a true end; the seed is seen."""

    def __init__(self, seed=0):
        self.seed, self.t = seed, 0

    def observation_spec(self):
        return {"t": dm_env.specs.Array((), int), "seed": dm_env.specs.Array((), float)}

    def action_spec(self):
        return dm_env.specs.DiscreteArray(3)

    def seen(self):
        return {"t": self.t, "seed": self.seed % 1000}

    def reset(self):
        self.t = 0
        return dm_env.restart(self.seen())

    def step(self, action):
        self.action_spec().validate(action)
        self.t += 1
        if self.t < 3:
            return dm_env.transition(1.0, self.seen())
        return dm_env.termination(2.0, self.seen())


def test_environments_of_ones_own_in_dm_env():
    made = envs.make("tests.test_host_environments:Count")
    batch = made.make(np.arange(2), 0, 0, Workers("serial"))
    first = copied(batch.reset())
    np.testing.assert_array_equal(first.observation["seed"], [host.seed_of(0, i, 0) % 1000 for i in range(2)])
    rows = [copied(batch.step(np.ones(2, np.int64))) for _ in range(4)]
    assert [int(row.step_type[0]) for row in rows] == [MID, MID, LAST, FIRST]
    assert [float(row.reward[0]) for row in rows] == [1.0, 1.0, 2.0, 0.0]
    assert [float(row.discount[0]) for row in rows] == [1.0, 1.0, 0.0, 1.0]
    assert [float(row.observation["t"][0]) for row in rows] == [1.0, 2.0, 3.0, 0.0]
    with pytest.raises(ValueError, match="cannot be drawn"):
        batch.frame()


class Words(Count):
    """What no network reads."""

    def observation_spec(self):
        return dm_env.specs.StringArray(())


def test_what_no_agent_can_take_is_refused():
    with pytest.raises(ValueError, match="allowed: arrays of numbers"):
        dm.of("words", Words)


@pytest.mark.parametrize("episodic_life", [False, True])
def test_atari_is_what_its_own_vector_environment_is(episodic_life):
    vector_env = pytest.importorskip("ale_py.vector_env")
    made = envs.make("ale:Breakout", noops=3, episodic_life=episodic_life, frames=400)
    batch = made.make(np.arange(2), 5, 0, Workers(count=1))
    plain = vector_env.AtariVectorEnv(
        "breakout", 2, num_threads=1, noop_max=3, max_num_frames_per_episode=400, repeat_action_probability=0.0,
        full_action_space=False, reward_clipping=False, episodic_life=episodic_life, use_fire_reset=False,
    )  # fmt: skip
    generator = np.random.default_rng(0)
    try:
        timestep = batch.reset()
        observation, _ = plain.reset(seed=np.array([host.seed_of(5, i, 0) for i in range(2)]))
        np.testing.assert_array_equal(timestep.observation, np.moveaxis(observation, 1, -1))
        assert (np.asarray(timestep.step_type) == FIRST).all()
        ended = np.zeros(2, bool)
        seen = set()
        for _ in range(250):
            action = generator.integers(made.spec.action.n, size=2)
            timestep = batch.step(action)
            observation, reward, terminated, truncated, _ = plain.step(action)
            np.testing.assert_array_equal(timestep.observation, np.moveaxis(observation, 1, -1))
            np.testing.assert_array_equal(timestep.reward, np.where(ended, 0, reward))
            np.testing.assert_array_equal(timestep.action, np.where(ended, 0, action))
            over = ~ended & (terminated | truncated)
            np.testing.assert_array_equal(timestep.step_type, np.where(ended, FIRST, np.where(over, LAST, MID)))
            np.testing.assert_array_equal(timestep.discount, np.where(~ended & terminated, 0.0, 1.0))
            seen |= {(bool(t), bool(c)) for t, c, e in zip(terminated, truncated, ended, strict=True) if not e}
            ended = over
        assert ((True, False) if episodic_life else (False, True)) in seen
    finally:
        batch.close()
        plain.close()


def test_atari_scores_are_true_and_lives_are_those_of_the_game_in_evaluation():
    pytest.importorskip("ale_py")
    made = envs.make("ale:Breakout", episodic_life=True)
    assert made.examiner is not None
    assert made.examiner.examiner is None
    assert envs.make("ale:Breakout").examiner is None
    assert made.spec.frames_per_step == 4


@pytest.mark.parametrize("episodic_life", [False, True])
@pytest.mark.parametrize("full_actions", [False, True])
def test_the_ball_is_served_again_after_every_life(episodic_life, full_actions):
    """Else a greedy agent that never had to press FIRE waits half an hour for it."""
    pytest.importorskip("ale_py")
    made = envs.make("ale:Breakout", fire=True, episodic_life=episodic_life, full_actions=full_actions)
    batch = made.make(np.arange(2), 0, 0, Workers(count=1))
    batch.reset()
    ends = np.zeros(2, int)
    fired = 0
    for _ in range(300):
        timestep = batch.step(np.zeros(2, np.int64))
        ends += np.asarray(timestep.step_type == LAST)
        fired += int((timestep.action == 1).sum())
    batch.close()
    assert (ends >= (5 if episodic_life else 1)).all()  # five lives
    assert (fired > 0) == (not episodic_life)


class Faulty(gymnasium.Env):
    """CartPole's spaces, and a fault of one's choice at the third step, at reset or in construction."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault="", where="step", first=False):
        self.fault, self.where, self.steps = fault, where, 0
        if where == "construction" and not first:
            fail(self.fault)

    def reset(self, *, seed=None, options=None):
        if self.where == "reset":
            fail(self.fault)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.where == "step" and self.steps == 3:
            fail(self.fault)
        return np.zeros(2, np.float32), 1.0, False, False, {}


WORDS = {
    "raises": "the sky fell",
    "exits": "exit code 7",
    "segfaults": "exit code -11",
    "hangs": "did not answer within",
}


ENOUGH = {("exits", "construction"), ("raises", "reset"), ("segfaults", "step"), ("hangs", "step")}


class Part:
    """A part of Faulty environments that travels."""

    def __init__(self, fault, where):
        self.fault, self.where = fault, where

    def __call__(self, seeds, out):
        spec = gym.of("faulty", Faulty).spec
        spaces = Faulty.observation_space, Faulty.action_space
        return gym.Serial(spec, *spaces, lambda: Faulty(self.fault, self.where), seeds, out)


def fails(kind, fault, where, limit):
    with pytest.raises(workers.Died, match=WORDS[fault]):
        batch = kind(gym.of("faulty", Faulty).spec, Part(fault, where), [0, 1], limit)
        try:
            batch.reset()
            for _ in range(3):
                batch.step(np.zeros(2, np.int64))
        finally:
            batch.close()


@pytest.mark.parametrize(
    ("fault", "where"),
    [
        pytest.param(fault, where, marks=() if (fault, where) in ENOUGH else full)
        for fault in WORDS
        for where in ("construction", "reset", "step")
    ],
)
def test_processes_tell_how_an_environment_failed(fault, where):
    fails(workers.Processes, fault, where, Workers("processes", 2, 4.0 if fault == "hangs" else 60.0))


def test_a_signal_to_all_processes_of_a_run_finds_workers_that_only_begin(monkeypatch):
    start = SpawnProcess.start

    def signalled(process):
        start(process)
        for number in signals.ENDING:
            os.kill(process.pid, number)

    monkeypatch.setattr(SpawnProcess, "start", signalled)
    limit = Workers("processes", 2, 60.0)
    batch = workers.Processes(gym.of("faulty", Faulty).spec, Part("", "never"), [0, 1], limit)
    try:
        assert (batch.reset().reward == 0.0).all()
    finally:
        batch.close()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="it has a place of its own on Linux alone")
def test_memory_of_processes_has_no_name():
    batch = workers.Processes(gym.of("faulty", Faulty).spec, Part("", "never"), [0, 1], Workers("processes", 2, 60.0))
    try:
        assert not Path("/dev/shm", batch.memory.name.lstrip("/")).exists()
        batch.reset()
        assert (batch.step(np.zeros(2, np.int64)).reward == 1.0).all()
    finally:
        batch.close()


@pytest.mark.parametrize("where", ["construction", "reset", "step"])
@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_threads_tell_how_an_environment_failed(fault, where):
    fails(workers.Threads, fault, where, Workers("threads", 2, 0.5))


def test_a_thread_that_hangs_does_not_keep_the_process():
    code = """
import numpy as np
from boonta.core.host import Workers
from boonta.envs import gym, workers
from tests.test_host_environments import Faulty, Part
batch = workers.Threads(gym.of("faulty", Faulty).spec, Part("hangs", "reset"), [0, 1], Workers("threads", 2, 0.5))
batch.reset()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "an environment thread did not answer within 0.5 s" in done.stderr


def test_all_of_them_are_closed_whatever_one_does():
    closed = []

    class Stubborn(Faulty):
        def close(self):
            closed.append(self)
            if len(closed) == 2:  # the first was for its spaces
                raise OSError("the connection is gone")

    host = gym.of("stubborn", Stubborn)
    batch = host.make(np.arange(3), 0, 0, Workers("serial"))
    with pytest.raises(Unclosed, match=r"stubborn: close\(\) raised OSError: the connection is gone"):
        batch.close()
    assert len(closed) == 4
    batch.close()


@pytest.mark.parametrize("fault", ["raises", "hangs"])
def test_an_environment_that_fails_when_it_is_tried_is_refused(fault):
    words = {
        "raises": "RuntimeError: the sky fell",
        "hangs": "TimeoutError: no answer within 0.5 s; architecture.worker_timeout gives it longer",
    }[fault]
    with (
        trials.stepped_by(Workers(timeout=0.5)),
        pytest.raises(Failing, match=f"faulty failed when it was tried with no settings: {words}"),
    ):
        gym.of("faulty", partial(Faulty, fault, "construction"))
    with pytest.raises(ValueError, match="faulty failed when it was tried: .*"):
        gym.of("faulty", partial(Faulty, fault)).choose(2, Workers(timeout=0.5))


def test_a_factory_that_cannot_travel_is_refused():
    host = gym.of("local", lambda: Faulty())
    with pytest.raises(ValueError, match="local cannot travel to a process .* imported by its name"):
        host.make(np.arange(2), 0, 0, Workers("processes", 2))


def test_what_steps_them_is_measured_or_as_asked():
    made = envs.make("gym:CartPole-v1")
    chosen, why = made.choose(2, Workers())
    assert chosen.kind in KINDS
    assert "µs" in why


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("gym:CartPoll-v1", {}, "CartPole-v1"),
        ("gym:CartPole-v1", {"gravitty": 1}, "gravitty"),
        ("dm:cartpole-swingupp", {}, "cartpole-swingup"),
        ("dm:cartpole-swingup", {"timelimit": 1}, "timelimit"),
        ("ale:Pongg", {}, "Pong"),
        ("ale:Pong", {"stickyy": 1}, "sticky"),
        ("ale:Pong", {"sticky": 2.0}, "from 0.0 to 1.0"),
    ],
)
def test_bad_names_and_settings_are_refused(name, settings, words):
    if name.startswith("ale"):
        pytest.importorskip("ale_py")
    with pytest.raises(ValueError, match=words):
        envs.make(name, **settings)


def test_mujoco_tells_a_warning_once_and_leaves_no_file(tmp_path, monkeypatch, capfd):
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    batch = envs.make("gym:HalfCheetah-v5").make(np.arange(3), 0, 0, Workers("serial"))
    batch.reset()
    batch.close()
    told = capfd.readouterr().err.splitlines()
    assert len(told) == len({*told})
    assert not list(tmp_path.iterdir())


def test_every_game_that_is_listed_can_be_made():
    ale = pytest.importorskip("boonta.envs.ale")
    assert envs.make("ale:TicTacToe3d").spec.action.n > 1
    assert {"Pong", "SpaceInvaders", "TicTacToe3d"} <= {*ale.names()}


def test_hidden_entries_are_left_out():
    made, whole = envs.make("gym:CartPole-v1", hide=[1, 3]), envs.make("gym:CartPole-v1")
    assert made.spec.observation.shape == (2,)
    batches = [one.make(np.arange(2), 0, 0, Workers("serial")) for one in (made, whole)]
    some, everything = (batch.reset() for batch in batches)
    for _ in range(5):
        np.testing.assert_array_equal(some.observation, everything.observation[:, [0, 2]])
        some, everything = (batch.step(np.zeros(2, np.int64)) for batch in batches)
    with pytest.raises(ValueError, match="env.hide must be places"):
        envs.make("gym:CartPole-v1", hide=[7])
    assert made.drawn().make(np.arange(1), 0, 0, Workers("serial")).spec == made.spec
