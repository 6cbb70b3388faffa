"""What the loss modules share: the labels of a batch of pairs, and how terms become one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from pmpguard.errors import ConfigError
from pmpguard.losses.positives import positive_targets

Reduction = Literal["mean", "sum", "none"]


@dataclass(frozen=True)
class PairLabels:
    """The labelled pairs of a batch: caption t with image `image_of[t]`."""

    image_of: Tensor  # (T,)
    image_keys: Tensor  # (I,) equal ones are one image
    caption_keys: Tensor  # (T,) equal ones are one sentence

    @classmethod
    def of(
        cls, scores: Tensor, image_of: Tensor | None, image_keys: Tensor | None, caption_keys: Tensor | None
    ) -> PairLabels:
        """Checked against scores (T, I). By default caption t has image t, and nothing is there twice."""
        captions, images = scores.shape
        if image_of is None and captions != images:
            raise ConfigError(
                f"scores have shape {captions} x {images}: which image has each caption?",
                fix="give image_of, (T,) with the column of each caption's image",
            )
        labels = cls(
            *(
                torch.arange(count, device=scores.device) if given is None else given.to(scores.device)
                for given, count in ((image_of, captions), (image_keys, images), (caption_keys, captions))
            )
        )
        for name, count in (("image_of", captions), ("image_keys", images), ("caption_keys", captions)):
            shape = getattr(labels, name).shape
            if shape != (count,):
                raise ConfigError(f"{name} has shape {tuple(shape)}", fix=f"give ({count},)")
        return labels

    def targets(self, weights: Tensor | None = None) -> Tensor:
        """(T, I) in [0, 1]: how strongly caption and image belong together."""
        return positive_targets(self.image_of, self.image_keys, self.caption_keys, weights)


class PairLoss(nn.Module):
    """A loss over all captions and images of a batch, with one term for each labelled pair.

    Inputs of every loss:
        scores (T, I): each caption with each image, higher for better matches; cosines, or S of awareness
            attention.
        image_of (T,): the column of each caption's image; by default caption t has image t.
        weights (T,): clean probability of each pair, in [0, 1]; 1 by default. No gradient passes them.
        image_keys (I,), caption_keys (T,): integers; equal ones are one image, or one sentence, and so
            positives of each other. By default all differ.

    With `reduction` "mean" the result is the mean over all T pairs, not over the sum of the weights: a batch
    of distrusted pairs makes a small step.
    """

    def __init__(self, reduction: Reduction = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ConfigError(f"reduction is {reduction!r}", fix="choose 'mean', 'sum' or 'none'")
        self.reduction = reduction

    def forward(
        self,
        scores: Tensor,
        image_of: Tensor | None = None,
        weights: Tensor | None = None,
        *,
        image_keys: Tensor | None = None,
        caption_keys: Tensor | None = None,
    ) -> Tensor:
        """One number, or (T,) without reduction."""
        labels = PairLabels.of(scores, image_of, image_keys, caption_keys)
        if weights is not None:
            weights = checked_weights(weights, scores)
        terms = self.terms(scores, labels, weights)  # (T,)
        return self.reduce(terms if weights is None else terms * weights)

    def terms(self, scores: Tensor, labels: PairLabels, weights: Tensor | None) -> Tensor:
        """(T,): one term per labelled pair, before its weight."""
        raise NotImplementedError(f"{type(self).__name__} defines no terms")

    def reduce(self, terms: Tensor) -> Tensor:
        """(T,) to one number, as `reduction` says."""
        if self.reduction == "none":
            return terms
        return terms.mean() if self.reduction == "mean" else terms.sum()


def checked_weights(weights: Tensor, scores: Tensor) -> Tensor:
    """(T,) on the scores' device, without a gradient."""
    if weights.shape != scores.shape[:1]:
        raise ConfigError(
            f"weights have shape {tuple(weights.shape)}", fix=f"give one for each caption, ({len(scores)},)"
        )
    return weights.detach().to(scores)
