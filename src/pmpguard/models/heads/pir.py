"""The head of PIR: tokens chosen by a scene prior, and words that attend to themselves in cycles.

What the prior is: the probabilities of scene classes, given by a linear classifier on the mean region. It
learns from scene labels alone (`methods/baselines/pir.py`) and is frozen for retrieval: nothing here passes
a gradient to it, nor does it pass one to the encoder.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.projection import masked_mean, unit
from pmpguard.models.heads.attention import AttentionLayer
from pmpguard.models.heads.head import Head, widened, with_pooled


class PirHead(Head):
    """Vision instruction representation and language cycle attention.

    Images: the instruction (the scene probabilities, projected) ranks the pooled vector and the regions;
    the best `keep` of them go through `instructions` guided layers, and the first one's result is added to
    the pooled vector. Captions: the pooled vector and the words go through `cycles` guided layers, each
    guided by what the previous one gave; the first one's result is added to the pooled vector.
    """

    def __init__(
        self,
        dim: int,
        scenes: int,
        keep: float,
        instructions: int,
        cycles: int,
        attention_heads: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.keep = keep
        self.scenes = nn.Linear(dim, scenes)
        self.instruct = nn.Linear(scenes, dim)
        self.image_layers = nn.ModuleList(
            GuidedLayer(dim, attention_heads, dropout) for _ in range(instructions)
        )
        self.text_layers = nn.ModuleList(GuidedLayer(dim, attention_heads, dropout) for _ in range(cycles))
        self.image_adjustment = nn.Linear(dim, dim)
        self.text_adjustment = nn.Linear(dim, dim)

    def images(self, encoded: Encoded) -> Encoded:
        tokens, mask = with_pooled(encoded)  # (N, 1 + n, d), (N, 1 + n)
        instruction = self.instruction(encoded)[:, None]  # (N, 1, d)
        chosen = most_relevant(tokens, mask, instruction, self.keep)  # (N, k)
        states = tokens.gather(1, chosen[..., None].expand(-1, -1, tokens.shape[-1]))  # (N, k, d)
        mask = mask.gather(1, chosen)  # (N, k)
        for layer in self.image_layers:
            states = layer(states, mask, instruction)
        adjusted = widened(encoded.pooled) + self.image_adjustment(states[:, 0])
        return Encoded(unit(adjusted), encoded.fragments, encoded.mask)

    def texts(self, encoded: Encoded) -> Encoded:
        states, mask = with_pooled(encoded)  # (N, 1 + m, d), (N, 1 + m)
        for layer in self.text_layers:
            states = layer(states, mask, states)
        adjusted = widened(encoded.pooled) + self.text_adjustment(states[:, 0])
        return Encoded(unit(adjusted), encoded.fragments, encoded.mask)

    def scene_logits(self, images: Encoded) -> Tensor:
        """(N, scenes): reads the regions, which this head leaves alone, so it works before and after it."""
        return self.scenes(widened(unit(masked_mean(images.fragments.detach(), images.mask))))  # type: ignore

    def instruction(self, images: Encoded) -> Tensor:
        """(N, d): the frozen prior, projected by a layer that does learn from retrieval."""
        return self.instruct(self.scene_logits(images).detach().softmax(-1))  # type: ignore[no-any-return]


class GuidedLayer(nn.Module):
    """Self-attention, then attention with the guide's queries (N, 1 or L, d) to states (N, L, d)."""

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.alone = AttentionLayer(dim, heads, dropout)
        self.map_guide = nn.Linear(dim, dim)
        self.guided = AttentionLayer(dim, heads, dropout)

    def forward(self, states: Tensor, mask: Tensor, guide: Tensor) -> Tensor:
        attended = self.alone(states, states, states, mask)
        return self.guided(attended, self.map_guide(guide), attended, mask)  # type: ignore[no-any-return]


@torch.no_grad()
def most_relevant(tokens: Tensor, mask: Tensor, instruction: Tensor, keep: float) -> Tensor:
    """(N, k): the places of the tokens nearest to the instruction (N, 1, d), best first, masked ones last."""
    relevance = (tokens * instruction).sum(-1)  # (N, L)
    relevance = relevance.masked_fill(~mask, -math.inf)
    return relevance.topk(max(1, math.ceil(keep * tokens.shape[1])), dim=1).indices
