"""Detection, suppression and rematching: what a method that judges its own pairs does before an epoch."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.evidence.neighbours import find_neighbourhoods, neighbour_measures
from pmpguard.detection.evidence.similarity import (
    Measure,
    ScoreStatistics,
    pooled_statistics,
    similarity_measure,
)
from pmpguard.detection.judge import Rows, Verdicts, Weights, judge_pairs
from pmpguard.detection.measures import asked
from pmpguard.detection.mixture import MatchMixture, fit_match_mixture, fit_with_known_rate, labels_worth
from pmpguard.detection.null_pairs import Evidence, NullPairs, Numbers, null_pair_count, sample_null_pairs
from pmpguard.detection.outside_judge import JUDGE, NOT_COUNTED
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

log = logging.getLogger("pmpguard")
# Kinds of evidence whose weights are kept, and those kept as of encoders that had seen no mismatched pair.
KINDS = (
    "similarity", "caption_agreement", "regression", "reverse_regression", "neighbour_text",
    "neighbour_image", "competition", JUDGE,
)  # fmt: skip
REMEMBERED = ("caption_agreement", "regression", "reverse_regression")
MIN_JUDGED_PAIRS = 100  # among fewer nothing can be told apart


class DetectingMethod(Method):
    """A method whose losses weight pairs by `weight`, learned without any labels."""

    weights_pairs = True

    weight: Tensor  # (N,) of each pair's positive terms
    paired_image: Tensor  # (N,) the image each row is trained with; -1 before the first detection
    repeats: Tensor | None  # (N,) how often an epoch comes to each row
    kept_back: Tensor | None  # (N,) bool: pairs of images that calibration needs untrained
    settings: PmpGuardSettings

    def __init__(self, retriever: Retriever, settings: PmpGuardSettings, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        self.clean_mask_given = False
        self.judge: Measure | None = None  # from outside, heard once and then remembered
        self.register_buffer("weight", torch.ones(pairs))
        self.register_buffer("paired_image", torch.full((pairs,), -1, dtype=torch.int64))
        if settings.suppress:
            self.register_buffer("p_match", torch.ones(pairs))
            self.register_buffer("estimated_rate", torch.tensor(-1.0))
            self.register_buffer("judged", torch.tensor(1.0))  # 0 where the evidence was blind
            # of all pairs by training-free detection, of the held-out ones by the same; what the first tells
            self.register_buffer("first_rates", torch.full((3,), -1.0, dtype=torch.float64))
            self.register_buffer("proposed_caption", torch.full((pairs,), -1, dtype=torch.int64))
            self.register_buffer("proposed_probability", torch.zeros(pairs))
            for kind, count in (("remembered", pairs), ("null_remembered", null_pair_count(pairs))):
                self.register_buffer(kind, torch.full((len(REMEMBERED), count), torch.nan))
            for weights in ("support_weights", "evidence_weights"):  # without competition, with it
                self.register_buffer(weights, torch.full((len(KINDS),), -1.0, dtype=torch.float64))
        self.register_buffer(
            "kept_back", torch.zeros(pairs, dtype=torch.bool) if settings.complementary > 0 else None
        )
        often = torch.ones(pairs, dtype=torch.int64) if settings.clean_oversampling > 1 else None
        self.register_buffer("repeats", often)

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        """Judge every pair, propose captions for the images, rematch what was flagged, plan the epoch."""
        found = {} if self.p_match is None or self.clean_mask_given else self._detect(view, self.p_match)
        if self.repeats is not None and view.epoch >= self.settings.calibration_epochs:
            often = planned_repeats(self.weight, self.settings.clean_oversampling, view.seed, view.epoch)
            self.repeats.copy_(often)
        partners = self.paired_image if int(self.paired_image.max()) >= 0 else None
        return EpochPlan(self.weight, partners, self.repeats, found)

    def _detect(self, view: TrainingView, p_match: Tensor) -> dict[str, float]:
        settings = self.settings
        held_out = self._held_out(view)
        counted = held_out.cpu().numpy()
        judged_by_model = view.epoch >= settings.detect_from_epoch
        if view.epoch == 0:
            fresh = self._judge_training_free(view, counted)
        elif judged_by_model:
            fresh = self._judge_by_model(view, counted, p_match)
        else:
            return self._logged()
        judged = self._buffer("judged")
        kept = settings.probability_ema * judged if view.epoch > settings.detect_from_epoch else 0.0
        p_match.copy_(kept * p_match + (1 - kept) * fresh)
        held_out = held_out & (judged > 0)  # to hold pairs out where nothing is told would only lose them
        self.weight.copy_(p_match * ~held_out)
        if self.kept_back is not None:
            self.kept_back.copy_(held_out)
        if not judged_by_model:
            return self._logged()
        self.paired_image.copy_(view.image_of)
        rematches = settings.rematch and view.epoch >= settings.rematch_from
        if not rematches and not view.is_last:
            return self._logged()
        null = self._null_pairs(view)
        alone = self._measured({"similarity": self._similarity(view)}, view, null)["similarity"].arrays()
        mixture, _ = fit_with_known_rate(*alone, float(self._buffer("estimated_rate")), seed=view.seed)
        statistics = pooled_statistics(view.captions.pooled, view.images.pooled)
        self._propose(view, statistics, mixture)
        rematched = {"rematched": float(self._rematch(view, statistics, mixture))} if rematches else {}
        return {**self._logged(), **rematched}

    def wants_distillation(self) -> bool:
        """Whether enough pairs were flagged for a second model to learn from them by this one's beliefs."""
        least = self.settings.distill_above_rate
        if least is None:
            return False
        if self.clean_mask_given:
            return 1 - float(self.weight.mean()) >= least
        return self.p_match is not None and float(self._buffer("estimated_rate")) >= least

    def set_clean_mask(self, clean: Tensor) -> None:
        self.weight.copy_(clean)
        self.clean_mask_given = True

    def set_judge(self, judge: Measure) -> None:
        if self.p_match is None:
            super().set_judge(judge)
        self.judge = judge
        for kind in ("remembered", "null_remembered"):
            kept = self._buffer(kind)
            self.register_buffer(kind, torch.cat([kept, torch.full_like(kept[:1], torch.nan)]))

    @property
    def _remembered_kinds(self) -> tuple[str, ...]:
        return REMEMBERED if self.judge is None else (*REMEMBERED, JUDGE)

    def _held_out(self, view: TrainingView) -> Tensor:
        """(N,) bool: pairs of the images still kept for calibration, a function of seed and epoch."""
        if view.epoch >= self.settings.calibration_epochs or len(view.image_of) < MIN_JUDGED_PAIRS:
            return torch.zeros_like(view.image_of, dtype=torch.bool)
        images = int(view.image_of.max()) + 1
        drawn = torch.from_numpy(StableRandom("calibration", view.seed).uniform(images))
        return (drawn < self.settings.calibration).to(view.image_of.device)[view.image_of]

    def _null_pairs(self, view: TrainingView) -> NullPairs:
        """The same in every epoch."""
        return sample_null_pairs(view.caption_of, view.image_of, view.seed, self._labels(view))

    def _labels(self, view: TrainingView) -> Numbers | None:
        """(I,) scene classes, where they may be used and are known."""
        if not self.settings.scene_classes or view.image_labels is None:
            return None
        labels: Numbers = view.image_labels.cpu().numpy()
        return labels

    def _judge_training_free(self, view: TrainingView, held_out: Rows) -> Tensor:
        """(N,) by what the encoders know before they have seen any mismatched pair."""
        detector = NoiseDetector(rounds=self.settings.detection_rounds, bootstrap=0, seed=view.seed)
        detector.fit(
            *view.tokens(),
            view.caption_of,
            view.image_of,
            common_space=False,
            image_labels=self._labels(view),
            more={} if self.judge is None else {JUDGE: self.judge},
        )
        counted = detector.verdicts.names
        if self.judge is not None and JUDGE not in counted:
            log.warning(NOT_COUNTED)
        for place, name in enumerate(self._remembered_kinds):
            if name in detector.collected.evidence and not (name == JUDGE and name not in counted):
                part = detector.collected.evidence[name]
                self._buffer("remembered")[place] = part.observed
                self._buffer("null_remembered")[place] = part.null
        found = detector.verdicts
        self._buffer("estimated_rate").fill_(found.noise_rate)
        believed = self._believed(found, view)
        rates = self._buffer("first_rates")
        if float(self._buffer("judged")):  # blind evidence cannot tell how held-out pairs differ
            rates[0] = found.noise_rate
            if held_out.any():
                part_rate = fit_match_mixture(found.support[held_out], found.null_support, bootstrap=0)
                rates[1] = part_rate.mismatch_rate
            rates[2] = labels_worth(found.p_match)
        return believed

    def _judge_by_model(self, view: TrainingView, held_out: Rows, p_match: Tensor) -> Tensor:
        """(N,) by the model's own embeddings, and by what is remembered of before training."""
        pairs, null = (view.caption_of, view.image_of), self._null_pairs(view)
        graphs = find_neighbourhoods(view.captions.pooled, view.images.pooled)
        measures = {"similarity": self._similarity(view)}
        if graphs is not None:
            measures |= neighbour_measures(graphs, *pairs, p_match)
        evidence = {**self._remembered(), **self._measured(measures, view, null)}
        rate = self._buffer("estimated_rate")
        known = self._known_weights() if float(rate) >= 0 else None
        estimates = held_out.any() or known is None
        found = judge_pairs(
            evidence, *pairs, null, similar_texts=None if graphs is None else graphs.texts,
            clean_probability=p_match, held_out=held_out, known=known,
            noise_rate=None if estimates else float(rate), seed=view.seed,
        )  # fmt: skip
        if estimates:
            told = found.p_match[held_out] if held_out.any() else found.p_match
            rate.fill_(self._corrected(found.noise_rate, labels_worth(told)))
            self._remember_weights(found.weights)
        return self._believed(found, view)

    def _corrected(self, held_out_rate: float, held_out_worth: float) -> float:
        """The noise rate of all pairs, by held-out ones: of those it trained on a model knows too much.

        How those differ from all others is known from training-free detection, which judged both. The two
        rates count by their precision: few held-out pairs tell less than all pairs by weaker evidence.
        """
        everywhere, held_out, everywhere_worth = self._buffer("first_rates").tolist()
        if everywhere < 0 or held_out < 0:
            return held_out_rate
        told = everywhere_worth + held_out_worth
        share = held_out_worth / told if told > 0 else 1.0
        return float(np.clip(everywhere + share * (held_out_rate - held_out), 0.0, 1.0))

    def _believed(self, found: Verdicts, view: TrainingView) -> Tensor:
        """(N,) the probabilities, or all 1 where the evidence is blind: then no rate is known either."""
        blind = not found.informative or len(found.p_match) < MIN_JUDGED_PAIRS
        self._buffer("judged").fill_(float(not blind))
        if blind:
            self._buffer("estimated_rate").fill_(-1.0)
            why = "hardly any pair looks matched" if not found.informative else "there are too few pairs"
            log.warning("epoch %d: captions cannot be judged (%s); all are trained on", view.epoch, why)
            return torch.ones(len(found.p_match), device=view.image_of.device)
        return torch.as_tensor(found.p_match, dtype=torch.float32, device=view.image_of.device)

    def _similarity(self, view: TrainingView) -> Measure:
        return similarity_measure(view.captions.pooled, view.images.pooled)

    def _measured(
        self, measures: Mapping[str, Measure], view: TrainingView, null: NullPairs
    ) -> dict[str, Evidence]:
        rows = torch.arange(len(view.caption_of), device=view.caption_of.device)
        return {
            name: Evidence(
                asked(measure, view.caption_of, view.image_of, rows),
                asked(measure, null.texts, null.images, null.rows),
            )
            for name, measure in measures.items()
        }

    def _remembered(self) -> dict[str, Evidence]:
        """Evidence of encoders that had seen no mismatched pair: nothing learned from those is in it."""
        found = {}
        for place, name in enumerate(self._remembered_kinds):
            part = Evidence(self._buffer("remembered")[place], self._buffer("null_remembered")[place])
            if not part.observed.isnan().all():
                found[name] = part
        return found

    def _known_weights(self) -> Weights:
        support, every = (
            {name: float(value) for name, value in zip(KINDS, self._buffer(kind), strict=True) if value >= 0}
            for kind in ("support_weights", "evidence_weights")
        )
        return Weights(support, every)

    def _remember_weights(self, weights: Weights) -> None:
        for kind, named in (("support_weights", weights.support), ("evidence_weights", weights.all)):
            values = [named.get(name, -1.0) for name in KINDS]
            self._buffer(kind).copy_(torch.tensor(values, dtype=torch.float64))

    def _logged(self) -> dict[str, float]:
        rate, judged = float(self._buffer("estimated_rate")), float(self._buffer("judged"))
        if rate < 0:
            return {} if judged else {"judged": judged}
        return {"estimated_mismatch_rate": rate, "judged": judged}

    def _buffer(self, name: str) -> Tensor:
        found: Tensor = getattr(self, name)
        return found

    def _propose(self, view: TrainingView, statistics: ScoreStatistics, mixture: MatchMixture) -> None:
        """For every image its best caption of the whole training set that it is not labelled with."""
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
