"""Judging the training set block by block: each pair is measured among the pairs of a random block.

The published methods judge pairs in the batches of a loader. Blocks of a fixed size keep a verdict
independent of the batch size one trains with.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from pmpguard.losses.hinge import hinge_terms
from pmpguard.methods.method import EncodedBatch, TrainingView, pooled_cosines
from pmpguard.models.encoded import Encoded
from pmpguard.stable_random import StableRandom


def measure_in_blocks(
    view: TrainingView, measure: Callable[[EncodedBatch], Tensor], size: int = 128
) -> Tensor:
    """(N,): what `measure` (block -> (T,)) says of every pair of the training set.

    Blocks hold `size` pairs give or take one part in the number of blocks, so that none is too small to be
    compared in, and pooled embeddings alone. Which pairs meet depends on the view's seed and epoch.
    """
    pairs = len(view.caption_of)
    order = StableRandom("blocks", view.seed, view.epoch).order(pairs)
    measured = torch.empty(pairs, device=view.caption_of.device)
    for part in np.array_split(order, max(1, round(pairs / size))):
        rows = torch.from_numpy(part).to(view.caption_of.device)  # (T,)
        measured[rows] = measure(block_of(view, rows)).to(measured.dtype)
    return measured


def block_of(view: TrainingView, rows: Tensor) -> EncodedBatch:
    """Some pairs of the training set as a batch without fragments."""
    images, image_of = torch.unique(view.image_of[rows], return_inverse=True)  # (I,), (T,)
    captions = view.caption_of[rows]  # (T,)
    return EncodedBatch(
        _pooled_only(view.captions.pooled[captions].float()),
        _pooled_only(view.images.pooled[images].float()),
        image_of,
        images,
        captions,
        rows,
        view.epoch,
    )


def _pooled_only(pooled: Tensor) -> Encoded:
    none = pooled[:, None][:, :0]  # (N, 0, d)
    return Encoded(pooled, none, none.new_zeros(none.shape[:2], dtype=torch.bool))


def mean_hinges(batch: EncodedBatch, margin: float) -> Tensor:
    """(T,): the mean hinge of each pair over its negatives, both ways: a loss pairs are judged by."""
    return hinge_terms(pooled_cosines(batch), batch.image_of, batch.targets > 0, margin, "mean")
