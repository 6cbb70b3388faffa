"""The settings of PMPGuard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pmpguard.errors import ConfigError


@dataclass(frozen=True)
class PmpGuardSettings:
    """What PMPGuard trains with.

    Args:
        cga: aggregation loss on cross-gated attention, and on pooled tokens without.
        pnaa: awareness loss, and S in the ranking; without it, z or pooled ranks.
        suppress: weight pairs by their probability of matching.
        rematch: let flagged captions and images find each other.
        form: of the aggregation loss.
        margin: of the awareness loss.
        awareness_weight: lambda of eq. 16.
        awareness_loss: the hinge of eq. 15, or cross-entropy over the batch like the aggregation loss.
        awareness_temperature: S is divided by it in that cross-entropy.
        pooled_weight: of the InfoNCE on pooled tokens, which keeps the shortlist good and without gates is
            the aggregation loss itself (0 then counts as 1).
        complementary: weight of a loss that every pair has in full, flagged or not: it only pushes negatives
            away, so a wrong label does little harm and a right one that was taken for wrong still teaches.
        complementary_temperature: pooled cosines are divided by it there.
        warmup_epochs: epochs in which the awareness loss averages over negatives.
        detect_from_epoch: first epoch that judges pairs by the model's own score; before it, by what the
            encoders know before any training, with one caption an image or several.
        detection_rounds: how often pairs are judged before the first epoch, each time by other pairs,
            weighted by their clean probability of the round before.
        calibration: share of the images whose pairs are not trained on before `calibration_epochs`: on them
            the mismatch rate is estimated without what the model remembers of mismatched pairs.
        calibration_epochs: first epoch that trains on them too.
        clean_oversampling: how often an epoch from `calibration_epochs` on comes at most to a pair judged to
            match, in place of pairs judged mismatched; 1 comes to every pair once.
        scene_classes: draw null pairs of different scene classes where labels are known; off, because no
            published method has them.
        probability_ema: share of the previous epoch's probability that is kept.
        rematch_from: first epoch that trains flagged captions with the image they were rematched to.
        rematch_weight: how strongly, times the proposal's probability.
        rematch_min_probability: smallest probability of a proposal.
        distill_above_rate: share of pairs judged mismatched from which on a second model is trained,
            taught by the first: pairs judged mismatched learn its soft targets; None for never.
        distill_weight: weight of those soft targets.
        ranking: how the trained model ranks.
        attention_scale: W_a at the start, times the identity.
        gate_bias: of the gates at the start.
    """

    cga: bool = False
    pnaa: bool = True
    suppress: bool = True
    rematch: bool = False
    form: Literal["symmetric", "joint"] = "symmetric"
    margin: float = 0.5
    awareness_weight: float = 1.0
    awareness_loss: Literal["hinge", "softmax"] = "softmax"
    awareness_temperature: float = 0.1
    pooled_weight: float = 1.0
    complementary: float = 0.0
    complementary_temperature: float = 0.1
    warmup_epochs: int = 1
    detect_from_epoch: int = 1
    detection_rounds: int = 3
    calibration: float = 0.2
    calibration_epochs: int = 5
    clean_oversampling: float = 3.0
    scene_classes: bool = False
    probability_ema: float = 0.3
    rematch_from: int = 4
    rematch_weight: float = 0.5
    rematch_min_probability: float = 0.9
    distill_above_rate: float | None = None
    distill_weight: float = 1.0
    ranking: Literal["awareness", "gated", "awareness+gated", "pooled", "pooled+awareness"] = (
        "pooled+awareness"
    )
    attention_scale: float = 10.0
    gate_bias: float = 2.0

    def __post_init__(self) -> None:
        if self.distill_above_rate is not None and not 0 <= self.distill_above_rate <= 1:
            raise ConfigError(
                f"distill_above_rate: {self.distill_above_rate}", fix="give a share of pairs, from 0 to 1"
            )
