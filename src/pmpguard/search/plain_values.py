"""What is found and why, as values JSON can hold."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pmpguard.models.explain import Explanation


def explanation_values(explanation: Explanation) -> dict[str, Any]:
    """The score, and each word with its evidence and its regions, row by row from the top left."""
    return {
        "score": plain_value(explanation.score),
        "boundary": plain_value(explanation.boundary),
        "words": [
            {
                "word": word.word,
                "positive": plain_value(word.positive),
                "negative": plain_value(word.negative),
                "regions": [[plain_value(round(value, 4)) for value in row] for row in word.regions.tolist()],
            }
            for word in explanation.words
        ],
    }


def plain_value(value: Any) -> Any:
    """A value as JSON can hold it: times as ISO 8601, numbers that are not finite as null.

    >>> plain_value({"a": np.float32(0.5), "b": math.nan, "c": datetime.date(2024, 5, 1), "d": (1, None)})
    {'a': 0.5, 'b': None, 'c': '2024-05-01', 'd': [1, None]}
    """
    if isinstance(value, np.generic | np.ndarray):
        return plain_value(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, Sequence | set) and not isinstance(value, bytes):
        return [plain_value(item) for item in value]
    return str(value)
