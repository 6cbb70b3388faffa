"""PMPGuard: cross-gated attention, awareness attention, and training that catches its own wrong pairs.

`paper` runs the equations as printed, trusting every label. `recommended` weights each pair's positive terms
by the probability that it is a true match, learned without any labels, and lets caught captions find a better
picture (see `pmpguard.catching`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from pmpguard.catching.evidence import Evidence, pooled_evidence
from pmpguard.catching.mixture import MatchMixture, fit_match_mixture, fit_with_known_rate
from pmpguard.catching.rematch import (
    find_proposals,
    propose_captions,
    standardised_cosines,
    without_labelled,
)
from pmpguard.losses.aggregation import aggregation_terms
from pmpguard.losses.awareness import Negatives, awareness_terms
from pmpguard.methods.method import EncodedBatch, Method, TrainingView, boundary_progress, pooled_cosines
from pmpguard.model.awareness_attention import awareness_scores
from pmpguard.model.encoded import Encoded
from pmpguard.model.pair_scoring import all_pairs_with_gradient
from pmpguard.model.retriever import Retriever
from pmpguard.model.retriever_config import CrossGatedConfig, Ranking, RetrieverConfig

GATED_CHUNK = 64  # captions and pictures gated at once: every pair has gated fragments of its own


@dataclass(frozen=True)
class PmpGuardSettings:
    """What PMPGuard trains with.

    Args:
        cga: aggregation loss on cross-gated attention.
        pnaa: awareness loss and ranking by S.
        suppress: weight pairs by their probability of matching.
        rematch: let caught captions and pictures find each other.
        form: of the aggregation loss.
        margin: of the awareness loss.
        awareness_weight: lambda of eq. 16.
        awareness_loss: the hinge of eq. 15, or cross-entropy over the batch like the aggregation loss.
        awareness_temperature: S is divided by it in that cross-entropy.
        pooled_weight: of the InfoNCE on pooled tokens that keeps the shortlist good.
        warm_up: epochs in which the awareness loss averages over negatives.
        catch_from: first epoch that weights pairs.
        calibration: share of the pictures whose pairs are not trained on before `release_at`: on them the
            mismatch rate is estimated without what the model remembers of wrong pairs.
        release_at: first epoch that trains on them too.
        smoothing: share of the previous epoch's probability that is kept.
        rematch_from: first epoch that trains caught captions with the picture they were rematched to.
        rematch_weight: how strongly, times the proposal's probability.
        rematch_least: smallest probability of a proposal.
        ranking: how the trained model ranks.
        attention_scale: W_a at the start, times the identity.
        gate_bias: of the gates at the start.
    """

    cga: bool = True
    pnaa: bool = True
    suppress: bool = True
    rematch: bool = True
    form: Literal["symmetric", "joint"] = "symmetric"
    margin: float = 0.5
    awareness_weight: float = 1.0
    awareness_loss: Literal["hinge", "softmax"] = "softmax"
    awareness_temperature: float = 0.1
    pooled_weight: float = 1.0
    warm_up: int = 1
    catch_from: int = 2
    calibration: float = 0.2
    release_at: int = 5
    smoothing: float = 0.3
    rematch_from: int = 4
    rematch_weight: float = 0.5
    rematch_least: float = 0.9
    ranking: Literal["S", "z", "S+z", "pooled", "pooled+S"] = "S"
    attention_scale: float = 10.0
    gate_bias: float = 2.0


class PmpGuard(Method):
    """The paper's objective L_IA + lambda L_PA with catching, suppressing and rematching around it."""

    name = "pmpguard"
    Settings = PmpGuardSettings
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "recommended": {},
        "paper": {
            "suppress": False,
            "rematch": False,
            "form": "joint",
            "awareness_loss": "hinge",
            "pooled_weight": 0.0,
            "attention_scale": 1.0,
            "gate_bias": 0.0,
        },
    }

    weight: Tensor  # (N,) of each pair's positive terms
    paired_image: Tensor  # (N,) the picture each row is trained with; -1 before the first look
    settings: PmpGuardSettings

    def __init__(self, retriever: Retriever, settings: PmpGuardSettings, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        self.register_buffer("weight", torch.ones(pairs))
        self.register_buffer("paired_image", torch.full((pairs,), -1, dtype=torch.int64))
        if settings.suppress:
            self.register_buffer("p_match", torch.ones(pairs))
            self.register_buffer("estimated_rate", torch.tensor(-1.0))
            self.register_buffer("proposed_caption", torch.full((pairs,), -1, dtype=torch.int64))
            self.register_buffer("proposed_probability", torch.zeros(pairs))

    @classmethod
    def shape(cls, config: RetrieverConfig, settings: Any) -> RetrieverConfig:
        ranking: Ranking = settings.ranking if settings.pnaa else ("z" if settings.cga else "pooled")
        gates = CrossGatedConfig(settings.cga, settings.attention_scale, settings.gate_bias)
        return replace(config, cross_gated=gates, ranking=ranking)

    def phase(self, epoch: int) -> int:
        return int(epoch >= self.settings.warm_up)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        settings, texts, images = self.settings, batch.texts, batch.images
        weights = self.weight[batch.rows]  # (T,)
        targets = batch.weighted_targets(weights)  # (T, I)
        terms = {}
        if settings.pooled_weight > 0 or not settings.cga:  # without gates, L_IA is on pooled tokens
            pooled = self._aggregate(pooled_cosines(batch), targets, batch)
            terms["pooled"] = pooled * (settings.pooled_weight or 1.0)
        if settings.cga:
            terms["aggregation"] = self._aggregate(self._gated_cosines(texts, images), targets, batch)
        if settings.pnaa:
            terms["awareness"] = settings.awareness_weight * self._aware(batch, targets)
        return {name: term * weights for name, term in terms.items()}

    def _gated_cosines(self, texts: Encoded, images: Encoded) -> Tensor:
        """(T, I): cosines of gated fragments, in chunks that are computed again on the way back."""
        attention = self.retriever.cross_gated_attention
        assert attention is not None

        def score(some_texts: Encoded, some_images: Encoded) -> Tensor:
            return attention.forward(
                some_texts.fragments, some_texts.mask, some_images.fragments, some_images.mask
            )

        if len(texts) * len(images) <= GATED_CHUNK**2:
            return score(texts, images)
        return all_pairs_with_gradient(score, texts, images, text_chunk=GATED_CHUNK, image_chunk=GATED_CHUNK)

    def _aggregate(self, cosines: Tensor, targets: Tensor, batch: EncodedBatch) -> Tensor:
        return aggregation_terms(cosines / self.temperature, targets, batch.image_of, self.settings.form)

    def _aware(self, batch: EncodedBatch, targets: Tensor) -> Tensor:
        texts, images = batch.texts, batch.images
        boundary = self.retriever.boundary
        scores = awareness_scores(  # (T, I)
            texts.fragments, texts.mask, images.fragments, boundary.value(train=True), region_mask=images.mask
        )
        boundary.update(
            texts.fragments, texts.mask, images.fragments, batch.image_of, scores=scores,
            region_mask=images.mask, gathered=True,
        )  # fmt: skip
        if self.settings.awareness_loss == "softmax":
            logits = scores / self.settings.awareness_temperature
            return aggregation_terms(logits, targets, batch.image_of, self.settings.form)
        negatives: Negatives = "mean" if batch.epoch < self.settings.warm_up else "hardest"
        return awareness_terms(scores, batch.image_of, batch.targets > 0, self.settings.margin, negatives)

    def begin_epoch(self, view: TrainingView) -> dict[str, float]:
        """Judge every pair, propose captions for the pictures, and rematch what was caught."""
        if self.p_match is None:
            return {}
        unseen = self._unseen(view)
        if view.epoch < self.settings.catch_from:
            self.weight.copy_((~unseen).float())
            return {}
        evidence = pooled_evidence(
            view.captions.pooled,
            view.images.pooled,
            view.caption_of,
            view.image_of,
            seed=view.seed + view.epoch,
        )
        mixture = self._fit(view, evidence, unseen)
        fresh = torch.as_tensor(mixture.p_match, dtype=torch.float32, device=self.p_match.device)
        kept = self.settings.smoothing if view.epoch > self.settings.catch_from else 0.0
        self.p_match.copy_(kept * self.p_match + (1 - kept) * fresh)
        self.weight.copy_(self.p_match * ~unseen)
        self.paired_image.copy_(view.image_of)
        self._propose(view, evidence, mixture)
        values = {"estimated_mismatch_rate": float(self._buffer("estimated_rate"))}
        if self.settings.rematch and view.epoch >= self.settings.rematch_from:
            values["rematched"] = float(self._rematch(view, evidence, mixture))
        return values

    def _unseen(self, view: TrainingView) -> Tensor:
        """(N,) bool: pairs of the pictures still kept for calibration, a function of seed and epoch."""
        if view.epoch >= self.settings.release_at:
            return torch.zeros_like(view.image_of, dtype=torch.bool)
        generator = torch.Generator().manual_seed(view.seed)
        images = int(view.image_of.max()) + 1
        drawn = torch.rand(images, generator=generator) < self.settings.calibration
        return drawn.to(view.image_of.device)[view.image_of]

    def _fit(self, view: TrainingView, evidence: Evidence, unseen: Tensor) -> MatchMixture:
        """The mixture of all pairs; its rate comes from pairs that were not trained on yet."""
        rate = self._buffer("estimated_rate")
        if bool(unseen.any()) or float(rate) < 0:
            chosen = unseen.cpu().numpy() if bool(unseen.any()) else slice(None)
            fitted = fit_match_mixture(evidence.scores[chosen], evidence.mismatched, bootstrap=0)
            rate.fill_(fitted.mismatch_rate)
        mixture, _ = fit_with_known_rate(evidence.scores, evidence.mismatched, float(rate), seed=view.seed)
        return mixture

    def _buffer(self, name: str) -> Tensor:
        found: Tensor = getattr(self, name)
        return found

    def _propose(self, view: TrainingView, evidence: Evidence, mixture: MatchMixture) -> None:
        """For every picture its best caption of the whole training set that it is not labelled with."""
        device = self.weight.device
        score = standardised_cosines(view.captions.pooled, view.images.pooled, evidence.statistics)
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

    def _rematch(self, view: TrainingView, evidence: Evidence, mixture: MatchMixture) -> int:
        """Train caught captions with the picture that is theirs by mutual choice; returns how many rows."""
        device, p_match = self.weight.device, self._buffer("p_match")
        found = find_proposals(
            standardised_cosines(view.captions.pooled, view.images.pooled, evidence.statistics),
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

    def progress(self) -> dict[str, Tensor]:
        return {**boundary_progress(self.retriever.boundary), "mismatch": 1 - self.weight.mean()}
