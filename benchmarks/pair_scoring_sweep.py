"""Other launches of the fused kernels, timed one after the other, for `pair_scoring_gpu.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from gpu_timing import milliseconds
from torch import Tensor

from pmpguard.kernels.awareness import fused as awareness_fused
from pmpguard.kernels.awareness.fused import PRODUCT_DTYPE, awareness_scores_fused, forward_scores, prepare
from pmpguard.kernels.cross_gated import fused as cross_gated_fused
from pmpguard.kernels.pair_scoring import all_pairs_with_gradient
from pmpguard.models.attention.awareness import SHARPNESS
from pmpguard.models.encoded import Encoded

BOUNDARY = 0.1

FORWARD_LAUNCHES: list[dict[str, Any]] = [
    {"registers": 168},
    {"images": 2},
    {"images": 2, "rows": 128, "warps": 8},
    {"rows": 128, "warps": 8, "registers": 128},
    {"images": 2, "step": 128, "stages": 2},
    {"images": 2, "stages": 2},
    {},
    {"registers": 168, "stages": 4},
    {"images": 2, "registers": 168},
    {"registers": 128},
    {"rows": 128, "warps": 8},
    {"warps": 8, "registers": 128},
    {"images": 3},
]
GROUPS = (16, 64, 4)
BACKWARD_LAUNCHES: list[dict[str, Any]] = [{}, {"warps": 8}, {"stages": 2}, {"registers": 168}]
GATED_LAUNCHES: list[dict[str, int]] = [
    {"num_warps": 4, "num_stages": 2},
    {"num_warps": 4, "num_stages": 1},
    {"num_warps": 8, "num_stages": 2},
    {"num_warps": 4, "num_stages": 3},
    {"num_warps": 4, "num_stages": 2, "maxnreg": 168},
]
CAPTIONS_PER_PROGRAM = ({16: 2, 32: 1, 64: 1}, {16: 4, 32: 2, 64: 1}, {16: 1, 32: 1, 64: 1})

Score = Callable[[Encoded, Encoded], Tensor]


def fused_awareness(texts: Encoded, images: Encoded, product_dtype: torch.dtype | None = None) -> Tensor:
    return awareness_scores_fused(
        texts.fragments, texts.mask, images.fragments, BOUNDARY, product_dtype=product_dtype
    )


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
def forward_sweep(texts: Encoded, images: Encoded) -> Iterator[dict[str, Any]]:
    """Kernel milliseconds of other launches, without packing and Gram matrices; these come first."""
    n = images.fragments.shape[1]
    boundary = torch.full((), BOUNDARY, device=texts.mask.device)
    usual = awareness_fused.Launch(64, 64, 64, warps=4)
    given = texts.fragments, texts.mask, images.fragments, None, boundary
    preparing = partial(prepare, *given, usual, packed=True)
    yield {"only": "packing and Gram matrices", **attempt(preparing)}
    for group in GROUPS:
        for options in FORWARD_LAUNCHES:
            launch = replace(usual, **options)
            operands = prepare(*given, launch, packed=True)
            with replaced(awareness_fused, GROUP=group):
                work = partial(forward_scores, operands, len(texts), n, SHARPNESS, launch)
                yield {**options, "group": group, **attempt(work)}


def backward_sweep(texts: Encoded, images: Encoded) -> Iterator[dict[str, Any]]:
    """Milliseconds of a training batch, forward and backward, with other launches of the way back."""
    score = partial(fused_awareness, product_dtype=PRODUCT_DTYPE)
    for programs in (528, 264, 1056):
        for options in BACKWARD_LAUNCHES:
            with replaced(awareness_fused, BACKWARD_LAUNCH=options, PROGRAMS=programs):
                yield {**options, "programs": programs, **attempt(training_step(score, texts, images, []))}


@torch.no_grad()
def gated_sweep(score: Score, texts: Encoded, images: Encoded) -> Iterator[dict[str, Any]]:
    for per_program in CAPTIONS_PER_PROGRAM:
        for launch in GATED_LAUNCHES:
            with replaced(cross_gated_fused, FORWARD_LAUNCH=launch, CAPTIONS_PER_PROGRAM=per_program):
                tried = attempt(partial(score, texts, images))
                yield {**launch, "captions_per_program": per_program[16], **tried}


def gated_backward_sweep(
    score: Score, texts: Encoded, images: Encoded, weights: Sequence[Tensor]
) -> Iterator[dict[str, Any]]:
    step = training_step(score, texts, images, weights)
    for launch in GATED_LAUNCHES:
        with replaced(cross_gated_fused, BACKWARD_LAUNCH=launch):
            yield {**launch, **attempt(step)}


def attempt(work: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"milliseconds": milliseconds(work, 3, 0.3)}
    except Exception as error:  # a launch that does not fit is a result, too
        return {"error": f"{type(error).__name__}: {error}"[:200]}
