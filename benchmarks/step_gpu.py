"""What a training step costs with each method, next to plain InfoNCE on the same encoders, in one run.

Images and captions are made up: 224 pixels held on the device, one caption of about eleven words each. A
step is the one training takes (encode, lose, differentiate, clip, AdamW, averaged weights), replayed from a
CUDA graph: milliseconds on the device, without and with the feeding of its batch. `five_captions` is a step
of 640 captions, five of each image, as RSICD has them. Peak memory is that of a step of a larger batch
without graphs, and what it takes above InfoNCE's. The kernels that take the most time are listed for InfoNCE
and PMPGuard.

Encoders are `light` ones; where their pretrained weights are not installed they start untrained, which costs
the same. `--tiny` tries the benchmark out on a CPU.

    python benchmarks/step_gpu.py
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import cycle
from operator import sub, truediv
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pmpguard.data.images.sources import ImagesInMemory
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ModelError
from pmpguard.methods.method import Method
from pmpguard.methods.registry import find_method
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.encoders.image import ImageArchitecture, ImageEncoder
from pmpguard.models.encoders.pretrained import IMAGENET_MEAN, IMAGENET_STD
from pmpguard.models.encoders.text import TextArchitecture, TextEncoder
from pmpguard.models.retriever import Retriever
from pmpguard.models.tokenizer import word_tokenizer
from pmpguard.training.batch_sampler import PairSampler
from pmpguard.training.config import TrainConfig
from pmpguard.training.distributed import World
from pmpguard.training.ema import AveragedWeights
from pmpguard.training.feature_cache import encode_texts
from pmpguard.training.loader import BatchLoader, DeviceBatch, TokenTable
from pmpguard.training.loop import build_method
from pmpguard.training.parameter_groups import build_optimiser
from pmpguard.training.step import StepRunner, captures
from pmpguard.training.tracking import current_commit, describe_hardware

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "infonce": ("infonce", {}),
    "pmpguard": ("pmpguard", {"cga": True}),  # with gates
    "pmpguard without gates": ("pmpguard", {"cga": False}),
    "vse": ("vse", {}),
    "naaf": ("naaf", {}),
}
PROFILED = ("infonce", "pmpguard", "pmpguard without gates")
WITH_FIVE_CAPTIONS = ("infonce", "pmpguard without gates")
CAPTIONS_PER_IMAGE = 5
EPOCH = 2  # after every method's warm-up
VOCABULARY = """a the in on of and with near beside between many some several two green white grey red yellow
buildings trees road river bridge airport planes runway baseball field playground beach sea waves boats port
church square roof parking cars residential area farmland meadow mountain desert forest lake pond stadium
station railway industrial storage tanks viaduct resort school park centre commercial bare land"""
MINILM = {
    "model_type": "bert", "vocab_size": 30522, "hidden_size": 384, "num_hidden_layers": 6,
    "num_attention_heads": 12, "intermediate_size": 1536, "max_position_embeddings": 512,
}  # fmt: skip


def made_up_pairs(count: int, seed: int) -> PairTable:
    """One caption an image, of 11 words give or take 4."""
    draw = np.random.default_rng(seed)
    lengths = np.clip(np.rint(draw.normal(11, 4, count)), 3, 24).astype(int)
    captions = [" ".join(draw.choice(VOCABULARY.split(), length)) for length in lengths]
    return PairTable.from_columns({"image": [f"{row}.png" for row in range(count)], "caption": captions})


def five_captions(images: int, seed: int) -> PairTable:
    """Five captions an image, half of them of 8 to 13 words, a few of up to 30."""
    draw = np.random.default_rng(seed)
    lengths = np.clip(np.rint(np.exp(draw.normal(2.33, 0.3, CAPTIONS_PER_IMAGE * images))), 4, 30)
    lengths[::499] = 30
    captions = [" ".join(draw.choice(VOCABULARY.split(), int(length))) for length in lengths]
    names = [f"{row // CAPTIONS_PER_IMAGE}.png" for row in range(len(captions))]
    return PairTable.from_columns({"image": names, "caption": captions})


def start_method(config: TrainConfig, table: PairTable) -> tuple[Method, bool]:
    """The method, and whether its encoders have pretrained weights."""
    try:
        return build_method(config, len(table), table.captions), True
    except ModelError:
        kind = find_method(config.method)
        settings = kind.read_settings(config.preset, config.settings)
        torch.manual_seed(config.seed)
        return kind(untrained(kind.model_config(config.model, settings), table), settings, len(table)), False


def untrained(config: RetrieverConfig, table: PairTable) -> Retriever:
    """MobileNetV2 and a text encoder of MiniLM's size, as they begin."""
    look = ImageArchitecture("mobilenet-v2", {}, config.image_size, IMAGENET_MEAN, IMAGENET_STD)
    tokenizer = word_tokenizer(table.captions)
    read = TextArchitecture("huggingface", MINILM, tokenizer.prefix, tokenizer.suffix)
    return Retriever(config, ImageEncoder(look, config.dim), TextEncoder(read, config.dim), tokenizer)


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def once(work: Callable[[], Any]) -> float:
    """Milliseconds between events on the device, else on the clock."""
    if DEVICE.type != "cuda":
        started = time.perf_counter()
        work()
        return (time.perf_counter() - started) * 1000
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    start.record()
    work()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


class Bench:
    """A method with everything a step needs, built as `train` builds it."""

    def __init__(self, config: TrainConfig, table: PairTable, images: ImagesInMemory) -> None:
        method, self.pretrained = start_method(config, table)
        method = method.to(DEVICE)
        if DEVICE.type == "cuda":
            method = method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimiser = build_optimiser(method, config, DEVICE)
        averaged = AveragedWeights(method, config.ema)
        sampler = PairSampler(
            table.image_codes, table.caption_codes, config.batch_size, config.seed,
            captions_per_image=config.captions_per_image,
        )  # fmt: skip
        tokens = TokenTable.of(table, method.retriever, DEVICE)
        self.loader = BatchLoader(
            table, images, tokens, sampler, config.augmentation, 0, DEVICE, World(),
            same_shapes=captures(config, DEVICE, World()),
        )  # fmt: skip
        self.runner = StepRunner(method, optimiser, averaged, config, DEVICE, World())
        method.train()

    def run(self, batches: list[DeviceBatch], steps: int) -> None:
        for number, batch in zip(range(steps), cycle(batches), strict=False):
            self.runner.step([batch], EPOCH, number, 1.0)

    def run_and_feed(self) -> None:
        """One epoch."""
        for number, batch in enumerate(self.loader.batches(EPOCH, 0)):
            self.runner.step([batch], EPOCH, number, 1.0)


def speed_row(bench: Bench, steps: int) -> dict[str, Any]:
    """Medians are of three runs of `steps` steps."""
    batches = list(bench.loader.batches(EPOCH, 0))
    started = time.perf_counter()
    bench.run(batches, 4)  # compiles, captures
    wait()
    warm_up = time.perf_counter() - started
    alone = sorted(once(partial(bench.run, batches, steps)) / steps for _ in range(3))
    bench.run_and_feed()
    fed = sorted(once(bench.run_and_feed) / len(batches) for _ in range(3))
    pairs = len(batches[0].rows)
    with torch.no_grad():
        longest = encode_texts(bench.runner.method.retriever, batches[0].texts).mask.shape[1]
    return {
        "milliseconds": alone[1],
        "fastest_and_slowest": [alone[0], alone[2]],
        "pairs_per_second": pairs / alone[1] * 1000,
        "milliseconds_with_feeding": fed[1],
        "cuda_graphs": sum(graph is not None for graph in bench.runner.cuda_graphs.values()),
        "pairs": pairs,
        "images": len(batches[0].image_keys),
        "longest_caption": longest,
        "longer_than": batches[0].longer_than,
        "warm_up_seconds": warm_up,
        "finite": int(bench.runner.bad_step) < 0,
        "pretrained": bench.pretrained,
    }  # fmt: skip


def slowest_kernels(bench: Bench, steps: int = 3, most: int = 25) -> list[dict[str, Any]]:
    """Milliseconds per step of what the device does."""
    from torch.profiler import ProfilerActivity, profile

    batches = list(bench.loader.batches(EPOCH, 0))
    activity = ProfilerActivity.CUDA if DEVICE.type == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as seen:
        bench.run(batches, steps)
        wait()
    on_gpu = DEVICE.type == "cuda"
    rows = [
        {
            "kernel": event.key[:80],
            "milliseconds": (event.self_device_time_total if on_gpu else event.self_cpu_time_total)
            / steps / 1000,
            "launches": event.count / steps,
        }
        for event in seen.key_averages()
    ]  # fmt: skip
    rows.sort(key=lambda row: -row["milliseconds"])
    total = {"kernel": "all", "milliseconds": sum(row["milliseconds"] for row in rows), "launches": None}
    return [total, *rows[:most]]


def memory_row(config: TrainConfig, table: PairTable, images: ImagesInMemory) -> dict[str, float]:
    """Peak of the third step; weights, moments, the batch and all images included."""
    bench = Bench(config, table, images)
    batches = list(bench.loader.batches(EPOCH, 0))[:1]
    bench.run(batches, 2)
    wait()
    if DEVICE.type != "cuda":
        return {"peak_gigabytes": 0.0}
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    milliseconds = once(partial(bench.run, batches, 1))
    return {"peak_gigabytes": torch.cuda.max_memory_allocated() / 1e9, "milliseconds": milliseconds}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--memory-batch", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20, help="steps of one timed run")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--vision", default="mobilenet-v2")
    parser.add_argument("--five-batch", type=int, default=640, help="captions of `five_captions`")
    parser.add_argument("--seconds", type=float, default=75.0, help="no part begins later")
    parser.add_argument("--tiny", action="store_true", help="small encoders and batches")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "step_gpu.json")
    options = parser.parse_args()
    started = time.perf_counter()
    model = RetrieverConfig(vision=options.vision, text="minilm-l6", image_size=224)
    if options.tiny:
        model = RetrieverConfig(dim=32, image_size=32)
        options.batch, options.memory_batch, options.five_batch, options.steps = 8, 16, 20, 2
    table = made_up_pairs(max(4 * options.batch, 2 * options.memory_batch), 0)
    several = five_captions(4 * options.five_batch // CAPTIONS_PER_IMAGE, 1)  # fewer images than `table`
    size = model.image_size
    generator = torch.Generator(DEVICE).manual_seed(0)
    drawn = torch.randint(0, 256, (len(table), 3, size, size), dtype=torch.uint8, device=DEVICE,
                          generator=generator)  # fmt: skip
    images = ImagesInMemory(drawn, DEVICE)
    base = TrainConfig(model=model, batch_size=options.batch, precision="bf16", ema=0.99)
    row: dict[str, Any] = {
        "batch": options.batch, "memory_batch": options.memory_batch, "five_batch": options.five_batch,
        "vision": model.vision,
        "text": model.text, "dim": model.dim, "precision": base.precision,
        "methods": {name: {} for name in options.methods},
        "hardware": describe_hardware(DEVICE), "torch": torch.__version__,
        "commit": current_commit(), "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }  # fmt: skip

    def add(name: str, part: str, work: Callable[[], Any]) -> None:
        """Saved after every part: a run that is cut off, or a part that fails, leaves the others."""
        if time.perf_counter() - started > options.seconds:
            return
        try:
            row["methods"][name][part] = work()
        except Exception as error:
            row["methods"][name][part] = {"error": f"{type(error).__name__}: {error}"[:500]}
        compare(row["methods"])
        row["seconds"] = time.perf_counter() - started
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(row, indent=2) + "\n")
        if "kernels" not in part:
            print(f"{row['seconds']:.0f} s {name}: {json.dumps(row['methods'][name][part])}", flush=True)

    def forget() -> None:
        gc.collect()
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()

    def config_of(name: str) -> TrainConfig:
        method, settings = METHODS[name]
        return replace(base, method=method, settings=settings)

    for name in options.methods:

        def timed(name: str = name) -> dict[str, Any]:
            bench = Bench(config_of(name), table, images)
            found = speed_row(bench, options.steps)
            if name in PROFILED:
                add(name, "kernels", partial(slowest_kernels, bench))
            return found

        add(name, "step", timed)
        forget()
    for name in (name for name in WITH_FIVE_CAPTIONS if name in options.methods):

        def timed_with_five(name: str = name) -> dict[str, Any]:
            config = replace(
                config_of(name), batch_size=options.five_batch, captions_per_image=CAPTIONS_PER_IMAGE
            )
            bench = Bench(config, several, images)
            found = speed_row(bench, options.steps)
            add(name, "five_captions_kernels", partial(slowest_kernels, bench))
            return found

        add(name, "five_captions", timed_with_five)
        forget()
    for name in (name for name in PROFILED if name in options.methods):
        config = replace(config_of(name), batch_size=options.memory_batch, cuda_graphs=False)
        add(name, "memory", partial(memory_row, config, table, images))
        forget()
    for name, parts in row["methods"].items():
        for part in ("kernels", "five_captions_kernels"):
            for line in parts.get(part, []):
                print(name, part, *(line.values() if isinstance(line, dict) else [line]))


def compare(rows: dict[str, dict[str, Any]]) -> None:
    """Next to InfoNCE: the ratio of steps, and the memory above its peak."""
    plain = rows.get("infonce", {})
    for parts in rows.values():
        for part, key, name, compared in (
            ("step", "milliseconds", "ratio_to_infonce", truediv),
            ("step", "milliseconds_with_feeding", "ratio_with_feeding", truediv),
            ("five_captions", "milliseconds", "ratio_to_infonce", truediv),
            ("five_captions", "milliseconds_with_feeding", "ratio_with_feeding", truediv),
            ("memory", "peak_gigabytes", "gigabytes_above_infonce", sub),
        ):
            if key in parts.get(part, {}) and key in plain.get(part, {}):
                parts[part][name] = compared(parts[part][key], plain[part][key])


if __name__ == "__main__":
    main()
