"""Knowledge distillation: who belongs to whom in a batch, in the degrees a teacher gives.

A pair that is judged mismatched has no positive to be pulled to. A teacher still tells which images of the
batch are more like its caption and which captions more like its image.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pmpguard.errors import ConfigError
from pmpguard.losses.pair_loss import PairLabels, PairLoss, Reduction, checked_weights


class Distillation(PairLoss):
    """Cross-entropy of a batch's rows and columns with the softmax of a teacher's scores.

    Args:
        temperature: the student's scores are divided by it.
        teacher_temperature: the teacher's; by default the same.
        reduction: "mean" over pairs, "sum", or "none" for one term per pair.

    Inputs: scores, image_of and weights as of `PairLoss`, and
        teacher_scores (T, I): of the same captions and images; or several, whose softmax is averaged.
        weights (T,): how far each pair learns from the teacher, usually 1 - p(match). An image learns as far
            as the least of its pairs.

    References:
        Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015.

    Relations:
        `InfoNCE` with the teacher's softmax for targets; add it to `InfoNCE(weights=p_match)`.

    Examples:
        >>> teacher = torch.tensor([[0.9, 0.1], [0.1, 0.9]])  # (captions, images)
        >>> loss = Distillation(temperature=0.5)
        >>> loss(teacher, teacher), loss(1 - teacher, teacher)
        (tensor(0.4527), tensor(1.5151))
        >>> loss(1 - teacher, teacher, weights=torch.zeros(2))
        tensor(0.)
    """

    def __init__(
        self,
        temperature: float = 0.07,
        teacher_temperature: float | None = None,
        reduction: Reduction = "mean",
    ) -> None:
        super().__init__(reduction)
        self.temperature = temperature
        self.teacher_temperature = temperature if teacher_temperature is None else teacher_temperature

    def forward(  # type: ignore[override]  # a teacher is needed as well
        self,
        scores: Tensor,
        teacher_scores: Tensor | Sequence[Tensor],
        image_of: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """One number, or (T,) without reduction."""
        labels = PairLabels.of(scores, image_of, None, None)
        teachers = [teacher_scores] if isinstance(teacher_scores, Tensor) else list(teacher_scores)
        shapes = {tuple(each.shape) for each in teachers}
        if shapes != {tuple(scores.shape)}:
            raise ConfigError(
                f"the teacher's scores have shape {sorted(shapes)}, the student's {tuple(scores.shape)}",
                fix="score the same captions and images with both",
            )
        soft = soft_targets([each.detach() / self.teacher_temperature for each in teachers])
        by_caption = scores.new_ones(len(scores)) if weights is None else checked_weights(weights, scores)
        by_image = scores.new_ones(scores.shape[1])  # (I,)
        by_image = by_image.scatter_reduce(0, labels.image_of, by_caption, "amin")
        return self.reduce(distillation_terms(scores / self.temperature, soft, by_caption, by_image))


def soft_targets(logits: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean softmax of several scorings (T, I): over the images (T, I), and over the captions (I, T)."""
    rows = torch.stack([each.softmax(1) for each in logits]).mean(0)
    columns = torch.stack([each.T.contiguous().softmax(1) for each in logits]).mean(0)
    return rows, columns


def distillation_terms(
    logits: Tensor, soft: tuple[Tensor, Tensor], caption_share: Tensor, image_share: Tensor
) -> Tensor:
    """(T,): cross-entropy of each caption's row with its soft targets, and of all columns, halved.

    logits (T, I); soft targets (T, I) and (I, T), each row summing to 1; captions count as `caption_share`
    (T,) says, images as `image_share` (I,). Every pair carries the mean over images, so that both ways count
    alike in the mean over pairs.
    """
    rows, columns = soft
    row = -(rows * logits.log_softmax(1)).sum(1)  # (T,)
    column = -(columns * logits.T.contiguous().log_softmax(1)).sum(1)  # (I,)
    return (caption_share * row + (image_share * column).mean()) / 2
