"""Benchmarks of agents that plan, and of the fleet."""
