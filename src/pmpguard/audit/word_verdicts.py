"""Verdicts on the words of judged pairs, and of captions proposed for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from pmpguard.audit.rows import WordVerdict
from pmpguard.audit.word_evidence import (
    WRONG_UNDER,
    Array,
    ImageWords,
    Numbers,
    WordList,
    WordSpan,
    image_evidence,
    sibling_evidence,
    support,
    visibility,
)


class PairsWithWords(Protocol):
    """What is needed of a judged part."""

    @property
    def words(self) -> WordList | None: ...
    @property
    def image_words(self) -> ImageWords | None: ...
    @property
    def image_of(self) -> Tensor: ...


@dataclass(frozen=True)
class JudgedWords:
    """The support of every word of the pairs, and what was learned about spellings on the way."""

    words: WordList
    image_words: ImageWords
    image_of: Numbers  # (pairs,)
    support: Array  # (W,)
    visible: Array  # (V,)
    first: Numbers  # (pairs + 1,) where each pair's words begin
    number_of: dict[str, int]

    def verdicts(self, place: int, *, with_regions: bool) -> tuple[WordVerdict, ...]:
        """The words of one pair from left to right, if wanted with their cosines on the image's regions."""
        part = slice(int(self.first[place]), int(self.first[place + 1]))
        regions: list[list[float]] = [[]] * (part.stop - part.start)
        if with_regions and part.stop > part.start:
            spellings = torch.from_numpy(self.words.spelling[part])
            images = torch.full_like(spellings, int(self.image_of[place]))
            device = self.image_words.vectors.device
            regions = self.image_words.cosines(spellings.to(device), images.to(device)).tolist()
        return tuple(
            WordVerdict(int(start), int(stop), round(float(sure), 4), bool(sure < WRONG_UNDER),
                        tuple(round(value, 3) for value in cosines))
            for start, stop, sure, cosines in zip(
                self.words.start[part], self.words.stop[part], self.support[part], regions, strict=True
            )
        )  # fmt: skip

    def of_proposal(self, text: str, spans: tuple[WordSpan, ...], image: int) -> tuple[WordVerdict, ...]:
        """The words of another caption of the same set on an image, by the image alone."""
        spelling = np.array([self.number_of[text[s.start : s.stop].lower()] for s in spans], dtype=np.int64)
        rises = self.image_words.rises(spelling, np.full_like(spelling, image))
        supports = support(image_evidence(spelling, rises, self.visible))
        return tuple(
            WordVerdict(span.start, span.stop, round(float(sure), 4), bool(sure < WRONG_UNDER))
            for span, sure in zip(spans, supports, strict=True)
        )


def judge_words(part: PairsWithWords, p_match: Array) -> JudgedWords | None:
    """Judge all words of a part whose pairs match with p_match (pairs,); None where it has no words."""
    words, images = part.words, part.image_words
    if words is None or images is None:
        return None
    image_of = part.image_of.cpu().numpy()
    rises = images.rises(words.spelling, image_of[words.pair])
    visible = visibility(words.spelling, rises, p_match[words.pair], len(words.spellings))
    evidence = image_evidence(words.spelling, rises, visible) + sibling_evidence(words, image_of, p_match)
    first = np.searchsorted(words.pair, np.arange(len(p_match) + 1))
    numbers = {spelling: number for number, spelling in enumerate(words.spellings)}
    return JudgedWords(words, images, image_of, support(evidence), visible, first, numbers)
