"""What a training method is: one class that turns encoded batches into per-pair losses.

The loop never knows which method runs. It builds the model the method asks for (`model_config`), encodes
each batch, calls `losses`, takes the mean of every named term and adds them up. Before an epoch the method
may read the whole training set (`begin_epoch`), which is where mismatched pairs are flagged, and returns an
`EpochPlan`. Whatever a method must remember lives in its buffers, so that checkpoints hold it without knowing
what it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pmpguard.config import from_dict, to_dict
from pmpguard.detection.evidence.similarity import Measure
from pmpguard.errors import ConfigError, one_of
from pmpguard.kernels.awareness.fused import PRODUCT_DTYPE, awareness_scores_fused
from pmpguard.kernels.caption_blocks import LongerThan
from pmpguard.losses.positives import positive_targets
from pmpguard.models.attention.boundary import Boundary
from pmpguard.models.config import Ranking, RetrieverConfig
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever


@dataclass(frozen=True)
class EncodedBatch:
    """One global batch: T captions and I images, every image once."""

    texts: Encoded
    images: Encoded
    image_of: Tensor  # (T,) int64: which of the I images each caption is labelled with
    image_keys: Tensor  # (I,) int64: equal numbers, equal image
    caption_keys: Tensor  # (T,) int64: equal numbers, equal caption string
    rows: Tensor  # (T,) int64: rows of the training table
    epoch: int  # from 0
    longer_than: LongerThan | None = None  # (words, most captions of the T with more); None: unknown
    teacher_scores: Sequence[Tensor] | None = None  # (T, I) each, see `Method.teacher_scores`
    weights: Tensor | None = None  # (T,) float, of the epoch's plan; None: all 1

    @cached_property
    def pair_weights(self) -> Tensor:
        """(T,) float: how much each pair's positive terms count."""
        return self.texts.pooled.new_ones(len(self.rows)) if self.weights is None else self.weights

    @cached_property
    def targets(self) -> Tensor:
        """(T, I) float: 1 where caption and image belong together by image or by equal string."""
        return self.weighted_targets(None)

    def weighted_targets(self, weights: Tensor | None) -> Tensor:
        """(T, I) float: as `targets`, each link as strong as the pair that makes it."""
        return positive_targets(self.image_of, self.image_keys, self.caption_keys, weights)


@dataclass(frozen=True)
class TrainingView:
    """The training set as the current model sees it, encoded without augmentation when first asked for.

    `captions` holds each distinct caption once and `images` each distinct image once; row r of the training
    table pairs caption `caption_of[r]` with image `image_of[r]`. They hold fragments only
    for methods that plan by them.
    """

    encode: Callable[[], tuple[Encoded, Encoded]]
    caption_of: Tensor  # (N,) int64
    image_of: Tensor  # (N,) int64
    epoch: int
    seed: int
    image_labels: Tensor | None = None  # (images,) int64: scene class of each image, -1 where unknown
    is_last: bool = True  # whether no epoch follows this one
    read_tokens: Callable[[], tuple[Tensor, Tensor]] | None = None  # see `tokens`
    token_ids: Callable[[], tuple[Tensor, Tensor]] | None = None  # ids (C, L) of the captions, mask (C, L)
    _cache: dict[str, Encoded] = field(default_factory=dict, repr=False)

    def _both(self) -> dict[str, Encoded]:
        if not self._cache:
            self._cache["captions"], self._cache["images"] = self.encode()
        return self._cache

    def tokens(self) -> tuple[Tensor, Tensor]:
        """Pooled tokens of `captions` (C, c) and `images` (I, e) before the encoders' last linear layers.

        Those are new where the encoders are pretrained, and would hide much of what the encoders know. Every
        call reads all captions and images. Without `read_tokens`, the pooled vectors themselves.
        """
        if self.read_tokens is None:
            return self.captions.pooled, self.images.pooled
        return self.read_tokens()

    @property
    def captions(self) -> Encoded:
        return self._both()["captions"]

    @property
    def images(self) -> Encoded:
        return self._both()["images"]


@dataclass(frozen=True)
class EpochPlan:
    """What a method decides before an epoch: all the loop reads of it until the next one.

    Args:
        weights: (N,) float, how much each pair's positive terms count; None for all 1.
        partners: (N,) int64, the code of the image each row is trained with; None for the labelled ones.
        repeats: (N,) int64, how often the epoch comes to each row, N visits in all; None for once each.
        log: scalars for the record.
    """

    weights: Tensor | None = None
    partners: Tensor | None = None
    repeats: Tensor | None = None
    log: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: dict[str, Tensor]) -> EpochPlan:
        """A plan from what a checkpoint holds of it."""
        return cls(tensors.get("weights"), tensors.get("partners"), tensors.get("repeats"))

    def tensors(self) -> dict[str, Tensor]:
        """What checkpoints hold of it."""
        named = {"weights": self.weights, "partners": self.partners, "repeats": self.repeats}
        return {name: value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class NoSettings:
    """A method without settings of its own."""


class Method(nn.Module):
    """Base class of every method; `losses` is the only thing a subclass must write."""

    name: ClassVar[str] = "method"
    Settings: ClassVar[type[Any]] = NoSettings
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"recommended": {}}

    # Whether `set_clean_mask` can be told which pairs are right.
    weights_pairs: ClassVar[bool] = False
    # Whether `begin_epoch` reads the fragments of all images and captions.
    plans_by_fragments: ClassVar[bool] = False
    # Whether there are `teacher_scores`, which the losses read.
    can_distill: ClassVar[bool] = False
    # Whether `p_match` only ranks pairs and is no probability.
    only_ranks: ClassVar[bool] = False
    # (N,) float in [0, 1], set by methods that judge pairs: the detection metric reads it, the loop does not.
    p_match: Tensor | None
    # What the last look at the training set found, for reports: the share of mismatched pairs it estimates (a
    # number, -1 before the training-free detection), and for each row the caption proposed for its image, by
    # number (N,) and with its probability (N,).
    estimated_rate: Tensor | None
    proposed_caption: Tensor | None
    proposed_probability: Tensor | None

    def __init__(self, retriever: Retriever, settings: Any, pairs: int) -> None:
        super().__init__()
        self.retriever = retriever
        self.settings = settings
        self.pairs = pairs
        self.register_buffer("p_match", None)
        self.register_buffer("estimated_rate", None)
        self.register_buffer("proposed_caption", None)
        self.register_buffer("proposed_probability", None)

    @classmethod
    def model_config(cls, config: RetrieverConfig, settings: Any) -> RetrieverConfig:
        """The model this method trains: ranking rule and modules."""
        return ungated(config, "pooled")

    @classmethod
    def read_settings(cls, preset: str, overrides: dict[str, Any]) -> Any:
        """Settings of a preset with some of them replaced; an unknown name is an error listing the known."""
        if preset not in cls.PRESETS:
            raise ConfigError(f"preset: {cls.name} has no preset {preset!r}", fix=one_of(preset, cls.PRESETS))
        return from_dict(cls.Settings, {**cls.PRESETS[preset], **to_dict(overrides)}, where="settings")

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        """Named per-pair terms, each (T,)."""
        raise NotImplementedError

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        """Plan an epoch; the view shows the training set as the model sees it."""
        return EpochPlan()

    def set_clean_mask(self, clean: Tensor) -> None:
        """Train on the pairs that are right (N,) bool and never judge any: for the oracle alone."""
        raise NotImplementedError(f"{self.name} does not weight pairs")

    def set_judge(self, judge: Measure) -> None:
        """Count what a model from outside says of any pair as evidence."""
        raise ConfigError(
            f"{self.name} judges no pairs, so a judge is of no use to it",
            fix="train pmpguard, or leave it out",
        )

    def teacher_scores(self, teacher: Retriever, batch: EncodedBatch) -> Sequence[Tensor]:
        """(T, I) each: the scores whose softmax `losses` learns, of a batch as a teacher encodes it."""
        raise NotImplementedError(f"{self.name} cannot learn from a teacher")

    def wants_distillation(self) -> bool:
        """Whether, by what a finished run has found, a second model taught by this one is worth its time."""
        return False

    def phase(self, epoch: int) -> int:
        """Epochs of one number compute their losses alike, so that a captured step may be replayed."""
        return 0

    def progress(self) -> dict[str, Tensor]:
        """Scalars for the progress bar and the step log, without waiting for the device."""
        return {}

    def score(self, texts: Encoded, images: Encoded) -> Tensor:
        """(captions, images): the ranking score."""
        return self.retriever.score(texts, images)

    @property
    def temperature(self) -> Tensor:
        return self.retriever.temperature


class JudgingMethod(Method):
    """A method that gives every pair a probability of matching, 1 before it has judged any."""

    p_match: Tensor

    def __init__(self, retriever: Retriever, settings: Any, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        self.register_buffer("p_match", torch.ones(pairs))

    def progress(self) -> dict[str, Tensor]:
        return {"mismatch": 1 - self.p_match.mean()}


def ungated(config: RetrieverConfig, ranking: Ranking) -> RetrieverConfig:
    """A model without cross-gated attention."""
    return replace(config, cross_gated=replace(config.cross_gated, use=False), ranking=ranking)


def boundary_progress(boundary: Boundary) -> dict[str, Tensor]:
    """The boundary's two Gaussians, t, and whether it was kept, for the log."""
    mu_pos, sigma_pos, mu_neg, sigma_neg = boundary.gaussians()
    return {"mu+": mu_pos, "sigma+": sigma_pos, "mu-": mu_neg, "sigma-": sigma_neg, "t": boundary.t,
            "t_kept": boundary.kept}  # fmt: skip


def pooled_cosines(batch: EncodedBatch) -> Tensor:
    """(T, I): cosine of every caption with every image."""
    return batch.texts.pooled @ batch.images.pooled.T


def awareness_of(texts: Encoded, images: Encoded, boundary: Tensor, longer_than: LongerThan | None) -> Tensor:
    """(T, I): S of every caption with every image, at the precision that training needs."""
    return awareness_scores_fused(
        texts.fragments, texts.mask, images.fragments, boundary,
        region_mask=images.mask, product_dtype=PRODUCT_DTYPE, longer_than=longer_than,
    )  # fmt: skip


def trained_awareness(batch: EncodedBatch, boundary: Boundary) -> Tensor:
    """(T, I): S of the batch, after which the boundary has seen it."""
    texts, images = batch.texts, batch.images
    scores = awareness_of(texts, images, boundary.value(train=True), batch.longer_than)
    boundary.update(
        texts.fragments, texts.mask, images.fragments, batch.image_of, scores.detach(), images.mask
    )
    return scores


def labelled(scores: Tensor, image_of: Tensor) -> Tensor:
    """(T,): the score of each caption with its labelled image."""
    return scores.gather(1, image_of[:, None])[:, 0]
