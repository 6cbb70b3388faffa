"""Why an image was found, as values JSON can hold."""

from __future__ import annotations

from typing import Any

from pmpguard.files import plain_value
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
