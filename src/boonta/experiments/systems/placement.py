"""Which devices act and which learn, as the settings ask."""

from collections.abc import Callable
from typing import Any

import jax

from boonta.experiments.devices import take
from boonta.experiments.tables import Sebulba, Seed


def asked(options: Sebulba | Seed, divides: Callable[[int, int], bool]) -> tuple[list[Any], list[Any]]:
    """Actor devices of this host, learner devices of all hosts; `divides` says how many of each share the work."""
    there = usable(options)
    acting = "inference" if isinstance(options, Seed) else "actors"
    actors, learners = (_chosen(getattr(options, key), key, there) for key in (acting, "learners"))
    if actors is None and learners is None:
        if there[0].platform == "cpu":  # virtual devices would share the same cores: one plays both parts
            return there[:1], everywhere(there[:1])
        actors = there[: max(len(there) // 4, 1)]  # the paper's three learners to one actor
    if actors is None:
        actors = [device for device in there if device not in learners] or there
    if learners is None:
        rest = [device for device in there if device not in actors] or there
        most = max(n for n in range(1, len(rest) + 1) if n == 1 or divides(len(actors), n))
        learners = rest[:most]
    return actors, everywhere(learners)


def usable(options: Sebulba | Seed) -> list[Any]:
    """The devices of this host that may be used."""
    if not options.devices:
        return jax.local_devices()
    return [device for device in take(options.devices, "architecture.devices") if device in jax.local_devices()]


def _chosen(text: str, key: str, there: list[Any]) -> list[Any] | None:
    """Devices of this host: `auto`, a count of the first ones, or a list of their places in brackets."""
    if text == "auto":
        return None
    allowed = f"auto, a count from 1 to {len(there)}, or places such as [0,1] below {len(there)}"
    try:
        if not text.startswith("["):
            places = list(range(int(text)))
            places = places if key != "learners" else [len(there) - 1 - i for i in reversed(places)]
        else:
            places = [int(part) for part in text.strip("[]").split(",")]
    except ValueError:
        places = []
    if not places or len(set(places)) < len(places) or not all(0 <= place < len(there) for place in places):
        raise ValueError(f"architecture.{key} must be {allowed}, got {text!r}")
    return [there[place] for place in places]


def everywhere(local: list[Any]) -> list[Any]:
    """The devices at the same places on every host."""
    if jax.process_count() == 1:
        return local
    places = [jax.local_devices().index(device) for device in local]
    hosts: dict[int, list[Any]] = {}
    for device in jax.devices():
        hosts.setdefault(device.process_index, []).append(device)
    return [devices[place] for _, devices in sorted(hosts.items()) for place in places]
