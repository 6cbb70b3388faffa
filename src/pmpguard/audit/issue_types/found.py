"""What is said of every pair about one kind of issue."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]
FLAGGED_BELOW = 0.5


@dataclass(frozen=True)
class Found:
    """One kind of issue; `notes` say, by row, what was found."""

    score: Array  # (N,) in [0, 1], low where it is bad
    flag: Flags  # (N,)
    notes: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, score: Array, notes: Mapping[int, str] | None = None) -> Found:
        """Flagged where the score is low."""
        return cls(score, score < FLAGGED_BELOW, notes or {})
