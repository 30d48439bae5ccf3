"""Contracts that ship with the library, as tests to inherit."""

from boonta.testing.environment import EnvironmentContract

__all__ = ["EnvironmentContract"]
