"""What encoders know of a dataset without having been trained on it, round after round.

Maps from captions to images (`evidence/regression.py`) and neighbours (`evidence/neighbours.py`) need no
common space and no training: each pair counts as far as it is trusted, and the verdicts of one round are the
trust of the next. What the last round knows can be asked of any pair.

A pair that was trusted has taught those that then vouch for it, which deliberately mismatched pairs never
could. So images are cut into folds, and pairs of a fold are judged by rounds that none of them took part in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.detection.evidence.neighbours import NeighbourGraph, NeighbourVotes, find_neighbourhoods
from pmpguard.detection.evidence.regression import (
    Ask,
    CrossModalRegression,
    by_fold,
    crossfit_regression,
    fit_regression,
    whiten,
)
from pmpguard.detection.evidence.similarity import MISMATCHED_AT_LEAST, pair_numbers
from pmpguard.detection.evidence.witnesses import centred
from pmpguard.detection.verdicts import (
    CAPTION_AGREEMENT,
    NEIGHBOUR_IMAGE,
    NEIGHBOUR_TEXT,
    REGRESSION,
    Measure,
    PairEvidence,
    caption_agreement_measure,
    judge_evidence,
    measured,
    null_pair_tensors,
)

FOLDS = 5
ROUNDS = 3
MIN_NULL_PAIRS = 2000  # pairs to compare with


@dataclass(frozen=True)
class TrainingFreeEvidence:
    """Kinds of evidence that can be measured on any pair, and what they were learned from."""

    measures: dict[str, Measure]
    captions: Tensor  # (C, k) unit
    images: Tensor  # (I, l) unit, of another space
    clean_probability: Tensor  # (N,) how far each pair was trusted in the end
    alike: NeighbourGraph | None  # which captions read alike

    def of_part(self, captions: Tensor, images: Tensor) -> TrainingFreeEvidence:
        """For a part with numbers of its own: captions (C,) and images (I,) are those it has here."""

        def of(measure: Measure) -> Measure:
            return lambda some, others, rows: measure(captions[some], images[others], rows)

        return replace(self, measures={name: of(measure) for name, measure in self.measures.items()})


@torch.no_grad()
def training_free_evidence(
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
) -> TrainingFreeEvidence:
    """Maps and neighbours, from vectors of captions (C, c) and images (I, e), which may be of two spaces.

    Pair r (of N) is caption `caption_of[r]` with image `image_of[r]`. `known` is what else tells how far
    pairs are to be trusted; by default how the captions of an image agree. `fold_of` (I,) are folds of images
    that show different things, random ones by default. Neighbours are left out where there are too many to
    compare.
    """
    captions, images = whiten(captions), whiten(images)
    neighbourhoods = find_neighbourhoods(captions, images)
    alike = None if neighbourhoods is None else neighbourhoods.captions
    if fold_of is None:
        fold_of = np.random.default_rng([seed, 5]).integers(FOLDS, size=len(images))
    folds = torch.from_numpy(fold_of).to(image_of.device)  # (I,)
    if known is None:
        agree = caption_agreement_measure(centred(captions), caption_of, image_of)
        known = {} if agree is None else {CAPTION_AGREEMENT: agree}
    pairs = caption_of, image_of
    few = 4 * len(caption_of) < MISMATCHED_AT_LEAST  # rounds over few pairs need no smoother density
    count = max(4 * len(caption_of), MIN_NULL_PAIRS) if few else None
    wrong = null_pair_tensors(*pairs, image_labels, count, seed)  # (M,) each
    rows = torch.arange(len(caption_of), device=image_of.device)
    told = measured(known, *pairs, rows), measured(known, *wrong)  # (N, K), (M, K)

    def learned(clean_probability: Tensor, regression: Ask) -> dict[str, Measure]:
        votes = None if neighbourhoods is None else NeighbourVotes(neighbourhoods, *pairs, clean_probability)
        collect_votes = (
            {}
            if votes is None
            else {NEIGHBOUR_TEXT: votes.neighbour_text, NEIGHBOUR_IMAGE: votes.neighbour_image}
        )
        return {name: _of_any_row(ask) for name, ask in {REGRESSION: regression, **collect_votes}.items()}

    def clean_estimates(part: Tensor) -> Tensor:
        """(N,): how far pairs of the `part` (N,) bool are trusted after all rounds; no other takes part."""
        some = caption_of[part], image_of[part]
        within = torch.isin(wrong[0], some[0]) & torch.isin(wrong[1], some[1])  # (M,)
        asked_wrong = wrong[0][within], wrong[1][within], wrong[2][within]
        clean_probability = part.float()
        for _ in range(rounds if within.any() else 0):  # a few images may leave nothing to compare with
            regression = crossfit_regression(captions, images, *some, clean_probability[part], seed)
            measures = learned(clean_probability, regression)
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
            clean_probability[part] = torch.from_numpy(judged.verdicts.p_match).to(clean_probability)
        return clean_probability

    clean_probabilities = [clean_estimates(folds[image_of] != fold) for fold in range(int(fold_of.max()) + 1)]
    by_trust = [
        learned(
            clean_probability,
            CrossModalRegression(
                captions, images, fit_regression(captions, images, *pairs, clean_probability)
            ),
        )
        for clean_probability in clean_probabilities
    ]
    measures = {name: by_fold(folds, [each[name] for each in by_trust]) for name in by_trust[0]}
    clean_probability = torch.stack(clean_probabilities).sum(0) / max(
        len(clean_probabilities) - 1, 1
    )  # a pair takes part in all rounds but one
    return TrainingFreeEvidence(measures, captions, images, clean_probability, alike)


def _of_any_row(ask: Ask) -> Measure:
    return lambda captions, images, _: ask(captions, images)


def _never_asked(*_: Tensor) -> npt.NDArray[np.float64]:
    raise NotImplementedError("rounds measure what they need themselves")
