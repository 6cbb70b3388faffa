"""Inter-modal aggregation loss (IA, eq. 6): InfoNCE over the captions and images of a batch, pair by pair.

Inputs: logits (T, I) of every caption against every image, already divided by the temperature; targets (T, I)
in [0, 1], above 0 where caption and image belong together; image_of (T,), the labelled image of each caption.

Both forms return one number per pair (caption t with image image_of[t]); multiply by the pairs' weights, then
take the mean (`objective.reduce_terms`). Rows and columns of targets are divided by their sum; let q be the
result.

* `symmetric`: (row + column) / 2 where row is the cross-entropy of q[t, :] and softmax(logits[t, :]), and
  column that of q[:, v] and softmax(logits[:, v]), v = image_of[t]. Every pair of an image carries its
  column. When targets are made from pair weights, the weighted sum over the image's pairs is then sum_t w_t *
  -log p(t | v): each caption pulls as strongly as its own weight.
* `joint`: the letter of eq. 6, one fraction whose denominator holds the row and the column, hence the
  positive twice; its floor is ln 2. For each positive image k of caption t:
  log(exp(z_tk) + exp(z_tk) + sum over negatives in row t and in column k) - z_tk, averaged with q[t, :].

Positives are never negatives of each other: `symmetric` gives each its share of the target, `joint` leaves
them out of the denominator. A caption whose row holds no target has no row term, an image whose column holds
none no column term, so a pair of weight 0 is not pulled together; it still repels.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from pmpguard.errors import ConfigError

Form = Literal["symmetric", "joint"]


def positive_targets(
    image_of: Tensor, image_keys: Tensor, caption_keys: Tensor, weights: Tensor | None = None
) -> Tensor:
    """How strongly each caption and image of the batch belong together: (T, I) in [0, 1].

    image_of (T,) is each caption's column; equal image_keys (I,) are one image, equal caption_keys (T,) one
    sentence. Caption t belongs to image v when some pair of that sentence has that image; the largest of
    those pairs' weights (T,) counts, 1 without weights.

    >>> key = torch.arange(3)
    >>> positive_targets(key, key, torch.tensor([7, 7, 8]), torch.tensor([1.0, 0.5, 0.0]))
    tensor([[1.0000, 0.5000, 0.0000],
            [1.0000, 0.5000, 0.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    if weights is None:
        weights = torch.ones(len(image_of), device=image_of.device)
    same_caption = caption_keys[:, None] == caption_keys[None, :]  # (T, T)
    same_image = image_keys[image_of][:, None] == image_keys[None, :]  # (T, I)
    targets = weights.new_zeros(len(image_of), len(image_keys))  # (T, I)
    # Sentence by sentence through the first pair of each, so that no (T, T, I) tensor is needed.
    first = same_caption.int().argmax(1)  # (T,)
    labelled = weights[:, None] * same_image  # (T, I)
    targets.scatter_reduce_(0, first[:, None].expand_as(labelled), labelled, "amax")
    return targets[first]


def infonce_terms(logits: Tensor, targets: Tensor, image_of: Tensor, form: Form = "symmetric") -> Tensor:
    """One loss per pair: (T, I), (T, I), (T,) -> (T,). See the head of this file."""
    if form == "symmetric":
        return _both_ways(_shares(targets, 1), _shares(targets, 0), logits, image_of)
    if form == "joint":
        negatives = logits.masked_fill(targets > 0, torch.finfo(logits.dtype).min)  # (T, I)
        against = torch.logaddexp(negatives.logsumexp(1)[:, None], negatives.logsumexp(0)[None])  # (T, I)
        twice = logits + math.log(2.0)
        return (_shares(targets, 1) * (torch.logaddexp(against, twice) - logits)).sum(1)
    raise ConfigError(f"aggregation form is {form!r}", fix="choose 'symmetric' or 'joint'")


def _both_ways(rows: Tensor, columns: Tensor, logits: Tensor, image_of: Tensor) -> Tensor:
    """Cross-entropy of each caption's row and of its image's column, halved: all (T, I), image_of (T,)."""
    row = -(rows * logits.log_softmax(1)).sum(1)  # (T,)
    # A softmax along the first axis is slow on a GPU.
    column = -(columns.T * logits.T.contiguous().log_softmax(1)).sum(1)  # (I,)
    return (row + column[image_of]) / 2


def _shares(targets: Tensor, dim: int) -> Tensor:
    """Targets divided by their sum along `dim`; zeros where the sum is 0."""
    total = targets.sum(dim, keepdim=True)
    return targets / torch.where(total > 0, total, 1.0)
