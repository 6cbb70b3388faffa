"""The synthetic scenes: overhead scenes with known truth, any number, from a seed.

Everything that needs data runs on it without a download: images that look like overhead imagery, five
captions each, and the truth behind them. A scene is a pure function of (seed, index), so any part of a world
can be made again anywhere.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError
from pmpguard.files import atomic_directory
from pmpguard.progress import progress_bar
from pmpguard.synthetic.captions import CAPTIONS, WrongCaption, describe_scene, wrong_description
from pmpguard.synthetic.drawing.render import render_scene, render_scenes
from pmpguard.synthetic.layout import draw_scene
from pmpguard.synthetic.truth import Group, Scene

__all__ = [
    "Group",
    "Scene",
    "SyntheticScenes",
    "WrongCaption",
    "describe_scene",
    "draw_scene",
    "render_scene",
    "synthetic_scenes",
    "write_world",
    "wrong_description",
]

SCENES_AT_ONCE = 50
SHOW_PROGRESS_FROM = 1000


@dataclass(frozen=True)
class SyntheticScenes:
    """Images, pairs and truth. Image `i`, scene `i` and image code `i` of the table belong together."""

    table: PairTable
    images: Tensor  # (count, 3, size, size) uint8
    scenes: tuple[Scene, ...]


def synthetic_scenes(
    count: int,
    seed: int = 0,
    size: int = 64,
    captions: int = CAPTIONS,
    val: float = 0.1,
    test: float = 0.1,
    processes: int = 1,
    progress: bool | None = None,
) -> SyntheticScenes:
    """Draw `count` scenes with their captions.

    The last scenes are the test split, those before them the validation split, the rest is for training;
    scenes are drawn independently, so their order carries no meaning. Drawing is spread over `processes`;
    the result does not depend on it. `progress` shows a bar; by default only where there are many.

    >>> scenes = synthetic_scenes(10, size=64)
    >>> tuple(scenes.images.shape), scenes.table.splits()
    ((10, 3, 64, 64), {'train': 40, 'val': 5, 'test': 5})
    """
    if count < 1:
        raise ConfigError(f"scene count is {count}", fix="ask for at least one scene")
    if not 1 <= captions <= CAPTIONS:
        raise ConfigError(f"captions per scene is {captions}", fix=f"choose 1 to {CAPTIONS}")
    if min(val, test) < 0 or val + test >= 1:
        raise ConfigError(f"val {val} and test {test} leave no training scenes", fix="keep their sum under 1")
    if processes < 1:
        raise ConfigError(f"process count is {processes}", fix="use at least one process")
    scenes: list[Scene] = []
    pixels = np.empty((count, size, size, 3), np.uint8)
    show = count >= SHOW_PROGRESS_FROM if progress is None else progress
    with progress_bar(count, 0, "scenes", unit="scene", active=show) as bar:
        for drawn, painted in _chunks(count, seed, size, processes):
            pixels[len(scenes) : len(scenes) + len(drawn)] = painted
            scenes.extend(drawn)
            bar.update(len(drawn))
    table = _pair_table(scenes, seed, captions, round(count * val), round(count * test))
    images = torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous()  # (count, 3, size, size)
    return SyntheticScenes(table, images, tuple(scenes))


def _chunks(
    count: int, seed: int, size: int, processes: int
) -> Iterator[tuple[list[Scene], NDArray[np.uint8]]]:
    ranges = [range(start, min(start + SCENES_AT_ONCE, count)) for start in range(0, count, SCENES_AT_ONCE)]
    render = partial(render_scenes, seed, size=size)
    if processes == 1:
        yield from map(render, ranges)
        return
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(render, ranges)


def _pair_table(scenes: list[Scene], seed: int, captions: int, val: int, test: int) -> PairTable:
    train = len(scenes) - val - test
    columns: dict[str, list[str]] = {
        name: [] for name in ("pair_id", "image", "caption", "split", "image_id", "label")
    }
    for position, scene in enumerate(scenes):
        split = "train" if position < train else "val" if position < train + val else "test"
        name = f"scene-{scene.index:06d}"
        for which, caption in enumerate(describe_scene(scene)[:captions]):
            row = (f"{name}-{which}", f"{name}.png", caption, split, name, scene.label)
            for column, value in zip(columns.values(), row, strict=True):
                column.append(value)
    return PairTable.from_columns(columns, name=f"scenes-{seed}")


def write_world(world: SyntheticScenes, folder: Path) -> PairTable:
    """Write `images/*.png` and `pairs.parquet` below `folder`, all or nothing; returns the table there."""
    names = [world.table.row(int(row)).image for row in world.table.first_rows]
    with atomic_directory(folder) as temporary:
        images = temporary / "images"
        images.mkdir()
        for name, image in zip(names, world.images, strict=True):
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(images / name)
        world.table.write_parquet(temporary / "pairs.parquet")
    return PairTable(world.table.arrow, folder / "images", world.table.name)
