"""Training steps of the small convolutional backbones on a GPU: fused kernels against torch, in one run.

* Milliseconds of forward and backward of MobileNetV2 and EfficientNet-Lite0 under autocast, with channels
  innermost and normalisation by stored statistics, replayed from a CUDA graph: kernels off, depthwise kernels
  only, and depthwise kernels with 1x1 convolutions by torch's matrix products or by our kernels.
* The depthwise and 1x1 convolutions of MobileNetV2 one by one: milliseconds, and GB/s of the bytes they need.
* The kernels that take most of the time, without ours and with the best of them.

`--sweep` times other launches of the depthwise kernels as well. Everything is saved after each part.

    python benchmarks/convolutions_gpu.py
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from gpu_timing import DEVICE, milliseconds, wait
from torch import Tensor, nn

from pmpguard.kernels.convolution import depthwise, pointwise
from pmpguard.kernels.convolution.depthwise import Window
from pmpguard.models.encoders.convnets import (
    Convolution,
    EfficientNetLite0,
    InvertedResidual,
    InvertedResidualNet,
    MobileNetV2,
)
from pmpguard.training.tracking import current_commit, describe_hardware

HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16  # the interpreter has no bf16 products
NETWORKS = {"mobilenet-v2": MobileNetV2, "efficientnet-lite0": EfficientNetLite0}
# Who does what: PMPGUARD_KERNELS, then `PRODUCTS` and `WEIGHT_PRODUCTS` of 1x1 convolutions.
VARIANTS = {
    "off": ("off", "plain", "matmul"),
    "depthwise": ("on", "plain", "matmul"),
    "depthwise_matmul": ("on", "matmul", "matmul"),
    "depthwise_matmul_weight_kernel": ("on", "matmul", "kernel"),
    "depthwise_pointwise": ("on", "kernel", "kernel"),
    "depthwise_pointwise_weight_matmul": ("on", "kernel", "matmul"),
}
SWEEP: list[dict[str, Any]] = [
    {"vector": 2, "num_warps": 4},
    {"vector": 4, "num_warps": 4},
    {"vector": 4, "num_warps": 4, "maxnreg": 168},
    {"vector": 4, "num_warps": 4, "maxnreg": 128},
    {"vector": 4, "num_warps": 8, "maxnreg": 168},
    {"vector": 4, "num_warps": 2, "maxnreg": 168},
    {"vector": 8, "num_warps": 4},
]


@contextmanager
def variant(name: str) -> Iterator[None]:
    """Kernels as `VARIANTS` says, for a while."""
    kept = pointwise.PRODUCTS, pointwise.WEIGHT_PRODUCTS
    switch, pointwise.PRODUCTS, pointwise.WEIGHT_PRODUCTS = VARIANTS[name]
    before = os.environ.get("PMPGUARD_KERNELS")
    os.environ["PMPGUARD_KERNELS"] = switch
    try:
        yield
    finally:
        pointwise.PRODUCTS, pointwise.WEIGHT_PRODUCTS = kept
        os.environ.pop("PMPGUARD_KERNELS")
        if before is not None:
            os.environ["PMPGUARD_KERNELS"] = before


def repeated(work: Callable[[], Any], inner: int = 1) -> Callable[[], Any]:
    """Runs it twice, then gives `inner` runs as one CUDA graph; on a CPU the work itself."""
    if DEVICE.type == "cpu":
        return work
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            work()
    torch.cuda.current_stream().wait_stream(side)
    wait()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            work()
    return graph.replay


def built(name: str) -> InvertedResidualNet:
    """A network of random weights that trains, its normalisation by stored statistics."""
    torch.manual_seed(0)
    model = NETWORKS[name]().to(DEVICE).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return model  # type: ignore[no-any-return]


def training_step(model: InvertedResidualNet, pixels: Tensor) -> Callable[[], tuple[Tensor, ...]]:
    """Forward and backward; the loss stands in as a fixed gradient."""
    parameters = list(model.parameters())
    side = -(-pixels.shape[-1] // 32)
    incoming = torch.randn(len(pixels), 1280, side, side, device=DEVICE, dtype=HALF)
    incoming = incoming.contiguous(memory_format=torch.channels_last)

    def step() -> tuple[Tensor, ...]:
        with torch.autocast(DEVICE.type, HALF):
            features = model(pixels)
        return torch.autograd.grad(features, parameters, incoming)

    return step


def top_kernels(run: Callable[[], Any], count: int = 15) -> list[dict[str, Any]]:
    """The kernels with most time in one run, microseconds of the device."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        run()
        wait()
    rows = [
        {
            "kernel": event.key[:120],
            "calls": event.count,
            "microseconds": getattr(event, "self_device_time_total", 0.0),
        }
        for event in profiler.key_averages()
    ]
    rows = [row for row in rows if row["microseconds"]]
    total = sum(row["microseconds"] for row in rows)
    rows.sort(key=lambda row: -row["microseconds"])
    return [{"kernel": "all", "kinds": len(rows), "microseconds": total}, *rows[:count]]


def attempt(work: Callable[[], Any]) -> Any:
    """Its result, or what went wrong: a part that fails leaves the others."""
    try:
        return work()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:400]}


def network_part(
    name: str, batch: int, chosen: list[str], options: argparse.Namespace, row: dict[str, Any], save: Any
) -> None:
    """Milliseconds of a step for each variant, and the top kernels of the first and the best."""
    pixels = torch.randn(batch, 3, options.size, options.size, device=DEVICE)
    step = training_step(built(name), pixels.contiguous(memory_format=torch.channels_last))
    part = row.setdefault(f"{name}_{batch}", {})

    def timed(label: str, profiled: bool) -> Any:
        with variant(label):
            run = repeated(step)
        if profiled:
            return top_kernels(run)
        taken = milliseconds(run, options.repeats)
        return {"milliseconds": taken, "images_per_second": batch / taken * 1e3}

    for label in chosen:
        if time.monotonic() < options.deadline:
            part[label] = attempt(partial(timed, label, False))
            print(name, batch, label, part[label], flush=True)
            save()
    measured = {label: found["milliseconds"] for label, found in part.items() if "milliseconds" in found}
    if measured and options.profile and batch == max(options.batches):
        for label in dict.fromkeys(["off", min(measured, key=measured.__getitem__)]):
            if label in measured and time.monotonic() < options.deadline:
                row.setdefault("top_kernels", {})[f"{name}_{batch}_{label}"] = attempt(
                    partial(timed, label, True)
                )
                save()


def layers(model: InvertedResidualNet, size: int) -> list[tuple[Convolution, int]]:
    """Depthwise and 1x1 convolutions with the side of their input, each shape once."""
    found: dict[tuple[int, ...], tuple[Convolution, int]] = {}
    side = -(-size // 2)
    for block in model.blocks:
        assert isinstance(block, InvertedResidual)
        for layer in (block.expand, block.depthwise, block.project):
            if isinstance(layer, Convolution):
                plain = layer.convolution
                key = (plain.in_channels, plain.out_channels, layer.kernel, layer.stride, side)
                found.setdefault(key, (layer, side))
                side = -(-side // layer.stride)
    found[(0,)] = (model.head, side)
    return list(found.values())


def layer_row(layer: Convolution, side: int, batch: int) -> dict[str, Any]:
    """One convolution with what follows it, forward and backward, and the GB/s of what it must move."""
    inputs, outputs, kernel = layer.convolution.in_channels, layer.convolution.out_channels, layer.kernel
    features = torch.rand(batch, inputs, side, side, device=DEVICE).to(HALF)
    features = features.contiguous(memory_format=torch.channels_last)
    bias = torch.randn(outputs, device=DEVICE)
    out_side = -(-side // layer.stride)
    shape = f"{inputs}->{outputs} k{kernel} s{layer.stride} at {side}"
    small, large = features.numel() * 2, batch * outputs * out_side**2 * 2  # bytes

    def rate(work: Callable[[], Any], moved: int) -> dict[str, float]:
        inner = 1 if DEVICE.type == "cpu" else 5
        taken = milliseconds(repeated(work, inner), 3, 0.2) / inner
        return {"milliseconds": taken, "gigabytes_per_second": moved / taken / 1e6}

    if kernel > 1:
        taps = torch.randn(kernel**2, outputs, device=DEVICE) / kernel
        window = Window(kernel, layer.stride, *((kernel // 2,) * 4))
        result = depthwise.run_forward(features, taps, bias, window)
        gradient = torch.randn_like(result)
        back = partial(depthwise.run_backward, gradient, result, features, taps, window, clamped=True)
        return {
            "depthwise": shape,
            "forward": rate(partial(depthwise.run_forward, features, taps, bias, window), small + large),
            "backward": rate(back, 2 * small + 2 * large),
        }
    weight = (torch.randn(outputs, inputs, device=DEVICE) / inputs**0.5).to(HALF)
    found: dict[str, Any] = {"pointwise": shape}
    result = pointwise.run_forward(features, weight, bias, relu6=layer.activation)
    rows, grown = pointwise.rows_of(features), pointwise.rows_of(torch.randn_like(result))
    for label in ("depthwise_pointwise", "depthwise_matmul"):
        with variant(label):
            work = partial(pointwise.run_forward, features, weight, bias, relu6=layer.activation)
            found[f"forward_{label}"] = rate(work, small + large)
    found["by_features_matmul"] = rate(lambda: grown @ weight, small + large)
    found["by_weight_kernel"] = rate(partial(pointwise.weight_sums, grown, rows), small + large)
    found["by_weight_matmul"] = rate(lambda: grown.T @ rows, small + large)
    return found


def sweep_rows(model: InvertedResidualNet, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Other launches, for the depthwise convolutions one by one."""
    for layer, side in layers(model, options.size):
        for launch in SWEEP if layer.kernel > 1 else []:
            if time.monotonic() > options.deadline:
                return
            kept = depthwise.FORWARD_LAUNCH, depthwise.BACKWARD_LAUNCH
            depthwise.FORWARD_LAUNCH = depthwise.BACKWARD_LAUNCH = {layer.kernel: launch}
            work = partial(layer_row, layer, side, max(options.batches))
            yield {**launch, **attempt(work)}
            depthwise.FORWARD_LAUNCH, depthwise.BACKWARD_LAUNCH = kept


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="*", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batches", type=int, nargs="*", default=[256, 128])
    parser.add_argument("--variants", nargs="*", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=55.0, help="no new part begins after these")
    parser.add_argument("--no-profile", dest="profile", action="store_false")
    parser.add_argument("--no-layers", dest="layers", action="store_false")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "convolutions_gpu.json"
    )
    options = parser.parse_args()
    options.deadline = time.monotonic() + options.seconds
    row: dict[str, Any] = {
        "size": options.size,
        "dtype": str(HALF),
        "hardware": describe_hardware(DEVICE),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "commit": current_commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }

    def save() -> None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(row, indent=2) + "\n")

    networks = [(name, batch) for batch in options.batches for name in options.networks]
    if networks:
        network_part(*networks[0], options.variants, options, row, save)
    if options.layers:
        row["layers"] = []
        for layer, side in layers(built("mobilenet-v2"), options.size):
            if time.monotonic() < options.deadline:
                work = partial(layer_row, layer, side, max(options.batches))
                row["layers"].append(attempt(work))
                print(row["layers"][-1], flush=True)
                save()
    for name, batch in networks[1:]:
        network_part(name, batch, options.variants, options, row, save)
    if options.sweep:
        row["sweep"] = []
        for found in sweep_rows(built((options.networks or list(NETWORKS))[0]), options):
            row["sweep"].append(found)
            print(found, flush=True)
            save()
    for name, kernels in row.get("top_kernels", {}).items():
        print(name, *(kernels if isinstance(kernels, list) else [kernels]), sep="\n")


if __name__ == "__main__":
    main()
