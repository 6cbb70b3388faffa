"""Vectors as they are given: checked, of one number type, and of use."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.errors import DataError

LARGE_SET = 50_000  # pairs or vectors from which memory counts more than simplicity
BLOCK_ROWS = 65_536

SAME = 1e-6  # unit vectors that differ by less in every direction are one


def without_constant_sides(texts: Tensor, images: Tensor) -> tuple[Tensor, Tensor, list[str]]:
    """Both sides, and what was left out: constants where either has but one vector, as neither tells then."""
    said = [
        f"{name}: all vectors are equal, so no pair can be told from another"
        for name, vectors in (("texts", texts), ("images", images))
        if len(vectors) > 1 and all_alike(vectors)
    ]
    if not said:
        return texts, images, said
    first = (torch.arange(vectors.shape[1], device=vectors.device) == 0 for vectors in (texts, images))
    one, other = (axis.to(texts).expand(len(of), -1) for axis, of in zip(first, (texts, images), strict=True))
    return one, other, said


def all_alike(vectors: Tensor) -> bool:
    """Whether all rows (n, d) have one direction."""
    first = normalize(vectors[:1].float(), dim=1)
    parts = torch.split(vectors, 4096)
    return all(bool(((normalize(part.float(), dim=1) - first).abs() < SAME).all()) for part in parts)


def checked_rows(
    values: npt.ArrayLike | Tensor, name: str, device: torch.device | str | None = None
) -> Tensor:
    """A float32 matrix, not copied where it is one; an error names the first row that cannot be used.

    A large float16 tensor stays that.
    """
    if isinstance(values, Tensor):
        matrix = values
        is_complex = matrix.is_complex()
    else:
        try:
            is_complex = bool(np.iscomplexobj(values))
            array = np.asarray(values, dtype=None if is_complex else np.float32)
        except (TypeError, ValueError) as error:
            raise DataError(f"{name}: {error}", fix="give one row of numbers per vector") from error
        matrix = torch.from_numpy(array if array.flags.writeable else array.copy())
    if is_complex:
        raise DataError(f"{name}: complex numbers are no vectors of an encoder", fix="give real numbers")
    is_large = isinstance(values, Tensor) and len(matrix) > LARGE_SET and matrix.dtype == torch.float16
    matrix = matrix.detach().to(device=device, dtype=torch.float16 if is_large else torch.float32)
    if matrix.ndim != 2 or not matrix.numel():
        raise DataError(
            f"{name}: shape {tuple(matrix.shape)}, expected (number, dimensions)",
            fix="give one row per vector",
        )
    lengths = lengths_of(matrix)
    bad = (~(lengths.isfinite() & (lengths > 0))).nonzero()
    if len(bad):
        raise DataError(
            f"{name} row {int(bad[0])}: not finite or all zero ({len(bad)} such rows)",
            fix="embed them again or leave their pairs out",
        )
    return matrix


def unit_rows(values: npt.ArrayLike | Tensor, name: str, device: torch.device | str | None = None) -> Tensor:
    """Checked rows of length 1; those of large sets that have it already are not copied."""
    matrix = checked_rows(values, name, device)
    lengths = lengths_of(matrix)
    within = 1e-3 if matrix.dtype == torch.float16 else 1e-4
    if len(matrix) > LARGE_SET and bool(((lengths - 1).abs() < within).all()):
        return matrix
    unit: Tensor = matrix / lengths[:, None]
    return unit


def lengths_of(vectors: Tensor) -> Tensor:
    """(n,) float32, of vectors (n, d)."""
    return torch.cat([part.float().norm(dim=1) for part in torch.split(vectors, BLOCK_ROWS)])
