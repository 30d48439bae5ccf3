"""Devices by count, on every host alike."""

from typing import Any

import jax

from boonta.core.settings import multiple_of


def take(count: int, key: str) -> list[Any]:
    """So many devices, the first ones of every host in equal parts.

    Raises:
        ValueError: there are not so many, or hosts cannot share them; the message names `key`.
    """
    there, hosts = jax.devices(), jax.process_count()
    if count > len(there):
        raise ValueError(
            f"{key} is {count}, but there are {len(there)} of {there[0].platform}; "
            f"allowed: 1 to {len(there)}, or 0 for auto"
        )
    if count % hosts:
        raise ValueError(
            f"{key} must be a multiple of the number of hosts, got {count} and {hosts}{multiple_of(hosts, count)}"
        )
    return [d for host in range(hosts) for d in [d for d in there if d.process_index == host][: count // hosts]]


def describe(devices: list[Any]) -> dict[str, Any]:
    """Their platform, kind and count, for `run.json`."""
    first = devices[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "count": len(devices),
        "processes": jax.process_count(),
    }
