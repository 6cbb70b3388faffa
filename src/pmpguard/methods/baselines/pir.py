"""PIR: tokens chosen by a scene prior, cyclic text attention, affiliation loss (Pan et al., ACM MM 2023).

J. Pan, Q. Ma, C. Bai, "A Prior Instruction Representation Framework for Remote Sensing Image-text Retrieval",
ACM Multimedia 2023.

Differs from the original:

* The prior. Theirs is a ResNet-50 trained on the AID scenes, whose images include test images of RSICD: a
  leak. Ours is a linear classifier of scenes on the encoder's mean region, trained on the scene labels of the
  training split only, and detached on both sides: it teaches the encoder nothing, and retrieval teaches it
  nothing. Without labels, clusters of the untrained model's image embeddings take their place.
* Encoders: those of this comparison instead of Swin-T and BERT. The pooled vector stands where [CLS] stood.
* Words attend to real words only; the original lets them attend to padding.
* Affiliation: captions choose among the image centres as images do among the caption centres. The
  released code lets each image centre choose one caption, against the other captions of its own class.
  Centres are those of the whole batch, not of one GPU's part.
* The model is selected on the validation split; the original selects on the test split.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pmpguard.errors import ConfigError
from pmpguard.losses.infonce import infonce_terms
from pmpguard.methods.method import EncodedBatch, EpochPlan, Method, TrainingView, pooled_cosines, ungated
from pmpguard.models.config import HeadConfig, RetrieverConfig
from pmpguard.models.encoders.projection import masked_mean, unit
from pmpguard.models.heads.pir import PirHead
from pmpguard.models.retriever import Retriever

UNKNOWN = -1
_CLUSTERED = 20_000  # images that decide where the clusters lie
_ROUNDS = 20


@dataclass(frozen=True)
class PirSettings:
    """Published values, but for `scenes` and `classes`.

    Args:
        scenes: where scene classes come from: `labels` of the training split, `clusters` of its images, or
            `auto`, labels where the dataset has any and clusters where not.
        classes: room for scene classes; the number of clusters.
        keep: share of the tokens that the prior keeps (40 of 50).
        instructions: guided layers for images.
        cycles: guided layers for captions.
        attention_heads: of all layers.
        dropout: of all layers.
        affiliation_weight: of the affiliation loss.
    """

    scenes: Literal["auto", "labels", "clusters"] = "auto"
    classes: int = 32
    keep: float = 0.8
    instructions: int = 2
    cycles: int = 3
    attention_heads: int = 8
    dropout: float = 0.2
    affiliation_weight: float = 1.0


class Pir(Method):
    """Contrastive and affiliation loss; a third term trains only the scene classifier. Trusts every label."""

    name = "pir"
    Settings = PirSettings
    plans_by_fragments = True  # scenes are told by the regions of images

    scene_of: Tensor

    def __init__(self, retriever: Retriever, settings: PirSettings, pairs: int) -> None:
        super().__init__(retriever, settings, pairs)
        self.register_buffer("scene_of", torch.full((pairs,), UNKNOWN))
        self.log_centre_temperature = nn.Parameter(torch.tensor(math.log(retriever.config.temperature)))

    @classmethod
    def model_config(cls, config: RetrieverConfig, settings: Any) -> RetrieverConfig:
        head = HeadConfig(
            "pir",
            settings.attention_heads,
            settings.dropout,
            settings.classes,
            settings.keep,
            settings.instructions,
            settings.cycles,
        )
        return ungated(replace(config, head=head), "pooled")

    @property
    def head(self) -> PirHead:
        assert isinstance(self.retriever.head, PirHead)
        return self.retriever.head

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        scenes = self.scene_of[batch.rows]  # (T,)
        affiliation = affiliation_terms(
            batch.images.pooled[batch.image_of],
            batch.texts.pooled,
            scenes,
            self.log_centre_temperature.exp().clamp(0.01, 0.5),
        )
        logits = self.head.scene_logits(batch.images)[batch.image_of]  # (T, classes)
        return {
            "infonce": infonce_terms(pooled_cosines(batch) / self.temperature, batch.targets, batch.image_of),
            "affiliation": self.settings.affiliation_weight * affiliation,
            "scene": F.cross_entropy(logits, scenes, ignore_index=UNKNOWN, reduction="none"),
        }

    def begin_epoch(self, view: TrainingView) -> EpochPlan:
        """Before the first epoch, note the scene of every pair."""
        if view.epoch > 0:
            return EpochPlan()
        labels = self._labels(view)
        self.scene_of.copy_(labels.to(self.scene_of.device)[view.image_of])
        known = labels[labels != UNKNOWN]
        return EpochPlan(
            log={"scenes": float(len(set(known.tolist()))), "images_with_scene": len(known) / len(labels)}
        )

    def _labels(self, view: TrainingView) -> Tensor:
        """(images,): the scene class of each training image, -1 where unknown."""
        settings, given = self.settings, view.image_labels
        labelled = given is not None and bool((given != UNKNOWN).any())
        if settings.scenes == "clusters" or (settings.scenes == "auto" and not labelled):
            vectors = unit(masked_mean(view.images.fragments, view.images.mask))  # (images, d)
            return cluster(vectors, settings.classes, view.seed)
        if given is None or not labelled:
            raise ConfigError(
                "settings.scenes: the training split has no scene labels",
                fix="set scenes to clusters or auto",
            )
        classes = int(given.max()) + 1
        if classes > settings.classes:
            raise ConfigError(
                f"settings.classes: {settings.classes}, but the training split has {classes} scene classes",
                fix=f"set it to {classes} or more",
            )
        return given


def affiliation_terms(images: Tensor, texts: Tensor, scenes: Tensor, temperature: Tensor) -> Tensor:
    """(T,): each pair's image against the caption centres of the batch's scenes, and the reverse.

    images, texts (T, d), one row per pair; scenes (T,), -1 for a pair that is a scene of its own. A scene
    stands in the denominator as often as it has pairs.
    """
    same = (scenes[:, None] == scenes) & (scenes[:, None] != UNKNOWN)  # (T, T)
    same = same | torch.eye(len(scenes), dtype=torch.bool, device=scenes.device)
    shares = same.to(images.dtype)
    shares = shares / shares.sum(1, keepdim=True)  # (T, T)
    to_captions = images @ (shares @ texts).T / temperature  # (T, T)
    to_images = texts @ (shares @ images).T / temperature
    return -(to_captions.log_softmax(1).diagonal() + to_images.log_softmax(1).diagonal()) / 2


def cluster(vectors: Tensor, count: int, seed: int) -> Tensor:
    """(N,) int64: spherical k-means of unit vectors (N, d) in at most `count` clusters, by the seed alone."""
    generator = torch.Generator().manual_seed(seed)
    sample = vectors[torch.randperm(len(vectors), generator=generator)[:_CLUSTERED].to(vectors.device)]
    chosen = [sample[0]]
    nearest = sample @ chosen[0]  # (S,) cosine with the nearest centre so far
    for _ in range(min(count, len(sample)) - 1):  # start with images unlike each other
        chosen.append(sample[nearest.argmin()])
        nearest = torch.maximum(nearest, sample @ chosen[-1])
    centres = torch.stack(chosen)  # (K, d)
    for _ in range(_ROUNDS):
        members = F.one_hot((sample @ centres.T).argmax(1), len(centres)).to(sample)  # (S, K)
        sums = members.T @ sample  # (K, d)
        centres = torch.where(members.sum(0)[:, None] > 0, unit(sums), centres)
    return (vectors @ centres.T).argmax(1)
