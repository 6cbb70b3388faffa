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

from pmpguard.catching.evidence import pooled_statistics
from pmpguard.catching.looking import Part, WrongPairs

FOLDS = 5
RIDGE = 1.0  # times the mean square of the features
MOST_FEATURES = 256
CHUNK = 65_536


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


class Maps:
    """How like an image a caption is once mapped, by the map that has seen no pair of that image.

    captions (C, k) and images (I, l) are unit vectors of two spaces; trust (N,) of the pairs is in [0, 1].

    A caption that is asked about with another image than its own may have taught the map that answers, with
    the image it is labelled with; one asked about with its own has not, unless it stands on other images,
    too. One pair of thousands, it matters little.
    """

    @torch.no_grad()
    def __init__(
        self, captions: Tensor, images: Tensor, caption_of: Tensor, image_of: Tensor, trust: Tensor, seed: int
    ) -> None:
        draws = np.random.default_rng([seed, 4]).integers(FOLDS, size=len(images))
        self.fold_of = torch.from_numpy(draws).to(image_of.device)  # (I,)
        self.captions, self.images = captions, images
        self.maps = _maps(captions, images, caption_of, image_of, trust, self.fold_of[image_of])
        self.statistics = [pooled_statistics(normalize(captions @ each, dim=1), images) for each in self.maps]

    @torch.no_grad()
    def __call__(self, captions: Tensor, images: Tensor) -> Tensor:
        """(Q,): cosines of the pairs, standardised by caption and by image."""
        found = self.captions.new_zeros(len(captions))
        folds = self.fold_of[images]
        for fold, (learned, statistics) in enumerate(zip(self.maps, self.statistics, strict=True)):
            asked = (folds == fold).nonzero()[:, 0]
            for some in torch.split(asked, CHUNK):
                of_caption, of_image = captions[some], images[some]
                pictured = normalize(self.captions[of_caption] @ learned, dim=1)  # (Q', l)
                cosines = (pictured * self.images[of_image]).sum(1)
                found[some] = statistics.standardise(cosines, of_caption, of_image)
        return found


def mapped_part(
    captions: Tensor,
    images: Tensor,
    caption_of: Tensor,
    image_of: Tensor,
    wrong: WrongPairs,
    trust: Tensor,
    seed: int,
) -> Part:
    """How like its image each caption is once mapped, of labelled pairs (N,) and wrong ones (M,)."""
    maps = Maps(captions, images, caption_of, image_of, trust, seed)
    return Part(maps(caption_of, image_of), maps(wrong.captions, wrong.images))


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
