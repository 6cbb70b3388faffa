"""Positive-negative awareness attention (PNAA, eqs 10-14): how well a caption's words are found in an image.

For word i and region j with cosine s_ij, and the boundary t between matched and mismatched fragments:

* negative evidence: r_i = max_j s_ij - t where that is below 0, else 0;
* feature evidence: f_i = cos(u_i, c_i), c_i the mean of the regions with s_ij > t weighted by
  exp(sharpness * s_ij); 0 when no region passes;
* relevance evidence: rel_i = sum_j w_ij s_ij, w the softmax over regions of sharpness * l_ij, where l is
  LeakyReLU_0.1(s) divided by its L2 norm across the caption's words for each region.

S = mean over words of f + rel + r, between about -1 and 2. There are no parameters.

The context c_i is never formed: u_i . c_i = sum_j w_ij s_ij and |c_i|^2 = w_i^T G w_i with G the image's Gram
matrix of regions, n x n. That is exact, and ten times less arithmetic than contexts of d numbers.

All vectors must have unit length. Masked words and regions have no influence, whatever their vectors hold. A
caption without words, and an image without regions, scores 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from pmpguard.errors import ConfigError, ModelError

SHARPNESS = 20.0
NEGATIVE_SLOPE = 0.1
SMALLEST_CONTEXT = 1e-10  # squared length under which the passing regions cancel and have no direction

Direction = Literal["words", "both"]


@dataclass(frozen=True)
class AwarenessParts:
    """The evidence behind the scores of P (caption, image) pairs, word by word. Masked words hold zeros."""

    score: Tensor  # (P,)
    feature: Tensor  # (P, m) f_i
    relevance: Tensor  # (P, m) rel_i
    negative: Tensor  # (P, m) s_neg_i, at most 0
    cosines: Tensor  # (P, m, n) s_ij, 0 where a word or region is masked
    feature_weights: Tensor  # (P, m, n) over the regions that pass, sum to 1, or all 0 when none does
    relevance_weights: Tensor  # (P, m, n) sum to 1


def awareness_scores(
    words: Tensor,
    word_mask: Tensor,
    regions: Tensor,
    boundary: float | Tensor,
    *,
    region_mask: Tensor | None = None,
    sharpness: float = SHARPNESS,
    direction: Direction = "words",
) -> Tensor:
    """S of every caption against every image.

    words (T, m, d), word_mask (T, m), regions (I, n, d), region_mask (I, n) or None for all -> (T, I).
    `direction="both"` is the mean of S and its mirror image, in which regions look for words.
    """
    words, regions = _checked(words, word_mask, regions, region_mask, direction)
    cosines = _wide(torch.einsum("tmd,ind->timn", words, regions))  # (T, I, m, n)
    word_mask, words = word_mask[:, None], words[:, None]  # (T, 1, m), (T, 1, m, d)
    regions = regions[None]  # (1, I, n, d)
    region_mask = None if region_mask is None else region_mask[None]  # (1, I, n)
    return _score(cosines, words, word_mask, regions, region_mask, boundary, sharpness, direction)


def aligned_awareness_scores(
    words: Tensor,
    word_mask: Tensor,
    regions: Tensor,
    boundary: float | Tensor,
    *,
    region_mask: Tensor | None = None,
    sharpness: float = SHARPNESS,
    direction: Direction = "words",
) -> Tensor:
    """S of caption p against image p only: words (P, m, d), regions (P, n, d) -> (P,).

    The diagonal of `awareness_scores`, and the way to score fragments that were gated for their own pair.
    """
    words, regions = _checked(words, word_mask, regions, region_mask, direction, aligned=True)
    cosines = _wide(torch.einsum("pmd,pnd->pmn", words, regions))  # (P, m, n)
    return _score(cosines, words, word_mask, regions, region_mask, boundary, sharpness, direction)


def awareness_parts(
    words: Tensor,
    word_mask: Tensor,
    regions: Tensor,
    boundary: float | Tensor,
    *,
    region_mask: Tensor | None = None,
    sharpness: float = SHARPNESS,
) -> AwarenessParts:
    """The evidence of each word of caption p in image p: words (P, m, d), regions (P, n, d)."""
    words, regions = _checked(words, word_mask, regions, region_mask, "words", aligned=True)
    cosines = _wide(torch.einsum("pmd,pnd->pmn", words, regions))  # (P, m, n)
    parts = _evidence(cosines, word_mask, region_mask, _gram(regions), boundary, sharpness)
    total = parts.feature_weights.sum(-1, keepdim=True)  # (P, m, 1)
    return replace(parts, feature_weights=parts.feature_weights / torch.where(total > 0, total, 1.0))


def _score(
    cosines: Tensor,
    words: Tensor,
    word_mask: Tensor,
    regions: Tensor,
    region_mask: Tensor | None,
    boundary: float | Tensor,
    sharpness: float,
    direction: Direction,
) -> Tensor:
    forward = _evidence(cosines, word_mask, region_mask, _gram(regions), boundary, sharpness).score
    if direction == "words":
        return forward
    if region_mask is None:
        region_mask = torch.ones(regions.shape[:-1], dtype=torch.bool, device=regions.device)
    mirrored = cosines.transpose(-1, -2)  # (..., n, m)
    backward = _evidence(mirrored, region_mask, word_mask, _gram(words), boundary, sharpness).score
    return (forward + backward) / 2


def _evidence(
    cosines: Tensor,
    word_mask: Tensor,
    region_mask: Tensor | None,
    gram: Tensor,
    boundary: float | Tensor,
    sharpness: float,
) -> AwarenessParts:
    """The three kinds of evidence. Leading axes broadcast: cosines (..., m, n), gram (..., n, n).

    The feature weights are left undivided by their sum, which no score needs.

    Square roots and divisions see 1 in place of 0, and exponentials see numbers of at most 0, so that neither
    values nor gradients are ever NaN.
    """
    valid = word_mask[..., :, None]  # (..., m, 1)
    if region_mask is not None:
        valid = valid & region_mask[..., None, :]  # (..., m, n)
    s = cosines.masked_fill(~valid, 0.0)  # (..., m, n)
    lowest = torch.finfo(s.dtype).min
    best = s.masked_fill(~valid, lowest).amax(-1)  # (..., m)
    has_region = valid.any(-1)  # (..., m)
    best = torch.where(has_region, best, 0.0)
    negative = torch.where(has_region, (best - boundary).clamp(max=0), 0.0)  # (..., m)

    passes = (s > boundary) & valid  # (..., m, n)
    # The softmax's denominator cancels in a cosine; the shift by the best cosine only keeps exp in range.
    shifted = (sharpness * (s - best.detach()[..., None])).masked_fill(~passes, -torch.inf)
    raw = shifted.exp()  # (..., m, n)
    along = (raw * s).sum(-1)  # (..., m) u . c
    length = ((raw @ gram) * raw).sum(-1)  # (..., m) |c|^2
    has_direction = length > SMALLEST_CONTEXT
    feature = torch.where(has_direction, along / torch.where(has_direction, length, 1.0).sqrt(), 0.0)

    leaky = leaky_relu(s, NEGATIVE_SLOPE)  # (..., m, n), 0 at masked places
    energy = leaky.square().sum(-2, keepdim=True)  # (..., 1, n)
    leaky = leaky / torch.where(energy > 0, energy, 1.0).sqrt()
    relevance_weights = (sharpness * leaky).masked_fill(~valid, lowest).softmax(-1) * valid  # (..., m, n)
    relevance = (relevance_weights * s).sum(-1)  # (..., m)

    count = word_mask.sum(-1).clamp(min=1)  # (...)
    score = (feature + relevance + negative).sum(-1) / count  # (...)
    return AwarenessParts(score, feature, relevance, negative, s, raw, relevance_weights)


def _zeroed(fragments: Tensor, mask: Tensor | None) -> Tensor:
    """Zeros for masked fragments (N, n, d): not even a NaN there may reach a product or a gradient.

    Half precision is for accelerators; a CPU multiplies in float32.
    """
    if fragments.device.type == "cpu":
        fragments = _wide(fragments)
    return fragments if mask is None else fragments.masked_fill(~mask[..., None], 0.0)


def _gram(fragments: Tensor) -> Tensor:
    """(..., n, d) -> (..., n, n), in at least float32: lengths are differences of its entries."""
    fragments = _wide(fragments)
    return fragments @ fragments.transpose(-1, -2)


def _wide(numbers: Tensor) -> Tensor:
    """Half-precision products are summed up further in float32."""
    return numbers.float() if numbers.dtype in (torch.bfloat16, torch.float16) else numbers


def _checked(
    words: Tensor,
    word_mask: Tensor,
    regions: Tensor,
    region_mask: Tensor | None,
    direction: str,
    aligned: bool = False,
) -> tuple[Tensor, Tensor]:
    """Words and regions with zeros where they are masked; shapes that do not agree are an error."""
    shapes = [words.shape[:2] == word_mask.shape, words.shape[-1] == regions.shape[-1]]
    shapes.append(words.ndim == regions.ndim == 3)
    shapes.append(region_mask is None or region_mask.shape == regions.shape[:2])
    shapes.append(not aligned or len(words) == len(regions))
    if not all(shapes):
        given = {"words": words, "word_mask": word_mask, "regions": regions, "region_mask": region_mask}
        stated = ", ".join(f"{name} {list(x.shape)}" for name, x in given.items() if x is not None)
        pairs = "of as many captions as images" if aligned else "of any captions and images"
        raise ModelError(
            f"shapes do not agree: {stated}",
            fix=f"give words (T, m, d), word_mask (T, m), regions (I, n, d), region_mask (I, n) {pairs}",
        )
    if direction not in ("words", "both"):
        raise ConfigError(f"direction is {direction!r}", fix="choose 'words' or 'both'")
    return _zeroed(words, word_mask), _zeroed(regions, region_mask)
