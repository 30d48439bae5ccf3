"""Settings where nobody says any: by a recipe, which may be for a kind of environments, or by a rule."""

import json
import re
from pathlib import Path

import jax
import numpy as np
import pytest

from boonta.agents.ppo import Settings, ppo
from boonta.core.spec import Continuous, Discrete, Spec
from boonta.experiments import config, registry
from boonta.experiments.defaults import FEW, defaults

RESOLVED = Path(__file__).parent / "recipes.json"  # what each recipe resolves to; rewritten where it is meant to change


def example(pattern: str) -> str:
    """A name that a pattern fits."""
    return re.sub(r"\{([^{},]*)[^{}]*\}", r"\1", pattern).replace("*", "Any")


def resolved(name):
    """The tables of a recipe, on some environment of its kind."""
    env = registry.recipes()[name]["env"]["name"]
    some = example(env)
    found = config.resolve(None, some if some != env else None, None, name).tables()
    found["run"].pop("eval_episodes")  # which change nothing that is learned
    return {table: found[table] for table in ("run", "agent", "env")}


@pytest.mark.parametrize("name", registry.recipes())
def test_a_recipe_resolves_to_what_it_was_tried_with(name):
    known = json.loads(RESOLVED.read_text())
    assert config.fingerprint(resolved(name)) == known.get(name)


@pytest.mark.parametrize(
    ("pattern", "name", "fits"),
    [
        ("gym:Hopper-v5", "gym:Hopper-v5", True),
        ("gym:Hopper-v5", "gym:Hopper-v4", False),
        ("ale:*", "ale:Pong", True),
        ("ale:*", "gym:Pong", False),
        ("gymnax:*-MinAtar", "gymnax:Breakout-MinAtar", True),
        ("gymnax:*-MinAtar", "gymnax:CartPole-v1", False),
        ("gym:{Hopper,Ant}-v5", "gym:Ant-v5", True),
        ("gym:{Hopper,Ant}-v5", "gym:Ant.v5", False),
        ("a.b:*", "axb:c", False),
    ],
)
def test_a_pattern_fits_the_names_of_its_kind(pattern, name, fits):
    assert (registry.exactness(pattern, name) >= 0) == fits


@pytest.mark.parametrize(
    ("agent", "env", "recipe", "architecture"),
    [
        ("ppo", "ale:Pong", "ppo-pong", "sebulba"),
        ("ppo", "ale:Seaquest", "ppo-atari", "sebulba"),
        ("ppo", "gymnax:Breakout-MinAtar", "ppo-minatar-breakout", "anakin"),
        ("ppo", "gymnax:Seaquest-MinAtar", "ppo-minatar", "anakin"),
        ("ppo", "gym:HalfCheetah-v5", "ppo-halfcheetah", "sebulba"),
        ("ppo", "gym:Walker2d-v5", "ppo-mujoco", "sebulba"),
        ("sac", "gym:Ant-v5", "sac-mujoco", "sebulba"),
        ("sac", "dm:cheetah-run", "sac-control", "sebulba"),
        ("ppo", "gym:Blackjack-v1", "", "sebulba"),
    ],
)
def test_the_most_exact_recipe_is_taken(agent, env, recipe, architecture):
    found = config.resolve(agent, env)
    assert (found.run.recipe, found.architecture) == (recipe, architecture)
    if recipe == "ppo-halfcheetah":
        assert config.resolve("sac", env, "sebulba").run.recipe == "sac-mujoco"  # the exact one is for split


def test_two_recipes_that_fit_equally_are_named(monkeypatch):
    one = {"agent": {"name": "ppo"}, "env": {"name": "x:*a"}, "architecture": {"name": "sebulba"}}
    monkeypatch.setattr(registry, "recipes", lambda: {"one": one, "two": one | {"env": {"name": "x:b*"}}})
    with pytest.raises(ValueError, match="the recipes one and two fit x:ba equally; choose one with --config one"):
        registry.recipe_for("ppo", "x:ba", "sebulba")


def test_a_recipe_of_a_kind_needs_an_environment():
    with pytest.raises(ValueError, match=r"--config ppo-atari is for ale:\*: name one of these environments"):
        config.resolve(None, None, None, "ppo-atari")
    with pytest.raises(ValueError, match="env is 'gym:CartPole-v1' on the command line, but 'ale:"):
        config.resolve(None, "gym:CartPole-v1", None, "ppo-atari")


@pytest.mark.parametrize("architecture", ["anakin", "sebulba", "seed", "fleet"])
@pytest.mark.parametrize("steps", [10_000, 100_000, 1_000_000, 100_000_000])
def test_ppo_makes_enough_updates_however_long_the_run_is(architecture, steps):
    chosen = defaults("ppo", architecture, steps, {})["agent"]
    updates = steps / (chosen["batch"] * chosen["unroll"])
    assert updates >= FEW or chosen["unroll"] == 32 or chosen["batch"] == 8


def test_defaults_follow_from_what_is_said():
    chosen = config.resolve("ppo", "gym:Blackjack-v1", None, None, ["agent.batch=4", "agent.core=lstm"])
    assert (chosen.agent_settings.batch, chosen.agent_settings.minibatches) == (4, 4)
    small = config.resolve("ppo", "gym:Blackjack-v1", None, None, ["agent.batch=4", "agent.unroll=4"])
    assert small.agent_settings.minibatches == 1
    said = config.resolve("dqn", "gym:Blackjack-v1", None, None, ["agent.hidden=[8]", "architecture.envs=2"])
    assert (said.agent_settings.hidden, said.architecture_settings.envs) == ((8,), 2)


def test_entropy_counts_where_actions_are_discrete():
    for action, cost in ((Discrete(2), 0.01), (Continuous((1,), np.zeros(1), np.ones(1)), 0.0)):
        spec = Spec("some", jax.ShapeDtypeStruct((3,), np.float32), action)
        params = ppo(spec, Settings(entropy_cost=None, batch=4, unroll=4)).init(jax.random.key(0))
        assert params["settings"]["entropy_cost"] == np.float32(cost)


def test_of_an_agent_of_somebodys_own_nothing_is_known():
    assert defaults("my_agent:agent", "sebulba", 1000, {}) == {}
