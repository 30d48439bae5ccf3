"""Benchmarks and drills of the architecture SEED."""
