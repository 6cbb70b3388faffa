"""A memory of the pairs a model trusts most, and the losses that tell which those are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pmpguard.detection.evidence.nearest import full
from pmpguard.detection.gaussian_mixture import fit_gaussian_mixture
from pmpguard.losses.infonce import infonce_terms
from pmpguard.methods.baselines.blocks import measure_in_blocks
from pmpguard.methods.method import EncodedBatch, TrainingView, pooled_cosines

ITEMS_AT_ONCE = 4096


class PairMemory(nn.Module):
    """Buffers of a fixed size, so that checkpoints hold them: zeros before anything is trusted."""

    texts: Tensor  # (M, d)
    images: Tensor  # (M, d)

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("texts", torch.zeros(size, dim))
        self.register_buffer("images", torch.zeros(size, dim))

    def __len__(self) -> int:
        return len(self.texts)

    @torch.no_grad()
    def fill(self, view: TrainingView, p_match: Tensor, least: float) -> Tensor:
        """Keep the surest pairs of at least `least`; (M,) their rows, again from the first where too few."""
        order = p_match.argsort(descending=True, stable=True)
        trusted = int((p_match >= least).sum().clamp(min=1, max=len(self)))
        rows = order[torch.arange(len(self), device=order.device) % trusted]  # (M,)
        self.texts.copy_(view.captions.pooled[view.caption_of[rows]])
        self.images.copy_(view.images.pooled[view.image_of[rows]])
        return rows


def p_low_loss(view: TrainingView, temperature: float) -> Tensor:
    """(N,): probability by a mixture of two Gaussians that a pair's InfoNCE is one of the low ones."""

    def own_loss(block: EncodedBatch) -> Tensor:
        return infonce_terms(pooled_cosines(block) / temperature, block.targets, block.image_of)

    losses = measure_in_blocks(view, own_loss)  # (N,)
    mixture = fit_gaussian_mixture(losses.double().cpu().numpy())
    return torch.from_numpy(mixture.p_low).to(losses)


def nearest_remembered(items: Tensor, memory: Tensor) -> Tensor:
    """(K, d), (M, d) -> (K,): the most similar entry of the memory."""
    return torch.cat([(full(part) @ full(memory).T).argmax(1) for part in torch.split(items, ITEMS_AT_ONCE)])
