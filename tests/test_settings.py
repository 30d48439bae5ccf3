"""Settings are typed, and refuse what they do not know in words that help."""

from dataclasses import FrozenInstanceError, dataclass
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boonta.agents import ppo
from boonta.core.settings import build, multiple_of, nearest, nearest_numbers, setting, traced
from boonta.experiments import registry


@dataclass(frozen=True)
class Settings:
    """One field of each kind."""

    rate: float = setting(0.1, "a rate", low=0.0, high=1.0, traced=True)
    cost: float = setting(2, "a cost", low=0.0, traced=True)
    ceiling: float = setting(0.0, "at most five", high=5.0)
    steps: int = setting(8, "a count", low=1)
    flag: bool = setting(False, "a switch")
    name: str = setting("x", "a word")
    kind: Literal["adam", "sgd"] = setting("adam", "one of two")
    sizes: tuple[int, ...] = setting((64, 64), "widths", low=1)
    limit: float | None = setting(None, "a limit or none", low=0.0)
    anything: Any = setting(None, "as it is")


def one(key, value):
    return getattr(build(Settings, {key: value}, "agent"), key)


def refused(key, value, words):
    with pytest.raises(ValueError, match=words):
        build(Settings, {key: value}, "agent")


def test_nothing_said_is_the_default():
    assert build(Settings, {}, "agent") == Settings()


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("rate", 0.5, 0.5),
        ("rate", 1, 1.0),
        ("rate", "3e-4", 3e-4),
        ("rate", "1", 1.0),
        ("rate", " 0.25 ", 0.25),
        ("steps", 3, 3),
        ("steps", "12", 12),
        ("steps", "1_000", 1000),
        ("steps", "1e3", 1000),
        ("steps", 4.0, 4),
        ("flag", True, True),
        ("flag", "true", True),
        ("flag", "False", False),
        ("name", "12", "12"),
        ("name", "none", "none"),
        ("kind", "sgd", "sgd"),
        ("sizes", (3,), (3,)),
        ("sizes", [3, 4], (3, 4)),
        ("sizes", 5, (5,)),
        ("sizes", "5", (5,)),
        ("sizes", "64,32", (64, 32)),
        ("sizes", "[64, 32]", (64, 32)),
        ("sizes", "(64, 32,)", (64, 32)),
        ("sizes", "", ()),
        ("limit", None, None),
        ("limit", "none", None),
        ("limit", 3, 3.0),
        ("limit", "0.5", 0.5),
        ("anything", [1, "a"], [1, "a"]),
    ],
)
def test_values_are_converted(key, value, expected):
    got = one(key, value)
    assert got == expected and type(got) is type(expected)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rate", "fast", "agent.rate must be a number, got 'fast'"),
        ("rate", True, r"agent.rate must be a number, got True \(true or false\)"),
        ("rate", [0.1], "agent.rate must be a number"),
        ("rate", None, "agent.rate must be a number, got None"),
        ("steps", 2.5, r"agent.steps must be an integer, got 2.5 \(a number\)"),
        ("steps", "2.5", "agent.steps must be an integer"),
        ("steps", True, "agent.steps must be an integer, got True"),
        ("flag", "yes", "agent.flag must be true or false, got 'yes'"),
        ("flag", 1, "agent.flag must be true or false, got 1"),
        ("name", 3, r"agent.name must be a string, got 3 \(an integer\)"),
        ("kind", "adamm", "agent.kind must be one of adam, sgd, got 'adamm': did you mean 'adam'"),
        ("kind", None, "agent.kind must be one of adam, sgd, got None"),
        ("sizes", "3,x", "agent.sizes must be an integer, got 'x'"),
        ("sizes", [2.5], "agent.sizes must be an integer, got 2.5"),
        ("limit", "soon", "agent.limit must be a number, got 'soon'"),
    ],
)
def test_the_wrong_type_is_refused(key, value, words):
    refused(key, value, words)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("rate", 1.5, "agent.rate must be from 0.0 to 1.0, got 1.5"),
        ("rate", "-0.1", "agent.rate must be from 0.0 to 1.0, got -0.1"),
        ("rate", float("nan"), "agent.rate must be from 0.0 to 1.0, got nan"),
        ("cost", -1, "agent.cost must be at least 0.0, got -1"),
        ("ceiling", 6, "agent.ceiling must be at most 5.0, got 6"),
        ("steps", 0, "agent.steps must be at least 1, got 0"),
        ("sizes", "64,0", "agent.sizes must be at least 1, got 0"),
        ("limit", -1.0, "agent.limit must be at least 0.0, got -1"),
    ],
)
def test_values_out_of_range_are_refused(key, value, words):
    refused(key, value, words)


@pytest.mark.parametrize(("key", "value"), [("rate", 0.0), ("rate", 1.0), ("steps", 1), ("limit", 0.0)])
def test_bounds_are_allowed(key, value):
    assert one(key, value) == value


def test_unknown_keys_are_named_with_the_nearest():
    refused("ratte", 1, r"unknown key agent\.ratte: did you mean 'agent.rate'\? allowed: anything, ceiling, cost, flag")
    refused("zzz", 1, r"unknown key agent\.zzz; allowed: ")


def test_nearest():
    assert nearest("learing_rate", ["learning_rate", "unroll"]) == ": did you mean 'learning_rate'?"
    assert nearest("qqq", ["learning_rate"]) == ""


def test_settings_are_frozen():
    with pytest.raises(FrozenInstanceError):
        Settings().rate = 1.0  # pyright: ignore[reportAttributeAccessIssue]


def test_the_group_settings_is_those_that_are_traced():
    group = traced(build(Settings, {"rate": "0.5"}, "agent"))
    assert group == {"rate": 0.5, "cost": 2.0} and all(type(value) is float for value in group.values())


@given(st.floats(0.0, 1.0), st.integers(1, 10**9), st.lists(st.integers(1, 4096), max_size=4))
def test_what_is_written_is_what_is_read(rate, steps, sizes):
    """As on a command line: the text of a value gives it back."""
    text = {"rate": repr(rate), "steps": str(steps), "sizes": str(sizes)}
    assert build(Settings, text, "agent") == Settings(rate=rate, steps=steps, sizes=tuple(sizes))


def test_the_settings_of_ppo():
    built = build(ppo.Settings, {"hidden": "32,32", "value_clip": "0.2", "core": "lstm", "discount": 1}, "agent")
    assert (built.hidden, built.value_clip, built.core, built.discount) == ((32, 32), 0.2, "lstm", 1.0)
    with pytest.raises(ValueError, match="agent.leraning_rate: did you mean 'agent.learning_rate'"):
        build(ppo.Settings, {"leraning_rate": 1}, "agent")
    assert set(traced(built)) == {
        "learning_rate",
        "max_grad_norm",
        "discount",
        "gae_lambda",
        "clip",
        "entropy_cost",
        "value_cost",
    }


def step_sizes(agent):
    """The names of its settings that are step sizes of an optimiser."""
    names = [name for name in registry.agent(agent).settings.__dataclass_fields__ if name.endswith("learning_rate")]
    assert names
    return names


ENDS_LEARNING = [
    *((agent, "epsilon", 0) for agent in registry.AGENTS),
    *((agent, name, 0) for agent in ("ppo", "dqn", "sac") for name in ("reward_scale", "reward_clip")),
    *(("ppo", name, 0) for name in ("clip", "value_clip")),
    *(("vtrace", name, 0) for name in ("rho_clip", "pg_rho_clip")),
    *((agent, "replay_ratio", 0.0009) for agent in ("dqn", "r2d2", "muzero")),
    *(("td3", name, 0.0009) for name in ("value_updates", "policy_updates")),
    *((agent, name, 0) for agent in registry.AGENTS for name in step_sizes(agent)),
    ("vtrace", "decay", 1),
    ("dqn", "huber", 0),
    ("td3", "target_rate", 0),
    ("muzero", "value_scale", 0),
]


@pytest.mark.parametrize(("agent", "name", "value"), ENDS_LEARNING)
def test_values_with_which_nothing_is_learned_are_refused(agent, name, value):
    with pytest.raises(ValueError, match=rf"agent.{name} must be .*, got {value}"):
        build(registry.agent(agent).settings, {name: value}, "agent")


def test_the_next_numbers_that_fit_are_named():
    assert multiple_of(8, 20) == "; nearest: 16 or 24"
    assert multiple_of(8, 3) == "; nearest: 8"
    assert nearest_numbers(2, lambda n: n < 0) == ""


def test_every_field_says_what_it_means():
    for field in ppo.Settings.__dataclass_fields__.values():
        assert field.metadata.get("doc"), f"{field.name} says nothing"
