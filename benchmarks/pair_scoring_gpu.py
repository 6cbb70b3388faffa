"""All-pairs scoring on a GPU: the fused kernels against chunked torch operations, in one run.

Awareness attention and cross-gated attention, each

* forward over a whole test set: milliseconds of both sides, the ratio, TFLOP/s of the matrix products the
  formulas ask for (padding not counted) and their share of a bf16 matrix product measured in the same run;
* agreement with float64 on the same (rounded) vectors: largest error, and how many captions and images have
  the same ten best in both;
* forward and backward of a training batch: milliseconds and peak extra memory of both sides.

Vectors are planted, or come from a safetensors file with `words` (T, m, d), `word_mask` (T, m) and `regions`
(I, n, d). `--sweep` times other launches of the kernels as well.

    python benchmarks/pair_scoring_gpu.py
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.model import awareness_fused, cross_gated_fused
from pmpguard.model.awareness_attention import SHARPNESS, awareness_scores
from pmpguard.model.awareness_fused import awareness_scores_fused, forward_scores, prepare
from pmpguard.model.cross_gated_attention import CrossGatedAttention
from pmpguard.model.cross_gated_fused import gated_cosines_fused
from pmpguard.model.encoded import Encoded
from pmpguard.model.pair_scoring import all_pairs, all_pairs_with_gradient, awareness_floats, gated_floats

REGIONS, LONGEST, DIM, CAPTIONS_PER_IMAGE = 49, 24, 512, 5
BOUNDARY = 0.1
CHUNK_BYTES = 1 << 32
TRAINING_CHUNK = 256
GATED_TRAINING_CHUNK = 64

FORWARD_LAUNCHES: list[dict[str, Any]] = [
    {"warps": 4},
    {"warps": 4, "registers": 168},
    {"warps": 4, "registers": 168, "stages": 2},
    {"warps": 4, "registers": 168, "stages": 4},
    {"warps": 4, "registers": 128},
    {"warps": 8, "registers": 128},
]
LARGER_LAUNCHES: list[dict[str, Any]] = [
    {"rows": 128, "step": 64, "warps": 8},
    {"rows": 128, "step": 64, "warps": 8, "registers": 128},
    {"rows": 128, "step": 128, "warps": 8, "stages": 2},
    {"rows": 64, "step": 128, "warps": 4, "stages": 2},
    {"rows": 64, "step": 128, "warps": 4, "stages": 2, "registers": 168},
]
BACKWARD_LAUNCHES: list[dict[str, Any]] = [
    {"warps": 4},
    {"warps": 8},
    {"warps": 4, "stages": 2},
    {"warps": 4, "registers": 168},
]
GATED_LAUNCHES: list[dict[str, int]] = [
    {"num_warps": 4, "num_stages": 1},
    {"num_warps": 4, "num_stages": 2},
    {"num_warps": 4, "num_stages": 3},
    {"num_warps": 4, "num_stages": 2, "maxnreg": 168},
    {"num_warps": 8, "num_stages": 2},
]
CAPTIONS_PER_PROGRAM = ({16: 4, 32: 2, 64: 1}, {16: 2, 32: 1, 64: 1}, {16: 1, 32: 1, 64: 1})

Score = Callable[[Encoded, Encoded], Tensor]


def planted(images: int, seed: int) -> tuple[Encoded, Encoded]:
    """Captions whose words resemble regions of their own image, among images that share topics."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / math.sqrt(DIM)

    topics = noise(30, DIM)
    topic = torch.randint(30, (images, REGIONS), generator=generator)
    regions = normalize(0.7 * topics[topic] + noise(images, REGIONS, DIM), dim=-1)  # (I, n, d)
    captions = images * CAPTIONS_PER_IMAGE
    image_of = torch.arange(captions) // CAPTIONS_PER_IMAGE
    named = torch.randint(REGIONS, (captions, LONGEST), generator=generator)
    words = 0.6 * regions[image_of[:, None], named] + noise(captions, LONGEST, DIM)  # (T, m, d)
    lengths = (11 + 4 * torch.randn(captions, generator=generator)).round().clamp(3, LONGEST)
    return encoded(normalize(words, dim=-1), torch.arange(LONGEST) < lengths[:, None]), encoded(regions)


def read_features(path: Path) -> tuple[Encoded, Encoded]:
    from safetensors.torch import load_file

    tensors = load_file(path)
    return encoded(tensors["words"], tensors["word_mask"].bool()), encoded(tensors["regions"])


def encoded(fragments: Tensor, mask: Tensor | None = None) -> Encoded:
    if mask is None:
        mask = torch.ones(fragments.shape[:2], dtype=torch.bool)
    return Encoded(fragments[:, 0], fragments, mask)


def milliseconds(work: Callable[[], Any], repeats: int = 7) -> float:
    """Median on the device, after two runs to warm up."""
    for _ in range(2):
        work()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def extra_gigabytes(work: Callable[[], Any]) -> float:
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e9


def matrix_peak(size: int = 8192) -> float:
    """TFLOP/s of a large bf16 matrix product of random numbers."""
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    return 2 * size**3 / milliseconds(partial(torch.mm, left, right), 10) / 1e9


def plain_awareness(texts: Encoded, images: Encoded) -> Tensor:
    return awareness_scores(texts.fragments, texts.mask, images.fragments, BOUNDARY)


def fused_awareness(texts: Encoded, images: Encoded) -> Tensor:
    return awareness_scores_fused(texts.fragments, texts.mask, images.fragments, BOUNDARY)


def plain_gated(attention: CrossGatedAttention, texts: Encoded, images: Encoded) -> Tensor:
    return attention.forward(texts.fragments, texts.mask, images.fragments)


def fused_gated(attention: CrossGatedAttention, texts: Encoded, images: Encoded) -> Tensor:
    return gated_cosines_fused(attention, texts.fragments, texts.mask, images.fragments)


def agreement(scores: Tensor, exact: Tensor) -> dict[str, float]:
    """Largest error, and the share of captions and of images with the same set of ten best."""

    def same_ten(mine: Tensor, right: Tensor) -> float:
        kept = min(10, mine.shape[1])
        sets = [x.topk(kept, dim=1).indices.sort(1).values for x in (mine, right)]
        return (sets[0] == sets[1]).all(1).float().mean().item()

    return {
        "largest_error": (scores.double() - exact).abs().max().item(),
        "captions_with_same_ten_best": same_ten(scores.double(), exact),
        "images_with_same_ten_best": same_ten(scores.double().T, exact.T),
    }


@torch.no_grad()
def forward_row(
    plain: Score, fused: Score, exact: Score, texts: Encoded, images: Encoded, floats: int, products: int,
    peak: float,
) -> dict[str, Any]:  # fmt: skip
    """Both sides over everything. `products` multiply-adds of d numbers for each word and region."""

    def chunked(score: Score, dtype: torch.dtype = torch.float32) -> Tensor:
        captions, pictures = texts, images
        if dtype == torch.float64:
            captions, pictures = texts.to(dtype=dtype), images.to(dtype=dtype)
        return all_pairs(
            score, captions, pictures, budget_bytes=CHUNK_BYTES, floats_per_pair=floats, dtype=dtype
        )

    words, dim = int(texts.mask.sum()), texts.fragments.shape[2]
    operations = 2 * products * words * len(images) * images.fragments.shape[1] * dim
    slow = milliseconds(partial(chunked, plain), 3)
    fast = milliseconds(partial(fused, texts, images))
    reference = chunked(exact, torch.float64)
    rate = operations / fast / 1e9
    return {
        "milliseconds": fast,
        "chunked_torch_milliseconds": slow,
        "ratio": slow / fast,
        "teraflop": operations / 1e12,
        "teraflop_per_second": rate,
        "share_of_matrix_peak": rate / peak,
        "extra_gigabytes": extra_gigabytes(partial(fused, texts, images)),
        "to_float64": agreement(fused(texts, images), reference),
        "chunked_torch_to_float64": agreement(chunked(plain), reference),
    }


def training_step(
    score: Score, texts: Encoded, images: Encoded, weights: Sequence[Tensor], chunk: int | None = None
) -> Callable[[], None]:
    """Forward and backward of one batch; captions and images are leaves, their encoders not counted."""
    words = texts.fragments.clone().requires_grad_()
    regions = images.fragments.clone().requires_grad_()
    incoming = torch.randn(len(texts), len(images), device=texts.mask.device)

    def step() -> None:
        batch = Encoded(texts.pooled, words, texts.mask), Encoded(images.pooled, regions, images.mask)
        if chunk is None:
            scores = score(*batch)
        else:
            scores = all_pairs_with_gradient(score, *batch, text_chunk=chunk, image_chunk=chunk)
        torch.autograd.grad(scores, [words, regions, *weights], incoming)

    return step


def training_row(step: Callable[[], None]) -> dict[str, float]:
    return {"milliseconds": milliseconds(step), "extra_gigabytes": extra_gigabytes(step)}


@contextmanager
def replaced(module: Any, **values: Any) -> Iterator[None]:
    """Other constants of a module for a while."""
    kept = {name: getattr(module, name) for name in values}
    try:
        for name, value in values.items():
            setattr(module, name, value)
        yield
    finally:
        for name, value in kept.items():
            setattr(module, name, value)


@torch.no_grad()
def forward_sweep(texts: Encoded, images: Encoded) -> list[dict[str, Any]]:
    """Kernel milliseconds, without packing and Gram matrices, of other launches."""
    n = images.fragments.shape[1]
    boundary = torch.full((), BOUNDARY, device=texts.mask.device)
    rows = []
    for options in (*FORWARD_LAUNCHES, *LARGER_LAUNCHES):
        launch = awareness_fused.Launch(**{"rows": 64, "columns": 64, "step": 64, **options})
        operands = prepare(texts.fragments, texts.mask, images.fragments, None, boundary, launch, packed=True)
        for group in (4, 16, 64):
            with replaced(awareness_fused, GROUP=group):
                work = partial(forward_scores, operands, len(texts), n, SHARPNESS, launch)
                rows.append({**options, "group": group, **attempt(work, 3)})
    preparing = partial(
        prepare, texts.fragments, texts.mask, images.fragments, None, boundary, launch, packed=True
    )
    rows.append({"only": "packing and Gram matrices", **attempt(preparing, 3)})
    return rows


def backward_sweep(texts: Encoded, images: Encoded) -> list[dict[str, Any]]:
    """Milliseconds of a training batch, forward and backward, with other launches of the way back."""
    rows = []
    for options in BACKWARD_LAUNCHES:
        for programs in (264, 528, 1056):
            with replaced(awareness_fused, BACKWARD_LAUNCH=options, PROGRAMS=programs):
                step = training_step(fused_awareness, texts, images, [])
                rows.append({**options, "programs": programs, **attempt(step, 5)})
    return rows


@torch.no_grad()
def gated_sweep(attention: CrossGatedAttention, texts: Encoded, images: Encoded) -> list[dict[str, Any]]:
    rows = []
    for launch in GATED_LAUNCHES:
        for per_program in CAPTIONS_PER_PROGRAM:
            with replaced(cross_gated_fused, FORWARD_LAUNCH=launch, CAPTIONS_PER_PROGRAM=per_program):
                work = partial(fused_gated, attention, texts, images)
                rows.append({**launch, "captions_per_program": per_program[16], **attempt(work, 3)})
    return rows


def attempt(work: Callable[[], Any], repeats: int) -> dict[str, Any]:
    try:
        return {"milliseconds": milliseconds(work, repeats)}
    except Exception as error:  # a launch that does not fit is a result, too
        return {"error": str(error)[:200]}


def batch_of(texts: Encoded, images: Encoded, captions: int, pictures: int) -> tuple[Encoded, Encoded]:
    """Of evenly spread captions, and images; on the device, bf16."""
    step = max(1, len(texts) // captions)
    return texts[slice(0, captions * step, step)], images[slice(0, pictures)]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1093)
    parser.add_argument("--features", type=Path, help="safetensors with words, word_mask and regions")
    parser.add_argument("--batches", type=int, nargs="*", default=[256, 1024])
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--only", choices=["awareness", "gated"])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "pair_scoring_gpu.json"
    )
    options = parser.parse_args()
    drawn = read_features(options.features) if options.features else planted(options.images, options.seed)
    texts, images = (part.to("cuda", torch.bfloat16) for part in drawn)
    torch.manual_seed(options.seed)
    attention = CrossGatedAttention(texts.fragments.shape[2]).cuda()
    exact_attention = CrossGatedAttention(texts.fragments.shape[2]).cuda()
    exact_attention.load_state_dict(attention.state_dict())
    exact_attention.double()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    peak = matrix_peak()
    row: dict[str, Any] = {
        "images": len(images),
        "captions": len(texts),
        "regions": images.fragments.shape[1],
        "longest_caption": texts.fragments.shape[1],
        "mean_words": texts.mask.sum(1).double().mean().item(),
        "dim": texts.fragments.shape[2],
        "features": options.features.name if options.features else "planted",
        "bf16_matrix_teraflop_per_second": peak,
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "commit": commit.stdout.strip() or None,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }

    def save() -> None:
        """After every part, so that a run that is cut off leaves what it measured."""
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(row, indent=2) + "\n")

    works: list[tuple[str, Score, Score, Score, int, int, Sequence[Tensor], int]] = []
    if options.only != "gated":
        floats = awareness_floats(texts, images)
        works.append(
            ("awareness", plain_awareness, fused_awareness, plain_awareness, floats, 1, [], TRAINING_CHUNK)
        )
    if options.only != "awareness":
        gated = [partial(side, attention) for side in (plain_gated, fused_gated)]
        exact = partial(plain_gated, exact_attention)
        floats, weights = gated_floats(texts, images), list(attention.parameters())
        works.append(("gated", gated[0], gated[1], exact, floats, 5, weights, GATED_TRAINING_CHUNK))
    for name, plain, fused, exact, floats, products, weights, chunk in works:
        row[f"{name}_forward"] = forward_row(plain, fused, exact, texts, images, floats, products, peak)
        save()
        for captions in options.batches:
            for pictures in sorted({captions, max(1, captions // CAPTIONS_PER_IMAGE)}):
                batch = batch_of(texts, images, captions, pictures)
                here = f"{name}_step_{captions}_captions_{len(batch[1])}_images"
                row[here] = {
                    "fused": training_row(training_step(fused, *batch, weights)),
                    "chunked_torch": training_row(training_step(plain, *batch, weights, chunk)),
                }
                save()
        print(json.dumps({key: value for key, value in row.items() if key.startswith(name)}, indent=2))
    if options.sweep and options.only != "gated":
        row["awareness_forward_sweep"] = forward_sweep(texts, images)
        save()
        row["awareness_backward_sweep"] = backward_sweep(*batch_of(texts, images, 256, 256))
        save()
    if options.sweep and options.only != "awareness":
        row["gated_forward_sweep"] = gated_sweep(attention, *batch_of(texts, images, 1024, len(images)))
        save()
    for name, lines in row.items():
        if name.endswith("sweep"):
            print(name, *lines, sep="\n")


if __name__ == "__main__":
    main()
