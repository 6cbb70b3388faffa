"""How well detection works, measured against the injected truth: the only place that may read it."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

from pmpguard.detection.rematch import Proposals
from pmpguard.errors import DataError

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
OF_RANKS = ("true_rate", "auroc", "average_precision", "best_f1")


@dataclass(frozen=True)
class Detection:
    """Detection of the mismatched pairs; a low p(match) says "mismatched".

    What needs both kinds of pairs is None when only one kind is there. `f1` flags p(match) < 0.5, `best_f1`
    is the highest over all thresholds, `precision_at_rate` flags the estimated share of lowest p(match).
    `residual_rate` is the share of mismatched pairs among those that are not flagged.
    """

    true_rate: float
    estimated_rate: float
    rate_error: float
    flagged_rate: float
    auroc: float | None
    average_precision: float | None
    f1: float | None
    best_f1: float | None
    precision_at_rate: float | None
    residual_rate: float | None = None

    def as_dict(self, *, ranks_only: bool = False) -> dict[str, float]:
        """The numbers that are defined; where p(match) only ranks pairs, those that its order decides."""
        found = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: found[name] for name in OF_RANKS if name in found} if ranks_only else found


@dataclass(frozen=True)
class RematchPrecision:
    """Of the proposed captions, the shares that truly describe the image, or at least its scene class."""

    proposals: int
    same_image: float | None
    same_class: float | None


def measure_detection(
    p_match: npt.ArrayLike,
    is_mismatched: npt.ArrayLike,
    *,
    estimated_rate: float | None = None,
    evidence: npt.ArrayLike | None = None,
) -> Detection:
    """Compare p(match) (N,) with the truth (N,).

    `estimated_rate` is the mismatch rate of the mixture, by default 1 - mean p(match). `evidence`, where
    given, ranks pairs for AUROC and AP instead of p(match), which is equal for many clear pairs.

    >>> found = measure_detection([0.9, 0.8, 0.1, 0.2], [False, False, True, True])
    >>> found.auroc, found.f1, round(found.estimated_rate, 3)
    (1.0, 1.0, 0.5)
    """
    believed = np.asarray(p_match, dtype=np.float64)
    truth = np.asarray(is_mismatched, dtype=bool)
    if believed.shape != truth.shape or believed.ndim != 1 or not len(truth):
        raise DataError(f"p_match has shape {believed.shape} but the truth {truth.shape}")
    if np.isnan(believed).any():
        raise DataError(f"p_match: {int(np.isnan(believed).sum())} of {len(believed)} values are NaN")
    suspicion = -np.asarray(believed if evidence is None else evidence, dtype=np.float64)
    flagged = believed < 0.5
    rate = 1 - float(believed.mean()) if estimated_rate is None else estimated_rate
    true_rate = float(truth.mean())
    both = 0 < true_rate < 1
    return Detection(
        true_rate=true_rate,
        estimated_rate=rate,
        rate_error=abs(rate - true_rate),
        flagged_rate=float(flagged.mean()),
        auroc=auroc(suspicion, truth) if both else None,
        average_precision=average_precision(suspicion, truth) if both else None,
        f1=f1_score(flagged, truth) if both else None,
        best_f1=best_f1(suspicion, truth) if both else None,
        precision_at_rate=precision_at(suspicion, truth, rate) if both else None,
        residual_rate=None if flagged.all() else float(truth[~flagged].mean()),
    )


def auroc(scores: Floats, positive: Bools) -> float:
    """Probability that a random positive outscores a random negative, ties counting half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_rank = np.cumsum(counts) - (counts - 1) / 2  # of each distinct score
    positives = int(positive.sum())
    rank_sum = float(mean_rank[place][positive].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * (len(scores) - positives))


def average_precision(scores: Floats, positive: Bools) -> float:
    """Sum over thresholds of precision times the recall gained there."""
    flagged, found = _by_threshold(scores, positive)
    gained = np.diff(found, prepend=0) / found[-1]
    return float((gained * found / flagged).sum())


def f1_score(flagged: Bools, positive: Bools) -> float:
    """Harmonic mean of precision and recall; 0 when nothing is found."""
    return float(2 * (flagged & positive).sum() / max(int(flagged.sum() + positive.sum()), 1))


def best_f1(scores: Floats, positive: Bools) -> float:
    """The highest F1 over all thresholds."""
    flagged, found = _by_threshold(scores, positive)
    return float((2 * found / (flagged + found[-1])).max())


def precision_at(scores: Floats, positive: Bools, rate: float) -> float | None:
    """Precision of the `rate` highest-scored share, ties at its edge counting in proportion."""
    wanted = round(rate * len(scores))
    if not wanted:
        return None
    flagged, found = _by_threshold(scores, positive)
    return float(np.interp(wanted, np.append(0, flagged), np.append(0, found)) / wanted)


def rematch_precision(
    proposals: Proposals,
    described_images: npt.ArrayLike,
    *,
    image_class: npt.ArrayLike | None = None,
    caption_class: npt.ArrayLike | None = None,
) -> RematchPrecision:
    """Check proposals against the truth.

    `described_images` (D, 2) lists the true (caption number, image number) combinations, of which a caption
    shared by several images has several. `image_class` (I,) and `caption_class` (C,) hold scene-class codes.
    """
    if not len(proposals):
        return RematchPrecision(0, None, None)
    true = np.asarray(described_images, dtype=np.int64).reshape(-1, 2)
    images = int(max(true[:, 1].max(), proposals.images.max())) + 1
    proposed = proposals.captions * images + proposals.images
    same_image = float(np.isin(proposed, true[:, 0] * images + true[:, 1]).mean())
    same_class = None
    if image_class is not None and caption_class is not None:
        of_image = np.asarray(image_class)[proposals.images]
        same_class = float((np.asarray(caption_class)[proposals.captions] == of_image).mean())
    return RematchPrecision(len(proposals), same_image, same_class)


def _by_threshold(scores: Floats, positive: Bools) -> tuple[Floats, Floats]:
    """For every distinct score, highest first: how many score at least as high, and how many are positive."""
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    last = np.append(np.flatnonzero(np.diff(ranked)), len(ranked) - 1)  # end of each group of equal scores
    return (last + 1).astype(np.float64), np.cumsum(positive[order])[last].astype(np.float64)
