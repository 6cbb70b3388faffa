"""The head of DOVE: captions read in both directions, and scores oriented by an image's regions.

The score of a pair is the cosine of two vectors. The image's: its pooled vector after attention to its own
regions. The caption's: its pooled vector plus its words, weighed by what the image's mean region asks for.
So the second belongs to a pair, and every caption is scored with every image: were only labelled pairs
guided, a caption would carry the image it is compared with. Scoring drops nothing out at random, because
every process of a distributed run must compute the same scores.

Guided captions are never formed. With words f_1..f_m after W_v, pooled g and weights a of one pair,

    (g + sum_j a_j f_j) . v = g.v + sum_j a_j (f_j . v)
    |g + sum_j a_j f_j|^2   = |g|^2 + 2 sum_j a_j (f_j . g) + a^T F a,   F = the caption's Gram matrix

so a pair costs m numbers instead of d.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pmpguard.models.attention.cross_gated import masked_softmax
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.projection import masked_mean, unit
from pmpguard.models.heads.attention import AttentionLayer, GatedAttention
from pmpguard.models.heads.head import Head, widened


class DoveHead(Head):
    """Digging text genome assistant (captions) and regional-oriented attention (pairs).

    The encoded items hold what the global constraint compares: images as they are, captions after their two
    flows. `score` is the regional-oriented score.
    """

    def __init__(self, dim: int, attention_heads: int, dropout: float) -> None:
        super().__init__()
        self.flows = TwoFlows(dim, dropout)
        self.gather = nn.Linear(dim, dim)
        self.fuse = AttentionLayer(dim, attention_heads)
        self.ask = nn.Linear(dim, dim)
        self.offer = nn.Linear(dim, dim)
        self.give = nn.Linear(dim, dim)

    def texts(self, encoded: Encoded) -> Encoded:
        words = self.flows(widened(encoded.fragments), encoded.mask)  # (N, m, d)
        pooled = widened(encoded.pooled) + self.gather(masked_mean(words, encoded.mask))
        return Encoded(unit(pooled), unit(words), encoded.mask)

    def score(self, texts: Encoded, images: Encoded) -> Tensor:
        fused = self.fused(images)  # (I, d)
        return self.guided_cosines(texts, self.regional(images), fused)

    def floats_per_pair(self, texts: Encoded, images: Encoded) -> int:
        return 4 * texts.mask.shape[1] + 4

    def fused(self, images: Encoded) -> Tensor:
        """Intra-modal fusion: unit vectors (I, d), each image's pooled vector with its regions' support."""
        whole, regions = widened(images.pooled)[:, None], widened(images.fragments)
        return unit(self.fuse(whole, whole, regions, images.mask)[:, 0])

    def regional(self, images: Encoded) -> Tensor:
        """The mean region of each image, stretched: (I, d)."""
        return widened(unit(masked_mean(images.fragments, images.mask)))

    def guided_cosines(self, texts: Encoded, regional: Tensor, fused: Tensor) -> Tensor:
        """Inter-modal guidance: (T, I) cosines of the guided captions with `fused` (I, d), as above."""
        words, pooled = widened(texts.fragments), widened(texts.pooled)  # (T, m, d), (T, d)
        asked = self.ask(regional) / math.sqrt(regional.shape[-1])  # (I, d)
        logits = torch.einsum("tmd,id->tim", self.offer(words), asked)
        weights = masked_softmax(logits, texts.mask[:, None, :], -1)  # (T, I, m)
        given = self.give(words)  # (T, m, d)
        towards = pooled @ fused.T + (weights * torch.einsum("tmd,id->tim", given, fused)).sum(-1)  # (T, I)
        gram = given @ given.transpose(1, 2)  # (T, m, m)
        with_pooled = (given * pooled[:, None]).sum(-1)  # (T, m)
        squared = (pooled**2).sum(-1)[:, None] + 2 * torch.einsum("tim,tm->ti", weights, with_pooled)
        squared = squared + ((weights @ gram) * weights).sum(-1)  # (T, I)
        return towards * squared.clamp_min(1e-6).rsqrt()  # type: ignore[no-any-return]


class TwoFlows(nn.Module):
    """Gated attention forwards and backwards through a caption; each flow is let through by the other."""

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.forwards = GatedAttention(dim)
        self.backwards = GatedAttention(dim)
        self.admit_forwards = nn.Linear(dim, dim)
        self.admit_backwards = nn.Linear(dim, dim)
        self.combine = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim)
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        """(N, m, d), (N, m) -> (N, m, d)."""
        words = words * mask[..., None]
        itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)  # (m, m)
        earlier = torch.ones_like(itself).tril()
        seen = mask[:, None, :]  # (N, 1, m)
        ahead = words + self.forwards(words, (seen & earlier) | itself)
        back = words + self.backwards(words, (seen & earlier.T) | itself)
        crossed = ahead * torch.sigmoid(self.admit_forwards(back))
        crossed = crossed + back * torch.sigmoid(self.admit_backwards(ahead))
        return self.norm(words + self.combine(crossed))  # type: ignore[no-any-return]
