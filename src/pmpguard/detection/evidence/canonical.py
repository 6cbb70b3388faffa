"""Canonical directions: the parts of texts and images that tell of each other.

Regularised canonical correlation analysis (Hotelling, 1936) over pairs that count by their clean probability.
Neighbours found among these directions are alike in what captions speak of, not in what encoders happen to
see.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.detection.evidence.nearest import full
from pmpguard.detection.evidence.regression import BLOCK_ROWS, RegressionSums

DIRECTIONS = 128
REGULARISATION = 1.0  # times the mean variance


@torch.no_grad()
def canonical_vectors(
    texts: Tensor, images: Tensor, sums: RegressionSums, text_mean: Tensor, image_mean: Tensor, weight: float
) -> tuple[Tensor, Tensor]:
    """Unit vectors (C, k) and (I, k): every direction counts by the root of its canonical correlation.

    `sums` are uncentred sums over pairs of total `weight`, with weighted means (k,) and (l,).
    """
    total = max(weight, 1e-6)
    mean_t, mean_i = text_mean.double(), image_mean.double()
    covariance_t = sums.texts.double() / total - torch.outer(mean_t, mean_t)
    covariance_i = sums.images.double() / total - torch.outer(mean_i, mean_i)
    crossed = sums.crossed.double() / total - torch.outer(mean_t, mean_i)
    inverse_t, inverse_i = _inverse_root(covariance_t), _inverse_root(covariance_i)
    left, correlations, right = torch.linalg.svd(inverse_t @ crossed @ inverse_i, full_matrices=False)
    scale = correlations[:DIRECTIONS].clamp(min=0).sqrt()
    to_t, to_i = inverse_t @ left[:, :DIRECTIONS] * scale, inverse_i @ right[:DIRECTIONS].T * scale
    return _projected(texts, text_mean, to_t), _projected(images, image_mean, to_i)


def weighted_mean(vectors: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
    """(k,): the mean of vectors (n, k) by number (N,), each counting by its weight (N,)."""
    counts = torch.zeros(len(vectors), dtype=weights.dtype, device=vectors.device)
    counts.index_add_(0, numbers, weights)
    parts = zip(torch.split(counts, BLOCK_ROWS), torch.split(vectors, BLOCK_ROWS), strict=True)
    total = sum(
        (some.to(full(part)) @ full(part) for some, part in parts),
        full(vectors[:0]).new_zeros(vectors.shape[1]),
    )
    mean: Tensor = total / counts.sum().clamp(min=1e-6)
    return mean


def _projected(vectors: Tensor, mean: Tensor, directions: Tensor) -> Tensor:
    """(n, k): unit vectors in the number type of the given ones."""
    projected = torch.empty(len(vectors), directions.shape[1], dtype=vectors.dtype, device=vectors.device)
    for start in range(0, len(vectors), BLOCK_ROWS):
        part = full(vectors[start : start + BLOCK_ROWS])
        to = directions.to(part)
        projected[start : start + BLOCK_ROWS] = normalize(part @ to - mean.to(part) @ to, dim=1)
    return projected


def _inverse_root(covariance: Tensor) -> Tensor:
    """(d, d): the inverse root of a covariance with a ridge."""
    ridge = (REGULARISATION * covariance.diagonal().mean()).clamp(min=1e-9)
    values, axes = torch.linalg.eigh(covariance + ridge * torch.eye(len(covariance)).to(covariance))
    root: Tensor = axes / values.clamp(min=1e-12).sqrt() @ axes.T
    return root
