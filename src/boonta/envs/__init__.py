"""Environments: small pure ones of our own, bridges to others, and wrappers."""

from boonta.envs.registry import make, names

__all__ = ["make", "names"]
