"""From the command line, a recipe and a file to one resolved, typed configuration."""

import hashlib
import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tomli_w

from boonta.core import settings
from boonta.core.host import Workers
from boonta.core.names import nearest, unknown
from boonta.core.settings import convert
from boonta.envs import registry as environments
from boonta.experiments import files, registry, trust
from boonta.experiments.defaults import defaults
from boonta.experiments.tables import ARCHITECTURES, Run, meant

DEFAULTS = {"agent": "ppo", "env": "gymnax:CartPole-v1"}
NAMED = (*DEFAULTS, "architecture")  # tables with a name
TABLES = ("run", "agent", "env", "architecture")
_ATTRIBUTES = {"run": "run", "agent": "agent_settings", "architecture": "architecture_settings"}  # of Config, by table


class Config(NamedTuple):
    """Everything resolved. `env_settings` are the keyword arguments of the environment's factory."""

    run: Run
    agent: str
    agent_settings: Any
    env: str
    env_settings: dict[str, Any]
    architecture: str
    architecture_settings: Any

    def tables(self) -> dict[str, dict[str, Any]]:
        """As in `config.toml`."""
        return {
            "run": _plain(self.run),
            "agent": {"name": self.agent} | _plain(self.agent_settings),
            "env": {"name": self.env} | {k: "none" if x is None else x for k, x in self.env_settings.items()},
            "architecture": {"name": self.architecture} | _plain(self.architecture_settings),
        }


class Member(NamedTuple):
    """One member of the population: its seed, its swept settings, and what it is called."""

    seed: int
    overrides: dict[str, float]
    name: str


def architecture_for(
    agent: str | None,
    env: str | None,
    asked: str | None = None,
    file: str | Path | None = None,
    assignments: Sequence[str] = (),
) -> str:
    """The name of the architecture that `resolve` takes, whose arguments these are.

    It is the one asked for; else that of the file; else that of the recipes for this agent and environment, if all are
    for one; else Anakin where the environment compiles, and Sebulba where it does not.

    Raises:
        ValueError, FileNotFoundError: as `resolve`.
    """
    tables, _ = _read(file)
    if found := asked or tables.get("architecture", {}).get("name"):
        return found
    given = {"agent": agent, "env": env}
    names = {table: given[table] or tables.get(table, {}).get("name") or DEFAULTS[table] for table in DEFAULTS}
    if file is None and len(there := registry.architectures_of_recipes(names["agent"], names["env"])) == 1:
        return there.pop()
    settings, places = dict(tables.get("env", {})), tables.get("architecture", {})
    timeout = convert(places.get("worker_timeout", Workers().timeout), float, "architecture.worker_timeout")
    settings.pop("name", None)
    for text in assignments:
        table, key, value = _assignment(text)
        if table == "env":
            settings[key] = _literal(value)
        if (table, key) == ("architecture", "worker_timeout"):
            timeout = convert(value, float, "architecture.worker_timeout")
    return "anakin" if environments.compiles(names["env"], settings, timeout) else "sebulba"


def resolve(
    agent: str | None = None,
    env: str | None = None,
    architecture: str | None = None,
    file: str | Path | None = None,
    assignments: Sequence[str] = (),
    run: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration of a run.

    Later wins: defaults, the recipe that fits (or the one `file` names, or the TOML at `file`), `run`, `assignments`.
    Where there is no recipe, the defaults are those of `experiments.defaults`.

    Args:
        agent: its name; None for what the file says, or the default.
        env: likewise.
        architecture: likewise.
        file: the name of a recipe, the path of a TOML file, or "none" for no recipe at all.
        assignments: `table.key=value`.
        run: settings of the table `run`.

    Raises:
        ValueError: an unknown table, key or name, or a value that is not allowed.
        FileNotFoundError: `file` is neither a recipe nor a file.
    """
    tables, source = _read(file)
    asked = {"agent": agent, "env": env, "architecture": architecture}
    for table, name in asked.items():
        told = tables.get(table, {}).get("name")
        fits = name == told or (table == "env" and registry.exactness(told or "", name or "") >= 0)
        if name and told and table != "architecture" and not fits:
            raise ValueError(f"{table} is {name!r} on the command line, but {told!r} in {source}")
    asked["architecture"] = registry.architecture(architecture_for(agent, env, architecture, file, assignments))
    usual = DEFAULTS | {"architecture": ""}
    names = {table: asked[table] or tables.get(table, {}).get("name") or usual[table] for table in asked}
    if registry.is_pattern(names["env"]):
        raise ValueError(f"--config {source} is for {names['env']}: name one of these environments")
    entry = registry.agent(names["agent"])
    if file is None and (found := registry.recipe_for(**{f"{k}_name": v for k, v in names.items()})):
        tables, source = registry.recipes()[found], found
    merged = {table: dict(tables.get(table, {})) for table in TABLES}
    merged["run"] |= {key: value for key, value in (run or {}).items() if value is not None}
    for text in assignments:
        table, key, value = _assignment(text)
        if table in names and key == "name" and value != names[table]:
            raise ValueError(
                f"--set {text}: {table}.name is {names[table]!r}; name it on the command line or in --config"
            )
        merged[table][key] = value
    for table in names:
        merged[table].pop("name", None)
    if file is None or source in registry.recipes():
        merged["run"]["recipe"] = source
    run_settings = settings.build(Run, merged["run"], "run")
    if source not in registry.recipes():
        told = defaults(names["agent"], names["architecture"], run_settings.steps, merged["agent"])
        merged |= {table: values | merged[table] for table, values in told.items()}
    config = Config(
        run=run_settings,
        agent=names["agent"],
        agent_settings=settings.build(entry.settings, merged["agent"], "agent"),
        env=names["env"],
        env_settings=entry.env | {key: _literal(value) for key, value in merged["env"].items()},
        architecture=names["architecture"],
        architecture_settings=settings.build(
            ARCHITECTURES[names["architecture"]], merged["architecture"], "architecture"
        ),
    )
    if not apart(config):
        members(config)
    return config


def axes(config: Config) -> list[tuple[str, list[str]]]:
    """What is swept, each as `table.key` with its values.

    Raises:
        ValueError: a key or a value that is not allowed, or one that is named twice.
    """
    found: list[tuple[str, list[str]]] = []
    for text in config.run.sweep:
        key, _, listed = text.partition("=")
        table, _, name = key.strip().rpartition(".")
        table = table or "agent"
        values = [value.strip() for value in re.split(r",(?![^\[]*\])", listed)]  # of lists the commas stay
        if not all([name, *values]):
            raise ValueError(f"run.sweep must look like key=v1,v2,..., got {text!r}")
        if table not in TABLES or (table == "run" and name in ("seed", "seeds", "sweep")):
            raise ValueError(f"run.sweep: {key.strip()!r} cannot be swept; take a setting of {', '.join(TABLES)}")
        if table != "env":
            built = [settings.build(type(getattr(config, _ATTRIBUTES[table])), {name: x}, table) for x in values]
            same = len({getattr(one, name) for one in built}) < len(built)
        else:
            same = len({*values}) < len(values)
        if same:
            raise ValueError(f"run.sweep names a value of {name!r} twice, got {listed!r}")
        if any(f"{table}.{name}" == other for other, _ in found):
            raise ValueError(f"run.sweep names {name!r} twice; allowed: once, with all its values")
        found.append((f"{table}.{name}", values))
    return found


def apart(config: Config) -> bool:
    """Whether the members of the population are runs of their own, for no one program holds them.

    Side by side, in one program, are those of Anakin, if what is swept is traced.
    """
    swept = [key for key, _ in axes(config)]
    inside = {f"agent.{key}" for key in settings.continuous(config.agent_settings)}
    alone = config.run.seeds == 1 and not swept
    return not alone and not (config.architecture == "anakin" and inside.issuperset(swept))


def points(config: Config) -> list[tuple[int, list[str], str]]:
    """The grid of the sweep times the seeds: each a seed, `table.key=value` of what is swept, and what it is called."""
    swept, population = axes(config), []
    for point in itertools.product(*(values for _, values in swept)):
        pairs = list(zip((key for key, _ in swept), point, strict=True))
        for seed in range(config.run.seed, config.run.seed + config.run.seeds):
            name = ",".join([*(f"{key.removeprefix('agent.')}={value}" for key, value in pairs), f"seed={seed}"])
            population.append((seed, [f"{key}={value}" for key, value in pairs], name))
    return population


def members(config: Config) -> list[Member]:
    """The population of one program: the grid of the sweep times the seeds.

    Raises:
        ValueError: a swept key that is unknown or not continuous, or a value of it that is no number in its range.
    """
    most = 2**31 - config.run.seed
    if config.run.seeds > most:
        raise ValueError(f"run.seeds must be at most {most} from the seed {config.run.seed}, got {config.run.seeds}")
    numbers: list[list[tuple[str, float]]] = []
    for full, values in axes(config):
        table, _, key = full.partition(".")
        if table != "agent" or key not in settings.continuous(config.agent_settings):
            raise ValueError(f"run.sweep: {full!r} is not traced, and cannot be swept in one program")
        checked = [getattr(settings.build(type(config.agent_settings), {key: x}, "agent"), key) for x in values]
        if None in checked:
            raise ValueError(f"run.sweep: the values of {key!r} must be numbers, got {','.join(values)!r}")
        numbers.append([(key, float(number)) for number in checked])
    population = []
    for point in itertools.product(*numbers):
        for seed in range(config.run.seed, config.run.seed + config.run.seeds):
            name = ",".join([*(f"{key}={value:g}" for key, value in point), f"seed={seed}"])
            population.append(Member(seed, dict(point), name))
    return population


def iterations(config: Config, steps: float, updates: int, before: int = 0) -> int:
    """Iterations of the run, of so many environment steps and updates each, after so many steps before the first.

    Raises:
        ValueError: more updates than are counted.
    """
    n = max(1, int((config.run.steps - before) // steps))
    if n * updates >= 2**31:  # states count updates in int32
        most = int((2**31 - 1) // updates * steps)
        raise ValueError(f"run.steps must be at most {most} with these settings, got {config.run.steps}")
    return n


def alone(config: Config) -> Config:
    """The same on one device, whatever devices it was for."""
    changes: dict[str, Any] = {"devices": 1}
    if config.architecture == "sebulba":
        changes = {"actors": "auto", "learners": "auto", "trace": ""}
    if config.architecture == "seed":
        changes = {"inference": "auto", "learners": "auto", "trace": "", "actors": 0}
    if config.architecture == "fleet":
        changes = {"devices": 1, "cluster": "", "crew": "threads"}
    if config.architecture == "split":
        changes |= {"transport": "shm", "cluster": "", "remote": (), "coordinator": "", "insecure": False}
    return config._replace(architecture_settings=replace(config.architecture_settings, **changes))


def stacked(population: Sequence[Member]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The seeds, int32 [M], and the swept settings, float32 [M] each, of a population."""
    seeds = np.asarray([member.seed for member in population], np.int32)
    swept = population[0].overrides
    return seeds, {key: np.asarray([m.overrides[key] for m in population], np.float32) for key in swept}


def write(config: Config) -> str:
    """The text of `config.toml`."""
    return tomli_w.dumps(config.tables())


def load(path: Path, beyond: bool = False) -> Config:
    """The configuration of a run folder's `config.toml`.

    Args:
        path: of the file.
        beyond: whether the run goes on, and so to the files and machines beyond it that are named.

    Raises:
        Untrusted: it names modules, or such places, and this user has not agreed to that.
        ValueError: it is not what `write` writes.
    """
    text = _folder_text(path)
    trust.check(path.parent, text, parsed(text, str(path)), beyond)
    return loaded(text, str(path))


def tables_of(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a run folder's `config.toml`, of which nothing is imported.

    Raises:
        ValueError: it is not what `write` writes.
    """
    return parsed(_folder_text(path), str(path))


def trusted(path: Path) -> list[str]:
    """Seal a run folder's `config.toml`, for this user; the modules and places that it names.

    Raises:
        ValueError: it is not what `write` writes.
    """
    text = _folder_text(path)
    trust.seal(path.parent, text, tables := parsed(text, str(path)))
    return [*trust.modules(tables).values(), *trust.places(tables)]


def loaded(text: str, called: str) -> Config:
    """The configuration of such a text.

    Raises:
        ValueError: it is not what `write` writes.
    """
    tables = parsed(text, called)
    names = {table: tables[table].pop("name") for table in NAMED}
    entry = registry.agent(names["agent"])
    return Config(
        run=settings.build(Run, tables["run"], "run"),
        agent=names["agent"],
        agent_settings=settings.build(entry.settings, tables["agent"], "agent"),
        env=names["env"],
        env_settings={key: _literal(value) if value == "none" else value for key, value in tables["env"].items()},
        architecture=names["architecture"],
        architecture_settings=settings.build(
            ARCHITECTURES[names["architecture"]], tables["architecture"], "architecture"
        ),
    )


def fingerprint(tables: Mapping[str, Any]) -> str:
    """Of a configuration's tables: the same for the same values."""
    return hashlib.sha256(json.dumps(tables, sort_keys=True, default=str).encode()).hexdigest()[:16]


def differences(old: Config, new: Config) -> list[str]:
    """`table.key: old -> new` for every value that is not the same."""
    before, after = old.tables(), new.tables()
    return [
        f"{table}.{key}: {before[table].get(key)!r} -> {after[table].get(key)!r}"
        for table in TABLES
        for key in sorted(before[table].keys() | after[table].keys())
        if before[table].get(key) != after[table].get(key)
    ]


def changed(
    config: Config,
    agent: str | None,
    env: str | None,
    architecture: str | None,
    file: str | Path | None,
    assignments: Sequence[str],
    run: Mapping[str, Any],
) -> list[str]:
    """What a command line would change in a configuration, as `differences`; the arguments are those of `resolve`."""
    names = {"agent": agent, "env": env, "architecture": architecture}
    tables, _ = _read(file)
    tables = {table: dict(tables.get(table, {})) for table in TABLES}
    tables["run"] |= {key: value for key, value in run.items() if value is not None}
    for table, name in names.items():
        tables[table] |= {"name": name} if name else {}
    for text in assignments:
        table, key, value = _assignment(text)
        tables[table][key] = value
    if any(tables[table].get("name", getattr(config, table)) != getattr(config, table) for table in names):
        said = {table: tables[table]["name"] for table in names if "name" in tables[table]}
        return [
            f"{table}.name: {getattr(config, table)!r} -> {name!r}"
            for table, name in said.items()
            if name != getattr(config, table)
        ]
    for table in names:
        tables[table].pop("name", None)
    before = config.tables()
    new = Config(
        run=settings.build(Run, before["run"] | tables["run"], "run"),
        agent=config.agent,
        agent_settings=settings.build(
            type(config.agent_settings), _less_name(before["agent"]) | tables["agent"], "agent"
        ),
        env=config.env,
        env_settings=config.env_settings | {key: _literal(value) for key, value in tables["env"].items()},
        architecture=config.architecture,
        architecture_settings=settings.build(
            type(config.architecture_settings),
            _less_name(before["architecture"]) | tables["architecture"],
            "architecture",
        ),
    )
    return differences(config, new)


def _less_name(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key != "name"}


def _read(file: str | Path | None) -> tuple[dict[str, Any], str]:
    if file is None or str(file) == "none":
        return {}, ""
    if str(file) in (shipped := registry.recipes()):
        return shipped[str(file)], str(file)
    path = Path(file)
    if not path.is_file():
        near = nearest(str(file), shipped) or ";"
        raise FileNotFoundError(f"--config {file}: neither a file nor a recipe{near} see `boonta list recipes`")
    return _parse(_text(path, f"--config {file}"), f"--config {file}"), str(file)


def _folder_text(path: Path) -> str:
    """Of a run folder, which may be somebody else's."""
    try:
        return files.read_bytes(path).decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {error}") from error


def _text(path: Path, called: str) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{called}: {error}") from error


def _parse(text: str, called: str) -> dict[str, Any]:
    try:
        tables = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{called}: {error}") from error
    for table in tables:
        if table not in TABLES:
            raise ValueError(f"{called}: {unknown('table', table, TABLES)}")
        if not isinstance(tables[table], dict):
            raise ValueError(f"{called}: {table!r} must be a table [{table}], got {tables[table]!r}")
    return tables


def parsed(text: str, called: str) -> dict[str, dict[str, Any]]:
    """The tables of a text, of which nothing is imported.

    Args:
        text: of a configuration.
        called: what it is called in messages.

    Raises:
        ValueError: it is not what `write` writes.
    """
    tables = _parse(text, called)
    if missing := [
        table
        for table in TABLES
        if table not in tables or (table in NAMED and not isinstance(tables[table].get("name"), str))
    ]:
        raise ValueError(f"{called} is damaged: {', '.join(missing)} is missing or has no name")
    return tables


def _assignment(text: str) -> tuple[str, str, str]:
    path, separator, value = text.partition("=")
    table, dot, key = path.strip().partition(".")
    if not separator or not dot or table not in TABLES:
        near = nearest(table, TABLES)
        if not dot and (key := meant(path.strip())):
            near = f": did you mean {key}={value or 'VALUE'}?"
        raise ValueError(f"--set {text!r} must look like table.key=value with a table of {', '.join(TABLES)}{near}")
    return table, key, value.strip()


def _literal(value: Any) -> Any:
    """A value of the command line as TOML would read it; `none` is None, and another bare word a string."""
    if not isinstance(value, str):
        return value
    if value == "none":
        return None
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value


def _plain(table: Any) -> dict[str, Any]:
    """A settings dataclass as TOML can hold it: None is written "none"."""
    values = asdict(table)
    out = {}
    for field in fields(table):
        value = values[field.name]
        out[field.name] = "none" if value is None else list(value) if isinstance(value, tuple) else value
    return out
