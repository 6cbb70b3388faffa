"""IN2R: a distrusted image learns from the captions of trusted images like it, and the reverse.

Reference: Liu, Feng, Huang, Ye and Lv, "Intra-Modal Neighbors Never Lie: Rectifying Inter-Modal Noisy
Correspondence via Graph-Based Intra-Modal Reasoning", ICML 2026.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, scaled_dot_product_attention

from pmpguard.losses.infonce import infonce_terms
from pmpguard.losses.positives import positive_targets
from pmpguard.methods.baselines.memory import PairMemory, p_low_loss
from pmpguard.methods.method import EncodedBatch, EpochPlan, JudgingMethod, TrainingView, pooled_cosines
from pmpguard.models.retriever import Retriever

_MASKED = -1e4


@dataclass(frozen=True)
class In2rSettings:
    """Published values, but for `memory`, which is 65,536 there, and `warmup_epochs`, 1 there.

    Args:
        warmup_epochs: epochs of plain InfoNCE.
        temperature: of every softmax.
        threshold: a pair is clean when the mixture of losses gives it more than this.
        memory: how many trusted pairs are remembered; those above the mean probability of clean ones may be.
        neighbours: of the memory that make one target.
        heads: of the attention among them.
        rectified_weight: of what distrusted images and captions learn.
    """

    warmup_epochs: int = 2
    temperature: float = 0.05
    threshold: float = 0.5
    memory: int = 8192
    neighbours: int = 5
    heads: int = 4
    rectified_weight: float = 0.5


class In2r(JudgingMethod):
    """InfoNCE on clean pairs; distrusted images and captions are drawn to what their neighbours pair with.

    Before every epoch a mixture of two Gaussians over the pairs' losses splits the training set, and the
    surest pairs become a memory. For a distrusted image the remembered images most like it are found; a
    learned attention among their captions makes one target of them. Captions likewise find images.

    Differs from the original:
      * One network instead of two that split the data, and lend their memories, to each other.
      * The memory is filled before an epoch, not step by step.
      * Clean pairs have InfoNCE alone. The original adds a triplet loss between two dropout views of the same
        image and of the same caption.
      * The targets' InfoNCE has no reverse part.
      * Clean and distrusted pairs share batches, because the loop deals them. Terms are means over all pairs.
    """

    name = "in2r"
    Settings = In2rSettings

    settings: In2rSettings

    def __init__(self, retriever: Retriever, settings: In2rSettings, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        dim = retriever.config.dim
        self.memory = PairMemory(min(settings.memory, pairs), dim)
        self.to_text, self.to_image = (NeighbourAttention(dim, settings.heads) for _ in range(2))

    def phase(self, epoch: int) -> int:
        return int(epoch >= self.settings.warmup_epochs)

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        settings = self.settings
        logits = pooled_cosines(batch) / settings.temperature  # (T, I)
        if batch.epoch < settings.warmup_epochs:
            return {"warmup_epochs": infonce_terms(logits, batch.targets, batch.image_of)}
        clean = (self.p_match[batch.rows] > settings.threshold).to(logits.dtype)  # (T,)
        images, captions = batch.images.pooled[batch.image_of], batch.texts.pooled  # (T, d) both
        texts_for = self.to_text(self._paired(images, self.memory.images, self.memory.texts))
        images_for = self.to_image(self._paired(captions, self.memory.texts, self.memory.images))
        weight, keys = settings.rectified_weight * (1 - clean), batch.image_keys[batch.image_of]
        return {
            "labelled": clean * infonce_terms(logits, batch.weighted_targets(clean), batch.image_of),
            "image_to_text": weight * self._drawn(images, texts_for, 1 - clean, keys),
            "text_to_image": weight * self._drawn(captions, images_for, 1 - clean, batch.caption_keys),
        }

    def _paired(self, items: Tensor, like: Tensor, paired: Tensor) -> Tensor:
        """(T, k, d): what the entries most like the items (T, d) are paired with."""
        count = min(self.settings.neighbours, len(like))
        return paired[(items.detach() @ like.T).topk(count, dim=1).indices]

    def _drawn(self, items: Tensor, targets: Tensor, asked: Tensor, keys: Tensor) -> Tensor:
        """(T,): InfoNCE of the items (T, d) that are `asked` (T,) and their targets, among themselves."""
        logits = items @ targets.T / self.settings.temperature
        logits = logits + _MASKED * (1 - asked)[None] + _MASKED * (1 - asked)[:, None]
        own = torch.arange(len(items), device=items.device)
        same = positive_targets(own, keys, keys) * asked[None] * asked[:, None]
        return asked * infonce_terms(logits, same, own)

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        settings = self.settings
        if view.epoch < settings.warmup_epochs:
            return EpochPlan()
        self.p_match.copy_(p_low_loss(view, settings.temperature))
        clean = self.p_match[self.p_match > settings.threshold]
        self.memory.fill(view, self.p_match, float(clean.mean()) if len(clean) else 1.0)
        return EpochPlan(log={"mean_p_match": float(self.p_match.mean())})


class NeighbourAttention(nn.Module):
    """One unit vector of k: self-attention among them, with a residual, then their mean."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_queries, self.to_keys, self.to_values = (nn.Linear(dim, dim) for _ in range(3))
        self.to_output = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, neighbours: Tensor) -> Tensor:
        """(T, k, d) -> (T, d)."""
        count, k, dim = neighbours.shape
        split = [
            layer(neighbours).view(count, k, self.heads, dim // self.heads).transpose(1, 2)
            for layer in (self.to_queries, self.to_keys, self.to_values)
        ]
        mixed = scaled_dot_product_attention(*split).transpose(1, 2).reshape(count, k, dim)
        return normalize(self.norm(neighbours + self.to_output(mixed)).mean(1), dim=1)
