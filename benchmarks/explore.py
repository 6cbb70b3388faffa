"""Variations of a recipe, judged on validation alone: how settings are chosen before a row is recorded.

The test split is never opened. Variations are read from a YAML list; each changes the training settings of
one line of the recipe:

    - {name: base}
    - {name: wider crops, train: {augmentation: {crop_min: 0.4}}}
    - {name: rematching, rate: 0.8, settings: {rematch: true}}

    python benchmarks/explore.py rsicd-light variations.yaml --dataset FOLDER --line pmpguard

Without a list, every line of the recipe is tried with the same grid of learning rates, so that none is left
untuned; the encoders' is given, the heads' keeps its ratio to it:

    python benchmarks/explore.py rsicd-light --learning_rates 1e-4 3e-4 1e-3 --rates 0.4 0.8 --dataset FOLDER

Rows go to benchmarks/results/explore.jsonl; variations that stand there with the same settings are skipped.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from pmpguard.device import pick_device
from pmpguard.evaluation.evaluate import encode_gallery, evaluate_scores
from pmpguard.experiments.grid import GridConfig, cell_config, merge, read_grid
from pmpguard.experiments.oracle import oracle_data
from pmpguard.experiments.rows import row_fingerprint
from pmpguard.experiments.run import (
    ExperimentConfig,
    PreparedDataset,
    deciding_settings,
    method_detection,
    prepare_dataset,
)
from pmpguard.noise.inject import corrupt_pairs
from pmpguard.training.distillation import STUDENT, TEACHER, train_with_distillation
from pmpguard.training.loop import TrainingData
from pmpguard.training.tracking import current_commit, describe_hardware

ROWS = Path(__file__).parent / "results" / "explore.jsonl"
SPLITS = ("train", "val")


def varied(grid: GridConfig, line: str, variation: dict[str, Any]) -> ExperimentConfig:
    """The run of one variation, with every setting."""
    chosen = next(each for each in grid.methods if each.name == line)
    chosen = replace(
        chosen,
        settings=merge(chosen.settings, variation.get("settings", {})),
        train=merge(chosen.train, variation.get("train", {})),
        oracle=variation.get("oracle", chosen.oracle),
    )
    rate, level, seed = (variation.get(key, usual) for key, usual in USUAL.items())
    return cell_config(grid, chosen, level, rate, seed)


def explore(grid: GridConfig, line: str, variation: dict[str, Any], data: PreparedDataset) -> dict[str, Any]:
    """Train one variation and measure it on validation by every ranking its model has."""
    experiment = varied(grid, line, variation)
    config, noise = experiment.train, experiment.noise
    device = pick_device(config.device)
    corruption = corrupt_pairs(data.table, noise.rate, config.seed, noise.level)
    is_noisy = corruption.is_noisy[np.array(data.table.column("split")) == "train"]
    table, pixels = corruption.table.split("train"), data.images["train"]
    known = None
    if experiment.oracle:
        table, pixels, known = oracle_data(config.method, table, pixels, is_noisy, device)
    wrong_shares: list[float] = []

    def observe(epoch: int, p_match: np.ndarray) -> dict[str, float]:
        wrong_shares.append(round(float(p_match[is_noisy].sum() / p_match.sum()), 4))
        return {}

    with tempfile.TemporaryDirectory() as folder:
        trained = train_with_distillation(
            config,
            TrainingData(table, pixels, data.gallery("val"), data.table.fingerprint, known=known),
            Path(folder),
            observe=None if experiment.oracle else observe,
        )
        runs = [Path(folder) / name for name in (TEACHER, STUDENT) if (Path(folder) / name).is_dir()]
        runs = runs or [Path(folder)]
        texts = [(path / "metrics.jsonl").read_text().splitlines() for path in runs]
    logged = [json.loads(text) for lines in texts for text in lines]
    model, gallery = trained.retriever.to(device).eval(), data.gallery("val")
    captions, images = encode_gallery(model, gallery, 256, config.precision)
    rankings = ["pooled", "awareness", "pooled+awareness"] + (
        ["gated", "awareness+gated"] if model.config.cross_gated.use else []
    )
    by_ranking = {
        name: evaluate_scores(model.score(captions, images, ranking=name), gallery.table).mr  # type: ignore[arg-type]
        for name in rankings
    }
    # by the model that is kept
    flagged = None if experiment.oracle else method_detection(trained.method, is_noisy)
    return {
        "val_mr": trained.best_mr,
        "best_epoch": trained.best_epoch,
        "model_kept": trained.model_kept,
        "curve": [round(entry["mr"], 2) for entry in logged if entry["kind"] == "validation"],
        "by_ranking": by_ranking,
        "detection_auroc": None if flagged is None else flagged.auroc,
        "wrong_share": wrong_shares,  # of all weight, at every round of one model, then of the second
        "estimated_rate": None if flagged is None else flagged.estimated_rate,
        "pairs_per_second": round(trained.pairs_per_second),
        "train_seconds": round(trained.seconds, 1),
        "gigabytes": round(torch.cuda.max_memory_allocated() / 1e9, 1) if device.type == "cuda" else None,
        "hardware": describe_hardware(device),
    }


def learning_rate_grid(
    grid: GridConfig, learning_rates: Sequence[float], rates: Sequence[float]
) -> list[dict[str, Any]]:
    """Every competitor with each learning rate at every mismatch rate; heads' keep the line's ratio."""
    found = []
    for line in grid.methods:
        if line.oracle or line.judge is not None:  # no competitor, or not at hand
            continue
        usual = cell_config(grid, line, "caption", 0.0, 0).train.optimiser
        for rate in rates:
            for chosen in learning_rates:
                optimiser = {"encoder_lr": chosen, "head_lr": chosen * usual.head_lr / usual.encoder_lr}
                name = f"learning rate {chosen:g}"
                found.append(
                    {"name": name, "line": line.name, "rate": rate, "train": {"optimiser": optimiser}}
                )
    return found


USUAL: dict[str, Any] = {"rate": 0.0, "level": "caption", "seed": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("variations", type=Path, nargs="?")
    parser.add_argument("--learning_rates", type=float, nargs="+", default=[], help="of the encoders")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.4, 0.8], help="with --learning_rates")
    parser.add_argument("--dataset", help="where the recipe's dataset lies")
    parser.add_argument("--line", default="pmpguard")
    parser.add_argument("--part", type=int, nargs=2, default=(0, 1), help="every second of two: 0 2 and 1 2")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no run after this long")
    parser.add_argument("--rows", type=Path, default=ROWS)
    options = parser.parse_args()
    started = time.perf_counter()
    grid = read_grid(options.recipe, {"dataset": options.dataset} if options.dataset else {})
    done = set()
    if options.rows.exists():
        done = {json.loads(line)["fingerprint"] for line in options.rows.read_text().splitlines()}
    data: PreparedDataset | None = None
    variations = learning_rate_grid(grid, options.learning_rates, options.rates)
    if options.variations is not None:
        variations += yaml.safe_load(options.variations.read_text())
    for variation in variations[options.part[0] :: options.part[1]]:
        line = variation.get("line", options.line)
        settings = deciding_settings(varied(grid, line, variation))
        identity = row_fingerprint(f"{line}, {variation['name']}", settings)
        if identity in done or time.perf_counter() - started > options.seconds:
            continue
        if data is None:
            data = prepare_dataset(cell_config(grid, grid.methods[0], "caption", 0.0, 0), SPLITS)
        began = time.perf_counter()
        row = {"line": line, **USUAL, **variation, **explore(grid, line, variation, data)}
        row |= {
            "settings": settings,
            "settings_known": "all",
            "fingerprint": identity,
            "seconds": round(time.perf_counter() - began, 1),
            "commit": current_commit(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        options.rows.parent.mkdir(parents=True, exist_ok=True)
        with options.rows.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        print(
            f"{row['name']} at {row['rate']:g}: validation mR {row['val_mr']:.2f}, {row['seconds']} s",
            flush=True,
        )
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
