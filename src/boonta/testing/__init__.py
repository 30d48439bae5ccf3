"""Contracts: test suites that hold an agent, an environment or a replay to the laws. Inherit one, say what to test."""

from boonta.testing.agent import AgentContract
from boonta.testing.environment import EnvironmentContract
from boonta.testing.replay import ReplayContract

__all__ = ["AgentContract", "EnvironmentContract", "ReplayContract"]
