"""How the environments refuse a setting."""

from collections.abc import Mapping
from typing import Any


def require(holds: bool, setting: str, value: object, allowed: str) -> None:
    """Raises ValueError unless `holds`: `value` is refused for `setting`, which must be `allowed`."""
    if not holds:
        raise ValueError(f"{setting} must be {allowed}, got {value!r}")


class Unsuitable(ValueError):
    """A space that no agent of ours can take."""


class Unfit(ValueError):
    """Something that an environment gave is not what its spaces say, or can be nothing that an agent learns from."""


class Failing(ValueError):
    """An environment that failed when it was tried; the message has its own error."""


def not_made(name: str, settings: Mapping[str, Any] | None, error: Exception) -> ValueError:
    """The error for an environment that refused its settings with `error`."""
    given = dict(settings or {}) or "no settings"
    return ValueError(f"{name} cannot be made with {given}: {type(error).__name__}: {error}")


def failing(name: str, settings: Mapping[str, Any] | None, error: Exception) -> Failing:
    """The error for an environment that raised `error` when it was tried."""
    given = dict(settings or {}) or "no settings"
    return Failing(f"{name} failed when it was tried with {given}: {type(error).__name__}: {error}")


def closing(name: str, error: Exception) -> str:
    """The remark on an environment whose `close` raised `error`."""
    return f"{name}: close() raised {type(error).__name__}: {error}; what it holds may stay open"
