"""More evidence that a caption belongs to its image: it looks like what a linear map makes of the caption.

Least squares over all pairs, each counting as far as it is trusted, learn what captions look like. Wrong
pairs are wrong in all directions, so they blur the map but hardly turn it: it is good even where most pairs
are wrong. The map that judges a pair has seen no pair of its picture, so neither the pair itself nor captions
that were exchanged along with it vouch for it.
"""

from __future__ import annotations

from functools import reduce
from operator import add

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.catching.looking import Part, WrongPairs, score_part

FOLDS = 5
RIDGE = 1.0  # times the mean square of the features
MOST_FEATURES = 256


@torch.no_grad()
def spread(vectors: Tensor, most: int = MOST_FEATURES) -> Tensor:
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


@torch.no_grad()
def mapped_part(
    captions: Tensor,
    images: Tensor,
    caption_of: Tensor,
    image_of: Tensor,
    wrong: WrongPairs,
    trust: Tensor,
    seed: int,
) -> Part:
    """How like its image each caption is once mapped, of the labelled pairs (N,) and of the wrong ones (M,).

    captions (C, k) and images (I, l) are unit vectors of two spaces; trust (N,) is in [0, 1].

    A wrong pair's caption may have taught the map that judges it, with the picture it is labelled with; the
    one of a labelled pair has not, unless it stands on other pictures, too. One pair of thousands, it matters
    little.
    """
    draws = np.random.default_rng([seed, 4]).integers(FOLDS, size=len(images))
    fold_of = torch.from_numpy(draws).to(image_of.device)  # (I,)
    folds = fold_of[image_of]  # (N,)
    part = Part(captions.new_zeros(len(image_of)), captions.new_zeros(len(wrong.images)))
    for fold, learned in enumerate(_maps(captions, images, caption_of, image_of, trust, folds)):
        rows, drawn = folds == fold, fold_of[wrong.images] == fold
        asked = WrongPairs(wrong.captions[drawn], wrong.images[drawn], wrong.rows[drawn])
        pictured = normalize(captions @ learned, dim=1)  # (C, l)
        found, _ = score_part(pictured, images, caption_of[rows], image_of[rows], asked)
        part.labelled[rows], part.wrong[drawn] = found.labelled, found.wrong
    return part


def _maps(
    captions: Tensor, images: Tensor, caption_of: Tensor, image_of: Tensor, trust: Tensor, folds: Tensor
) -> list[Tensor]:
    """For each fold the (k, l) that takes captions nearest to their images, learned from the other folds."""
    products = []
    for fold in range(FOLDS):
        rows = folds == fold
        given = captions[caption_of[rows]]  # (R, k)
        weighted = given * trust[rows, None].to(given)
        products.append((weighted.T @ given, weighted.T @ images[image_of[rows]]))
    squares, crossed = (reduce(add, each) for each in zip(*products, strict=True))
    found = []
    for own_squares, own_crossed in products:
        rest = squares - own_squares
        ridge = (RIDGE * rest.diagonal().mean()).clamp(min=1e-6)
        rest = rest + ridge * torch.eye(len(rest), dtype=rest.dtype, device=rest.device)
        found.append(torch.linalg.solve(rest, crossed - own_crossed))
    return found
