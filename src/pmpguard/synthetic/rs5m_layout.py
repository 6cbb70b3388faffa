"""A stand-in for RS5M of any size: its layout, members, names and published faults, with drawn scenes inside.

RS5M comes as tar shards `{pub11,rs3}-train-0000.tar` in `train/` and `{pub11,rs3}-val-0000.tar` in `val/`; a
sample is `KEY.img_content`, `KEY.img_name`, `KEY.caption`. Some captions are missing and some images were not
taken from above; so here. Scenes are drawn a shard at a time: memory does not grow with their number.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image

from pmpguard.data.known_datasets import STAND_IN
from pmpguard.errors import ConfigError
from pmpguard.files import new_directory, write_json
from pmpguard.progress import progress_bar
from pmpguard.stable_random import StableRandom
from pmpguard.synthetic.scenes import synthetic_scenes

SAMPLES_A_SHARD = 1000
SOURCES = ("pub11", "rs3")  # half of the shards each
MISSING_CAPTIONS = 0.01
NOT_OVERHEAD = 0.02


def write_rs5m(out: Path, count: int, *, val: float = 0.05, size: int = 64, seed: int = 0) -> dict[str, int]:
    """Write `count` samples below `out`, all or nothing; the pairs of each kind.

    The share `val` of them validates; training shards come first in number.
    """
    held_out = round(count * val)
    if held_out < 1 or held_out >= count:
        raise ConfigError(f"val {val} of {count} samples leaves a split empty", fix="choose another share")
    told = {"train": count - held_out, "val": held_out, "missing captions": 0, "not overhead": 0}
    with new_directory(out) as folder, progress_bar(count, 0, "writing", unit="sample") as bar:
        for split in ("train", "val"):
            (folder / split).mkdir()
            for number in range(-(-told[split] // SAMPLES_A_SHARD)):
                source = SOURCES[number % len(SOURCES)]
                samples = min(SAMPLES_A_SHARD, told[split] - number * SAMPLES_A_SHARD)
                path = folder / split / f"{source}-{split}-{number // len(SOURCES):04d}.tar"
                for fault, times in _write_shard(path, samples, size, (seed, split == "val", number)).items():
                    told[fault] += times
                bar.update(samples)
        write_json(folder / STAND_IN, {"for": "RS5M", "samples": count, "seed": seed, **told})
    return told


def _write_shard(path: Path, count: int, size: int, key: tuple[int, ...]) -> dict[str, int]:
    """One shard; how many samples have each fault."""
    drawn = StableRandom("rs5m", *key).uniform(2 * count + 1)
    missing, photos = drawn[:count] < MISSING_CAPTIONS, drawn[count:-1] < NOT_OVERHEAD
    scenes = synthetic_scenes(
        count, seed=int(drawn[-1] * 2**31), size=size, captions=1, val=0, test=0, progress=False
    )
    captions = scenes.table.captions
    with tarfile.open(path, "w") as tar:
        for number in range(count):
            image = Image.fromarray(scenes.images[number].permute(1, 2, 0).numpy())
            caption = captions[number]
            if photos[number]:
                image, caption = not_overhead(size, number), "a photo taken from the ground"
            stream = io.BytesIO()
            image.save(stream, "JPEG", quality=90)
            for ending, content in (
                ("img_content", stream.getvalue()),
                ("img_name", f"{path.stem}/{number:06d}.jpg".encode()),
                ("caption", b"" if missing[number] else caption.encode()),
            ):
                member = tarfile.TarInfo(f"{path.stem}-{number:06d}.{ending}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return {"missing captions": int(missing.sum()), "not overhead": int(photos.sum())}


def not_overhead(size: int, number: int) -> Image.Image:
    """Sky over ground."""
    down = np.linspace(0, 1, size)[:, None, None]
    horizon = 0.3 + 0.4 * (number % 7) / 6
    sky, ground = np.array([130, 180, 235]), np.array([110, 90, 60])
    rows = np.where(down < horizon, sky * (0.7 + 0.3 * down), ground * (1.2 - 0.6 * down))
    return Image.fromarray(np.broadcast_to(rows, (size, size, 3)).clip(0, 255).astype(np.uint8))
