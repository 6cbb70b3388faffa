"""Reading images on a CPU: a few per core against the whole batch at once.

    python benchmarks/reading_cpu.py --threads 2

What `light` encoders make of a batch without gradients. The sides alternate; the ratio is the median over
repetitions of wall seconds, and of processor seconds. Scores are measured by `kernels.py`.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from audit_data import RESULTS, record

from pmpguard.models.encoders.image import pretrained_image_encoder


@dataclass(frozen=True)
class Took:
    """Seconds on the wall and of processors."""

    wall: float
    cpu: float


def compared(fast: list[Took], slow: list[Took]) -> dict[str, Any]:
    return {
        "seconds": statistics.median(took.wall for took in fast),
        "plain_seconds": statistics.median(took.wall for took in slow),
        "ratio_wall": statistics.median(b.wall / a.wall for a, b in zip(fast, slow, strict=True)),
        "ratio_processor": statistics.median(b.cpu / a.cpu for a, b in zip(fast, slow, strict=True)),
    }


def timed(work: Callable[[], object]) -> Took:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Took(time.perf_counter() - wall, time.process_time() - cpu)


@torch.no_grad()
def reading_row(name: str, batch: int, repeats: int) -> dict[str, Any]:
    """One batch of images of 224 pixels."""
    encoder = pretrained_image_encoder(name, 256, 224).eval()
    pixels = torch.randint(0, 256, (batch, 3, 224, 224), dtype=torch.uint8)
    normalised = encoder.normalise(pixels)
    sides: tuple[list[Took], list[Took]] = ([], [])
    for _ in range(repeats + 1):
        for side, read in zip(
            sides, (lambda: encoder.tokens(normalised), lambda: encoder.backbone(normalised)), strict=True
        ):
            side.append(timed(read))
    return {"batch": batch, **compared(sides[0][1:], sides[1][1:])}


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS / "reading_cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    encoders = ("mobilenet-v2", "efficientnet-lite0")
    row = {
        "images": {name: reading_row(name, 64, options.repeats) for name in encoders},
    }
    record(options.out, row, "cpu", started)


if __name__ == "__main__":
    main()
