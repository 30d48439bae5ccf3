"""Architectures as the driver of a run sees them: one protocol, one file for each."""

from boonta.experiments.config import Config
from boonta.experiments.systems.protocol import Failed, Idle, System

__all__ = ["Failed", "Idle", "System", "build"]


def build(config: Config) -> System:
    """What a configuration makes, on the devices there are; nothing is compiled yet.

    Raises:
        ValueError: more devices asked than there are, or numbers that do not divide.
    """
    if config.architecture == "sebulba":
        from boonta.experiments.systems.sebulba import Sebulba

        return Sebulba(config)
    if config.architecture == "seed":
        from boonta.experiments.systems.seed import Seed

        return Seed(config)
    if config.architecture == "fleet":
        from boonta.experiments.systems.fleet import Fleet

        return Fleet(config)
    if config.architecture == "split":
        from boonta.experiments.systems.split import Split

        return Split(config)
    from boonta.experiments.systems.anakin import Anakin

    return Anakin(config)
