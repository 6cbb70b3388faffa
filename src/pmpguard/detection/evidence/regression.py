"""More evidence that a caption belongs to its image: it looks like what a linear map makes of the caption.

Least squares over all pairs, each counting as far as it is trusted, learn what captions look like. Wrong
pairs are wrong in all directions, so they blur the map but hardly turn it: it is good even where most pairs
are wrong. The map that judges a pair has seen no pair of its image, so neither the pair itself nor captions
that were exchanged along with it vouch for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.detection.evidence.similarity import pooled_statistics
from pmpguard.detection.null_pairs import NullPairs, Part

FOLDS = 5
RIDGE = 1.0  # times the mean square of the features
MOST_FEATURES = 256
CHUNK = 65_536
Ask = Callable[[Tensor, Tensor], Tensor]  # captions (Q,) and images (Q,), by number -> (Q,)


@torch.no_grad()
def whiten(vectors: Tensor, most: int = MOST_FEATURES) -> Tensor:
    """(n, k) unit: the leading principal components of (n, d), each divided by the root of its deviation.

    Pretrained features vary most along few directions that any two scenes differ in; half evened out, they
    tell more of them apart. Components without any deviation are left out.
    """
    vectors = normalize(vectors.float(), dim=1)
    vectors = vectors - vectors.mean(0)
    variances, axes = torch.linalg.eigh((vectors.T @ vectors).double() / len(vectors))  # (d,) rising, (d, d)
    kept = slice(-min(most, len(variances)), None)
    variances, axes = variances[kept], axes[:, kept]
    real = variances > 1e-6 * variances[-1]
    if not real.any():
        return torch.zeros_like(vectors[:, :1])
    scaled = axes[:, real] / variances[real] ** 0.25  # (d, k)
    return normalize(vectors @ scaled.to(vectors), dim=1)


class CrossModalRegression:
    """How like an image a caption is once it is mapped; standardised by caption and by image.

    captions (C, k) and images (I, l) are unit vectors of two spaces, `learned` (k, l).
    """

    @torch.no_grad()
    def __init__(self, captions: Tensor, images: Tensor, learned: Tensor) -> None:
        self.captions, self.images, self.learned = captions, images, learned
        self.statistics = pooled_statistics(normalize(captions @ learned, dim=1), images)

    @torch.no_grad()
    def __call__(self, captions: Tensor, images: Tensor) -> Tensor:
        """(Q,) of pairs of a caption and an image, by number."""
        found = [
            self._of(*some)
            for some in zip(torch.split(captions, CHUNK), torch.split(images, CHUNK), strict=True)
        ]
        return torch.cat(found)

    def _of(self, captions: Tensor, images: Tensor) -> Tensor:
        imaged = normalize(self.captions[captions] @ self.learned, dim=1)  # (Q, l)
        return self.statistics.standardise((imaged * self.images[images]).sum(1), captions, images)


def by_fold(fold_of: Tensor, asked: Sequence[Callable[..., Tensor]]) -> Callable[..., Tensor]:
    """Of every pair what the one of `asked` says that is for its image's fold; fold_of (I,).

    Each takes captions (Q,) and images (Q,), and maybe more (Q,), and answers (Q,).
    """

    def ask(captions: Tensor, images: Tensor, *more: Tensor) -> Tensor:
        folds = fold_of[images]
        places = [(folds == fold).nonzero()[:, 0] for fold in range(len(asked))]
        answers = torch.cat(
            [
                each(*(numbers[some] for numbers in (captions, images, *more)))
                for some, each in zip(places, asked, strict=True)
            ]
        )
        found = torch.empty_like(answers)
        found[torch.cat(places)] = answers
        return found

    return ask


def regression_evidence(
    captions: Tensor,
    images: Tensor,
    caption_of: Tensor,
    image_of: Tensor,
    wrong: NullPairs,
    clean_probability: Tensor,
    seed: int,
) -> Part:
    """How like its image each caption is once mapped, of labelled pairs (N,) and wrong ones (M,)."""
    ask = crossfit_regression(captions, images, caption_of, image_of, clean_probability, seed)
    return Part(ask(caption_of, image_of), ask(wrong.captions, wrong.images))


@torch.no_grad()
def crossfit_regression(
    captions: Tensor,
    images: Tensor,
    caption_of: Tensor,
    image_of: Tensor,
    clean_probability: Tensor,
    seed: int,
) -> Ask:
    """Of every pair what a map says that has seen no pair of its image; trust (N,) of the pairs in [0, 1].

    A mismatched pair's caption may have taught the map that judges it, with the image it is labelled with;
    the one of a labelled pair has not, unless it stands on other images, too. One pair of thousands, it
    matters little.
    """
    draws = np.random.default_rng([seed, 4]).integers(FOLDS, size=len(images))
    fold_of = torch.from_numpy(draws).to(image_of.device)  # (I,)
    maps = _fold_regressions(captions, images, caption_of, image_of, clean_probability, fold_of[image_of])
    return by_fold(fold_of, [CrossModalRegression(captions, images, each) for each in maps])


@torch.no_grad()
def fit_regression(
    captions: Tensor, images: Tensor, caption_of: Tensor, image_of: Tensor, clean_probability: Tensor
) -> Tensor:
    """(k, l): takes captions nearest to their images, over all pairs, each as it is trusted."""
    return _solved(*_products(captions, images, caption_of, image_of, clean_probability))


def _fold_regressions(
    captions: Tensor,
    images: Tensor,
    caption_of: Tensor,
    image_of: Tensor,
    clean_probability: Tensor,
    folds: Tensor,
) -> list[Tensor]:
    """For each fold the (k, l) that takes captions nearest to their images, learned from the other folds."""
    products = []
    for fold in range(FOLDS):
        rows = folds == fold
        products.append(
            _products(captions, images, caption_of[rows], image_of[rows], clean_probability[rows])
        )
    squares, crossed = (reduce(add, each) for each in zip(*products, strict=True))
    return [_solved(squares - own, crossed - own_crossed) for own, own_crossed in products]


def _products(
    captions: Tensor, images: Tensor, caption_of: Tensor, image_of: Tensor, clean_probability: Tensor
) -> tuple[Tensor, Tensor]:
    """Sums over pairs, each as it is trusted: captions with captions (k, k) and with images (k, l)."""
    given = captions[caption_of]  # (R, k)
    weighted = given * clean_probability[:, None].to(given)
    return weighted.T @ given, weighted.T @ images[image_of]


def _solved(squares: Tensor, crossed: Tensor) -> Tensor:
    """(k, l): ridge regression from its sums."""
    ridge = (RIDGE * squares.diagonal().mean()).clamp(min=1e-6)
    evened = squares + ridge * torch.eye(len(squares), dtype=squares.dtype, device=squares.device)
    found: Tensor = torch.linalg.solve(evened, crossed)
    return found
