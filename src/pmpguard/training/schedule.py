"""The learning rate as a pure function of the step."""

from __future__ import annotations

import math


def rate_factor(step: int, steps: int, warmup_ratio: float, schedule: str) -> float:
    """Factor on the learning rate at `step` of `steps`: linear rise, then a fall to zero.

    >>> [round(rate_factor(step, 10, 0.2, "linear"), 3) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.125]
    """
    rise = max(1, round(warmup_ratio * steps)) if warmup_ratio > 0 else 0
    if step < rise:
        return (step + 1) / rise
    left = (steps - step) / max(1, steps - rise)  # 1 at the top, one step above 0 at the last
    return left if schedule == "linear" else 0.5 * (1 - math.cos(math.pi * left))


def step_seed(seed: int, step: int, purpose: int = 0) -> int:
    """An independent seed for one step: random draws need no saved state to be repeated after a resume."""
    mixed = seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + purpose * 0x94D049BB133111EB
    mixed &= 2**64 - 1
    mixed ^= mixed >> 31
    mixed = (mixed * 0xD6E8FEB86659FD93) & (2**64 - 1)
    return (mixed ^ (mixed >> 32)) & (2**63 - 1)
