"""How well the names of classes find their images: precision among the first k of each class's ranking."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pmpguard.errors import DataError


def class_precision(scores: Tensor, labels: Sequence[str], classes: Sequence[str], k: int = 10) -> Tensor:
    """(C,) the share of a class's own images among the k best of its query.

    `scores` (C, I) are of one query a class; `labels` (I,) say which class each image is of. Of equal scores
    the image that stands first counts as better.
    """
    if scores.shape != (len(classes), len(labels)) or k < 1:
        raise DataError(
            f"scores have shape {tuple(scores.shape)}, k is {k}", fix="a row a class, a column an image"
        )
    best = scores.argsort(dim=1, descending=True, stable=True)[:, :k].tolist()
    found = [[labels[place] == name for place in places] for name, places in zip(classes, best, strict=True)]
    return torch.tensor([sum(hits) / len(hits) for hits in found], dtype=torch.float64)
