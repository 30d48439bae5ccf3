"""Writes docs/settings.md from the settings dataclasses themselves: python docs/generate_settings.py."""

import dataclasses
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from boonta.agents import common, planning
from boonta.experiments import registry, tables

PAGE = Path(__file__).with_name("settings.md")

HEAD = """\
# Settings

<!-- Written by docs/generate_settings.py from the dataclasses; do not edit. -->

Give a setting on the command line with `--set TABLE.KEY=VALUE`, or in a TOML file under `[TABLE]` with `--config
FILE.toml`. The tables are `run`, `agent`, `env` and `architecture`. An unknown key, a value of the wrong type or one
out of its range is refused before anything is compiled. Everything resolved is in the run folder's `config.toml`,
of environments what was set.
Lists are written `64,64` on the command line and `[64, 64]` in TOML; `none` is no value.

**Traced** settings are arrays inside the compiled program. They may be swept: `--sweep learning_rate=1e-3,3e-3`.

These are the defaults of the settings themselves, on which recipes build. A run without a recipe has others of `ppo`,
`dqn`, `ddpg`, `td3` and `sac`: [defaults without a recipe](command-line.md#defaults-without-a-recipe).

The keys of `env` are the arguments of the environment's factory: see [environments](environments.md).
"""


SHARED = (common.TorsoSettings, common.NetworkSettings, planning.PlannerSettings)  # which have tables of their own


def page() -> str:
    """The text of docs/settings.md."""
    parts = [HEAD, "## `agent`: network and rewards, of every agent of ours\n"]
    parts += ["An agent's own table has the defaults that it changes.\n", table(common.TorsoSettings)]
    parts += ["## `agent`: more of the network, of ppo and vtrace\n"]
    parts += [table(common.NetworkSettings, without=[common.TorsoSettings])]
    parts += ["## `agent`: of muzero and alphazero\n", table(planning.PlannerSettings)]
    for name in registry.AGENTS:
        own = registry.agent(name).settings
        shared = [one for one in SHARED if issubclass(own, one)]
        parts += [f"## `agent`: {name}\n", table(own, without=shared)]
    parts += ["## `run`\n", table(tables.Run)]
    for name, cls in tables.ARCHITECTURES.items():
        parts += [f"## `architecture`: {name}\n", table(cls)]
    return "\n".join(parts)


def table(cls: Any, without: Sequence[Any] = ()) -> str:
    """A Markdown table of the fields of a settings dataclass that are not as in others."""
    hints = get_type_hints(cls)
    there = {(field.name, field.default) for other in without for field in dataclasses.fields(other)}
    fields = [field for field in dataclasses.fields(cls) if (field.name, field.default) not in there]
    marked = any(field.metadata["traced"] for field in fields)
    rows = [["key", "default", "allowed", *(["traced"] if marked else []), "meaning"]]
    rows.append(["---"] * len(rows[0]))
    for field in fields:
        traced = ["yes" if field.metadata["traced"] else ""] if marked else []
        meaning = field.metadata["doc"].replace("|", "\\|")
        allowed = kind(hints[field.name]) + span(field.metadata)
        rows.append([f"`{field.name}`", f"`{value(field.default)}`", allowed, *traced, meaning])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def kind(hint: Any) -> str:
    """What a field may hold, in words."""
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join("none" if option is type(None) else kind(option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return ", ".join(f"`{option}`" for option in get_args(hint))
    if get_origin(hint) is tuple:
        return {"int": "integers", "str": "texts"}[get_args(hint)[0].__name__]
    return {"int": "integer", "float": "number", "bool": "`true`, `false`", "str": "text"}[hint.__name__]


def span(metadata: Any) -> str:
    """The bounds of a field, in words."""
    low, high, above = (f"{x:.10g}" if x is not None else None for x in map(metadata.get, ("low", "high", "above")))
    if above is not None:
        return f", above {above}" + (f", at most {high}" if high else "")
    if low is None and high is None:
        return ""
    return f", at least {low}" if high is None else f", at most {high}" if low is None else f", {low} to {high}"


def value(default: Any) -> str:
    """A default as the command line would take it."""
    if isinstance(default, tuple):
        return ",".join(map(str, default)) or "(empty)"
    if isinstance(default, bool):
        return str(default).lower()
    return "none" if default is None else str(default) or "(empty)"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
