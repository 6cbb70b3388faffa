"""Hinge losses against the negatives of a batch, pair by pair: the awareness hinge (PA, eq. 15) and triplets.

Semi-hard negatives, easier than the pair itself, are those of Schroff, Kalenichenko and Philbin, "FaceNet",
CVPR 2015. Where many negatives outscore the pairs, as look-alike scenes do, the hardest cost more than the
margin on average. The margin is what a model pays that embeds everything alike, so that is what training
arrives at. A negative easier than its pair never costs more than the margin, and collapsing gains nothing.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

from pmpguard.errors import ConfigError
from pmpguard.losses.pair_loss import PairLabels, PairLoss, Reduction

HardNegatives = Literal["semi-hard", "hardest"]
Negatives = Literal["semi-hard", "hardest", "mean", "sum"]


class AwarenessHinge(PairLoss):
    """Two-way hinge on the awareness score S: a pair's own score beats its negatives by a margin.

    Args:
        margin: by how much.
        negatives: "hardest", "semi-hard" (the hardest that is easier than the pair), or the "mean" or "sum"
            over all.
        hardest: how many of the hardest are averaged.
        reduction: "mean" over pairs, "sum", or "none" for one term per pair.

    Inputs: see `PairLoss`.

    References:
        Zhang et al., "Negative-Aware Attention Framework for Image-Text Matching", CVPR 2022 (S);
        Faghri et al., "VSE++: Improving Visual-Semantic Embeddings with Hard Negatives", BMVC 2018.

    Relations:
        `InfoNCE` weighs all negatives by their softmax. Under heavy noise the hardest negative is mostly a
        false one: start with "mean".

    Examples:
        >>> scores = torch.tensor([[0.9, 0.2, 0.7], [0.1, 0.8, 0.0], [0.3, 0.6, 0.7]])  # (captions, images)
        >>> AwarenessHinge(margin=0.5, reduction="none")(scores)
        tensor([0.3000, 0.3000, 0.9000])
        >>> AwarenessHinge(margin=0.5)(scores, weights=torch.tensor([1.0, 1.0, 0.0]))
        tensor(0.2000)
    """

    def __init__(
        self,
        margin: float = 0.5,
        negatives: Negatives = "hardest",
        hardest: int = 1,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.margin = margin
        self.negatives: Negatives = negatives
        self.hardest = hardest

    def terms(self, scores: Tensor, labels: PairLabels, weights: Tensor | None) -> Tensor:
        positives = labels.targets() > 0
        return hinge_terms(scores, labels.image_of, positives, self.margin, self.negatives, self.hardest)


def hinge_terms(
    scores: Tensor,
    image_of: Tensor,
    positives: Tensor,
    margin: float | Tensor = 0.5,
    negatives: Negatives = "hardest",
    hardest: int = 1,
) -> Tensor:
    """One loss per pair: [margin - S(t, v) + S(t, v')]+ + [margin - S(t, v) + S(t', v)]+.

    scores (T, I), image_of (T,) the labelled image v of caption t, positives (T, I) bool -> (T,). v' and t'
    are images and captions of the batch; positives and labelled pairs are never among them. `margin` is one
    number or one for each pair (T,). `negatives` takes the hardest of each way (the mean of the `hardest`
    largest hinges, those missing count as 0), the same of those easier than the pair (`semi-hard`), or the
    mean or the sum over all. `mean` suits the start of training under heavy noise, where the hardest negative
    is mostly a false one. With nothing to compare to, the term is 0.
    """
    if negatives not in get_args(Negatives):
        raise ConfigError(
            f"negatives are {negatives!r}", fix=f"choose one of {', '.join(get_args(Negatives))}"
        )
    own, rows, columns = own_and_negatives(scores, image_of, positives)
    by_caption, by_image = (_hinge(side, own, margin, negatives, hardest) for side in (rows, columns))
    return by_caption + by_image


def own_and_negatives(scores: Tensor, image_of: Tensor, positives: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Own score (T,), its caption's with other images (T, I) and its image's with other captions (T, T).

    scores (T, I), image_of (T,) the labelled image of each caption, positives (T, I) bool. Positives and
    labelled pairs are no negatives; they hold the lowest number there is, so that a maximum never picks
    them.
    """
    own = scores.gather(1, image_of[:, None]).squeeze(1)  # (T,)
    positives = positives.scatter(1, image_of[:, None], True)  # (T, I)
    rows = scores.masked_fill(positives, _lowest(scores))  # (T, I)
    return own, rows, rows.T[image_of]


def _hinge(side: Tensor, own: Tensor, margin: float | Tensor, negatives: Negatives, hardest: int) -> Tensor:
    """(T, K) scores of negatives, (T,) -> (T,)."""
    if negatives == "semi-hard":
        side = side.masked_fill(side >= own[:, None], _lowest(side))
    hinges = ((margin - own)[:, None] + side).clamp(min=0)  # (T, K), 0 where there is no negative
    if negatives == "sum":
        return hinges.sum(1)
    if negatives == "mean":
        return hinges.sum(1) / (side > _lowest(side)).sum(1).clamp(min=1)
    if hardest == 1:
        return hinges.amax(1)
    return hinges.topk(min(hardest, hinges.shape[1]), dim=1).values.mean(1)


def _lowest(scores: Tensor) -> float:
    return torch.finfo(scores.dtype).min
