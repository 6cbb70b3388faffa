"""Evidence that a text belongs to its image: a ridge regression from one to the other predicts it.

The regression is fitted to all pairs, each counting by its clean probability. Mismatched pairs are wrong in
all directions, so they blur the fit but hardly turn it: it is good even where most pairs are mismatched. Both
ways are fitted, from texts to images and back, because each blurs another side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.detection.evidence.nearest import full
from pmpguard.detection.evidence.similarity import Measure

RIDGE = 3.0  # times the mean square of the features
MAX_COMPONENTS = 256
BLOCK_ROWS = 8_192  # a block in float32 is small beside what is kept of a large set
MOMENT_ROWS = 65_536
QUERIES_AT_ONCE = 8_192


@torch.no_grad()
def whiten(vectors: Tensor, components: int = MAX_COMPONENTS, dtype: torch.dtype = torch.float32) -> Tensor:
    """(n, k) unit: the leading principal components of (n, d), each divided by the root of its deviation.

    Pretrained features vary most along few directions that any two scenes differ in; half whitened, they tell
    more of them apart. Components without any deviation are left out, and those beyond two thirds of n: where
    there are as many as vectors, every vector is what all others add up to, and so foretells its partner.
    """
    mean, axes = _half_whitening(vectors, min(components, max(2 * len(vectors) // 3, 2)))
    whitened = torch.empty(len(vectors), axes.shape[1], dtype=dtype, device=vectors.device)
    for start in range(0, len(vectors), BLOCK_ROWS):
        part = slice(start, start + BLOCK_ROWS)
        whitened[part] = normalize((normalize(vectors[part].float(), dim=1) - mean) @ axes, dim=1).to(dtype)
    return whitened


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
    shapes = (size, size), (other, other), (size, other)
    sums = RegressionSums(*(full(texts[:0]).new_zeros(shape) for shape in shapes))
    for rows in torch.split(torch.arange(len(text_of), device=text_of.device), BLOCK_ROWS):
        some_texts, some_images = (
            full(texts[text_of[rows]]),
            full(images[image_of[rows]]),
        )  # (R, k), (R, l)
        weights = clean_probability[rows, None].to(some_texts)
        weighted = some_texts * weights
        squares = some_images.T @ (some_images * weights)
        sums = sums + RegressionSums(weighted.T @ some_texts, squares, weighted.T @ some_images)
    return sums


@dataclass(frozen=True)
class Moments:
    """Of unit vectors: what cosines with any vector are on average, and how they vary."""

    mean: Tensor  # (d,)
    covariance: Tensor  # (d, d)

    @classmethod
    def of(cls, vectors: Tensor, weights: Tensor | None = None) -> Moments:
        """Of vectors (n, k), or of what a regression `weights` (k, d) predicts from them.

        Of many vectors, `MOMENT_ROWS` evenly spaced ones are enough.
        """
        some = vectors[:: -(-len(vectors) // MOMENT_ROWS)]
        dim = vectors.shape[1] if weights is None else weights.shape[1]
        total = torch.zeros(dim, dtype=torch.float64, device=vectors.device)
        squares = torch.zeros(dim, dim, dtype=torch.float64, device=vectors.device)
        for part in map(full, torch.split(some, BLOCK_ROWS)):
            part = part if weights is None else normalize(part @ weights, dim=1)
            total += part.sum(0).double()
            squares += (part.T @ part).double()
        mean = total / len(some)
        covariance = squares / len(some) - torch.outer(mean, mean)
        return cls(mean.to(full(vectors[:0])), covariance.to(full(vectors[:0])))

    def standardiser(self, queries: Moments) -> Callable[[Tensor, Tensor], Tensor]:
        """Standardises cosines (P,) with one of these vectors by what the query (P, d) scores on all.

        No deviation is smaller than a tenth of what is typical of `queries`, so that no division explodes.
        """
        squares = queries.covariance + torch.outer(queries.mean, queries.mean)
        typical = float((self.covariance * squares).sum().clamp(min=0).sqrt())

        def standardise(cosines: Tensor, vectors: Tensor) -> Tensor:
            deviation = ((vectors @ self.covariance) * vectors).sum(1).clamp(min=0).sqrt()
            return (cosines - vectors @ self.mean) / deviation.clamp(min=0.1 * typical or 1.0)

        return standardise


def regression_measures(
    texts: Tensor, images: Tensor, sums: RegressionSums, own: tuple[Moments, Moments] | None = None
) -> dict[str, Measure]:
    """Both ways: what the regressions that were fitted to `sums` say of any pair.

    Cosines are standardised as `similarity_measure` does. Predictions are made for the pairs asked alone: for
    all texts and images they would take as much memory as those. `own`: moments of texts and of images, where
    known.
    """
    of_texts, of_images = own or (Moments.of(texts), Moments.of(images))
    return {
        "regression": _one_way(texts, images, sums.to_images(), of_images),
        "reverse_regression": _swapped(_one_way(images, texts, sums.to_texts(), of_texts)),
    }


def _one_way(sources: Tensor, targets: Tensor, weights: Tensor, of_targets: Moments) -> Measure:
    """Of sources (n, k) and targets (m, d): how well what is predicted of one fits the other."""
    predictions = Moments.of(sources, weights)
    by_source, by_target = of_targets.standardiser(predictions), predictions.standardiser(of_targets)

    def measure(of_source: Tensor, of_target: Tensor, _: Tensor) -> Tensor:
        parts = [full(sources[:0, 0])]
        pairs = (torch.split(each, QUERIES_AT_ONCE) for each in (of_source, of_target))
        for some, others in zip(*pairs, strict=True):
            predicted = normalize(full(sources[some]) @ weights, dim=1)  # (P, d)
            shown = full(targets[others])
            cosines = (predicted * shown).sum(1)
            parts.append((by_source(cosines, predicted) + by_target(cosines, shown)) / 2**0.5)
        return torch.cat(parts)

    return measure


def _swapped(measure: Measure) -> Measure:
    return lambda texts, images, rows: measure(images, texts, rows)


def _ridge(squares: Tensor, crossed: Tensor) -> Tensor:
    ridge = (RIDGE * squares.diagonal().mean()).clamp(min=1e-6)
    evened = squares + ridge * torch.eye(len(squares), dtype=squares.dtype, device=squares.device)
    weights: Tensor = torch.linalg.solve(evened, crossed)
    return weights
