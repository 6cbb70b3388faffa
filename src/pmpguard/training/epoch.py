"""Around the steps of an epoch: the method's plan before them, validation after them."""

from __future__ import annotations

import torch

from pmpguard.data.images.sources import ImageSource
from pmpguard.data.pairs import PairTable, image_label_codes
from pmpguard.evaluation.evaluate import evaluate_scores
from pmpguard.methods.method import EpochPlan, Method, TrainingView
from pmpguard.models.retriever import Retriever
from pmpguard.training.config import TrainConfig
from pmpguard.training.distributed import World, broadcast_tensors
from pmpguard.training.ema import AveragedWeights
from pmpguard.training.encode import Split
from pmpguard.training.feature_cache import can_cache
from pmpguard.training.seen_vectors import SeenVectors
from pmpguard.training.stored_features import Storage


def open_split(table: PairTable, images: ImageSource, retriever: Retriever, config: TrainConfig) -> Split:
    """A split as the run reads it; features of frozen backbones are cached, in memory where they may be."""
    size, precision = config.batch_size, config.precision
    if not can_cache(retriever, config.augmentation):
        return Split.open(table, images, retriever, batch=size, precision=precision)
    storage = Storage(config.cache_images, config.cache_images_gb)
    return Split.cached(table, images, retriever, batch=size, precision=precision, storage=storage)


def plan_epoch(
    method: Method,
    averaged: AveragedWeights,
    split: Split,
    epoch: int,
    config: TrainConfig,
    world: World,
    seen: SeenVectors | None = None,
) -> EpochPlan:
    """The method's plan, from the training set as the averaged weights see it; rank 0's on every rank.

    Where `seen` is given, what the steps of the epoch before saw is not encoded again.
    """
    device = method.retriever.device
    look = split.encode_pooled if seen is None else seen.look
    encode = split.encode if method.plans_by_fragments else look
    view = TrainingView(
        lambda: encode(method.retriever, world),
        split.caption_of,
        torch.from_numpy(split.table.image_codes).to(device),
        epoch,
        config.seed,
        image_labels=torch.from_numpy(image_label_codes(split.table)).to(device),
        is_last=epoch + 1 == config.epochs,
        read_tokens=lambda: split.pooled_features(method.retriever, world),
        token_ids=lambda: (split.tokens.ids, split.tokens.mask),
    )
    method.eval()
    with torch.no_grad(), averaged.in_place(method):
        plan = method.begin_epoch(view)
    broadcast_tensors([*method.buffers(recurse=False), *plan.tensors().values()], world)
    return plan


def validate(method: Method, averaged: AveragedWeights, split: Split, world: World) -> dict[str, float]:
    """Recalls on the validation split, by the method's own score and the averaged weights."""
    method.eval()
    with torch.no_grad(), averaged.in_place(method):
        captions, images = split.encode(method.retriever, world)
        scores = method.score(captions[split.caption_of], images)  # a row per pair
    return evaluate_scores(scores, split.table).as_dict()
