"""Benchmarks of the architecture Sebulba."""
