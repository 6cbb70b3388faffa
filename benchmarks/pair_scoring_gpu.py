"""All-pairs scoring on a GPU: the fused kernels against chunked torch operations, in one run.

Awareness attention and cross-gated attention, each

* forward over a whole test set: milliseconds of both sides, the ratio, TFLOP/s of the matrix products the
  formulas ask for (padding not counted) and their share of a bf16 matrix product measured in the same run;
* agreement with float64 on the same (rounded) vectors: largest error, and how many captions and images have
  the same ten best in both;
* forward and backward of training batches of one caption per image, in float32 as training gives them:
  milliseconds and peak extra memory of both sides;
* other numbers of regions and sizes of vectors: whether the kernel takes them, milliseconds, error.

Vectors are planted; `--features` adds the agreement on vectors of a trained model, an .npz of int8 `words`
(W, d) of all captions one after the other, `lengths` (T,) and `regions` (I, n, d), which are normalised here.
`--sweep` times other launches of the kernels as well, until `--seconds` are over.

    python benchmarks/pair_scoring_gpu.py --features trained.npz --sweep --seconds 110
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gpu_timing import DEVICE, extra_gigabytes, matrix_peak, milliseconds
from pair_scoring_sweep import (
    BOUNDARY,
    Score,
    backward_sweep,
    forward_sweep,
    fused_awareness,
    gated_backward_sweep,
    gated_sweep,
    training_step,
)
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.kernels.awareness.fused import PRODUCT_DTYPE, fits_kernel
from pmpguard.kernels.cross_gated.fused import fits_gated_kernel, gated_cosines_fused
from pmpguard.kernels.pair_scoring import (
    all_pairs,
    awareness_all_pairs,
    awareness_floats,
    gated_all_pairs,
    gated_floats,
)
from pmpguard.models.attention.awareness import awareness_scores
from pmpguard.models.attention.cross_gated import CrossGatedAttention
from pmpguard.models.encoded import Encoded
from pmpguard.training.tracking import current_commit, describe_hardware

REGIONS, LONGEST, DIM, CAPTIONS_PER_IMAGE = 49, 24, 512, 5
CHUNK_BYTES = 1 << 32
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # what Triton's interpreter can multiply
OTHER_SIZES = ((49, 256), (49, 1024), (64, 768), (197, 768), (257, 1024))  # regions, numbers of a vector


class Work(NamedTuple):
    """One way of scoring pairs: both sides and the reference, and what it costs."""

    name: str
    plain: Score
    fused: Score
    exact: Score  # takes float64
    training: Score  # the fused side with gradients
    floats: Callable[[Encoded, Encoded], int]  # intermediate numbers per pair of the plain side
    products: int  # multiply-adds of d numbers for each word and region
    weights: Sequence[Tensor]
    chunk: int  # captions and images that the plain side trains with at once
    checked: int  # every so many captions, and images, are compared with float64


def planted(images: int, seed: int, regions_each: int = REGIONS, dim: int = DIM) -> tuple[Encoded, Encoded]:
    """Captions whose words resemble regions of their own image, among images that share topics."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / math.sqrt(dim)

    topics = noise(30, dim)
    topic = torch.randint(30, (images, regions_each), generator=generator)
    regions = normalize(0.7 * topics[topic] + noise(images, regions_each, dim), dim=-1)  # (I, n, d)
    captions = images * CAPTIONS_PER_IMAGE
    image_of = torch.arange(captions) // CAPTIONS_PER_IMAGE
    named = torch.randint(regions_each, (captions, LONGEST), generator=generator)
    words = 0.6 * regions[image_of[:, None], named] + noise(captions, LONGEST, dim)  # (T, m, d)
    lengths = (11 + 4 * torch.randn(captions, generator=generator)).round().clamp(3, LONGEST)
    return encoded(normalize(words, dim=-1), torch.arange(LONGEST) < lengths[:, None]), encoded(regions)


def read_features(path: Path) -> tuple[Encoded, Encoded]:
    with np.load(path, allow_pickle=False) as stored:
        words, lengths, regions = (torch.from_numpy(stored[key]) for key in ("words", "lengths", "regions"))
    mask = torch.arange(int(lengths.max())) < lengths[:, None]  # (T, m)
    fragments = torch.zeros(*mask.shape, words.shape[1])
    fragments[mask] = normalize(words.float(), dim=-1)
    return encoded(fragments, mask), encoded(normalize(regions.float(), dim=-1))


def encoded(fragments: Tensor, mask: Tensor | None = None) -> Encoded:
    if mask is None:
        mask = torch.ones(fragments.shape[:2], dtype=torch.bool)
    return Encoded(fragments[:, 0], fragments, mask)


def plain_awareness(texts: Encoded, images: Encoded) -> Tensor:
    return awareness_scores(texts.fragments, texts.mask, images.fragments, BOUNDARY)


def plain_gated(attention: CrossGatedAttention, texts: Encoded, images: Encoded) -> Tensor:
    return attention.forward(texts.fragments, texts.mask, images.fragments)


def fused_gated(attention: CrossGatedAttention, texts: Encoded, images: Encoded) -> Tensor:
    return gated_cosines_fused(attention, texts.fragments, texts.mask, images.fragments)


def both_works(dim: int) -> list[Work]:
    attention, exact_attention = (CrossGatedAttention(dim).to(DEVICE) for _ in range(2))
    exact_attention.load_state_dict(attention.state_dict())
    exact_attention.double()
    gated, plain, exact = (
        partial(side, weights)
        for side, weights in (
            (fused_gated, attention), (plain_gated, attention), (plain_gated, exact_attention)
        )
    )  # fmt: skip
    training = partial(fused_awareness, product_dtype=PRODUCT_DTYPE)
    return [
        Work("awareness", plain_awareness, fused_awareness, plain_awareness, training, awareness_floats, 1,
             [], chunk=256, checked=1),
        Work("gated", plain, gated, exact, gated, gated_floats, 5, list(attention.parameters()),
             chunk=64, checked=6),
    ]  # fmt: skip


def chunked(work: Work, score: Score, texts: Encoded, images: Encoded, dtype: torch.dtype) -> Tensor:
    floats = work.floats(texts, images)
    if dtype == torch.float64:
        texts, images, floats = texts.to(dtype=dtype), images.to(dtype=dtype), 2 * floats
    return all_pairs(score, texts, images, budget_bytes=CHUNK_BYTES, floats_per_pair=floats, dtype=dtype)


@torch.no_grad()
def agreement(work: Work, score: Score, texts: Encoded, images: Encoded) -> dict[str, Any]:
    """To float64: largest error, and the share of captions and of images with the same set of ten best."""

    def compare(some_texts: Encoded, some_images: Encoded, across: int) -> tuple[float, Tensor]:
        exact = chunked(work, work.exact, some_texts, some_images, torch.float64)
        mine = score(some_texts, some_images).double()
        sets = [
            x.topk(min(10, x.shape[across]), dim=across).indices.sort(across).values for x in (mine, exact)
        ]
        return (mine - exact).abs().max().item(), (sets[0] == sets[1]).all(across)

    chosen = slice(0, None, work.checked)
    error, captions = compare(texts[chosen], images, 1)
    other, pixels = compare(texts, images[chosen], 0)
    return {
        "largest_error": max(error, other),
        "captions_with_same_ten_best": captions.double().mean().item(),
        "captions_compared": len(captions),
        "images_with_same_ten_best": pixels.double().mean().item(),
        "images_compared": len(pixels),
    }


@torch.no_grad()
def forward_row(work: Work, texts: Encoded, images: Encoded, peak: float) -> dict[str, Any]:
    """Both sides over everything."""
    words, dim = int(texts.mask.sum()), texts.fragments.shape[2]
    operations = 2 * work.products * words * len(images) * images.fragments.shape[1] * dim
    plain = partial(chunked, work, work.plain, texts, images, torch.float32)
    fused = partial(work.fused, texts, images)
    slow, fast = milliseconds(plain, 3, 4.0), milliseconds(fused)
    rate = operations / fast / 1e9
    return {
        "milliseconds": fast,
        "chunked_torch_milliseconds": slow,
        "ratio": slow / fast,
        "teraflop": operations / 1e12,
        "teraflop_per_second": rate,
        "share_of_matrix_peak": rate / peak,
        "extra_gigabytes": extra_gigabytes(fused),
        "chunked_torch_extra_gigabytes": extra_gigabytes(plain),
    }


def training_row(work: Work, texts: Encoded, images: Encoded) -> dict[str, Any]:
    sides = {
        "fused": training_step(work.training, texts, images, work.weights),
        "chunked_torch": training_step(work.plain, texts, images, work.weights, work.chunk),
    }
    rows: dict[str, Any] = {
        name: {"milliseconds": milliseconds(step, 5, 1.0), "extra_gigabytes": extra_gigabytes(step)}
        for name, step in sides.items()
    }
    rows["ratio"] = rows["chunked_torch"]["milliseconds"] / rows["fused"]["milliseconds"]
    return rows


@torch.no_grad()
def size_row(regions: int, dim: int, count: int, seed: int) -> dict[str, Any]:
    """The public functions on images with other numbers of regions, and vectors of other sizes."""
    texts, images = (part.to(DEVICE, HALF) for part in planted(count, seed, regions, dim))
    awareness, gated = both_works(dim)
    attention = gated.fused.args[0]  # type: ignore[attr-defined]
    given = texts.fragments, texts.mask, images.fragments, images.mask
    row: dict[str, Any] = {"regions": regions, "dim": dim}
    for work, fits, score in (
        (awareness, fits_kernel(*given), partial(awareness_all_pairs, texts, images, BOUNDARY)),
        (gated, fits_gated_kernel(*given), partial(gated_all_pairs, attention, texts, images)),
    ):
        exact = chunked(work, work.exact, texts, images, torch.float64)
        row[work.name] = {
            "way": "fused" if fits else "chunked torch",
            "milliseconds": milliseconds(score, 3),
            "largest_error": (score().double() - exact).abs().max().item(),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1093)
    parser.add_argument("--features", type=Path, help="vectors of a trained model")
    parser.add_argument("--batches", type=int, nargs="*", default=[256, 1024])
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--seconds", type=float, default=110.0, help="when sweeps stop")
    parser.add_argument("--sizes", type=int, default=64, help="images of other sizes; 0 leaves them out")
    parser.add_argument("--only", choices=["awareness", "gated"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "pair_scoring_gpu.json"
    )
    options = parser.parse_args()
    started = time.perf_counter()
    torch.manual_seed(options.seed)
    drawn = planted(options.images, options.seed)
    texts, images = (part.to(DEVICE, HALF) for part in drawn)
    peak = matrix_peak()
    row: dict[str, Any] = {
        "images": len(images), "captions": len(texts), "regions": REGIONS, "longest_caption": LONGEST,
        "mean_words": texts.mask.sum(1).double().mean().item(), "dim": DIM,
        "bf16_matrix_teraflop_per_second": peak,
        "hardware": describe_hardware(DEVICE), "torch": torch.__version__,
        "commit": current_commit(), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip

    def add(name: str, part: Callable[[], Any]) -> None:
        """Saved after every part: a run that is cut off, or a part that fails, leaves the others."""
        try:
            row[name] = part()
        except Exception as error:
            row[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
        row["seconds"] = time.perf_counter() - started
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(row, indent=2) + "\n")
        if not name.endswith("sweep"):
            print(f"{row['seconds']:.0f} s {name} {json.dumps(row[name])}", flush=True)

    def sweep(name: str, lines: Iterator[dict[str, Any]], most: float) -> None:
        """For `most` seconds, and no longer than asked for."""
        end = min(time.perf_counter() + most, started + options.seconds)
        found: list[dict[str, Any]] = []
        for line in lines:
            found.append(line)
            print(name, json.dumps(line), flush=True)
            if time.perf_counter() > end:
                break
        add(name, lambda: found)

    works = [work for work in both_works(DIM) if options.only in (None, work.name)]
    for work in works:
        add(f"{work.name}_forward", partial(forward_row, work, texts, images, peak))
        add(f"{work.name}_to_float64", partial(agreement, work, work.fused, texts, images))
    if options.features:
        trained = [part.to(DEVICE, HALF) for part in read_features(options.features)]
        for work in both_works(trained[0].fragments.shape[2]):
            if options.only in (None, work.name):
                add(f"{work.name}_trained_to_float64", partial(agreement, work, work.fused, *trained))
    wide = [part.to(DEVICE) for part in drawn]
    for captions in options.batches:
        batch = wide[0][slice(0, captions * CAPTIONS_PER_IMAGE, CAPTIONS_PER_IMAGE)], wide[1][:captions]
        for work in works:
            add(f"{work.name}_step_{captions}", partial(training_row, work, *batch))
    if options.sizes:
        add("other_sizes", lambda: [size_row(*size, options.sizes, options.seed) for size in OTHER_SIZES])
    if options.sweep:
        small = wide[0][slice(0, 1280, CAPTIONS_PER_IMAGE)], wide[1][:256]
        for work in works:
            if work.name == "awareness":
                sweep("awareness_forward_sweep", forward_sweep(texts, images), 30)
                sweep("awareness_backward_sweep", backward_sweep(*small), 10)
            else:
                sweep("gated_backward_sweep", gated_backward_sweep(work.training, *small, work.weights), 20)
                sweep("gated_forward_sweep", gated_sweep(work.fused, texts[:1024], images), 30)


if __name__ == "__main__":
    main()
