"""Tests; a package, so that no other of that name, such as one that comes with pgx, is found first."""
