"""Training on a CPU: awareness attention with gradients, and reading images, against the plain way.

    python benchmarks/training_cpu.py --threads 2

Awareness: scores of a batch and their gradients by words and regions, block by block (packed) against torch's
own differentiation of the plain version. Images: what `light` encoders make of a batch without gradients, a
few images per core against the whole batch at once. The sides alternate; the ratio is the median over
repetitions of wall seconds, and of processor seconds.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from audit_data import RESULTS, record
from pair_scoring_cpu import Took, planted, timed
from torch import Tensor

from pmpguard.kernels.awareness.cpu_gradient import packed_awareness_with_gradient
from pmpguard.models.attention.awareness import awareness_scores
from pmpguard.models.encoders.image import pretrained_image_encoder

BOUNDARY = 0.1


def compared(fast: list[Took], slow: list[Took]) -> dict[str, Any]:
    return {
        "seconds": statistics.median(took.wall for took in fast),
        "plain_seconds": statistics.median(took.wall for took in slow),
        "ratio_wall": statistics.median(b.wall / a.wall for a, b in zip(fast, slow, strict=True)),
        "ratio_processor": statistics.median(b.cpu / a.cpu for a, b in zip(fast, slow, strict=True)),
    }


def awareness_row(images: int, captions_per_image: int, repeats: int, seed: int) -> dict[str, Any]:
    """Forward and backward of a batch of all captions with all images."""
    texts, pixels = planted(images, seed)
    texts = texts[: images * captions_per_image]
    incoming = torch.randn(len(texts), images, generator=torch.Generator().manual_seed(seed))

    def gradients(packed: bool) -> tuple[Tensor, Tensor]:
        words, regions = (part.fragments.clone().requires_grad_() for part in (texts, pixels))
        score = packed_awareness_with_gradient if packed else awareness_scores
        score(words, texts.mask, regions, BOUNDARY).backward(incoming)
        assert words.grad is not None and regions.grad is not None
        return words.grad, regions.grad

    sides: dict[bool, list[Took]] = {True: [], False: []}
    found = {}
    for _ in range(repeats + 1):
        for packed, side in sides.items():
            took, found[packed] = timed(lambda packed=packed: gradients(packed))
            side.append(took)
    error = max(
        ((a - b).abs().max() / b.abs().max()).item() for a, b in zip(found[True], found[False], strict=True)
    )
    return {
        "captions": len(texts), "images": images, "largest_relative_difference": error,
        **compared(sides[True][1:], sides[False][1:]),  # the first warms up
    }  # fmt: skip


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
            side.append(timed(read)[0])
    return {"batch": batch, **compared(sides[0][1:], sides[1][1:])}


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "training_cpu.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    encoders = ("mobilenet-v2", "efficientnet-lite0")
    row = {
        "awareness": awareness_row(32, 5, options.repeats, options.seed),
        "images": {name: reading_row(name, 64, options.repeats) for name in encoders},
        "regions": 49,
        "dim": 512,
        "seed": options.seed,
    }
    record(options.out, row, "cpu", started)


if __name__ == "__main__":
    main()
