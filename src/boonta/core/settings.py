"""Typed settings: frozen dataclasses whose every field says what it means, and which refuse what they do not know."""

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from boonta.core.names import nearest, unknown

T = TypeVar("T")


WorkerKind = Literal["auto", "serial", "threads", "processes", "vectorized"]
"""What may step Python environments: a setting of every architecture that has them."""


class Refused(ValueError):
    """A setting that turns out to be impossible only where the run is put together."""


def setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    traced: bool = False,
) -> Any:
    """A field of a settings dataclass.

    Args:
        default: its default value.
        doc: one line that says what it means, with its unit.
        low: the lowest value allowed.
        high: the highest value allowed.
        above: a value that all those allowed are above.
        traced: whether it lives in the parameter group `settings`, so that it can be swept, scheduled or meta-learned.
    """
    metadata = {"doc": doc, "low": low, "high": high, "above": above, "traced": traced}
    return dataclasses.field(default=default, metadata=metadata)


def build(cls: type[T], values: Mapping[str, Any], where: str) -> T:
    """The settings dataclass `cls` from a mapping, checked.

    Args:
        cls: a dataclass made of `setting` fields.
        values: by field name; strings are parsed where the field is not a string.
        where: what the mapping is called in messages, as in `agent.learning_rate`.

    Raises:
        ValueError: an unknown key, a value of the wrong type, or one out of its range.
    """
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    checked = {}
    for key, value in values.items():
        if key not in fields:
            raise unknown("key", key, fields, where=f"{where}.")
        checked[key] = _check(value, hints[key], fields[key].metadata, f"{where}.{key}")
    return cls(**checked)


def traced(settings: Any) -> dict[str, float]:
    """The continuous settings that make up the parameter group `settings`, without those that are none."""
    values = {name: getattr(settings, name) for name in continuous(settings)}
    return {name: float(value) for name, value in values.items() if value is not None}


def continuous(settings: Any) -> list[str]:
    """The settings that can be swept."""
    return [field.name for field in dataclasses.fields(settings) if field.metadata.get("traced")]


def nearest_numbers(number: int, fits: Callable[[int], bool], what: str = "") -> str:
    """`; nearest: 48 or 64`, the whole numbers next to `number` that fit, or nothing; `what` they are of."""
    below = next((n for n in range(number - 1, 0, -1) if fits(n)), None)
    above = next((n for n in range(number + 1, 4 * number + 64) if fits(n)), None)
    found = [str(n) for n in (below, above) if n is not None]
    return f"; nearest{what and ' '}{what}: {' or '.join(found)}" if found else ""


def multiple_of(divisor: int, number: int) -> str:
    """`nearest_numbers`, of those that `divisor` divides."""
    return nearest_numbers(number, lambda n: n % divisor == 0)


def _check(value: Any, hint: Any, metadata: Mapping[str, Any], name: str) -> Any:
    value = convert(value, hint, name)
    low, high = metadata.get("low"), metadata.get("high")
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, (int, float)) and not isinstance(number, bool):
            fits = (low is None or number >= low) and (high is None or number <= high)
            span = f"at least {low}" if high is None else f"at most {high}" if low is None else f"from {low} to {high}"
            if (above := metadata.get("above")) is not None and not (number > above and fits):
                limit = "" if high is None else f" and at most {high}"
                raise ValueError(f"{name} must be above {above:g}{limit}, got {number}")
            if not fits:
                raise ValueError(f"{name} must be {span}, got {number}")
            if not math.isfinite(number):
                raise ValueError(f"{name} must be finite, got {number}")
    return value


def convert(value: Any, hint: Any, name: str) -> Any:
    """A value as the type that `hint` says, strings parsed.

    Raises:
        ValueError: it cannot be one; the message has the name, the value and what is allowed.
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        if value is None or value == "none":
            return None
        (hint,) = [option for option in get_args(hint) if option is not type(None)]
        return convert(value, hint, name)
    if origin is Literal:
        allowed = get_args(hint)
        if value not in allowed:
            raise ValueError(
                f"{name} must be one of {', '.join(map(str, allowed))}, got {value!r}{nearest(str(value), allowed)}"
            )
        return value
    if origin is tuple:
        if isinstance(value, str):
            value = [part for part in value.strip("[]() ").split(",") if part.strip()]
        elif not isinstance(value, (list, tuple)):
            value = [value]
        return tuple(convert(part, get_args(hint)[0], name) for part in value)
    if hint is Any:
        return value
    if isinstance(value, str) and hint is not str:
        value = _parse(value.strip(), hint, name)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if hint is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not hint:
        raise ValueError(f"{name} must be {_words(hint)}, got {value!r} ({_words(type(value))})")
    return value


def _parse(text: str, hint: type, name: str) -> Any:
    if hint is bool and text.lower() in ("true", "false"):
        return text.lower() == "true"
    if hint in (int, float):
        try:
            return int(text.replace("_", "")) if hint is int else float(text)
        except ValueError:
            try:
                return float(text)
            except ValueError:
                pass
    raise ValueError(f"{name} must be {_words(hint)}, got {text!r}")


def _words(hint: type) -> str:
    names = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
    return names.get(hint, hint.__name__)
