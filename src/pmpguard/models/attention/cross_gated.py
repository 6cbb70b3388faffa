"""Cross-gated attention (CGA, eqs 1-5): each word and region keeps what its counterpart supports.

For one caption u_1..u_m and one image v_1..v_n of unit vectors:

    a_ij = u_i^T W_a v_j;  alpha = softmax of a over regions, beta = softmax of a over words
    vt_i = sum_j alpha_ij v_j,  ut_j = sum_i beta_ji u_i
    gu_i = sigmoid(W^u [u_i; vt_i] + b^u),  û_i = gu_i * u_i + (1 - gu_i) * vt_i
    gv_j = sigmoid(W^v [v_j; ut_j] + b^v),  v̂_j = gv_j * v_j + (1 - gv_j) * ut_j

The pair's score is the cosine between the means of û and of v̂.

Gated fragments belong to a pair, not to a caption or an image: û contains the image it was gated with. So
every caption is gated with EVERY image of the batch. Were only labelled pairs gated, random vectors and
untrained weights would already retrieve perfectly, each side having seen the other.

The gates are factorised: W [u; vt] = W1 u + sum_j alpha_ij (W2 v_j), exactly. W1 u and W2 v are products per
fragment, not per fragment and pair.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, normalize


class PairAxes(NamedTuple):
    """The einsum letters of captions, of images and of pairs."""

    caption: str
    image: str
    pair: str


ALL_PAIRS = PairAxes("t", "i", "ti")
ALIGNED = PairAxes("p", "p", "p")


class Gated(NamedTuple):
    """Fragments gated for their pair; masked ones are 0. Not unit vectors."""

    words: Tensor  # (..., m, d)
    regions: Tensor  # (..., n, d)


class CrossGatedAttention(nn.Module):
    """The weights of CGA: W_a, and for each side a gate of weight (d, 2d) and bias (d,).

    `attention_scale` sets W_a = scale * I at the start: with scale 1, cosines over 49 regions attend almost
    evenly. `gate_bias` starts the gates open: with bias 0 both sides become the same mixture. As printed in
    the paper: scale 1, bias 0.
    """

    def __init__(self, dim: int, attention_scale: float = 10.0, gate_bias: float = 2.0) -> None:
        super().__init__()
        self.attention = nn.Parameter(attention_scale * torch.eye(dim))  # (d, d) W_a
        self.word_gate = nn.Linear(2 * dim, dim)
        self.region_gate = nn.Linear(2 * dim, dim)
        nn.init.constant_(self.word_gate.bias, gate_bias)
        nn.init.constant_(self.region_gate.bias, gate_bias)

    def forward(
        self, words: Tensor, word_mask: Tensor, regions: Tensor, region_mask: Tensor | None = None
    ) -> Tensor:
        """Cosines of all pairs: (T, m, d), (T, m), (I, n, d), (I, n) or None -> (T, I)."""
        return _cosine(self.gate(words, word_mask, regions, region_mask, ALL_PAIRS))

    def gate(
        self,
        words: Tensor,
        word_mask: Tensor,
        regions: Tensor,
        region_mask: Tensor | None = None,
        axes: PairAxes = ALL_PAIRS,
    ) -> Gated:
        """Gated fragments of all pairs, (T, I, m, d) and (T, I, n, d), or of aligned ones, without I.

        Aligned ones explain a pair. Never rank or train with them alone: each side contains the other.
        """
        caption, image, pair = axes
        if words.device.type == "cpu":  # half precision is for accelerators
            words, regions = words.to(_wide(words.dtype)), regions.to(_wide(regions.dtype))
        words = words.masked_fill(~word_mask[..., None], 0.0)
        if region_mask is None:
            region_mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
        regions = regions.masked_fill(~region_mask[..., None], 0.0)
        own_word, seen_word = own_part(self.word_gate, words), seen_part(self.word_gate, regions)
        own_region, seen_region = own_part(self.region_gate, regions), seen_part(self.region_gate, words)
        if axes is ALL_PAIRS:
            words_, word_mask, own_word = words[:, None], word_mask[:, None], own_word[:, None]
            regions_, region_mask, own_region = regions[None], region_mask[None], own_region[None]
        else:
            words_, regions_ = words, regions

        logits = torch.einsum(f"{caption}md,{image}nd->{pair}mn", self.rotate(words), regions)
        logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
        # alpha and beta of eq. 2, (..., m, n) both
        over_regions = masked_softmax(logits, region_mask[..., None, :], -1).to(words.dtype)
        over_words = masked_softmax(logits, word_mask[..., :, None], -2).to(words.dtype)

        to_word = f"{pair}mn,{image}nd->{pair}md"
        context = torch.einsum(to_word, over_regions, regions)  # (..., m, d) vt
        gate = torch.sigmoid(own_word + torch.einsum(to_word, over_regions, seen_word))
        gated_words = (context + gate * (words_ - context)) * word_mask[..., None]
        to_region = f"{pair}mn,{caption}md->{pair}nd"
        context = torch.einsum(to_region, over_words, words)  # (..., n, d) ut
        gate = torch.sigmoid(own_region + torch.einsum(to_region, over_words, seen_region))
        gated_regions = (context + gate * (regions_ - context)) * region_mask[..., None]
        return Gated(gated_words, gated_regions)

    def rotate(self, words: Tensor) -> Tensor:
        """u^T W_a for each word, (..., d)."""
        return words @ self.attention.to(words.dtype)


def own_part(gate: nn.Linear, own: Tensor) -> Tensor:
    """W1 u + b: what a fragment (..., d) brings to its own gate."""
    return linear(own, gate.weight[:, : own.shape[-1]].to(own.dtype), gate.bias.to(own.dtype))


def seen_part(gate: nn.Linear, seen: Tensor) -> Tensor:
    """W2 v: what a fragment (..., d) brings to the gates that attend to it."""
    return linear(seen, gate.weight[:, seen.shape[-1] :].to(seen.dtype))


def masked_softmax(logits: Tensor, mask: Tensor, dim: int) -> Tensor:
    """Softmax over the places where the mask is true; zeros, not NaN, where it is true nowhere."""
    return logits.masked_fill(~mask, torch.finfo(logits.dtype).min).softmax(dim) * mask


def _cosine(gated: Gated) -> Tensor:
    """Cosine between the mean word and the mean region; means and sums of one direction are the same."""
    words = normalize(gated.words.sum(-2, dtype=_wide(gated.words.dtype)), dim=-1)  # (..., d)
    regions = normalize(gated.regions.sum(-2, dtype=_wide(gated.regions.dtype)), dim=-1)  # (..., d)
    return (words * regions).sum(-1)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type sums are taken in."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
