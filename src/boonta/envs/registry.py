"""Environments by name: `family:Name`, or `package.module:factory` for the user's own."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

from boonta.core.host import Host
from boonta.core.settings import convert
from boonta.envs.errors import unknown

if TYPE_CHECKING:
    from boonta.core.environment import Environment

# Nothing is imported before it is asked for: a process that steps environments of the host need not have JAX.
_OWN = {
    "catch": "catch:make",
    "chain": "chain:make",
    "gridworld": "gridworld:make",
    "memory": "memory:make",
    "tmaze": "tmaze:make",
    "probe-value": "probes:value",
    "probe-context": "probes:context",
    "probe-discount": "probes:discount",
    "probe-reach": "probes:reach",
}

# Where `make(name, **settings)` and `names()` of a bridge are.
_BRIDGES = {
    "gymnax": "boonta.envs.gymnax",
    "ale": "boonta.envs.ale",
    "brax": "boonta.envs.brax",
    "dm": "boonta.envs.dm",
    "gym": "boonta.envs.gym",
    "minatar": "boonta.envs.minatar",
    "openspiel": "boonta.envs.openspiel",
    "pgx": "boonta.envs.pgx",
    "playground": "boonta.envs.playground",
}
FAMILIES = ("boonta", *_BRIDGES)


def make(name: str, model: bool = False, **settings: Any) -> "Environment | Host":
    """The environment called `name`.

    Args:
        name: `boonta:catch`, `gymnax:CartPole-v1`, ..., or `package.module:factory`, where `factory(**settings)`
            returns an Environment, a Host, a gymnasium.Env or a dm_env.Environment. The current directory is on the
            path of that import.
        model: let agents plan with the environment itself (`core.environment.modelled`).
        **settings: what the environment's factory takes.

    Returns:
        An Environment if it compiles, a Host if it steps on the host.

    Raises:
        ValueError: the family, the name or a setting is unknown (the message says what is allowed and what is
            nearest), a value is refused by the factory, a factory's answer is none of these, or it was to be a model
            and does not compile.
        ImportError: the bridge's package is not installed; the message is the `pip install` line.
    """
    made = _made(name, settings)
    if not model:
        return made
    if isinstance(made, Host):
        raise ValueError(
            f"{name} does not compile, so agents cannot plan with the game itself (env.model): take muzero in place of "
            "alphazero, or a game of pgx:"
        )
    from boonta.core.environment import modelled

    return modelled(made)


def _made(name: str, settings: dict[str, Any]) -> "Environment | Host":
    family, separator, rest = name.partition(":")
    if not separator:
        raise unknown("environment", name, names())
    if family == "boonta":
        if rest not in _OWN:
            raise unknown("environment of the family 'boonta'", rest, _OWN)
        module, factory = _OWN[rest].split(":")
        return _call(getattr(importlib.import_module(f"boonta.envs.{module}"), factory), name, settings)
    if family in _BRIDGES:
        return _call(importlib.import_module(_BRIDGES[family]).make, name, settings, rest)
    factory = _own_factory(family, rest)
    return _taken(_call(factory, name, settings), name, partial(factory, **settings))


def names(family: str | None = None) -> tuple[str, ...]:
    """Every `family:Name` that `make` knows, of one family or of all whose packages are installed.

    Raises:
        ValueError: the family is unknown.
        ImportError: the family was asked for and its package is not installed.
    """
    if family is None:
        return names("boonta") + tuple(name for bridge in _BRIDGES for name in _names_if_installed(bridge))
    if family == "boonta":
        return tuple(f"boonta:{name}" for name in _OWN)
    if family in _BRIDGES:
        return tuple(f"{family}:{name}" for name in importlib.import_module(_BRIDGES[family]).names())
    raise unknown("family", family, FAMILIES)


def _names_if_installed(family: str) -> tuple[str, ...]:
    try:
        return names(family)
    except ImportError:
        return ()


def _call(factory: Callable[..., Any], name: str, settings: Mapping[str, Any], *given: Any) -> Any:
    """What the factory makes of what is `given` and of the settings, which are those that it names, of their types."""
    parameters = [*inspect.signature(factory).parameters.values()][len(given) :]
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        allowed = [parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY]
        for key in settings:
            if key not in allowed:
                raise unknown(f"setting of {name}", key, allowed)
    try:
        inspect.signature(factory).bind(*given, **settings)
    except TypeError as error:
        raise ValueError(f"{name} cannot be made with {settings or 'no settings'}: {error}") from None
    try:
        hints = get_type_hints(factory)
    except (NameError, TypeError):  # names that only a type checker imports; a partial
        hints = {}
    plain = (bool, int, float, str)
    taken = {k: convert(x, hints[k], f"env.{k}") if hints.get(k) in plain else x for k, x in settings.items()}
    return factory(*given, **taken)


def _own_factory(module_name: str, attribute: str) -> Callable[..., Any]:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # Something that the user's module imports is missing, not the module.
        told = unknown("family or module", module_name, FAMILIES)
        raise ValueError(f"{told}, or module:factory of a module in the current folder or installed") from None
    factory = getattr(module, attribute, None)
    if not callable(factory):
        public = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
        raise unknown(f"factory in module {module_name}", attribute, public)
    return factory


def _taken(made: Any, name: str, factory: Callable[..., Any]) -> "Environment | Host":
    if isinstance(made, Host) or _is(made, "boonta.core.environment", "Environment"):
        return made
    for bridge, module, kind in (("gym", "gymnasium", "Env"), ("dm", "dm_env", "Environment")):
        if _is(made, module, kind):
            made.close()
            return importlib.import_module(_BRIDGES[bridge]).of(name, factory)
    kind = f"{type(made).__module__}.{type(made).__qualname__}"
    raise ValueError(
        f"{name} returned a {kind}; allowed: a boonta.core.environment.Environment, a boonta.core.host.Host, a "
        "gymnasium.Env or a dm_env.Environment"
    )


def _is(made: Any, module: str, kind: str) -> bool:
    """Whether it is of this class; if the module was never imported, it is not."""
    return module in sys.modules and isinstance(made, getattr(sys.modules[module], kind))
