"""Tables on speed say what their files say."""

from __future__ import annotations

from pathlib import Path

from pmpguard.files import write_json
from tools.docs_speed import STEPS, convolution_table, judging_table, scoring_table, step_table


def test_scores_stand_with_their_times_and_share_of_the_peak(tmp_path: Path) -> None:
    forward = {
        "milliseconds": 30.51, "chunked_torch_milliseconds": 410.7, "teraflop_per_second": 109.2,
        "share_of_matrix_peak": 0.142,
    }  # fmt: skip
    step = {"fused": {"milliseconds": 4.32}, "chunked_torch": {"milliseconds": 32.28}}
    names = ("awareness", "gated")
    found = {f"{name}_forward": forward for name in names} | {f"{name}_step_256": step for name in names}
    write_json(tmp_path / "pair_scoring_gpu.json", found)
    lines = scoring_table(tmp_path).splitlines()
    assert lines[2] == "| awareness score | 411 ms | 30.5 ms | 13.5 | 109 | 14 % |"
    assert lines[5] == "| cross-gated attention with gradients, 256 × 256 | 32.3 ms | 4.3 ms | 7.5 |  |  |"


def test_steps_stand_beside_the_one_of_infonce(tmp_path: Path) -> None:
    step = {"milliseconds": 16.26, "milliseconds_with_feeding": 20.0, "ratio_to_infonce": 2.64}
    methods = {name: {"step": step} for name in STEPS}
    methods["pmpguard"] = {"step": step, "memory": {"gigabytes_above_infonce": 1.82}}  # type: ignore[dict-item]
    write_json(tmp_path / "step_gpu.json", {"batch": 256, "methods": methods})
    lines = step_table(tmp_path).splitlines()
    assert lines[2] == "| InfoNCE | 16.3 | 1 | 12,800 | – |"
    assert lines[-1] == "| PMPGuard with gates | 16.3 | 2.64 | 12,800 | 1.8 GB |"


def test_convolutions(tmp_path: Path) -> None:
    names = ("off", "depthwise", "depthwise_matmul", "depthwise_pointwise")
    rows = {name: {"milliseconds": 29.29, "images_per_second": 8740.2} for name in names}
    write_json(tmp_path / "convolutions_gpu.json", {"mobilenet-v2_256": rows})
    assert convolution_table(tmp_path).splitlines()[-1] == "| and 1×1 by kernels | 29.3 | 8,740 |"


def test_judging_has_a_line_for_every_number_of_pairs(tmp_path: Path) -> None:
    size = {
        "pairs": 20_000, "processor_seconds": 1077.8, "seconds": 61.6, "extra_bytes_per_pair": 29437,
        "auroc": 0.99834, "noise_rate": 0.4017, "neighbour_recall_canonical": 0.233,
    }  # fmt: skip
    write_json(tmp_path / "detection_scale.json", {"sizes": [size]})
    line = "| 20,000 | 1,078 s | 62 s | 29,437 | 0.9983 | 0.402 | 23 % |"
    assert judging_table(tmp_path).splitlines()[2] == line
