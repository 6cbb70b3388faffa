"""Why a caption and an image match or not: the evidence of each word, and where in the image it is."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from pmpguard.models.attention.awareness import AwarenessParts
from pmpguard.models.tokenizer import Word


@dataclass(frozen=True)
class WordEvidence:
    """One word's part in the score.

    `positive` and `negative` are shares of the score S: over all words they add up to it. `regions` (h, w)
    are the word's cosines with the image's regions, top left first; of several pieces, their mean.
    """

    word: str
    positive: float
    negative: float
    regions: Tensor


@dataclass(frozen=True, repr=False)
class Explanation:
    """S of one caption and one image, word by word."""

    score: float
    boundary: float
    words: tuple[WordEvidence, ...]

    def as_text(self) -> str:
        lines = [f"score {self.score:.3f}, boundary {self.boundary:.3f}"]
        width = max((len(word.word) for word in self.words), default=0)
        for word in self.words:
            row, column = divmod(int(word.regions.argmax()), word.regions.shape[1])
            lines.append(
                f"  {word.word:<{width}}  {word.positive:+.3f} {word.negative:+.3f}"
                f"  best at row {row + 1}, column {column + 1} ({word.regions.max():.2f})"
            )
        return "\n".join(lines)

    __repr__ = as_text

    def _repr_html_(self) -> str:
        """A table for notebooks: each word, what speaks for and against it, and where in the image it is."""
        rows = "".join(
            f"<tr><td>{html.escape(word.word)}</td><td>{word.positive:+.3f}</td><td>{word.negative:+.3f}</td>"
            f"<td>{_heat(word.regions)}</td></tr>"
            for word in self.words
        )
        head = "<tr><th>word</th><th>for</th><th>against</th><th>regions</th></tr>"
        return f"<p>score {self.score:.3f}, boundary {self.boundary:.3f}</p><table>{head}{rows}</table>"


def _heat(regions: Tensor) -> str:
    """Cosines (h, w) as squares, the darkest where the word is found best."""
    height, width = regions.shape
    lowest, highest = float(regions.min()), float(regions.max())
    scale = max(highest - lowest, 1e-6)
    squares = "".join(
        f'<rect x="{place % width}" y="{place // width}" width="1" height="1" fill="#c2410c" '
        f'fill-opacity="{(value - lowest) / scale:.2f}"/>'
        for place, value in enumerate(regions.flatten().tolist())
    )
    return f'<svg viewBox="0 0 {width} {height}" width="56" height="56" role="img">{squares}</svg>'


def explain_pair(
    parts: AwarenessParts, words: Sequence[Word], grid: tuple[int, int], boundary: float
) -> Explanation:
    """Gather the evidence of tokens (one pair, P = 1) into words."""
    count = sum(len(word.fragments) for word in words)
    positive = ((parts.feature + parts.relevance)[0] / count).tolist()  # m numbers
    negative = (parts.negative[0] / count).tolist()  # m numbers
    evidence = [
        WordEvidence(
            word=word.text,
            positive=sum(positive[piece] for piece in word.fragments),
            negative=sum(negative[piece] for piece in word.fragments),
            regions=parts.cosines[0, list(word.fragments)].mean(0).reshape(grid).cpu(),  # (h, w)
        )
        for word in words
    ]
    return Explanation(float(parts.score[0]), boundary, tuple(evidence))
