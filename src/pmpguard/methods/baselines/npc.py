"""NPC: a pair counts as little as learning it harms what is known of pairs that are trusted.

Reference: Zhang, Li and Ye, "Negative Pre-aware for Noisy Cross-Modal Matching", AAAI 2024.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.losses.infonce import infonce_terms
from pmpguard.losses.positives import positive_targets
from pmpguard.methods.baselines.memory import PairMemory, nearest_remembered, p_low_loss
from pmpguard.methods.method import EncodedBatch, EpochPlan, JudgingMethod, TrainingView, pooled_cosines
from pmpguard.models.retriever import Retriever

_MASKED = -1e4


@dataclass(frozen=True)
class NpcSettings:
    """`trusted` and `memory_weight` are published; the others are ours.

    Args:
        warmup_epochs: epochs of plain InfoNCE before the first memory; the original starts from a model that
            was trained on other data.
        trusted: probability by the mixture of losses from which on a pair may be remembered.
        memory: how many pairs are remembered.
        memory_weight: of the loss of remembered pairs; 0 as the authors' code trains.
        virtual_rate: how far the virtual step goes, for each number of the two maps.
    """

    warmup_epochs: int = 3
    trusted: float = 0.9
    memory: int = 4096
    memory_weight: float = 1.0
    virtual_rate: float = 0.01


class Npc(JudgingMethod):
    """InfoNCE weighted by whether a virtual step on the batch helps or harms remembered pairs, and their own.

    Each pair has two entries in a memory of trusted pairs: the one with the most similar image and the one
    with the most similar caption. A virtual step is made on the batch. Where the loss of a pair's entries
    rises by it, the pair is taken for a harmful one: its weight is tanh of the ratio of the loss before to
    the loss after; where it falls, the weight is 1. The loss of remembered pairs is added in full.

    Differs from the original:
      * Weights and memory act as published. The authors' code averages a batch's loss before it meets the
        weights, so that they scale the batch and not its pairs, and adds the memory's loss without a
        gradient.
      * The memory's loss is that of the remembered pairs of the batch among themselves, not of the entries
        its pairs have, which would be encoded a second time.
      * The virtual step moves two linear maps behind the encoders, not a copy of the whole model, and memory
        holds vectors of the beginning of the epoch, not images and captions: a quarter of the cost.
      * The memory is chosen anew before every epoch from losses of the model itself, after a warm-up; theirs
        once, from losses of a CLIP.
      * Pairs that share an image or a caption string are positives of each other.
    """

    name = "npc"
    Settings = NpcSettings

    by_image: Tensor  # (N,) entries of the memory
    by_caption: Tensor
    remembered: Tensor  # (N,) bool
    settings: NpcSettings

    def __init__(self, retriever: Retriever, settings: NpcSettings, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        self.memory = PairMemory(min(settings.memory, pairs), retriever.config.dim)
        self.register_buffer("by_image", torch.zeros(pairs, dtype=torch.int64))
        self.register_buffer("by_caption", torch.zeros(pairs, dtype=torch.int64))
        self.register_buffer("remembered", torch.zeros(pairs, dtype=torch.bool))

    def phase(self, epoch: int) -> int:
        return int(epoch >= self.settings.warmup_epochs)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        temperature = self.temperature
        logits = pooled_cosines(batch) / temperature  # (T, I)
        terms = infonce_terms(logits, batch.targets, batch.image_of)  # (T,)
        if batch.epoch < self.settings.warmup_epochs:
            return {"infonce": terms}
        losses = {"infonce": self.weigh(batch) * terms}
        if self.settings.memory_weight > 0:
            losses["memory"] = self.settings.memory_weight * self._remembered_terms(batch, logits)
        return losses

    def weigh(self, batch: EncodedBatch) -> Tensor:
        """(T,): what each pair of a batch counts."""
        temperature = self.temperature.detach()
        maps = virtual_step(batch, temperature, self.settings.virtual_rate)
        ratios = [
            self._memory_losses(entries[batch.rows], None, temperature)
            / self._memory_losses(entries[batch.rows], maps, temperature).clamp(min=1e-6)
            for entries in (self.by_image, self.by_caption)
        ]
        return harm_weight((ratios[0] + ratios[1]) / 2)

    def _remembered_terms(self, batch: EncodedBatch, logits: Tensor) -> Tensor:
        """(T,): InfoNCE of the batch's remembered pairs among each other, whose mean over T is theirs."""
        known = self.remembered[batch.rows].to(logits.dtype)  # (T,)
        images = torch.zeros_like(logits[0]).index_add(0, batch.image_of, known).clamp(max=1)  # (I,)
        among = known[:, None] * images[None]  # (T, I)
        targets = batch.weighted_targets(known) * among
        terms = infonce_terms(logits.masked_fill(among == 0, _MASKED), targets, batch.image_of)
        return known * terms * (len(known) / known.sum().clamp(min=1))

    @torch.no_grad()
    def _memory_losses(
        self, entries: Tensor, maps: tuple[Tensor, Tensor] | None, temperature: Tensor
    ) -> Tensor:
        """(T,): InfoNCE of the remembered pairs `entries` (T,) among each other."""
        texts, images = self.memory.texts[entries], self.memory.images[entries]
        if maps is not None:
            texts, images = moved(texts, maps[0]), moved(images, maps[1])
        own = torch.arange(len(entries), device=entries.device)
        targets = positive_targets(own, entries, entries)
        return infonce_terms(texts @ images.T / temperature, targets, own)

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        settings = self.settings
        if view.epoch < settings.warmup_epochs:
            return EpochPlan()
        self.p_match.copy_(p_low_loss(view, float(self.temperature)))
        self.remembered.zero_()
        self.remembered[self.memory.fill(view, self.p_match, settings.trusted)] = True
        nearest = nearest_remembered(view.images.pooled, self.memory.images)  # (I,)
        self.by_image.copy_(nearest[view.image_of])
        nearest = nearest_remembered(view.captions.pooled, self.memory.texts)  # (C,)
        self.by_caption.copy_(nearest[view.caption_of])
        return EpochPlan(log={"mean_p_match": float(self.p_match.mean())})


def virtual_step(batch: EncodedBatch, temperature: Tensor, rate: float) -> tuple[Tensor, Tensor]:
    """Changes (d, d) of two identity maps behind the encoders, by one step on the batch's InfoNCE.

    A step has the same length whatever the loss: gradients are divided by their root mean square.
    """
    texts, images = batch.texts.pooled.detach(), batch.images.pooled.detach()
    maps = [vectors.new_zeros(vectors.shape[1], vectors.shape[1]) for vectors in (texts, images)]
    with torch.enable_grad():
        maps = [each.requires_grad_() for each in maps]
        logits = moved(texts, maps[0]) @ moved(images, maps[1]).T / temperature
        loss = infonce_terms(logits, batch.targets, batch.image_of).mean()
        gradients = torch.autograd.grad(loss, maps)
    by_texts, by_images = (
        -rate * gradient / gradient.square().mean().sqrt().clamp(min=1e-12) for gradient in gradients
    )
    return by_texts, by_images


def moved(vectors: Tensor, change: Tensor) -> Tensor:
    """(N, d): unit vectors after the map identity + change (d, d)."""
    return normalize(vectors + vectors @ change, dim=1)


def harm_weight(ratio: Tensor) -> Tensor:
    """(T,): 1 where the remembered pair's loss falls (ratio of before to after at least 1), else tanh of it.

    >>> harm_weight(torch.tensor([2.0, 1.0, 0.5]))
    tensor([1.0000, 1.0000, 0.4621])
    """
    return torch.where(ratio < 1, ratio.tanh(), 1.0)
