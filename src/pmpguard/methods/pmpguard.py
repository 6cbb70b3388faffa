"""PMPGuard: cross-gated attention, awareness attention, and training that catches its own wrong pairs.

`paper` runs the equations as printed, trusting every label. `recommended` weights each pair's positive terms
by the probability that it is a true match, learned without any labels, and lets caught captions find a better
picture (see `pmpguard.catching`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

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
from pmpguard.losses.aggregation import aggregation_terms, agreement_terms
from pmpguard.losses.awareness import Negatives, awareness_terms
from pmpguard.methods.method import EncodedBatch, Method, TrainingView, boundary_progress, pooled_cosines
from pmpguard.model.awareness_fused import PRODUCT_DTYPE, awareness_scores_fused
from pmpguard.model.caption_blocks import LongerThan
from pmpguard.model.cross_gated_fused import fits_gated_kernel, gated_cosines_fused
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
        catch_from: first epoch that judges pairs by the model's own score; before it, where pictures have
            several captions, by how well these agree.
        calibration: share of the pictures whose pairs are not trained on before `release_at`: on them the
            mismatch rate is estimated without what the model remembers of wrong pairs.
        release_at: first epoch that trains on them too.
        smoothing: share of the previous epoch's probability that is kept.
        rematch_from: first epoch that trains caught captions with the picture they were rematched to.
        rematch_weight: how strongly, times the proposal's probability.
        rematch_least: smallest probability of a proposal.
        teach: weight of the cross-entropy to what the averaged weights believed before the epoch.
        teach_from: first epoch with it.
        teach_temperature: cosines are divided by it to make beliefs of them.
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
    catch_from: int = 1
    calibration: float = 0.2
    release_at: int = 5
    smoothing: float = 0.3
    rematch_from: int = 4
    rematch_weight: float = 0.5
    rematch_least: float = 0.9
    teach: float = 0.0
    teach_from: int = 3
    teach_temperature: float = 0.05
    ranking: Literal["S", "z", "S+z", "pooled", "pooled+S"] = "S"
    attention_scale: float = 10.0
    gate_bias: float = 2.0


class PmpGuard(Method):
    """The paper's objective L_IA + lambda L_PA with catching, suppressing and rematching around it."""

    name = "pmpguard"
    Settings = PmpGuardSettings
    weights_pairs = True
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
        if settings.teach > 0:
            dim = retriever.config.dim
            self.register_buffer("taught_captions", torch.zeros(pairs, dim, dtype=torch.float16))
            self.register_buffer("taught_images", torch.zeros(pairs, dim, dtype=torch.float16))

    @classmethod
    def shape(cls, config: RetrieverConfig, settings: Any) -> RetrieverConfig:
        ranking: Ranking = settings.ranking if settings.pnaa else ("z" if settings.cga else "pooled")
        gates = CrossGatedConfig(settings.cga, settings.attention_scale, settings.gate_bias)
        return replace(config, cross_gated=gates, ranking=ranking)

    def phase(self, epoch: int) -> int:
        return 2 * int(epoch >= self.settings.warm_up) + int(self._teaches(epoch))

    def _teaches(self, epoch: int) -> bool:
        return self.settings.teach > 0 and epoch >= self.settings.teach_from

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        settings = self.settings
        weights = self.weight[batch.rows]  # (T,)
        targets = batch.weighted_targets(weights)  # (T, I)
        share = {"pooled": settings.pooled_weight or 1.0, "awareness": settings.awareness_weight}
        logits = self._logits(batch)
        terms = {name: self._aggregate(each, targets, batch) for name, each in logits.items()}
        if settings.pnaa and settings.awareness_loss == "hinge":
            negatives: Negatives = "mean" if batch.epoch < settings.warm_up else "hardest"
            terms["awareness"] = awareness_terms(
                self._aware(batch), batch.image_of, batch.targets > 0, settings.margin, negatives
            )
        terms = {name: share.get(name, 1.0) * term * weights for name, term in terms.items()}
        if self._teaches(batch.epoch):
            beliefs = self._beliefs(batch)
            taught = [
                share.get(name, 1.0) * agreement_terms(beliefs, each, batch.image_of)
                for name, each in logits.items()
            ]
            terms["taught"] = settings.teach * torch.stack(taught).sum(0)
        return terms

    def _logits(self, batch: EncodedBatch) -> dict[str, Tensor]:
        """(T, I) of everything that is trained by cross-entropy over the batch."""
        settings, logits = self.settings, {}
        if settings.pooled_weight > 0 or not settings.cga:  # without gates, L_IA is on pooled tokens
            logits["pooled"] = pooled_cosines(batch) / self.temperature
        if settings.cga:
            cosines = self._gated_cosines(batch.texts, batch.images, batch.longer_than)
            logits["aggregation"] = cosines / self.temperature
        if settings.pnaa and settings.awareness_loss == "softmax":
            logits["awareness"] = self._aware(batch) / settings.awareness_temperature
        return logits

    def _beliefs(self, batch: EncodedBatch) -> Tensor:
        """(T, I): what the averaged weights believed before this epoch, labels aside.

        Agreeing with it is rematching in degrees: every caption, caught ones too, is pulled towards all
        pictures of the batch as strongly as the model's slower self finds that they suit it, and pictures
        likewise.
        """
        captions = self._buffer("taught_captions")[batch.caption_keys].float()  # (T, d)
        images = self._buffer("taught_images")[batch.image_keys].float()  # (I, d)
        return captions @ images.T / self.settings.teach_temperature

    def _learn_from(self, view: TrainingView) -> None:
        self._buffer("taught_captions")[: len(view.captions)] = view.captions.pooled.half()
        self._buffer("taught_images")[: len(view.images)] = view.images.pooled.half()

    def _gated_cosines(
        self, texts: Encoded, images: Encoded, longer_than: LongerThan | None = None
    ) -> Tensor:
        """(T, I): cosines of gated fragments, in chunks that are computed again on the way back."""
        attention = self.retriever.cross_gated_attention
        assert attention is not None

        def score(some_texts: Encoded, some_images: Encoded) -> Tensor:
            return attention.forward(
                some_texts.fragments, some_texts.mask, some_images.fragments, some_images.mask
            )

        if fits_gated_kernel(texts.fragments, texts.mask, images.fragments, images.mask):
            return gated_cosines_fused(
                attention, texts.fragments, texts.mask, images.fragments, images.mask, longer_than
            )
        if len(texts) * len(images) <= GATED_CHUNK**2:
            return score(texts, images)
        return all_pairs_with_gradient(score, texts, images, text_chunk=GATED_CHUNK, image_chunk=GATED_CHUNK)

    def _aggregate(self, logits: Tensor, targets: Tensor, batch: EncodedBatch) -> Tensor:
        return aggregation_terms(logits, targets, batch.image_of, self.settings.form)

    def _aware(self, batch: EncodedBatch) -> Tensor:
        """(T, I): S, after which the boundary has seen the batch."""
        texts, images = batch.texts, batch.images
        boundary = self.retriever.boundary
        scores = awareness_scores_fused(
            texts.fragments, texts.mask, images.fragments, boundary.value(train=True),
            region_mask=images.mask, product_dtype=PRODUCT_DTYPE, longer_than=batch.longer_than,
        )  # fmt: skip
        boundary.update(
            texts.fragments, texts.mask, images.fragments, batch.image_of, scores=scores,
            region_mask=images.mask, gathered=True,
        )  # fmt: skip
        return scores

    def begin_epoch(self, view: TrainingView) -> dict[str, float]:
        """Judge every pair, propose captions for the pictures, and rematch what was caught."""
        settings = self.settings
        if self._teaches(view.epoch):
            self._learn_from(view)
        if self.p_match is None or self.trusted:
            return {}
        unseen = self._unseen(view)
        wrong = draw_wrong(view.caption_of, view.image_of, view.seed)
        parts, score, statistics = self._look(view, wrong)
        if parts:
            mixture = self._judge(parts, unseen, view.seed)
            fresh = torch.as_tensor(mixture.p_match, dtype=torch.float32, device=self.p_match.device)
            kept = settings.smoothing if view.epoch > settings.catch_from else 0.0
            self.p_match.copy_(kept * self.p_match + (1 - kept) * fresh)
        self.weight.copy_(self.p_match * ~unseen)
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

    def progress(self) -> dict[str, Tensor]:
        return {**boundary_progress(self.retriever.boundary), "mismatch": 1 - self.weight.mean()}


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
