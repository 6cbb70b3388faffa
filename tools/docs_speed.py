"""Tables of the documents on speed, from the JSON files that benchmarks wrote."""

from __future__ import annotations

from pathlib import Path

from pmpguard.files import read_json
from tools.docs_audit import markdown_table, percent

SCORES = {"awareness score": "awareness", "cross-gated attention, gates factorised": "gated"}
STEPS = {
    "infonce": "InfoNCE", "vse": "VSE++", "naaf": "NAAF", "pmpguard without gates": "PMPGuard without gates",
    "pmpguard": "PMPGuard with gates",
}  # fmt: skip
NETWORKS = {
    "off": "torch and cuDNN", "depthwise": "depthwise kernels",
    "depthwise_matmul": "and 1×1 by matrix products", "depthwise_pointwise": "and 1×1 by kernels",
}  # fmt: skip


def scoring_table(results: Path) -> str:
    """Scores of all pairs and their gradients, by kernels and by torch in chunks."""
    found = read_json(results / "pair_scoring_gpu.json")
    rows = []
    for label, name in SCORES.items():
        one = found[f"{name}_forward"]
        shares = [f"{one['teraflop_per_second']:.0f}", percent(one["share_of_matrix_peak"])]
        rows.append([label, *_sides(one["chunked_torch_milliseconds"], one["milliseconds"]), *shares])
    for label, name in SCORES.items():
        one = found[f"{name}_step_256"]
        times = _sides(one["chunked_torch"]["milliseconds"], one["fused"]["milliseconds"])
        rows.append([f"{label.partition(',')[0]} with gradients, 256 × 256", *times, "", ""])
    heads = ["work", "chunked torch", "fused", "times", "TFLOP/s", "share of the matrix peak"]
    return markdown_table(heads, rows)


def _sides(slow: float, fast: float) -> list[str]:
    """
    >>> _sides(3625.3, 368.3), _sides(32.28, 4.317)
    (['3,625 ms', '368 ms', '9.8'], ['32.3 ms', '4.3 ms', '7.5'])
    """
    times = [f"{value:,.0f} ms" if value >= 100 else f"{value:.1f} ms" for value in (slow, fast)]
    return [*times, f"{slow / fast:.1f}"]


def step_table(results: Path) -> str:
    """A training step of every method beside InfoNCE's."""
    found = read_json(results / "step_gpu.json")
    rows = []
    for name, label in STEPS.items():
        step, memory = found["methods"][name]["step"], found["methods"][name].get("memory", {})
        above = memory.get("gigabytes_above_infonce")
        fed = found["batch"] / step["milliseconds_with_feeding"] * 1000
        ratio = "1" if name == "infonce" else f"{step['ratio_to_infonce']:.2f}"
        cells = [f"{step['milliseconds']:.1f}", ratio, f"{fed:,.0f}", f"{above:.1f} GB" if above else "–"]
        rows.append([label, *cells])
    heads = ["", "ms", "of InfoNCE's", "pairs/s with feeding and augmentation",
             "memory above InfoNCE's at 1,024 pairs"]  # fmt: skip
    return markdown_table(heads, rows)


def convolution_table(results: Path) -> str:
    """Forward and backward of MobileNetV2 with more and more kernels."""
    found = read_json(results / "convolutions_gpu.json")["mobilenet-v2_256"]
    rows = [
        [label, f"{found[name]['milliseconds']:.1f}", f"{found[name]['images_per_second']:,.0f}"]
        for name, label in NETWORKS.items()
    ]
    return markdown_table(["MobileNetV2", "ms", "images/s"], rows)


def judging_table(results: Path) -> str:
    """What judging costs and tells as collections grow."""
    rows = [
        [
            f"{size['pairs']:,}",
            f"{size['processor_seconds']:,.0f} s",
            f"{size['seconds']:,.0f} s",
            f"{size['extra_bytes_per_pair']:,}",
            f"{size['auroc']:.4f}",
            f"{size['noise_rate']:.3f}",
            percent(size["neighbour_recall_canonical"]),
        ]
        for size in read_json(results / "detection_scale.json")["sizes"]
    ]
    heads = (
        "pairs", "processor time", "clock", "bytes a pair beyond the vectors", "AUROC",
        "estimated rate (0.4)", "neighbours found",
    )  # fmt: skip
    return markdown_table(heads, rows)
