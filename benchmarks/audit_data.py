"""What the audit's benchmarks share: a dataset with known wrong captions, and how a result is recorded."""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pmpguard.audit.crossfit import CrossfitConfig, FoldJudge, fold_judges
from pmpguard.audit.judging import JudgedPart, judged_by_model
from pmpguard.data.formats import read_pairs
from pmpguard.data.images.decode import load_images
from pmpguard.data.images.sources import ImagesInMemory, ImageSource
from pmpguard.data.pairs import PairTable
from pmpguard.device import pick_device
from pmpguard.synthetic.scenes import synthetic_scenes
from pmpguard.training.tracking import current_commit, describe_hardware

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Dataset:
    """Clean pairs, all in one split, with their images by image code."""

    table: PairTable
    images: ImageSource  # opened once: what frozen encoders read of them is remembered
    name: str


def load_dataset(
    dataset: str, images: int, size: int, seed: int, folder: Path | None = None, device: str = "auto"
) -> Dataset:
    """`images` images, drawn by `seed`, of a dataset on disk; or as many scenes of the synthetic scenes."""
    if dataset == "scenes":
        world = synthetic_scenes(images, seed=seed, size=size, val=0.0, test=0.0, progress=False)
        return Dataset(world.table, ImagesInMemory(world.images, pick_device(device)), "scenes")
    whole = read_pairs(Path(dataset), images=folder)
    drawn = np.random.default_rng(seed).permutation(len(whole.first_rows))[: images or None]
    table = whole.take(np.flatnonzero(np.isin(whole.image_codes, drawn)))
    table = table.with_column("split", ["train"] * len(table))
    pixels, _ = load_images(table, table.first_rows, size, workers=4)
    return Dataset(table, ImagesInMemory(pixels, pick_device(device)), whole.name)


def usual_dataset() -> str:
    """The dataset named by PMPGUARD_RSICD, else the synthetic scenes."""
    return os.environ.get("PMPGUARD_RSICD", "scenes")


def judged_parts(
    data: Dataset, table: PairTable, config: CrossfitConfig, seed: int = 0
) -> list[tuple[FoldJudge, JudgedPart]]:
    """Train the judges of all folds on `table` in a temporary folder and let each look at its fold."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for judge in fold_judges(table, Path(folder), config, pixels=data.images):
            retriever = judge.retriever.eval()
            seen = judge.rows, judge.images, judge.before
            found.append((judge, judged_by_model(retriever, table, *seen, seed=seed)))
    return found


def record(out: Path, row: dict[str, Any], device: str, started: float) -> None:
    """Write a result with where and when it was made, and print it."""
    full = {
        **row,
        "commit": current_commit(),
        "hardware": describe_hardware(pick_device(device)),
        "threads": torch.get_num_threads(),
        "seconds": round(time.perf_counter() - started, 1),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(full, indent=2) + "\n")
    print(json.dumps(full, indent=2))
