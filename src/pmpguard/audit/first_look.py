"""What encoders know of a dataset before anything was trained on it, round after round.

Maps from captions to images (`catching/mapping.py`) and look-alikes (`catching/surroundings.py`) need no
common space and no training: each pair counts as far as it is trusted, and the verdicts of one round are the
trust of the next. What the last round knows can be asked of any pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.audit.evidence import (
    AGREEMENT,
    MAPPED,
    SAID,
    SHOWN,
    Measure,
    agreement_measure,
    judge_evidence,
    measured_evidence,
)
from pmpguard.catching.mapping import Maps, spread
from pmpguard.catching.neighbours import centred
from pmpguard.catching.surroundings import Side, Voices, find_surroundings

ROUNDS = 5


@dataclass(frozen=True)
class FirstLook:
    """Kinds of evidence that can be measured on any pair, and which captions read alike."""

    measures: dict[str, Measure]
    alike: Side | None

    def of_part(self, captions: Tensor, images: Tensor) -> FirstLook:
        """For a part with numbers of its own: captions (C,) and images (I,) are those it has here."""

        def of(measure: Measure) -> Measure:
            return lambda some, others, rows: measure(captions[some], images[others], rows)

        return replace(self, measures={name: of(measure) for name, measure in self.measures.items()})


@torch.no_grad()
def first_look(
    captions: Tensor,
    images: Tensor,
    caption_of: Tensor,
    image_of: Tensor,
    known: Mapping[str, Measure] | None = None,
    *,
    image_labels: npt.NDArray[Any] | None = None,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> FirstLook:
    """Maps and look-alikes, from vectors of captions (C, c) and images (I, e), which may be of two spaces.

    Pair r (of N) is caption `caption_of[r]` with image `image_of[r]`. `known` is what else tells how far
    pairs are to be trusted; by default how the captions of an image agree. Look-alikes are left out where
    there are too many to compare.
    """
    captions, images = spread(captions), spread(images)
    around = find_surroundings(captions, images)
    alike = None if around is None else around.captions
    if known is None:
        agree = agreement_measure(centred(captions), caption_of, image_of)
        known = {} if agree is None else {AGREEMENT: agree}

    def learned(trust: Tensor) -> dict[str, Measure]:
        asked: dict[str, Callable[[Tensor, Tensor], Tensor]] = {}
        asked[MAPPED] = Maps(captions, images, caption_of, image_of, trust, seed)
        if around is not None:
            voices = Voices(around, caption_of, image_of, trust)
            asked |= {SAID: voices.said, SHOWN: voices.shown}
        return {name: _whatever_row(ask) for name, ask in asked.items()}

    measures = learned(torch.ones(len(caption_of), device=captions.device))
    for _ in range(rounds):
        evidence = measured_evidence({**measures, **known}, caption_of, image_of, image_labels, seed=seed)
        judged = judge_evidence([replace(evidence, alike=alike)], bootstrap=0, seed=seed)
        measures = learned(torch.from_numpy(judged.verdicts.p_match).to(captions))
    return FirstLook(measures, alike)


def _whatever_row(ask: Callable[[Tensor, Tensor], Tensor]) -> Measure:
    return lambda captions, images, _: ask(captions, images)
