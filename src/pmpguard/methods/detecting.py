"""Detection, suppressing and rematching: what a method that judges its own pairs does before an epoch."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.detection.combine import refined_discriminant, weighted_sum
from pmpguard.detection.evidence.caption_agreement import REFERENCE_EVIDENCE, image_level_mismatch
from pmpguard.detection.evidence.competition import competition_evidence
from pmpguard.detection.evidence.neighbours import find_neighbourhoods, neighbour_evidence
from pmpguard.detection.evidence.regression import regression_evidence, whiten
from pmpguard.detection.evidence.similarity import ScoreStatistics
from pmpguard.detection.mixture import MatchMixture, fit_match_mixture, fit_with_known_rate
from pmpguard.detection.null_pairs import (
    MOST_COMPARED,
    NullPairs,
    Part,
    caption_agreement_evidence,
    null_pair_count,
    sample_null_pairs,
    similarity_evidence,
)
from pmpguard.detection.rematch import (
    find_proposals,
    propose_captions,
    standardised_cosines,
    without_labelled,
)
from pmpguard.methods.method import EpochPlan, Method, TrainingView
from pmpguard.methods.pmpguard_settings import PmpGuardSettings
from pmpguard.models.retriever import Retriever
from pmpguard.stable_random import StableRandom

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.bool_]
Column = tuple[Array, Array]  # evidence of labelled pairs (N,) and of wrong ones (M,)
EVIDENCE = ("score", "agreement", "said", "shown", "mapped", "competitors")
REMEMBERED = ("agreement", "mapped")  # as of before any training


class DetectingMethod(Method):
    """A method whose losses weight pairs by `weight`, learned without any labels."""

    weights_pairs = True

    weight: Tensor  # (N,) of each pair's positive terms
    paired_image: Tensor  # (N,) the image each row is trained with; -1 before the training-free detection
    repeats: Tensor | None  # (N,) how often an epoch comes to each row
    kept_back: Tensor | None  # (N,) bool: pairs of images that calibration needs untrained
    settings: PmpGuardSettings

    def __init__(self, retriever: Retriever, settings: PmpGuardSettings, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        self.clean_estimates = False
        self.register_buffer("weight", torch.ones(pairs))
        self.register_buffer("paired_image", torch.full((pairs,), -1, dtype=torch.int64))
        if settings.suppress:
            self.register_buffer("p_match", torch.ones(pairs))
            self.register_buffer("estimated_rate", torch.tensor(-1.0))
            self.register_buffer("proposed_caption", torch.full((pairs,), -1, dtype=torch.int64))
            self.register_buffer("proposed_probability", torch.zeros(pairs))
            for kind, count in (("remembered", pairs), ("wrong_remembered", null_pair_count(pairs))):
                self.register_buffer(kind, torch.full((len(REMEMBERED), count), torch.nan))
            for weights in ("support_weights", "evidence_weights"):  # without competitors, with
                unknown = torch.full((len(EVIDENCE),), -1.0, dtype=torch.float64)
                self.register_buffer(weights, unknown)
        self.register_buffer(
            "kept_back", torch.zeros(pairs, dtype=torch.bool) if settings.complementary > 0 else None
        )
        often = torch.ones(pairs, dtype=torch.int64) if settings.clean_oversampling > 1 else None
        self.register_buffer("repeats", often)

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        """Judge every pair, propose captions for the images, rematch what was flagged, plan the epoch."""
        found = {} if self.p_match is None or self.clean_estimates else self._detect(view, self.p_match)
        if self.repeats is not None and view.epoch >= self.settings.calibration_epochs:
            self.repeats.copy_(
                planned_repeats(self.weight, self.settings.clean_oversampling, view.seed, view.epoch)
            )
        partners = self.paired_image if int(self.paired_image.max()) >= 0 else None
        return EpochPlan(self.weight, partners, self.repeats, found)

    def _detect(self, view: TrainingView, p_match: Tensor) -> dict[str, float]:
        settings = self.settings
        unseen = self._unseen(view)
        wrong = sample_null_pairs(view.caption_of, view.image_of, view.seed, view.image_labels)
        score = statistics = None
        if view.epoch >= settings.detect_from_epoch:
            pairs = view.caption_of, view.image_of
            score, statistics = similarity_evidence(view.captions.pooled, view.images.pooled, *pairs, wrong)
        fresh = self._judge(view, wrong, score, unseen, p_match)
        if fresh is not None:
            kept = settings.probability_ema if view.epoch > settings.detect_from_epoch else 0.0
            p_match.copy_(kept * p_match + (1 - kept) * fresh)
        self.weight.copy_(p_match * ~unseen)
        if self.kept_back is not None:
            self.kept_back.copy_(unseen)
        if score is None or statistics is None:
            return self._estimate()
        self.paired_image.copy_(view.image_of)
        rematches = settings.rematch and view.epoch >= settings.rematch_from
        if not rematches and not view.is_last:
            return self._estimate()
        rate = float(self._buffer("estimated_rate"))
        alone, _ = fit_with_known_rate(*_arrays(score), rate, seed=view.seed)
        self._propose(view, statistics, alone)
        rematched = {"rematched": float(self._rematch(view, statistics, alone))} if rematches else {}
        return {**self._estimate(), **rematched}

    def wants_distillation(self) -> bool:
        """Whether enough pairs were flagged for a second model to learn from them by this one's beliefs."""
        least = self.settings.distill_above_rate
        return (
            least is not None and self.p_match is not None and float(self._buffer("estimated_rate")) >= least
        )

    def set_clean_mask(self, clean: Tensor) -> None:
        self.weight.copy_(clean)
        self.clean_estimates = True

    def _unseen(self, view: TrainingView) -> Tensor:
        """(N,) bool: pairs of the images still kept for calibration, a function of seed and epoch."""
        if view.epoch >= self.settings.calibration_epochs:
            return torch.zeros_like(view.image_of, dtype=torch.bool)
        generator = torch.Generator().manual_seed(view.seed)
        images = int(view.image_of.max()) + 1
        drawn = torch.rand(images, generator=generator) < self.settings.calibration
        return drawn.to(view.image_of.device)[view.image_of]

    def _judge(
        self, view: TrainingView, wrong: NullPairs, score: Part | None, unseen: Tensor, p_match: Tensor
    ) -> Tensor | None:
        """(N,) how probably each pair matches by the evidence of this epoch; None where there is none.

        Before the model has a score of its own, only the first epoch has evidence, of encoders that have seen
        no mismatched pair, and only where images have several captions; several rounds make the best of it.
        """
        several = bool((torch.bincount(view.image_of) > 1).any())
        if score is None and (view.epoch > 0 or not several):
            return None
        if view.epoch == 0:
            captions, images = (whiten(tokens) for tokens in view.tokens())
            self._remember(
                "agreement", caption_agreement_evidence(captions, view.caption_of, view.image_of, wrong)
            )
        else:
            captions, images = view.captions.pooled, view.images.pooled
        neighbourhoods = find_neighbourhoods(captions, images)
        known = {} if score is None else {"score": score}
        clean_probability = torch.ones_like(p_match) if score is None else p_match
        fresh = None
        for _ in range(self.settings.detection_rounds if score is None else 1):
            parts = dict(known)
            if neighbourhoods is not None:
                parts |= neighbour_evidence(
                    neighbourhoods, view.caption_of, view.image_of, wrong, clean_probability
                )
            if view.epoch == 0:
                pairs = view.caption_of, view.image_of, wrong
                self._remember(
                    "mapped", regression_evidence(captions, images, *pairs, clean_probability, view.seed)
                )
            regression = self._remembered("mapped")
            parts |= {} if regression is None else {"mapped": regression}
            columns = {name: _arrays(part) for name, part in parts.items()}
            reference = next(columns[name] for name in REFERENCE_EVIDENCE if name in columns)
            agreed = self._remembered("agreement") if several else None
            exchanged = False
            if agreed is not None:
                caption_agreement = _arrays(agreed)
                exchanged = _exchanged(reference, caption_agreement, view.image_of)
                columns |= {} if exchanged else {"agreement": caption_agreement}
            if score is None:  # each round starts anew, from pairs none of which was trained on
                self._buffer("estimated_rate").fill_(-1.0)
            counted = (unseen if view.epoch else torch.ones_like(unseen)).cpu().numpy()
            found = self._combine(columns, counted, "support_weights")
            self._estimate_from(*found, counted)
            if not exchanged:
                support = torch.from_numpy(found[0]).to(p_match.device)
                alike = None if neighbourhoods is None else neighbourhoods.captions
                moved = wrong.captions, wrong.images
                competitors = competition_evidence(
                    support, clean_probability, view.caption_of, view.image_of, moved, alike, view.seed
                )
                if competitors is not None:
                    columns["competitors"] = _arrays(competitors)
                    found = self._combine(columns, counted, "evidence_weights")
            mixture, _ = fit_with_known_rate(*found, float(self._buffer("estimated_rate")), seed=view.seed)
            clean_probability = fresh = torch.as_tensor(
                mixture.p_match, dtype=torch.float32, device=p_match.device
            )
        return fresh

    def _remember(self, name: str, part: Part) -> None:
        self._buffer("remembered")[REMEMBERED.index(name)] = part.labelled
        self._buffer("wrong_remembered")[REMEMBERED.index(name)] = part.wrong

    def _remembered(self, name: str) -> Part | None:
        """Evidence of encoders that had seen no mismatched pair: nothing learned from those is in it."""
        place = REMEMBERED.index(name)
        part = Part(self._buffer("remembered")[place], self._buffer("wrong_remembered")[place])
        return None if part.labelled.isnan().all() else part

    def _estimate_from(self, labelled: Array, wrong: Array, unseen: Rows) -> None:
        """The mismatch rate, from evidence (N,) and (M,) on pairs not trained on yet.

        Of trained pairs the model's own score knows too much. Evidence that cannot tell some true pairs from
        wrong ones makes the rate too high, so the lowest of all looks is kept. Competitors take no part:
        where captions have many copies they would make it too low.
        """
        rate = self._buffer("estimated_rate")
        if unseen.any() or float(rate) < 0:
            counted = labelled[unseen] if unseen.any() else labelled
            found = fit_match_mixture(counted, wrong, bootstrap=0).mismatch_rate
            rate.fill_(found if float(rate) < 0 else min(found, float(rate)))

    def _combine(self, columns: dict[str, Column], unseen: Rows, name: str) -> Column:
        """(N,) and (M,): all kinds of evidence as one number, of labelled pairs and of wrong ones.

        What each kind counts is learned from pairs not trained on yet and kept in the buffer of that name.
        """
        labelled, wrong = (np.stack(each, axis=1) for each in zip(*columns.values(), strict=True))  # (N|M, K)
        counts = self._buffer(name)
        places = [EVIDENCE.index(column) for column in columns]
        known = counts[places].cpu().numpy()  # (K,)
        if unseen.any():
            combine = refined_discriminant(labelled[unseen], wrong)
            counts.fill_(-1.0)
            counts[places] = torch.from_numpy(combine.weights).to(counts)
        elif (known >= 0).all():
            combine = weighted_sum(wrong, known)
        else:
            combine = refined_discriminant(labelled, wrong)
        return combine(labelled), combine(wrong)

    def _estimate(self) -> dict[str, float]:
        rate = float(self._buffer("estimated_rate"))
        return {"estimated_mismatch_rate": rate} if rate >= 0 else {}

    def _buffer(self, name: str) -> Tensor:
        found: Tensor = getattr(self, name)
        return found

    def _propose(self, view: TrainingView, statistics: ScoreStatistics, mixture: MatchMixture) -> None:
        """For every image its best caption of the whole training set that it is not labelled with.

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
        """Train flagged captions with the image that is theirs by mutual choice; returns how many rows."""
        device, p_match = self.weight.device, self._buffer("p_match")
        found = find_proposals(
            standardised_cosines(view.captions.pooled, view.images.pooled, statistics),
            view.caption_of,
            view.image_of,
            p_match.cpu().numpy(),
            mixture,
            device=device,
            captions_per_image=5,
            min_probability=self.settings.rematch_min_probability,
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


def planned_repeats(weight: Tensor, clean_oversampling: float, seed: int, epoch: int) -> Tensor:
    """(N,) int64: how often an epoch comes to each row; N visits in all.

    Rows of weight (N,) one half and more get up to `clean_oversampling` on average, as far as the others
    leave room; what is left of the epoch goes to random ones of the others, which then are negatives.
    """
    order = torch.from_numpy(StableRandom("repeats", seed, epoch).order(len(weight)))
    matches = (weight.cpu() >= 0.5)[order]
    kept, others = order[matches], order[~matches]
    fed = min(len(order), round(clean_oversampling * len(kept)))
    repeats = torch.zeros_like(order)
    repeats[kept] = fed // max(len(kept), 1)
    repeats[kept[: fed % max(len(kept), 1)]] += 1
    repeats[others[: len(order) - fed]] = 1
    return repeats.to(weight.device)


def _exchanged(reference: Column, caption_agreement: Column, image_of: Tensor) -> bool:
    """Whether by another kind of evidence the captions of one image are wrong together: then they agree."""
    alone = fit_match_mixture(*reference, bootstrap=0)
    return image_level_mismatch(alone.p_match, image_of.cpu().numpy(), *caption_agreement)


def _arrays(part: Part) -> Column:
    return part.labelled.double().cpu().numpy(), part.wrong.double().cpu().numpy()
