"""Faster ways to compute what `models/` defines; optional reading."""
