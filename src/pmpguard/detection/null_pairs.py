"""Null pairs: texts put to images they are not labelled with, the known sample of mismatched pairs.

Whatever is measured on labelled pairs is measured on null pairs by the same computation, so that the density
of mismatched evidence is sampled, never guessed. A labelled pair is a row: text `text_of[row]` with image
`image_of[row]`; equal texts share a number, and so do equal images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.errors import DataError
from pmpguard.stable_random import StableRandom

Array = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
MIN_NULL_PAIRS, MAX_NULL_PAIRS = 20_000, 1_000_000
MAX_REDRAWS = 20


@dataclass(frozen=True)
class Evidence:
    """One kind of evidence; more of it speaks for a match."""

    observed: Tensor  # (N,) of the labelled pairs
    null: Tensor  # (M,) of the null pairs

    def arrays(self) -> tuple[Array, Array]:
        """Both as float64 on the host."""
        return self.observed.double().cpu().numpy(), self.null.double().cpu().numpy()


@dataclass(frozen=True)
class NullPairs:
    """Each is a text in the place of a labelled row's."""

    texts: Tensor  # (M,)
    images: Tensor  # (M,)
    rows: Tensor  # (M,) whose place is taken

    def __len__(self) -> int:
        return len(self.texts)

    def where(self, chosen: Tensor) -> NullPairs:
        """Those that `chosen` (M,) bool says."""
        return NullPairs(self.texts[chosen], self.images[chosen], self.rows[chosen])


def null_pair_count(pairs: int) -> int:
    """As many as labelled pairs, but enough for a smooth density."""
    return min(max(pairs, MIN_NULL_PAIRS), MAX_NULL_PAIRS)


def sample_null_pairs(
    text_of: Tensor,
    image_of: Tensor,
    seed: int = 0,
    image_labels: npt.ArrayLike | Tensor | None = None,
    count: int | None = None,
) -> NullPairs:
    """`count` random combinations of the text of one pair and the image of another, never a labelled one.

    Where too few combinations exist, some come up twice. With scene classes known (`image_labels` (I,), -1
    for unknown) the two pairs are of different ones: a text of the same class often fits, and pairs that fit
    are no sample of mismatched ones.
    """
    texts, owners = pair_numbers(text_of, image_of)
    wanted = count or null_pair_count(len(texts))
    labels = None if image_labels is None else np.asarray(
        image_labels.cpu() if isinstance(image_labels, Tensor) else image_labels
    )  # fmt: skip
    combined = _combinations(texts, owners, wanted, seed, labels)
    images = int(owners.max()) + 1
    drawn = np.resize(combined, wanted)
    device = image_of.device
    numbers = torch.from_numpy(drawn // images).to(device), torch.from_numpy(drawn % images).to(device)
    draws = torch.from_numpy(StableRandom("null rows", seed).uniform(wanted))
    return NullPairs(*numbers, rows_of_images(image_of, numbers[1], draws))


def _combinations(
    texts: Numbers, owners: Numbers, wanted: int, seed: int, labels: npt.NDArray[np.generic] | None
) -> Numbers:
    """At most `wanted` numbers text * images + image."""
    pairs, images = len(texts), int(owners.max()) + 1
    labelled = np.unique(texts * images + owners)
    classes = np.full(pairs, -1) if labels is None else labels[owners]  # (N,)
    draws = StableRandom("null pairs", seed)
    mismatched: list[Numbers] = []
    for _ in range(MAX_REDRAWS):
        first, second = draws.below(pairs, wanted), draws.below(pairs, wanted)
        combined = texts[first] * images + owners[second]
        alike = (classes[first] == classes[second]) & (classes[first] >= 0)
        mismatched.append(combined[~np.isin(combined, labelled) & ~alike])
        if sum(map(len, mismatched)) >= wanted:
            break
    numbers = np.concatenate(mismatched)[:wanted]
    if not len(numbers) and labels is not None:
        return _combinations(texts, owners, wanted, seed, None)
    if not len(numbers):
        raise DataError(
            f"no mismatched pair can be formed: each of the {images} images carries every caption",
            fix="detection needs at least two images with different captions",
        )
    return numbers


def rows_of_images(image_of: Tensor, images: Tensor, draws: Tensor) -> Tensor:
    """(P,) one labelled row of each of `images` (P,), chosen by `draws` (P,) in [0, 1)."""
    by_image = torch.argsort(image_of, stable=True)  # (N,)
    counts = torch.bincount(image_of)  # (I,)
    starts = counts.cumsum(0) - counts
    offsets = (draws.to(image_of.device) * counts[images]).long()  # (P,)
    offsets = torch.minimum(offsets, counts[images] - 1)
    return by_image[starts[images] + offsets]


def pair_numbers(
    text_of: npt.ArrayLike | Tensor,
    image_of: npt.ArrayLike | Tensor,
    texts: int | None = None,
    images: int | None = None,
) -> tuple[Numbers, Numbers]:
    """Both as (N,) int64 on the host, or an error naming the first row that is out of range."""
    numbers = []
    for name, values, count in (("text_of", text_of, texts), ("image_of", image_of, images)):
        array = values.cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
        if array.size and array.dtype.kind not in "iu":
            raise DataError(f"{name}: {array.dtype} numbers no rows", fix="give whole numbers from 0")
        array = array.astype(np.int64, copy=False)
        if array.ndim != 1 or not len(array):
            raise DataError(f"{name} has shape {array.shape}, expected one number per pair")
        outside = np.flatnonzero((array < 0) | (array >= (np.inf if count is None else count)))
        if len(outside):
            raise DataError(
                f"{name} row {outside[0]}: {array[outside[0]]} is not one of the {count} embedded",
                fix=f"{name} numbers rows of the embeddings from 0",
            )
        numbers.append(array)
    if len(numbers[0]) != len(numbers[1]):
        raise DataError(
            f"text_of has {len(numbers[0])} rows but image_of {len(numbers[1])}",
            fix="give one number of each for every pair",
        )
    return numbers[0], numbers[1]
