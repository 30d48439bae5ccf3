"""Agents, architectures and recipes by name: the only place that sees both kinds."""

import importlib
import re
import tomllib
from collections.abc import Callable
from importlib import resources
from typing import Any, NamedTuple

from boonta.core.agent import Agent
from boonta.core.names import unknown
from boonta.core.own_modules import own_module, without_its_factory

AGENTS = {
    "alphazero": "boonta.agents.alphazero:alphazero",
    "ddpg": "boonta.agents.ddpg:ddpg",
    "dqn": "boonta.agents.dqn:dqn",
    "muzero": "boonta.agents.muzero:muzero",
    "ppo": "boonta.agents.ppo:ppo",
    "r2d2": "boonta.agents.r2d2:r2d2",
    "sac": "boonta.agents.sac:sac",
    "td3": "boonta.agents.td3:td3",
    "vtrace": "boonta.agents.vtrace:vtrace",
}
ARCHITECTURES = ("anakin", "sebulba", "seed", "fleet", "split")


class AgentEntry(NamedTuple):
    """An agent by name.

    Attributes:
        factory: (spec, settings, total_updates) -> Agent.
        settings: its settings dataclass.
        env: settings that its environments have unless others are asked for.
    """

    factory: Callable[..., Agent]
    settings: type
    env: dict[str, Any]


def agent(name: str) -> AgentEntry:
    """The agent called `name`: one of AGENTS, or the user's own `package.module:factory`.

    A module with a factory has a dataclass `Settings` beside it, made of `core.settings.setting` fields; and may have a
    dictionary `ENV` of settings that the agent's environments are to have.

    Raises:
        ValueError: unknown, or without settings.
    """
    path = AGENTS.get(name, name)
    module_name, separator, attribute = path.partition(":")
    if not separator and (told := without_its_factory(name)):
        raise ValueError(told)
    if not separator or not module_name or module_name.startswith("."):
        raise unknown("agent", name, [*AGENTS, "module:factory"])
    try:
        module = own_module(module_name) if name == path else importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise
        raise ValueError(f"agent {name!r}: there is no module {module_name!r}") from error
    if not callable(getattr(module, attribute, None)) or not hasattr(module, "Settings"):
        raise ValueError(f"agent {name!r}: module {module_name} must define {attribute!r} and a dataclass 'Settings'")
    return AgentEntry(getattr(module, attribute), module.Settings, getattr(module, "ENV", {}))


def own_module_of(name: str) -> str:
    """The module that an agent is of where it is the user's own; nothing where it comes with the package."""
    return "" if name in AGENTS or ":" not in name else name.partition(":")[0]


def architecture(name: str) -> str:
    """The name itself, if there is such an architecture.

    Raises:
        ValueError: unknown.
    """
    if name not in ARCHITECTURES:
        raise unknown("architecture", name, ARCHITECTURES)
    return name


def recipes() -> dict[str, dict[str, Any]]:
    """All recipes of the package, by name."""
    found = {}
    for file in sorted((resources.files("boonta") / "recipes").iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            found[file.name.removesuffix(".toml")] = tomllib.loads(file.read_text("utf-8"))
    return found


def recipe_for(agent_name: str, env_name: str, architecture_name: str) -> str | None:
    """The recipe tuned for this agent, environment and architecture, if there is one: the most exact.

    Raises:
        ValueError: two are equally exact.
    """
    there = [(exact, name) for exact, where, name in _fitting(agent_name, env_name) if where == architecture_name]
    best = [name for exact, name in there if exact == max(there)[0]]
    if len(best) > 1:
        raise ValueError(
            f"the recipes {' and '.join(best)} fit {env_name} equally; choose one with --config {best[0]}, or "
            "--config none"
        )
    return best[0] if best else None


def architectures_of_recipes(agent_name: str, env_name: str) -> set[str]:
    """The architectures for which there is a recipe for this agent and environment, of the most exact ones."""
    there = _fitting(agent_name, env_name)
    return {where for exact, where, _ in there if exact == max(there)[0]}


def _fitting(agent_name: str, env_name: str) -> list[tuple[int, str, str]]:
    """How exactly, the architecture and the name of each recipe that fits."""
    found = [
        (exactness(recipe["env"]["name"], env_name), recipe["architecture"]["name"], name)
        for name, recipe in recipes().items()
        if recipe["agent"]["name"] == agent_name
    ]
    return [one for one in found if one[0] >= 0]


def is_pattern(name: str) -> bool:
    """Whether it fits several environments."""
    return "*" in name or "{" in name


def exactness(pattern: str, name: str) -> int:
    """How exactly a pattern of names fits a name: the characters that it fixes, -1 where it does not fit.

    In a pattern `*` is anything, and `{a,b}` is a or b. The name itself fits most exactly.
    """
    if pattern == name:
        return 2 * len(name)
    parts = re.split(r"(\*|\{[^{}]*\})", pattern)
    options = ["|".join(map(re.escape, part[1:-1].split(","))) for part in parts[1::2]]
    wild = [".*" if part == "*" else f"(?:{option})" for part, option in zip(parts[1::2], options, strict=True)]
    fixed = [re.escape(part) for part in parts[::2]]
    whole = "".join(x for pair in zip(fixed, [*wild, ""], strict=True) for x in pair)
    return sum(map(len, parts[::2])) if re.fullmatch(whole, name) else -1
