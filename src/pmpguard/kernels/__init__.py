"""Faster ways to compute what `models/` defines; optional reading."""

from pmpguard.kernels.pair_scoring import awareness_all_pairs

__all__ = ["awareness_all_pairs"]
