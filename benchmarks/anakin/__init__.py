"""Benchmarks of the architecture Anakin."""
