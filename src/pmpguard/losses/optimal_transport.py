"""Partial optimal transport: the cheapest way to move a given part of the mass, smoothed by entropy.

Reference: Chapel, Alaya and Gasso, "Partial Optimal Transport with Applications on Positive-Unlabeled
Learning", NeurIPS 2020 (the extra point that takes what is not moved); Cuturi, "Sinkhorn Distances", NeurIPS
2013 (the smoothing).
"""

from __future__ import annotations

import torch
from torch import Tensor

from pmpguard.errors import ConfigError

# Stand-ins for log 0 that stay finite: a batch without anything to transport must not make NaNs.
_NO_MASS = 1e-30
_FORBIDDEN = -1e4


def partial_plan(
    cost: Tensor,
    row_mass: Tensor,
    column_mass: Tensor,
    mass: float,
    strength: float,
    *,
    allowed: Tensor | None = None,
    iterations: int = 100,
) -> Tensor:
    """The transport plan (T, I) >= 0: at most `row_mass` leaves a row, at most `column_mass` enters a column.

    row_mass (T,) and column_mass (I,) each sum to 1 and may hold zeros (items that take no part); the plan
    sums to `mass`, in (0, 1]. `allowed` (T, I) bool forbids the cells where it is false.

    What stays behind goes to one extra row and one extra column that cost nothing but must not meet. On that
    larger table the plan minimises <cost, plan> - strength * entropy(plan), by Sinkhorn's alternating updates
    in log space; a fixed number of them, so that nothing waits for the device.
    """
    if not 0 < mass <= 1 or strength <= 0 or iterations < 1:
        raise ConfigError(
            f"transport: mass {mass}, strength {strength}, {iterations} iterations",
            fix="0 < mass <= 1, strength > 0 and at least one iteration",
        )
    rows, columns = cost.shape
    kernel = cost.new_zeros(rows + 1, columns + 1)  # (T + 1, I + 1)
    kernel[:-1, :-1] = -cost / strength
    if allowed is not None:
        kernel[:-1, :-1].masked_fill_(~allowed, _FORBIDDEN)
    kernel[-1, -1].fill_(_FORBIDDEN)
    log_rows, log_columns = (_log_with_rest(part, 1 - mass) for part in (row_mass, column_mass))
    column_potential = torch.zeros_like(log_columns)  # (I + 1,)
    for _ in range(iterations):
        row_potential = log_rows - (kernel + column_potential).logsumexp(1)  # (T + 1,)
        column_potential = log_columns - (kernel + row_potential[:, None]).logsumexp(0)
    plan = (kernel + row_potential[:, None] + column_potential).exp()
    return plan[:-1, :-1]


def _log_with_rest(masses: Tensor, rest: float) -> Tensor:
    """Logarithms of the masses (K,) and, last, of the extra point's."""
    extended = torch.cat([masses, masses.new_full((1,), rest)])  # (K + 1,)
    return extended.clamp(min=_NO_MASS).log()
