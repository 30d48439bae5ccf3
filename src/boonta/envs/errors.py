"""How the environments refuse a setting."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

MANY = 80  # names that nobody reads


def unknown(what: str, value: object, allowed: Iterable[str]) -> ValueError:
    """The error for a `value` that is not one of `allowed`: it names the nearest, and lists them unless too many."""
    allowed = sorted(allowed)
    near = difflib.get_close_matches(str(value), allowed, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    listed = f"{len(allowed)}, see `boonta list envs`" if len(allowed) > MANY else ", ".join(allowed) or "none"
    return ValueError(f"unknown {what} {value!r}{hint}; allowed: {listed}")


def require(holds: bool, setting: str, value: object, allowed: str) -> None:
    """Raises ValueError unless `holds`: `value` is refused for `setting`, which must be `allowed`."""
    if not holds:
        raise ValueError(f"{setting} must be {allowed}, got {value!r}")


def not_made(name: str, settings: Mapping[str, Any] | None, error: Exception) -> ValueError:
    """The error for an environment whose factory raised `error`."""
    given = dict(settings or {}) or "no settings"
    return ValueError(f"{name} cannot be made with {given}: {type(error).__name__}: {error}")
