"""The vocabulary: what agents, environments and architectures are made of. Imports nothing else of ours."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from boonta.core.agent import Agent, Experience, Learner
    from boonta.core.environment import Environment, advance, proceed, start
    from boonta.core.spec import Continuous, Discrete, Spec
    from boonta.core.types import FIRST, LAST, MID, Feedback, Origin, Sample, TimeStep, Trajectory

_WHERE = {
    "agent": ("Agent", "Experience", "Learner"),
    "environment": ("Environment", "advance", "proceed", "start"),
    "spec": ("Continuous", "Discrete", "Spec"),
    "types": ("FIRST", "LAST", "MID", "Feedback", "Origin", "Sample", "TimeStep", "Trajectory"),
}

__all__ = [
    "FIRST",
    "LAST",
    "MID",
    "Agent",
    "Continuous",
    "Discrete",
    "Environment",
    "Experience",
    "Feedback",
    "Learner",
    "Origin",
    "Sample",
    "Spec",
    "TimeStep",
    "Trajectory",
    "advance",
    "proceed",
    "start",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for: parts of this package do without JAX, and so do those who only use them."""
    for module, names in _WHERE.items():
        if name in names:
            globals()[name] = getattr(importlib.import_module(f"boonta.core.{module}"), name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
