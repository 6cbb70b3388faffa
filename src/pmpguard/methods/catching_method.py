"""Catching, suppressing and rematching: what a method that judges its own pairs does before an epoch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.catching.agreement import wrong_together
from pmpguard.catching.discriminant import refined_discriminant
from pmpguard.catching.evidence import ScoreStatistics
from pmpguard.catching.looking import (
    MOST_COMPARED,
    Part,
    WrongPairs,
    agreement_part,
    draw_wrong,
    neighbours_part,
    score_part,
    wrong_count,
)
from pmpguard.catching.mixture import MatchMixture, fit_match_mixture, fit_with_known_rate
from pmpguard.catching.rematch import (
    find_proposals,
    propose_captions,
    standardised_cosines,
    without_labelled,
)
from pmpguard.methods.method import Method, TrainingView
from pmpguard.methods.pmpguard_settings import PmpGuardSettings
from pmpguard.model.retriever import Retriever


class CatchingMethod(Method):
    """A method whose losses weight pairs by `weight`, learned without any labels."""

    weights_pairs = True

    weight: Tensor  # (N,) of each pair's positive terms
    paired_image: Tensor  # (N,) the picture each row is trained with; -1 before the first look
    settings: PmpGuardSettings

    def __init__(self, retriever: Retriever, settings: PmpGuardSettings, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        self.trusted = False
        self.register_buffer("weight", torch.ones(pairs))
        self.register_buffer("paired_image", torch.full((pairs,), -1, dtype=torch.int64))
        if settings.suppress:
            self.register_buffer("p_match", torch.ones(pairs))
            self.register_buffer("estimated_rate", torch.tensor(-1.0))
            self.register_buffer("proposed_caption", torch.full((pairs,), -1, dtype=torch.int64))
            self.register_buffer("proposed_probability", torch.zeros(pairs))
            self.register_buffer("agreement", torch.zeros(pairs))
            self.register_buffer("wrong_agreement", torch.zeros(wrong_count(pairs)))
        if settings.passes > 1:
            self.register_buffer("visits", torch.ones(pairs, dtype=torch.int64))

    def begin_epoch(self, view: TrainingView) -> dict[str, float]:
        """Judge every pair, propose captions for the pictures, rematch what was caught, plan the epoch."""
        found = {} if self.p_match is None or self.trusted else self._catch(view, self.p_match)
        if self.visits is not None and view.epoch >= self.settings.passes_from:
            self.visits.copy_(planned_visits(self.weight, self.settings.passes, view.seed, view.epoch))
        return found

    def _catch(self, view: TrainingView, p_match: Tensor) -> dict[str, float]:
        settings = self.settings
        unseen = self._unseen(view)
        wrong = draw_wrong(view.caption_of, view.image_of, view.seed, view.image_labels)
        parts, score, statistics = self._look(view, wrong)
        if parts:
            mixture = self._judge(parts, unseen, view.seed)
            fresh = torch.as_tensor(mixture.p_match, dtype=torch.float32, device=p_match.device)
            kept = settings.smoothing if view.epoch > settings.catch_from else 0.0
            p_match.copy_(kept * p_match + (1 - kept) * fresh)
        self.weight.copy_(p_match * ~unseen)
        if score is None or statistics is None:
            return self._estimate()
        self.paired_image.copy_(view.image_of)
        rematches = settings.rematch and view.epoch >= settings.rematch_from
        if not rematches and not view.is_last:
            return self._estimate()
        rate = float(self._buffer("estimated_rate"))
        alone, _ = fit_with_known_rate(_array(score.labelled), _array(score.wrong), rate, seed=view.seed)
        self._propose(view, statistics, alone)
        rematched = {"rematched": float(self._rematch(view, statistics, alone))} if rematches else {}
        return {**self._estimate(), **rematched}

    def trust(self, matches: Tensor) -> None:
        self.weight.copy_(matches)
        self.trusted = True

    def _look(
        self, view: TrainingView, wrong: WrongPairs
    ) -> tuple[list[Part], Part | None, ScoreStatistics | None]:
        """The evidence of this epoch, and apart from it the model's own score once it has one.

        Captions of one picture are compared as the encoder saw them before any training, so that nothing it
        learns from wrong pairs can make them agree.
        """
        several = bool((torch.bincount(view.image_of) > 1).any())
        pairs = view.caption_of, view.image_of
        if view.epoch == 0:
            agreed = agreement_part(view.captions.pooled, *pairs, wrong)
            self._buffer("agreement").copy_(agreed.labelled)
            self._buffer("wrong_agreement").copy_(agreed.wrong)
        agreed = Part(self._buffer("agreement"), self._buffer("wrong_agreement"))
        if view.epoch >= self.settings.catch_from:
            score, statistics = score_part(view.captions.pooled, view.images.pooled, *pairs, wrong)
            return [score, *_trusted(agreed, score, view.image_of, several)], score, statistics
        looks = None
        if view.epoch == 0 and several:
            looks = neighbours_part(view.captions.pooled, view.images.pooled, *pairs, wrong)
        return [] if looks is None else [looks, *_trusted(agreed, looks, view.image_of, several)], None, None

    def _unseen(self, view: TrainingView) -> Tensor:
        """(N,) bool: pairs of the pictures still kept for calibration, a function of seed and epoch."""
        if view.epoch >= self.settings.release_at:
            return torch.zeros_like(view.image_of, dtype=torch.bool)
        generator = torch.Generator().manual_seed(view.seed)
        images = int(view.image_of.max()) + 1
        drawn = torch.rand(images, generator=generator) < self.settings.calibration
        return drawn.to(view.image_of.device)[view.image_of]

    def _judge(self, parts: list[Part], unseen: Tensor, seed: int) -> MatchMixture:
        """The mixture of all pairs; its rate comes from pairs that were not trained on yet.

        Evidence that cannot tell some true pairs from wrong ones makes the rate too high, so the lowest of
        all looks is kept.
        """
        labelled = np.stack([_array(part.labelled) for part in parts], axis=1)  # (N, K)
        wrong = np.stack([_array(part.wrong) for part in parts], axis=1)  # (M, K)
        combine = refined_discriminant(labelled, wrong)
        scores, mismatched = combine(labelled), combine(wrong)
        rate = self._buffer("estimated_rate")
        if bool(unseen.any()) or float(rate) < 0:
            chosen = unseen.cpu().numpy() if bool(unseen.any()) else slice(None)
            found = fit_match_mixture(scores[chosen], mismatched, bootstrap=0).mismatch_rate
            rate.fill_(found if float(rate) < 0 else min(found, float(rate)))
        mixture, _ = fit_with_known_rate(scores, mismatched, float(rate), seed=seed)
        return mixture

    def _estimate(self) -> dict[str, float]:
        rate = float(self._buffer("estimated_rate"))
        return {"estimated_mismatch_rate": rate} if rate >= 0 else {}

    def _buffer(self, name: str) -> Tensor:
        found: Tensor = getattr(self, name)
        return found

    def _propose(self, view: TrainingView, statistics: ScoreStatistics, mixture: MatchMixture) -> None:
        """For every picture its best caption of the whole training set that it is not labelled with.

        For reports only, and the work grows with the square of the set: large sets do without.
        """
        if len(view.images) > MOST_COMPARED:
            return
        device = self.weight.device
        score = standardised_cosines(view.captions.pooled, view.images.pooled, statistics)
        labelled = (view.caption_of.cpu().numpy(), view.image_of.cpu().numpy())
        best = propose_captions(
            without_labelled(score, labelled, device),
            torch.arange(len(view.images), device=device),
            torch.arange(len(view.captions), device=device),
            k=1,
        )
        probability = torch.as_tensor(mixture.posterior(best.scores[:, 0].double().cpu().numpy()))
        self._buffer("proposed_caption").copy_(best.partners[view.image_of, 0])
        self._buffer("proposed_probability").copy_(probability.to(device)[view.image_of])

    def _rematch(self, view: TrainingView, statistics: ScoreStatistics, mixture: MatchMixture) -> int:
        """Train caught captions with the picture that is theirs by mutual choice; returns how many rows."""
        device, p_match = self.weight.device, self._buffer("p_match")
        found = find_proposals(
            standardised_cosines(view.captions.pooled, view.images.pooled, statistics),
            view.caption_of,
            view.image_of,
            p_match.cpu().numpy(),
            mixture,
            device=device,
            captions_per_image=5,
            min_probability=self.settings.rematch_least,
        )
        best = torch.full((len(view.captions),), -1, dtype=torch.int64, device=device)
        probability = torch.zeros(len(view.captions), device=device)
        captions = torch.from_numpy(found.captions).to(device)
        best[captions] = torch.from_numpy(found.images).to(device)
        probability[captions] = torch.from_numpy(found.probabilities).to(probability)
        moved = (best[view.caption_of] >= 0) & (p_match < 0.5)  # (N,)
        self.paired_image.copy_(torch.where(moved, best[view.caption_of], view.image_of))
        rematched = self.settings.rematch_weight * probability[view.caption_of]
        self.weight.copy_(torch.where(moved, rematched, self.weight))
        return int(moved.sum())


def planned_visits(weight: Tensor, passes: float, seed: int, epoch: int) -> Tensor:
    """(N,) int64: how often an epoch comes to each row; N visits in all.

    Rows of weight (N,) one half and more get up to `passes` on average, as far as the others leave room; what
    is left of the epoch goes to random ones of the others, which then are negatives.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(len(weight), generator=generator)
    matches = (weight.cpu() >= 0.5)[order]
    kept, others = order[matches], order[~matches]
    fed = min(len(order), round(passes * len(kept)))
    visits = torch.zeros_like(order)
    visits[kept] = fed // max(len(kept), 1)
    visits[kept[: fed % max(len(kept), 1)]] += 1
    visits[others[: len(order) - fed]] = 1
    return visits.to(weight.device)


def _trusted(agreed: Part, other: Part, image_of: Tensor, several: bool) -> list[Part]:
    """The captions' agreement, unless by other evidence those of one picture are wrong together."""
    if not several:
        return []
    alone = fit_match_mixture(_array(other.labelled), _array(other.wrong), bootstrap=0)
    exchanged = wrong_together(
        alone.p_match, image_of.cpu().numpy(), _array(agreed.labelled), _array(agreed.wrong)
    )
    return [] if exchanged else [agreed]


def _array(values: Tensor) -> npt.NDArray[np.float64]:
    return values.double().cpu().numpy()
