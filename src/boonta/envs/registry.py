"""Environments by name: `family:Name`, or `package.module:factory` for the user's own."""

import importlib
import inspect
import json
import multiprocessing
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, get_type_hints

from boonta.core.host import Host
from boonta.core.names import ENVS, unknown
from boonta.core.own_modules import own_module, without_its_factory
from boonta.core.settings import Refused, convert
from boonta.core.spec import Continuous
from boonta.envs import trials
from boonta.envs.errors import Unsuitable, failing

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

# Bridges to what a factory of the user's own may return, by its module and class.
_ALIEN = (("gym", "gymnasium", "Env"), ("dm", "dm_env", "Environment"))
COMPILED = ("boonta", "brax", "gymnax", "pgx", "playground")  # families
OURS = ("model", "action_span")  # settings that every environment has, unless its own factory names them


def make(name: str, /, **settings: Any) -> "Environment | Host":
    """The environment called `name`.

    Args:
        name: `boonta:catch`, `gymnax:CartPole-v1`, ..., or `package.module:factory`, where `factory(**settings)`
            returns an Environment, a Host, a gymnasium.Env or a dm_env.Environment. The current directory is on the
            path of that import.
        **settings: what the environment's factory takes, and two that all have: `model`, whether agents may plan with
            the environment itself (`core.environment.modelled`); `action_span`, how far they reach where an action has
            no bound (`Continuous.span`). A factory of the user's own that names one of these has it to itself.

    Returns:
        An Environment if it compiles, a Host if it steps on the host.

    Raises:
        ValueError: the family, the name or a setting is unknown (the message says what is allowed and what is
            nearest), a value is refused by the factory, a factory's answer is none of these, or it was to be a model
            and does not compile.
        Failing: an environment of the host failed when it was tried.
        ImportError: the bridge's package is not installed; the message is the `pip install` line.
    """
    family, _, rest = name.partition(":")
    own = () if family in FAMILIES or not rest else _parameters(_own_factory(family, rest))
    common, settings = _divided(settings, own)
    made = _made(name, settings)
    if "action_span" in common:
        made = _reaching(made, convert(common["action_span"], float, "env.action_span"))
    if not convert(common.get("model", False), bool, "env.model"):
        return made
    if isinstance(made, Host):
        raise ValueError(
            f"{name} does not compile, so agents cannot plan with the game itself (env.model): take muzero in place of "
            "alphazero, or a game of pgx:"
        )
    from boonta.core.environment import modelled

    return modelled(made)


def _divided(settings: Mapping[str, Any], own: Iterable[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings that every environment has, unless its factory names them (`own`), and the factory's."""
    common = {key: value for key, value in settings.items() if key in OURS and key not in own}
    return common, {key: value for key, value in settings.items() if key not in common}


def _made(name: str, settings: dict[str, Any]) -> "Environment | Host":
    family, separator, rest = name.partition(":")
    if not separator:
        if told := without_its_factory(name):
            raise ValueError(told)
        raise unknown("environment", name, names(), ENVS)
    if family == "boonta":
        if rest not in _OWN:
            raise unknown("environment", rest, _OWN, ENVS, "boonta:")
        module, factory = _OWN[rest].split(":")
        return _call(getattr(importlib.import_module(f"boonta.envs.{module}"), factory), name, settings)
    if family in _BRIDGES:
        made = partial(_call, importlib.import_module(_BRIDGES[family]).make, name, settings, rest)
        return importlib.import_module("boonta.envs.bits").in_32_bits(made) if family in COMPILED else made()
    return _own(name, _own_factory(family, rest), settings)


def own_module_of(name: str) -> str:
    """The module that an environment is of where it is the user's own; nothing where a bridge makes it."""
    family, _, rest = name.partition(":")
    if family == "gym" and rest.startswith("GymV"):
        return rest  # makes what its settings name, of any module
    return family if rest and family not in FAMILIES else ""


def compiles(name: str, settings: Mapping[str, Any], timeout: float) -> bool:
    """Whether `make` would give an Environment, found out without JAX in this process; False where it would fail.

    Args:
        name: of the environment.
        settings: likewise.
        timeout: seconds that a factory of the user's own may take.
    """
    family, _, rest = name.partition(":")
    if family in FAMILIES or not rest:
        return family in COMPILED
    factory = _own_factory(family, rest)
    if isinstance(factory, type) and any(
        module in sys.modules and issubclass(factory, getattr(sys.modules[module], kind)) for _, module, kind in _ALIEN
    ):
        return False
    # In a process of its own: making it may open devices, which this one has still to choose.
    # It has this path of imports only once Python has started, which runs modules of certain names where it finds any.
    words = [sys.executable, "-P", "-c", _LOOK, name, json.dumps(dict(settings)), json.dumps(sys.path)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=True)
    except (subprocess.SubprocessError, OSError):  # `make` will say what is wrong with it
        return False
    return done.stdout.splitlines()[-1:] == ["compiles"]


# It ends without waiting for threads that an environment may have left.
_LOOK = """
import json, os, sys
sys.path[:] = json.loads(sys.argv[3])
from boonta.envs.registry import _kind
print(_kind(sys.argv[1], json.loads(sys.argv[2])), flush=True)
os._exit(0)
"""


def _kind(name: str, settings: dict[str, Any]) -> str:
    """`compiles`, or `steps` for any other."""
    factory = _own_factory(*name.split(":", 1))
    made = _call(factory, name, _divided(settings, _parameters(factory))[1])
    return "compiles" if _is(made, "boonta.core.environment", "Environment") else "steps"


def _reaching(made: "Environment | Host", span: float) -> "Environment | Host":
    """With actions that reach so far where they have no bounds."""
    action = made.spec.action
    if not isinstance(action, Continuous) or action.bounded().all():
        raise ValueError(f"env.action_span is for actions without bounds, and {made.spec.name} has none of those")
    if not 0 < span < float("inf"):
        raise ValueError(f"env.action_span must be above 0 and finite, got {span:g}")
    return made._replace(spec=made.spec._replace(action=action._replace(span=span)))


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
    return factory(*given, **_taken(factory, name, settings, *given))


def _taken(factory: Callable[..., Any], name: str, settings: Mapping[str, Any], *given: Any) -> dict[str, Any]:
    """The settings as the factory takes them."""
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
    return {k: convert(x, hints[k], f"env.{k}") if hints.get(k) in plain else x for k, x in settings.items()}


def _parameters(factory: Callable[..., Any]) -> Mapping[str, Any]:
    return inspect.signature(factory).parameters


def _own_factory(module_name: str, attribute: str) -> Callable[..., Any]:
    try:
        module = own_module(module_name)
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


def _own(name: str, factory: Callable[..., Any], settings: Mapping[str, Any]) -> "Environment | Host":
    """What a factory of the user's own makes. Others than ours are made, looked at and closed where a trial is made."""
    bound = partial(factory, **_taken(factory, name, settings))
    try:
        made = trials.tried(partial(_looked_at, name, bound))
    except (Unsuitable, Refused) as error:
        raise ValueError(str(error)) from error
    except ImportError:
        raise
    except Exception as error:  # whatever the environment raises
        raise failing(name, settings, error) from error
    if isinstance(made, Alien):
        return importlib.import_module(_BRIDGES[made.bridge]).host_of(name, bound, made.found)
    made = bound() if made is None else made
    if isinstance(made, Host):
        return made
    if _is(made, "boonta.core.environment", "Environment"):
        if not isinstance(made.spec.observation, dict) or "action_mask" not in made.spec.observation:
            return made
        from boonta.envs.wrappers import named_mask

        return named_mask(made)
    kind = f"{type(made).__module__}.{type(made).__qualname__}"
    raise ValueError(
        f"{name} returned a {kind}; allowed: a boonta.core.environment.Environment, a boonta.core.host.Host, a "
        "gymnasium.Env or a dm_env.Environment"
    )


class Alien(NamedTuple):
    """An environment of another library: its bridge, and what the trial found."""

    bridge: str
    found: trials.Tried


def _looked_at(name: str, factory: Callable[[], Any]) -> Any:
    """What the trial of a factory finds: Alien, or what it made; None for that in a process, as it stays there."""
    made = factory()
    for bridge, module, kind in _ALIEN:
        if _is(made, module, kind):
            return Alien(bridge, importlib.import_module(_BRIDGES[bridge]).trial(name, made))
    return made if multiprocessing.parent_process() is None else None


def _is(made: Any, module: str, kind: str) -> bool:
    """Whether it is of this class; if the module was never imported, it is not."""
    return module in sys.modules and isinstance(made, getattr(sys.modules[module], kind))
