"""The head of SWAN: an image seen as a whole and in detail at once, and words joined to phrases."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.projection import masked_mean, unit
from pmpguard.models.heads.attention import AttentionLayer, GatedAttention
from pmpguard.models.heads.head import Head, widened

PHRASES = (2, 3)  # words that a phrase joins


class SwanHead(Head):
    """Scene-aware aggregation of an image and coarse-grained enhancement of a caption.

    The whole: the mean region, filtered by a small network. The detail: `SceneDetail`. Both are joined by two
    linear layers. Captions: `PhraseEnhancement`. Regions and words themselves stay as they are.
    """

    def __init__(self, dim: int, attention_heads: int, dropout: float) -> None:
        super().__init__()
        self.filter_whole = two_layers(dim, 2 * dim, dim, dropout)
        self.detail = SceneDetail(dim, attention_heads, dropout)
        self.aggregate = two_layers(2 * dim, dim, dim, 0.0)
        self.enhance = PhraseEnhancement(dim, dropout)

    def images(self, encoded: Encoded) -> Encoded:
        regions = widened(encoded.fragments)  # (N, n, d)
        whole = self.filter_whole(masked_mean(regions, encoded.mask))  # (N, d)
        joined = torch.cat([self.detail(regions, encoded.mask), whole], -1)  # (N, 2d)
        return Encoded(unit(self.aggregate(joined)), encoded.fragments, encoded.mask)

    def texts(self, encoded: Encoded) -> Encoded:
        pooled = self.enhance(widened(encoded.fragments), encoded.mask)  # (N, d)
        return Encoded(unit(pooled), encoded.fragments, encoded.mask)


class SceneDetail(nn.Module):
    """Regions at three granularities (1, 3 and 5 regions wide), related by self-attention, then weighed.

    Half of the channels see the widest neighbourhood, as published.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        quarter = dim // 4
        widths = {1: quarter, 3: quarter, 5: dim - 2 * quarter}
        self.neighbourhoods = nn.ModuleList(
            nn.Conv2d(dim, channels, kernel, padding=kernel // 2) for kernel, channels in widths.items()
        )
        self.norm = nn.LayerNorm(dim)
        self.mix = nn.Linear(dim, dim)
        self.relate = AttentionLayer(dim, heads, dropout)
        self.weigh = nn.Linear(dim, 1)

    def forward(self, regions: Tensor, mask: Tensor) -> Tensor:
        """(N, n, d) on a square grid, (N, n) -> (N, d)."""
        side = math.isqrt(regions.shape[1])
        grid = (
            (regions * mask[..., None]).transpose(1, 2).reshape(len(regions), -1, side, side)
        )  # (N, d, side, side)
        seen = torch.cat([convolution(grid) for convolution in self.neighbourhoods], 1).flatten(2)
        states = F.relu(self.mix(F.relu(self.norm(seen.transpose(1, 2)))))  # (N, n, d)
        states = self.relate(states, states, states, mask)
        salience = self.weigh(states).squeeze(-1).masked_fill(~mask, -math.inf).softmax(1)  # (N, n)
        return (salience[..., None] * states).sum(1)  # type: ignore[no-any-return]  # (N, d)


class PhraseEnhancement(nn.Module):
    """Words enhanced by gated attention, and phrases of two and three words beside them; their mean."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.gated = GatedAttention(dim)
        self.norm = nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)
        self.join = nn.ModuleList(nn.Conv1d(dim, dim, words, stride=words) for words in PHRASES)
        self.phrase_norms = nn.ModuleList(nn.LayerNorm(dim) for _ in PHRASES)
        self.refine = two_layers(dim, 2 * dim, dim, dropout)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """(N, m, d), (N, m) -> (N, d)."""
        words = words * mask[..., None]
        states = [words + self.drop(self.norm(self.gated(words, mask)))]
        masks = [mask]
        room = -words.shape[1] % math.lcm(*PHRASES)
        padded, padded_mask = F.pad(words, (0, 0, 0, room)), F.pad(mask, (0, room))
        for join, norm, length in zip(self.join, self.phrase_norms, PHRASES, strict=True):
            states.append(F.relu(norm(join(padded.transpose(1, 2)).transpose(1, 2))))  # (N, m/length, d)
            masks.append(padded_mask[:, ::length])  # a phrase counts where its first word is real
        joined = torch.cat(states, 1)
        return masked_mean(joined + self.refine(joined), torch.cat(masks, 1))


def two_layers(inputs: int, hidden: int, outputs: int, dropout: float) -> nn.Sequential:
    """Linear, ReLU, dropout, linear."""
    return nn.Sequential(
        nn.Linear(inputs, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, outputs)
    )
