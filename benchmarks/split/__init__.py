"""Measurements of split."""
