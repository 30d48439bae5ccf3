"""Boonta: write an agent once; run it on one chip, a pod, or a fleet."""
