"""Recall at K in both directions, exact under ties, without ever holding the whole score matrix.

i2t ("sentence retrieval"): the query is an image, a hit is ANY of its captions among the K best captions.
t2i ("image retrieval"): the query is a caption, a hit is its image among the K best images. All in percent.

Items of equal score have no order, so a query counts with the probability of a hit when ties are broken at
random; index order never decides. Only the K best of every query matter for that: how many lie above the K-th
best score, how many equal it, and which of those are relevant. So the matrix may arrive in row blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.errors import DataError
from pmpguard.stable_random import StableRandom

KS = (1, 5, 10)
Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RetrievalRecall:
    """Recalls in percent, one per K of `ks`; `mr` is the mean of all of them by construction.

    `intervals` holds bootstrap 95 % intervals over images under the names of `as_dict`. In `string_aware`
    an equal caption counts as a hit as well: a caption retrieves any image that carries the same sentence.
    """

    i2t: tuple[float, ...]
    t2i: tuple[float, ...]
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    string_aware: RetrievalRecall | None = None
    ks: tuple[int, ...] = KS

    @property
    def mr(self) -> float:
        return sum((*self.i2t, *self.t2i)) / (2 * len(self.ks))

    def as_dict(self) -> dict[str, float]:
        """Flat names: i2t_r1, ..., t2i_r10, mr; the string-aware ones end in `_string`."""
        flat = dict(zip(recall_names(self.ks), (*self.i2t, *self.t2i, self.mr), strict=True))
        if self.string_aware:
            flat |= {f"{name}_string": value for name, value in self.string_aware.as_dict().items()}
        return flat


def recall_names(ks: tuple[int, ...] = KS) -> list[str]:
    """
    >>> recall_names((1, 5))
    ['i2t_r1', 'i2t_r5', 't2i_r1', 't2i_r5', 'mr']
    """
    return [*(f"i2t_r{k}" for k in ks), *(f"t2i_r{k}" for k in ks), "mr"]


def retrieval_recall(
    scores: Tensor | npt.NDArray[np.floating],
    caption_image: npt.ArrayLike | Tensor,
    *,
    caption_strings: npt.ArrayLike | None = None,
    ks: tuple[int, ...] = KS,
    bootstrap: int = 1000,
    seed: int = 0,
    chunk: int = 1024,
) -> RetrievalRecall:
    """Recalls of a score matrix (captions, images), where caption c belongs to image `caption_image[c]`.

    `caption_strings` (captions,) are codes that equal captions share; with them the string-aware recalls
    come too. An image without captions is a distractor, not a query.

    >>> result = retrieval_recall(np.eye(3), [0, 1, 2], bootstrap=0)
    >>> result.i2t, result.mr
    ((100.0, 100.0, 100.0), 100.0)
    >>> round(retrieval_recall(np.zeros((3, 3)), [0, 1, 2], bootstrap=0).t2i[0], 2)  # all tied: chance
    33.33
    """
    matrix = torch.as_tensor(scores).detach()
    if matrix.ndim != 2:
        raise DataError(f"scores have shape {tuple(matrix.shape)}", fix="give (captions, images)")
    captions = len(_checked_captions(caption_image, matrix.shape[1]))
    if captions != len(matrix):
        raise DataError(
            f"scores have shape {tuple(matrix.shape)}, but caption_image names {captions} captions",
            fix="captions are rows, images columns: give one row of scores for each caption",
        )
    blocks = (matrix[start : start + chunk] for start in range(0, len(matrix), chunk))
    return recall_from_chunks(
        blocks,
        caption_image,
        matrix.shape[1],
        caption_strings=caption_strings,
        ks=ks,
        bootstrap=bootstrap,
        seed=seed,
    )


def recall_from_chunks(
    blocks: Iterable[Tensor],
    caption_image: npt.ArrayLike | Tensor,
    image_count: int,
    *,
    caption_strings: npt.ArrayLike | None = None,
    ks: tuple[int, ...] = KS,
    bootstrap: int = 1000,
    seed: int = 0,
) -> RetrievalRecall:
    """The same from consecutive row blocks (some captions, all images), read once, on any device."""
    image_of = _checked_captions(caption_image, image_count)
    relations = [_Relevance(np.arange(len(image_of)), image_of, image_count)]
    if caption_strings is not None:
        strings = np.asarray(caption_strings, dtype=np.int64)
        if strings.shape != image_of.shape:
            raise DataError(f"caption_strings has shape {strings.shape}, expected {image_of.shape}")
        relations.append(_Relevance(strings, image_of, image_count))
    caption_hits: list[list[Tensor]] = [[] for _ in relations]  # per relation: (rows, len(ks)) of each block
    leaders = [_Leaders.none(image_count) for _ in relations]
    start = 0
    for block in blocks:
        stop = start + len(block)
        _check_block(block, start, stop, len(image_of), image_count)
        for index, relation in enumerate(relations):
            relevant = relation.block(start, stop).to(block.device)  # (rows, images)
            rows = _Leaders.none(len(block)).merge(block, relevant, max(ks))
            caption_hits[index].append(rows.hits(ks))
            leaders[index] = leaders[index].merge(block.T, relevant.T, max(ks))
        start = stop
    if start != len(image_of):
        raise DataError(f"scores hold {start} captions but caption_image names {len(image_of)}")
    results = []
    for hits, best in zip(caption_hits, leaders, strict=True):
        by_caption = torch.cat(hits).cpu().numpy()  # (captions, len(ks))
        by_image = best.hits(ks).cpu().numpy()  # (images, len(ks))
        results.append(_summary(by_image, by_caption, image_of, ks, bootstrap, seed))
    return replace(results[0], string_aware=results[1] if len(results) > 1 else None)


@dataclass(frozen=True)
class _Leaders:
    """The best-scored items of each query so far and how many items equal the last of them."""

    scores: Tensor  # (Q, k) best first
    relevant: Tensor  # (Q, k)
    tied: Tensor  # (Q,) items seen that equal scores[:, -1], inside the k or not
    tied_relevant: Tensor  # (Q,)

    @classmethod
    def none(cls, queries: int) -> _Leaders:
        nothing = torch.empty(queries, 0)
        zero = torch.zeros(queries, dtype=torch.int64)
        return cls(nothing, nothing.bool(), zero, zero)

    def merge(self, scores: Tensor, relevant: Tensor, k: int) -> _Leaders:
        """Take in further items: scores and relevant are (Q, items)."""
        device = scores.device
        previous = self.scores.to(device, scores.dtype)
        together = torch.cat([previous, scores], dim=1)
        flags = torch.cat([self.relevant.to(device), relevant], dim=1)
        best, order = together.topk(min(k, together.shape[1]), dim=1)
        last = best[:, -1:]  # (Q, 1)
        tied = (together == last).sum(1)
        tied_relevant = ((together == last) & flags).sum(1)
        if previous.shape[1]:  # items equal to the old last one that had not made it into the k
            same = previous[:, -1:] == last
            outside = self.tied.to(device) - (previous == last).sum(1)
            hidden = self.tied_relevant.to(device) - ((previous == last) & self.relevant.to(device)).sum(1)
            tied = tied + outside * same[:, 0]
            tied_relevant = tied_relevant + hidden * same[:, 0]
        return _Leaders(best, flags.gather(1, order), tied, tied_relevant)

    def hits(self, ks: tuple[int, ...]) -> Tensor:
        """(Q, len(ks)) probability that a relevant item is among the K best when ties break at random."""
        columns = []
        for k in ks:
            edge = self.scores[:, min(k, self.scores.shape[1]) - 1, None]  # (Q, 1) score of the K-th best
            above, level = self.scores > edge, self.scores == edge
            at_end = (self.scores[:, -1:] == edge)[:, 0]
            tied = torch.where(at_end, self.tied, level.sum(1)).double()
            tied_relevant = torch.where(at_end, self.tied_relevant, (level & self.relevant).sum(1)).double()
            places = min(k, self.scores.shape[1]) - above.sum(1)  # (Q,) left for the tied items
            miss = (~(above & self.relevant).any(1)).double()
            for drawn in range(k):  # draw tied items without replacement; every draw must miss
                chance = (tied - tied_relevant - drawn).clamp(min=0) / (tied - drawn).clamp(min=1)
                miss = torch.where(drawn < places, miss * chance, miss)
            columns.append(1 - miss)
        return torch.stack(columns, dim=1)


class _Relevance:
    """Which images carry which caption string; a caption is relevant to all images that carry its string."""

    def __init__(self, strings: Rows, image_of: Rows, image_count: int) -> None:
        carried = np.unique(np.stack([strings, image_of], axis=1), axis=0)  # (combinations, 2) sorted
        self.strings = strings
        self.image_count = image_count
        self.images = carried[:, 1]
        self.first = np.searchsorted(carried[:, 0], strings, side="left")  # (captions,)
        self.last = np.searchsorted(carried[:, 0], strings, side="right")

    def block(self, start: int, stop: int) -> Tensor:
        """(rows, images) bool for captions start..stop."""
        first, last = self.first[start:stop], self.last[start:stop]
        counts = last - first
        rows = np.repeat(np.arange(stop - start), counts)
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        mask = np.zeros((stop - start, self.image_count), dtype=bool)
        mask[rows, self.images[np.repeat(first, counts) + within]] = True
        return torch.from_numpy(mask)


def _summary(
    by_image: Floats, by_caption: Floats, image_of: Rows, ks: tuple[int, ...], bootstrap: int, seed: int
) -> RetrievalRecall:
    """Means in percent, with intervals from drawing the queried images, and their captions, again."""
    captions = np.bincount(image_of, minlength=len(by_image))  # (images,)
    queried = captions > 0
    image_hits = by_image[queried]  # (queries, len(ks))
    caption_sums = np.stack([np.bincount(image_of, column, len(by_image)) for column in by_caption.T], axis=1)
    caption_hits, captions = caption_sums[queried], captions[queried]
    i2t = tuple((100 * image_hits.mean(0)).tolist())
    t2i = tuple((100 * caption_hits.sum(0) / captions.sum()).tolist())
    if not bootstrap:
        return RetrievalRecall(i2t, t2i, ks=ks)
    draws = []
    for counts in _resamples(len(captions), bootstrap, seed):  # (some, queries)
        drawn_i2t = counts @ image_hits / len(captions)
        drawn_t2i = counts @ caption_hits / (counts @ captions)[:, None]
        draws.append(100 * np.concatenate([drawn_i2t, drawn_t2i], axis=1))
    values = np.concatenate(draws)  # (bootstrap, 2 len(ks))
    values = np.concatenate([values, values.mean(1, keepdims=True)], axis=1)
    low, high = np.quantile(values, [0.025, 0.975], axis=0).tolist()
    intervals = dict(zip(recall_names(ks), zip(low, high, strict=True), strict=True))
    return RetrievalRecall(i2t, t2i, intervals, ks=ks)


def _resamples(items: int, replicates: int, seed: int) -> Iterator[Floats]:
    """How often each item is drawn in each replicate, in blocks of bounded size."""
    draws = StableRandom("resampled queries", seed)
    step = max(1, 10_000_000 // items)
    for start in range(0, replicates, step):
        size = min(step, replicates - start)
        drawn = draws.below(items, size * items).reshape(size, items)
        drawn += items * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * items).reshape(size, items).astype(np.float64)


def _checked_captions(caption_image: npt.ArrayLike | Tensor, image_count: int) -> Rows:
    """(captions,) int64: every caption's image, one of `image_count`."""
    given = caption_image.cpu().numpy() if isinstance(caption_image, Tensor) else np.asarray(caption_image)
    if len(given) and not np.issubdtype(given.dtype, np.integer):
        raise DataError(
            f"caption_image holds {given.dtype} values", fix="give numbers of images, as integers"
        )
    image_of = given.astype(np.int64)
    if image_of.ndim != 1 or not len(image_of) or not image_count:
        raise DataError(
            "recall needs at least one caption and one image", fix="choose a split that has pairs"
        )
    outside = np.flatnonzero((image_of < 0) | (image_of >= image_count))
    if len(outside):
        row = outside[0]
        raise DataError(
            f"caption_image row {row}: image {image_of[row]} is not one of the {image_count} images"
        )
    return image_of


def _check_block(block: Tensor, start: int, stop: int, captions: int, images: int) -> None:
    if stop > captions or block.ndim != 2 or block.shape[1] != images:
        raise DataError(
            f"scores of captions {start}..{stop} have shape {tuple(block.shape)}",
            fix=f"expected {images} columns and {captions} rows in all",
        )
    bad = int(torch.isnan(block).sum())
    if bad:
        raise DataError(
            f"scores of captions {start}..{stop}: {bad} values are NaN",
            fix="the model's weights or inputs are bad",
        )
