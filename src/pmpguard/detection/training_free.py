"""What encoders know of a dataset without having been trained on it, round after round.

Maps from captions to images (`evidence/regression.py`) and look-alikes (`evidence/neighbours.py`) need no
common space and no training: each pair counts as far as it is trusted, and the verdicts of one round are the
trust of the next. What the last round knows can be asked of any pair.

A pair that was trusted has taught those that then vouch for it, which deliberately wrong pairs never could.
So images are cut into folds, and pairs of a fold are judged by rounds that none of them took part in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.detection.evidence.neighbours import Side, Voices, find_surroundings
from pmpguard.detection.evidence.regression import Ask, Map, by_fold, crossfit_map, learned_map, spread
from pmpguard.detection.evidence.similarity import MISMATCHED_AT_LEAST, pair_numbers
from pmpguard.detection.evidence.witnesses import centred
from pmpguard.detection.verdicts import (
    AGREEMENT,
    MAPPED,
    SAID,
    SHOWN,
    Measure,
    PairEvidence,
    agreement_measure,
    drawn_wrong,
    judge_evidence,
    measured,
)

FOLDS = 5
ROUNDS = 3
FEWEST_WRONG = 2000  # pairs to compare with


@dataclass(frozen=True)
class FirstLook:
    """Kinds of evidence that can be measured on any pair, and what they were learned from."""

    measures: dict[str, Measure]
    captions: Tensor  # (C, k) unit
    images: Tensor  # (I, l) unit, of another space
    trust: Tensor  # (N,) how far each pair was trusted in the end
    alike: Side | None  # which captions read alike

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
    fold_of: npt.NDArray[np.int64] | None = None,
    rounds: int = ROUNDS,
    seed: int = 0,
) -> FirstLook:
    """Maps and look-alikes, from vectors of captions (C, c) and images (I, e), which may be of two spaces.

    Pair r (of N) is caption `caption_of[r]` with image `image_of[r]`. `known` is what else tells how far
    pairs are to be trusted; by default how the captions of an image agree. `fold_of` (I,) are folds of images
    that show different things, random ones by default. Look-alikes are left out where there are too many to
    compare.
    """
    captions, images = spread(captions), spread(images)
    around = find_surroundings(captions, images)
    alike = None if around is None else around.captions
    if fold_of is None:
        fold_of = np.random.default_rng([seed, 5]).integers(FOLDS, size=len(images))
    folds = torch.from_numpy(fold_of).to(image_of.device)  # (I,)
    if known is None:
        agree = agreement_measure(centred(captions), caption_of, image_of)
        known = {} if agree is None else {AGREEMENT: agree}
    pairs = caption_of, image_of
    few = 4 * len(caption_of) < MISMATCHED_AT_LEAST  # rounds over few pairs need no smoother density
    count = max(4 * len(caption_of), FEWEST_WRONG) if few else None
    wrong = drawn_wrong(*pairs, image_labels, count, seed)  # (M,) each
    rows = torch.arange(len(caption_of), device=image_of.device)
    told = measured(known, *pairs, rows), measured(known, *wrong)  # (N, K), (M, K)

    def learned(trust: Tensor, mapped: Ask) -> dict[str, Measure]:
        voices = None if around is None else Voices(around, *pairs, trust)
        heard = {} if voices is None else {SAID: voices.said, SHOWN: voices.shown}
        return {name: _of_any_row(ask) for name, ask in {MAPPED: mapped, **heard}.items()}

    def trusted(part: Tensor) -> Tensor:
        """(N,): how far pairs of the `part` (N,) bool are trusted after all rounds; no other takes part."""
        some = caption_of[part], image_of[part]
        within = torch.isin(wrong[0], some[0]) & torch.isin(wrong[1], some[1])  # (M,)
        asked_wrong = wrong[0][within], wrong[1][within], wrong[2][within]
        trust = part.float()
        for _ in range(rounds if within.any() else 0):  # a few images may leave nothing to compare with
            mapped = crossfit_map(captions, images, *some, trust[part], seed)
            measures = learned(trust, mapped)
            labelled, simulated = measured(measures, *some, rows[part]), measured(measures, *asked_wrong)
            evidence = PairEvidence(
                (*known, *measures),
                np.hstack([told[0][part.cpu().numpy()], labelled]),
                np.hstack([told[1][within.cpu().numpy()], simulated]),
                *pair_numbers(*some),
                pair_numbers(asked_wrong[0], asked_wrong[1]),
                _never_asked,
                alike,
            )
            judged = judge_evidence([evidence], bootstrap=0, seed=seed)
            trust[part] = torch.from_numpy(judged.verdicts.p_match).to(trust)
        return trust

    trusts = [trusted(folds[image_of] != fold) for fold in range(int(fold_of.max()) + 1)]
    by_trust = [
        learned(trust, Map(captions, images, learned_map(captions, images, *pairs, trust)))
        for trust in trusts
    ]
    measures = {name: by_fold(folds, [each[name] for each in by_trust]) for name in by_trust[0]}
    trust = torch.stack(trusts).sum(0) / max(len(trusts) - 1, 1)  # a pair takes part in all rounds but one
    return FirstLook(measures, captions, images, trust, alike)


def _of_any_row(ask: Ask) -> Measure:
    return lambda captions, images, _: ask(captions, images)


def _never_asked(*_: Tensor) -> npt.NDArray[np.float64]:
    raise NotImplementedError("rounds measure what they need themselves")
