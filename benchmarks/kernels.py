"""Every kernel against `torch.compile` of its definition, end to end and alone, in one run.

    python benchmarks/kernels.py --device cuda --out benchmarks/results/kernels.json

End to end is the training step or the ranking that a kernel serves: a step encodes a batch, scores all its
pairs, differentiates and updates; on CUDA it is replayed from a graph. Alone is the kernel without the rest.
The sides of a row take the same inputs and alternate; a time is the median of the repeats, and a gain the
median of the ratios; on a CPU, where other programs run beside, processor time is given too. A kernel stays
where `gain_over_compiled` is 1.3 or more end to end.

Encoders are untrained, which costs the same. `--tiny` tries the benchmark out. Every row is written as soon
as it is there.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from pmpguard.kernels.awareness.fused import PRODUCT_DTYPE, awareness_scores_fused
from pmpguard.kernels.convolution import bias_relu6, depthwise, fold_norm, pointwise
from pmpguard.kernels.cross_gated.fused import gated_cosines_fused
from pmpguard.kernels.pair_scoring import all_pairs, awareness_all_pairs, gated_all_pairs, gated_floats
from pmpguard.models.attention.awareness import awareness_scores
from pmpguard.models.attention.cross_gated import CrossGatedAttention
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders import convnets
from pmpguard.models.encoders.image import ImageArchitecture, ImageEncoder
from pmpguard.models.encoders.pretrained import IMAGENET_MEAN, IMAGENET_STD
from pmpguard.models.encoders.text import TextArchitecture, TextEncoder
from pmpguard.models.retriever import Retriever
from pmpguard.models.tokenizer import word_tokenizer
from pmpguard.training.tracking import current_commit, describe_hardware

BOUNDARY, TEMPERATURE = 0.1, 0.07
BLOCKING = " (blocking)"  # ends the name of a row measured again to name a fault
CHUNK_BYTES = 1 << 32  # of the compiled definition's intermediate numbers
VOCABULARY = (
    "a the in of on and with near many some two green white buildings trees road river bridge airport"
)
MINILM = {
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6,
    "num_attention_heads": 12, "intermediate_size": 1536, "max_position_embeddings": 512,
}  # fmt: skip

CPU_NOTE = (
    "torch.compile needs a C++ compiler at the user's machine and tens of seconds per process; "
    "where there is none, the plain definition is what is left (gain_over_plain)"
)

Work = Callable[[], Any]
Score = Callable[[Encoded, Encoded], Tensor]  # T captions, I images -> (T, I)


@dataclass(frozen=True)
class Bench:
    """Where and how long to measure."""

    device: torch.device
    tiny: bool
    repeats: int
    ends: float  # no part begins later
    not_graphed: list[str] = field(default_factory=list)  # why steps run without a graph

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def wait(self) -> None:
        if self.on_gpu:
            torch.cuda.synchronize()

    def once(self, work: Work) -> float:
        """Milliseconds until the device is done."""
        self.wait()
        started = time.perf_counter()
        work()
        self.wait()
        return (time.perf_counter() - started) * 1000

    def compare(self, sides: dict[str, Work]) -> dict[str, Any]:
        """Milliseconds of each side, in turns; a side that fails says why."""
        ready: dict[str, Work] = {}
        row: dict[str, Any] = {}
        for name, work in sides.items():
            try:
                started = time.perf_counter()
                self.once(work)  # compiles
                self.once(work)
                row[f"{name}_first_seconds"] = time.perf_counter() - started
                ready[name] = work
            except Exception as error:
                row[f"{name}_error"] = f"{type(error).__name__}: {error}"[:600]
                free(self)
        times: dict[str, list[float]] = {name: [] for name in ready}
        processor: dict[str, list[float]] = {name: [] for name in ready}
        for _ in range(self.repeats):
            for name, work in ready.items():
                before = time.process_time()
                times[name].append(self.once(work))
                processor[name].append((time.process_time() - before) * 1000)
        for name, taken in times.items():
            row[f"{name}_ms"] = statistics.median(taken)
            if not self.on_gpu:
                row[f"{name}_processor_ms"] = statistics.median(processor[name])
        for name in times:
            if name != "kernel" and "kernel" in times:
                row[f"gain_over_{name}"] = ratio(times[name], times["kernel"])
                if not self.on_gpu:
                    row[f"processor_gain_over_{name}"] = ratio(processor[name], processor["kernel"])
        return row

    def graphed(self, step: Work) -> Work:
        """The step as a CUDA graph; where it cannot be captured, and on a CPU, the step itself."""
        if not self.on_gpu:
            return step
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        self.wait()
        free(self)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                step()
        except Exception as error:
            self.not_graphed.append(f"{type(error).__name__}: {error}"[:300])
            return step

        def replay(keep: Work = step) -> None:
            """The graph reads weights and inputs that live only as long as the step."""
            graph.replay()

        return replay


def ratio(slow: list[float], fast: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(slow, fast, strict=True))


def free(bench: Bench) -> None:
    gc.collect()
    if bench.on_gpu:
        torch.cuda.empty_cache()


def later(bench: Bench, make: Callable[[], Work]) -> Work:
    """A graph of what `make` gives, made when first run: a failure then belongs to its side."""
    made: list[Work] = []

    def run() -> None:
        if not made:
            made.append(bench.graphed(make()))
        made[0]()

    return run


def planted(
    bench: Bench, captions: int, images: int, regions: int, longest: int = 24, dim: int = 512
) -> tuple[Encoded, Encoded]:
    """Captions of 11 words give or take 4, whose words resemble regions of their own image."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        drawn: Tensor = torch.randn(*shape, generator=generator) / dim**0.5
        return drawn

    topics = noise(30, dim)
    topic = torch.randint(30, (images, regions), generator=generator)
    seen = normalize(0.7 * topics[topic] + noise(images, regions, dim), dim=-1)  # (I, n, d)
    own = torch.arange(captions) * images // captions  # (T,)
    named = torch.randint(regions, (captions, longest), generator=generator)
    words = normalize(0.6 * seen[own[:, None], named] + noise(captions, longest, dim), dim=-1)  # (T, m, d)
    mask = torch.arange(longest) < caption_lengths(captions, longest)[:, None]
    whole = torch.ones(images, regions, dtype=torch.bool)
    texts = Encoded(normalize((words * mask[..., None]).sum(1), dim=-1), words, mask)
    return texts.to(bench.device), Encoded(normalize(seen.mean(1), dim=-1), seen, whole).to(bench.device)


def caption_lengths(captions: int, longest: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return (11 + 4 * torch.randn(captions, generator=generator)).round().clamp(3, longest).long()


def bounds(mask: Tensor) -> tuple[tuple[int, int], ...]:
    """What a training step knows of the lengths of its captions."""
    lengths = mask.sum(1)
    return tuple((words, int((lengths > words).sum())) for words in range(6, mask.shape[1], 2))


# ----------------------------------------------------------------------------------------------- definitions


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function)


def half_on_gpu(tensor: Tensor) -> Tensor:
    return tensor.to(PRODUCT_DTYPE) if tensor.is_cuda else tensor


def defined_awareness(words: Tensor, mask: Tensor, regions: Tensor) -> Tensor:
    """As training wants it: products in half precision on a GPU."""
    return awareness_scores(half_on_gpu(words), mask, half_on_gpu(regions), BOUNDARY)


def kernel_awareness(limits: Any, words: Tensor, mask: Tensor, regions: Tensor) -> Tensor:
    kind = PRODUCT_DTYPE if words.is_cuda else None
    return awareness_scores_fused(words, mask, regions, BOUNDARY, product_dtype=kind, longer_than=limits)


# ------------------------------------------------------------------------------------------------------ steps


def loss_of(scores: list[Tensor], texts: int) -> Tensor:
    """Cross-entropy of captions over images and of images over captions, the first of them for each image."""
    images = scores[0].shape[1]
    own = torch.arange(texts, device=scores[0].device) * images // texts  # (T,)
    first = torch.arange(images, device=scores[0].device) * texts // images  # (I,)
    terms = [
        cross_entropy(each / TEMPERATURE, own) + cross_entropy(each.T / TEMPERATURE, first) for each in scores
    ]
    return torch.stack(terms).sum()


def optimiser_of(module: nn.Module, bench: Bench) -> torch.optim.Optimizer:
    parameters = [value for value in module.parameters() if value.requires_grad]
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True, capturable=bench.on_gpu)


def encoders_step(
    bench: Bench, score: Callable[[Retriever], Score] | None, batch: int, compile_backbone: bool = False
) -> Work:
    """One step of the light encoders on `batch` pairs of pixels and token ids."""
    torch.manual_seed(0)
    config = RetrieverConfig(vision="mobilenet-v2", text="minilm-l6", image_size=32 if bench.tiny else 224)
    tokenizer = word_tokenizer([VOCABULARY])
    look = ImageArchitecture("mobilenet-v2", {}, config.input_size, IMAGENET_MEAN, IMAGENET_STD)
    text_config = {**MINILM, "num_hidden_layers": 1, "vocab_size": 100} if bench.tiny else MINILM
    read = TextArchitecture("huggingface", text_config, tokenizer.prefix, tokenizer.suffix)
    model = Retriever(config, ImageEncoder(look, config.dim), TextEncoder(read, config.dim), tokenizer)
    model = model.to(bench.device).train()
    if bench.on_gpu:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if compile_backbone:
        torch._dynamo.reset()
        model.image_encoder.backbone.compile()
    pixels = torch.randn(batch, 3, config.input_size, config.input_size, device=bench.device)
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    lengths = caption_lengths(batch, 24)
    ids = torch.randint(1, 15, (batch, 24), device=bench.device)
    mask = (torch.arange(24) < lengths[:, None]).to(bench.device)
    optimiser = optimiser_of(model, bench)
    score_pairs = score(model) if score is not None else None

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        with torch.autocast(bench.device.type, torch.bfloat16, enabled=bench.on_gpu):
            images, texts = model.forward_images(pixels), model.forward_texts(ids, mask)
        texts, images = texts.to(dtype=torch.float32), images.to(dtype=torch.float32)
        scores = [texts.pooled @ images.pooled.T]
        if score_pairs is not None:
            scores.append(score_pairs(texts, images))
        loss_of(scores, batch).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


class Projections(nn.Module):
    """What is trained on cached features of frozen encoders: a linear layer for each side, and the gates."""

    def __init__(self, inputs: int, dim: int) -> None:
        super().__init__()
        self.words, self.regions = nn.Linear(inputs, dim), nn.Linear(inputs, dim)
        self.gates = CrossGatedAttention(dim)

    def forward(self, texts: Encoded, images: Encoded) -> tuple[Encoded, Encoded]:
        return projected(self.words, texts), projected(self.regions, images)


def projected(layer: nn.Linear, features: Encoded) -> Encoded:
    pooled, fragments = (normalize(layer(part), dim=-1) for part in (features.pooled, features.fragments))
    return Encoded(pooled, fragments, features.mask)


def cached_step(
    bench: Bench, score: Callable[[Projections], Score], captions: int, images: int, regions: int
) -> Work:
    """One step on cached features."""
    torch.manual_seed(0)
    features = planted(bench, captions, images, regions)
    model = Projections(512, 512).to(bench.device)
    optimiser = optimiser_of(model, bench)
    score_pairs = score(model)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        texts, pixels = model(*features)
        scores = [texts.pooled @ pixels.pooled.T, score_pairs(texts, pixels)]
        loss_of(scores, captions).backward()  # type: ignore[no-untyped-call]
        optimiser.step()

    return step


def awareness_with(function: Callable[..., Tensor]) -> Callable[[Any], Score]:
    return lambda _: lambda texts, images: function(texts.fragments, texts.mask, images.fragments)


def gates_with(fused: bool, limits: Any) -> Callable[[Any], Score]:
    def of(model: Any) -> Score:
        attention = model.gates if isinstance(model, Projections) else model.cross_gated_attention
        if fused:
            return lambda texts, images: gated_cosines_fused(
                attention, texts.fragments, texts.mask, images.fragments, images.mask, limits
            )
        forward = compiled(attention.forward)

        def score(texts: Encoded, images: Encoded) -> Tensor:
            kind = torch.bfloat16 if texts.fragments.is_cuda else torch.float32
            cosines: Tensor = forward(texts.fragments.to(kind), texts.mask, images.fragments.to(kind))
            return cosines.float()

        return score

    return of


def backward_alone(score: Callable[[Tensor, Tensor, Tensor], Tensor], pair: tuple[Encoded, Encoded]) -> Work:
    """Scores and their gradients by words and regions."""
    texts, images = pair
    words, regions = (part.fragments.clone().requires_grad_() for part in pair)
    incoming = torch.randn(len(texts), len(images), device=words.device)

    def run() -> tuple[Tensor, ...]:
        return torch.autograd.grad(score(words, texts.mask, regions), (words, regions), incoming)

    return run


# ------------------------------------------------------------------------------------------------------- rows


def awareness_training(
    bench: Bench, captions: int, images: int, regions: int, cached: bool
) -> dict[str, Any]:
    """Scores with gradients, in a step of light encoders or in one on cached features."""
    pair = planted(bench, captions, images, regions)
    sides: dict[str, Callable[..., Tensor]] = {
        "kernel": partial(kernel_awareness, bounds(pair[0].mask)),
        "compiled": compiled(defined_awareness),
    }
    if not bench.on_gpu:
        sides["plain"] = defined_awareness
    alone = {name: later(bench, partial(backward_alone, score, pair)) for name, score in sides.items()}

    def step(score: Callable[..., Tensor]) -> Work:
        if cached:
            return cached_step(bench, awareness_with(score), captions, images, regions)
        return encoders_step(bench, awareness_with(score), captions)

    few = pair[0][:8], pair[1][:8]
    words, mask, seen = few[0].fragments, few[0].mask, few[1].fragments
    exact = awareness_scores(words.double(), mask, seen.double(), BOUNDARY)
    found = {name: score(words, mask, seen) for name, score in (("kernel", partial(kernel_awareness, None)),
                                                               ("compiled", sides["compiled"]))}  # fmt: skip
    row = {
        "shapes": shapes(*pair),
        "largest_error_to_float64": {name: largest_gap(each, exact) for name, each in found.items()},
        "alone": bench.compare(alone),
    }
    del alone
    free(bench)
    whole = {name: later(bench, partial(step, score)) for name, score in sides.items()}
    return {**row, "end_to_end": bench.compare(whole)}


def largest_gap(scores: Tensor, exact: Tensor) -> float:
    return (scores.double() - exact).abs().max().item()


def shapes(texts: Encoded, images: Encoded) -> dict[str, float]:
    (captions, longest), (count, regions) = texts.mask.shape, images.mask.shape
    return {
        "captions": captions, "longest_caption": longest, "mean_words": texts.mask.sum().item() / captions,
        "images": count, "regions": regions, "dim": texts.pooled.shape[1],
    }  # fmt: skip


@torch.no_grad()
def awareness_ranking(bench: Bench, captions: int, images: int, regions: int) -> dict[str, Any]:
    """All pairs of a test set."""
    pair = planted(bench, captions, images, regions)
    definition = compiled(awareness_scores)

    def by(score: Callable[..., Tensor]) -> Work:
        def block(texts: Encoded, images: Encoded) -> Tensor:
            return score(texts.fragments, texts.mask, images.fragments, BOUNDARY)

        budget = CHUNK_BYTES if bench.on_gpu else 1 << 28
        return lambda: all_pairs(block, *pair, budget_bytes=budget)

    sides = {
        "kernel": lambda: awareness_all_pairs(*pair, BOUNDARY),
        "compiled": by(definition),
        "plain": by(awareness_scores),
    }
    gap = largest_gap(awareness_all_pairs(pair[0][:40], pair[1][:9], BOUNDARY),
                      awareness_scores(pair[0].fragments[:40].double(), pair[0].mask[:40],
                                       pair[1].fragments[:9].double(), BOUNDARY))  # fmt: skip
    return {
        "shapes": shapes(*pair),
        "largest_error_to_float64": {"kernel": gap},
        "end_to_end": bench.compare(sides),
    }


@torch.no_grad()
def gates_ranking(bench: Bench, captions: int, images: int) -> dict[str, Any]:
    """All pairs of a test set."""
    pair = planted(bench, captions, images, 49)
    attention = CrossGatedAttention(512).to(bench.device)
    definition = compiled(attention.forward)
    floats = gated_floats(*pair)

    def by(score: Callable[..., Tensor]) -> Work:
        def block(texts: Encoded, images: Encoded) -> Tensor:
            return score(texts.fragments, texts.mask, images.fragments)

        budget = 4 * CHUNK_BYTES if bench.on_gpu else 1 << 28
        return lambda: all_pairs(block, *pair, budget_bytes=budget, floats_per_pair=floats)

    sides = {
        "kernel": lambda: gated_all_pairs(attention, *pair),
        "compiled": by(definition),
        "plain": by(attention.forward),
    }
    return {"shapes": shapes(*pair), "end_to_end": bench.compare(sides)}


def gates_training(bench: Bench, captions: int, images: int, cached: bool) -> dict[str, Any]:
    """Gated cosines with gradients, in a step of light encoders or in one on cached features."""
    limits = bounds(planted(bench, captions, images, 49)[0].mask)

    def step(fused: bool) -> Work:
        if cached:
            return cached_step(bench, gates_with(fused, limits), captions, images, 49)
        return encoders_step(bench, gates_with(fused, limits), captions)

    sides = {"kernel": later(bench, partial(step, True)), "compiled": later(bench, partial(step, False))}
    return {
        "shapes": {"captions": captions, "images": images, "regions": 49},
        "end_to_end": bench.compare(sides),
    }


Patches = list[tuple[Any, str, Any]]


@contextmanager
def patched(patches: Patches) -> Iterator[None]:
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in patches]
    try:
        for owner, name, value in patches:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def nowhere(device: torch.device) -> bool:
    return False


def off(*modules: Any) -> Patches:
    """Their kernels are not used."""
    return [(module, "kernels_run_on", nowhere) for module in modules]


def convolution_training(bench: Bench, batch: int) -> dict[str, Any]:
    """A step of InfoNCE with all kernels of convolutions, and with each of them replaced."""
    torch._dynamo.config.recompile_limit = 64

    def side(patches: Patches, compile_backbone: bool = False) -> Work:
        inner = later(bench, partial(encoders_step, bench, None, batch, compile_backbone))

        def run() -> None:
            with patched(patches):
                inner()

        return run

    def folded(weight: Tensor, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
        assert norm.running_mean is not None and norm.running_var is not None
        return fold(weight, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.eps)

    fold = torch.compile(folded_definition, dynamic=True)
    clamp = torch.compile(bias_relu6_definition, dynamic=True)
    sides = {
        "kernel": side([]),
        "compiled": side(off(convnets, bias_relu6, depthwise, fold_norm, pointwise), compile_backbone=True),
        "plain": side(off(convnets, bias_relu6, depthwise, fold_norm, pointwise)),
        "fold_norm_compiled": side([(convnets, "fold_norm", folded)]),
        "bias_relu6_compiled": side([(bias_relu6, "bias_relu6", clamp), (convnets, "bias_relu6", clamp)]),
        "pointwise_matmul": side(
            [(pointwise, "PRODUCTS", "matmul"), (pointwise, "WEIGHT_PRODUCTS", "matmul")]
        ),
        "pointwise_plain": side([(pointwise, "PRODUCTS", "plain")]),
    }
    return {"shapes": {"pairs": batch, "network": "mobilenet-v2"}, "end_to_end": bench.compare(sides)}


def folded_definition(
    weight: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    factor = scale * torch.rsqrt(variance + eps)
    return weight * factor.view(-1, 1, 1, 1), bias - mean * factor


def bias_relu6_definition(features: Tensor, bias: Tensor) -> Tensor:
    return (features + bias.to(features.dtype).view(-1, 1, 1)).clamp(0, 6)


def rows_of(bench: Bench) -> dict[str, Callable[[], dict[str, Any]]]:
    """By what the kernel serves."""
    if bench.tiny:
        return {
            "awareness, training step, light encoders": lambda: awareness_training(bench, 8, 8, 4, False),
            "awareness, training step, 197 regions": lambda: awareness_training(bench, 8, 4, 197, True),
            "convolutions, training step": lambda: convolution_training(bench, 4),
            "gates, training step, cached features": lambda: gates_training(bench, 8, 4, True),
            "awareness, ranking": lambda: awareness_ranking(bench, 60, 20, 49),
            "gates, ranking": lambda: gates_ranking(bench, 30, 10),
        }
    if bench.on_gpu:
        return {
            "awareness, training step, light encoders": lambda: awareness_training(
                bench, 256, 256, 49, False
            ),
            "convolutions, training step": lambda: convolution_training(bench, 256),
            "gates, training step, light encoders": lambda: gates_training(bench, 256, 256, False),
            "awareness, ranking": lambda: awareness_ranking(bench, 5465, 1093, 49),
            "awareness, training step, 257 regions": lambda: awareness_training(bench, 256, 256, 257, True),
            "gates, ranking": lambda: gates_ranking(bench, 2048, 512),
            "awareness, training step, 197 regions": lambda: awareness_training(bench, 256, 256, 197, True),
            "awareness, ranking, 257 regions": lambda: awareness_ranking(bench, 2048, 512, 257),
        }
    return {
        "awareness, training step, cached features": lambda: awareness_training(bench, 160, 32, 49, True),
        "awareness, ranking": lambda: awareness_ranking(bench, 1093, 109, 49),
        "gates, ranking": lambda: gates_ranking(bench, 400, 40),
    }


def gains(record: dict[str, Any]) -> str:
    """The measured gains as a table for the kernels' README."""
    lines = ["| kernel, where it serves | device | gain end to end | gain alone |", "|---|---|---|---|"]
    for device, run in record["runs"].items():
        for name, row in run["rows"].items():
            parts = [row.get(part, {}) for part in ("end_to_end", "alone")]
            cells = [gain_cell(part, device) for part in parts]
            lines.append(f"| {name} | {device.upper()} | {cells[0]} | {cells[1]} |")
    return "\n".join(lines) + "\n"


def gain_cell(part: dict[str, Any], device: str) -> str:
    """Wall time on a GPU, processor time on a CPU."""
    gain = part.get("gain_over_compiled" if device == "cuda" else "processor_gain_over_compiled")
    if gain is not None:
        return f"{gain:.2f}"
    return "definition does not fit" if "compiled_error" in part else "–"


def work(bench: Bench, names: list[str], out: Path, blocking: bool) -> int:
    """Measures rows one after the other; 1 when a fault has left the device unusable."""
    measures = rows_of(bench)
    for name in names:
        if time.monotonic() > bench.ends:
            break
        before = time.monotonic()
        bench.not_graphed.clear()
        try:
            row = measures[name]()
        except Exception as error:
            traceback.print_exc()
            where = traceback.format_exc().strip().splitlines()[-12:]
            row = {"error": f"{type(error).__name__}: {error}"[:600], "where": where}
        dead = "CUDA error" in json.dumps(row)
        row["seconds"] = time.monotonic() - before
        if bench.not_graphed:
            row["not_graphed"] = list(bench.not_graphed)
        print(name, json.dumps(row), flush=True)
        record = json.loads(out.read_text())
        record["runs"][bench.device.type]["rows"][name + (BLOCKING if blocking else "")] = row
        out.write_text(json.dumps(record, indent=2) + "\n")
        if dead:
            return 1
        torch._dynamo.reset()
        free(bench)
    return 0


def supervise(names: list[str], options: argparse.Namespace) -> None:
    """Rows run in another process, and in a new one after a fault, which is looked for once more."""
    ends = time.monotonic() + options.seconds

    def run(some: list[str], *more: str, **environment: str) -> None:
        left = max(1.0, ends - time.monotonic())
        command = [
            sys.executable, __file__, "--device", options.device, "--out", str(options.out),
            "--repeats", str(options.repeats), "--seconds", str(left), "--rows", *some, *more,
        ]  # fmt: skip
        if options.tiny:
            command.append("--tiny")
        if options.threads:
            command += ["--threads", str(options.threads)]
        subprocess.run(command, env={**os.environ, **environment}, check=False)

    while names and time.monotonic() < ends:
        run(names)
        rows = json.loads(options.out.read_text())["runs"][options.device]["rows"]
        failed = [name for name in names if "CUDA error" in json.dumps(rows.get(name, {}))]
        if failed:
            run(failed[:1], "--blocking", CUDA_LAUNCH_BLOCKING="1")
        done = [name for name in names if name in rows]
        if not done:  # it died without a word
            done = names[:1]
        names = [name for name in names if name not in done]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", choices=["cuda", "cpu"], default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "kernels.json")
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--rows", nargs="+", help="these, in this process")
    parser.add_argument("--blocking", action="store_true", help="the rows' names say that launches block")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=400.0, help="no row begins later")
    parser.add_argument("--threads", type=int, help="of a CPU")
    parser.add_argument("--tiny", action="store_true", help="small shapes, to try it out")
    parser.add_argument("--table", action="store_true", help="print the gains in --out and measure nothing")
    options = parser.parse_args()
    if options.table:
        print(gains(json.loads(options.out.read_text())), end="")
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    bench = Bench(device, options.tiny, options.repeats, time.monotonic() + options.seconds)
    if options.rows:
        sys.exit(work(bench, options.rows, options.out, options.blocking))
    record: dict[str, Any] = {"runs": {}}
    if options.out.is_file():  # the rows of the other device stay
        record = json.loads(options.out.read_text())
    run = record["runs"][options.device] = {
        "hardware": describe_hardware(device), "torch": torch.__version__, "commit": current_commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "repeats": options.repeats,
        "threads": torch.get_num_threads(), "tiny": options.tiny, "rows": {},
    }  # fmt: skip
    record |= {name: run[name] for name in ("hardware", "commit")}  # of the last run
    if not bench.on_gpu:
        run["note"] = CPU_NOTE
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(record, indent=2) + "\n")
    supervise([name for name in rows_of(bench) if options.only in name], options)


if __name__ == "__main__":
    main()
