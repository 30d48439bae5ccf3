"""The tables of docs/benchmarks.md and of the README, from the results that the repository keeps."""
