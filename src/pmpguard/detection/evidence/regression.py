"""Evidence that a text belongs to its image: a ridge regression from one to the other predicts it.

The regression is fitted to all pairs, each counting by its clean probability. Mismatched pairs are wrong in
all directions, so they blur the fit but hardly turn it: it is good even where most pairs are mismatched. Both
ways are fitted, from texts to images and back, because each blurs another side.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.detection.evidence.similarity import Measure, similarity_measure

RIDGE = 3.0  # times the mean square of the features
MAX_COMPONENTS = 256
BLOCK_ROWS = 65_536


@torch.no_grad()
def whiten(vectors: Tensor, components: int = MAX_COMPONENTS) -> Tensor:
    """(n, k) unit: the leading principal components of (n, d), each divided by the root of its deviation.

    Pretrained features vary most along few directions that any two scenes differ in; half whitened, they tell
    more of them apart. Components without any deviation are left out.
    """
    mean, axes = _half_whitening(vectors, components)
    parts = [(normalize(part.float(), dim=1) - mean) @ axes for part in torch.split(vectors, BLOCK_ROWS)]
    return normalize(torch.cat(parts), dim=1)


def _half_whitening(vectors: Tensor, components: int) -> tuple[Tensor, Tensor]:
    """The mean (d,) and the scaled principal axes (d, k) of unit vectors (n, d)."""
    mean = torch.zeros(vectors.shape[1], dtype=torch.float64, device=vectors.device)
    squares = torch.zeros(vectors.shape[1], vectors.shape[1], dtype=torch.float64, device=vectors.device)
    for part in torch.split(vectors, BLOCK_ROWS):
        unit = normalize(part.float(), dim=1)
        mean += unit.sum(0).double()
        squares += (unit.T @ unit).double()
    mean /= len(vectors)
    variances, axes = torch.linalg.eigh(
        squares / len(vectors) - torch.outer(mean, mean)
    )  # (d,) rising, (d, d)
    leading = slice(-min(components, len(variances)), None)
    variances, axes = variances[leading], axes[:, leading]
    real = variances > max(1e-6 * float(variances[-1]), 1e-12)
    if not real.any():
        return mean.float(), torch.zeros_like(axes[:, :1]).float()
    return mean.float(), (axes[:, real] / variances[real] ** 0.25).float()


@dataclass(frozen=True)
class RegressionSums:
    """What both regressions need of some pairs: (k, k) texts, (l, l) images, (k, l) both."""

    texts: Tensor
    images: Tensor
    crossed: Tensor

    def __add__(self, other: RegressionSums) -> RegressionSums:
        return RegressionSums(
            self.texts + other.texts, self.images + other.images, self.crossed + other.crossed
        )

    def __sub__(self, other: RegressionSums) -> RegressionSums:
        return RegressionSums(
            self.texts - other.texts, self.images - other.images, self.crossed - other.crossed
        )

    def to_images(self) -> Tensor:
        """(k, l): takes texts nearest to their images."""
        return _ridge(self.texts, self.crossed)

    def to_texts(self) -> Tensor:
        """(l, k): takes images nearest to their texts."""
        return _ridge(self.images, self.crossed.T)


def regression_sums(
    texts: Tensor, images: Tensor, text_of: Tensor, image_of: Tensor, clean_probability: Tensor
) -> RegressionSums:
    """Sums over the pairs of texts (C, k) and images (I, l), each counting by its clean probability (N,)."""
    size, other = texts.shape[1], images.shape[1]
    sums = RegressionSums(
        texts.new_zeros(size, size), texts.new_zeros(other, other), texts.new_zeros(size, other)
    )
    for rows in torch.split(torch.arange(len(text_of), device=text_of.device), BLOCK_ROWS):
        some_texts, some_images = texts[text_of[rows]], images[image_of[rows]]  # (R, k), (R, l)
        weights = clean_probability[rows, None].to(some_texts)
        weighted = some_texts * weights
        squares = some_images.T @ (some_images * weights)
        sums = sums + RegressionSums(weighted.T @ some_texts, squares, weighted.T @ some_images)
    return sums


def regression_measures(texts: Tensor, images: Tensor, sums: RegressionSums) -> dict[str, Measure]:
    """Both ways: what the regressions that were fitted to `sums` say of any pair."""
    predicted_images = normalize(texts @ sums.to_images(), dim=1)  # (C, l)
    predicted_texts = normalize(images @ sums.to_texts(), dim=1)  # (I, k)
    return {
        "regression": similarity_measure(predicted_images, images),
        "reverse_regression": similarity_measure(texts, predicted_texts),
    }


def _ridge(squares: Tensor, crossed: Tensor) -> Tensor:
    ridge = (RIDGE * squares.diagonal().mean()).clamp(min=1e-6)
    evened = squares + ridge * torch.eye(len(squares), dtype=squares.dtype, device=squares.device)
    found: Tensor = torch.linalg.solve(evened, crossed)
    return found
