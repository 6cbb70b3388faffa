"""Inter-modal aggregation loss (IA, eq. 6): InfoNCE over the captions and images of a batch, pair by pair.

Inputs: logits (T, I) of every caption against every image, already divided by the temperature; targets (T, I)
in [0, 1], above 0 where caption and image belong together; image_of (T,), the labelled image of each caption.

Both forms return one number per pair (caption t with image image_of[t]); multiply by the pairs' weights, then
take the mean over all pairs. Rows and columns of targets are divided by their sum; let q be the result.

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
from torch import Tensor, nn

from pmpguard.errors import ConfigError
from pmpguard.losses.pair_loss import PairLabels, PairLoss, Reduction

Form = Literal["symmetric", "joint"]


class InfoNCE(PairLoss):
    """Cross-entropy of every caption over the batch's images and of every image over its captions.

    Args:
        temperature: the scores are divided by it; a number, or a parameter that is learned.
        form: `symmetric`, or `joint` as eq. 6 prints it.
        reduction: "mean" over pairs, "sum", or "none" for one term per pair.

    Inputs: see `PairLoss`. A pair of weight 0 is not pulled together; it still repels.

    References:
        van den Oord, Li and Vinyals, "Representation Learning with Contrastive Predictive Coding", 2018;
        Radford et al., "Learning Transferable Visual Models From Natural Language Supervision", ICML 2021.

    Relations:
        `Complementary` drops the pull of the label, `AwarenessHinge` compares with single negatives,
        `Distillation` takes a teacher's softmax for the targets.

    Examples:
        >>> texts, images = torch.eye(3), torch.eye(3)[[0, 1, 1]]  # the third image is like the second
        >>> loss = InfoNCE(temperature=0.1, reduction="none")
        >>> loss(texts @ images.T).round(decimals=2)
        tensor([0.0000, 0.3500, 5.5500])
        >>> InfoNCE(temperature=0.1)(texts @ images.T, weights=torch.tensor([1.0, 1.0, 0.0]))
        tensor(0.1156)
    """

    def __init__(
        self,
        temperature: float | nn.Parameter = 0.07,
        form: Form = "symmetric",
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.temperature = temperature
        self.form = form

    def terms(self, scores: Tensor, labels: PairLabels, weights: Tensor | None) -> Tensor:
        targets = labels.targets(weights).to(scores.dtype)
        return infonce_terms(scores / self.temperature, targets, labels.image_of, self.form)


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
