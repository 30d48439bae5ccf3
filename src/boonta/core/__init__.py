"""The vocabulary: what agents, environments and architectures are made of. Imports nothing else of ours."""

from boonta.core.agent import Agent, Experience, Learner
from boonta.core.environment import Continuous, Discrete, Environment, Spec, advance, proceed, start
from boonta.core.types import FIRST, LAST, MID, Feedback, Origin, Sample, TimeStep, Trajectory

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
