"""What detection costs of an epoch, and what it finds, with the training set encoded anew or as steps saw it.

PMPGuard is trained twice on pairs with 40 % mismatched captions, with `look: anew` and with `look: steps`.
Of every epoch the processor time of the look (encoding and judging) and that of the steps are taken; the
first epoch's look comes before any training and is told apart. The pairs are drawn scenes with tiny encoders,
trained whole, and where a folder is given the first images of RSICD with frozen light encoders.

    python benchmarks/detection_cost.py [--images 700] [--epochs 4] [--rsicd FOLDER] [--cases scenes rsicd]

Cases that are not named keep what an earlier run has written of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pmpguard.cli.demo import demo_config
from pmpguard.data.images.sources import open_images
from pmpguard.experiments.run import (
    ExperimentConfig,
    PreparedDataset,
    prepare_dataset,
    read_dataset,
    run_experiment,
)
from pmpguard.training import loop
from pmpguard.training.tracking import current_commit, describe_hardware

RATE = 0.4
AIM = {"share_of_an_epoch": 0.15, "auroc_lost": 0.003}
OUT = Path(__file__).parent / "results" / "detection_cost.json"


def timed(name: str, spent: dict[str, list[float]]) -> Callable[..., Any]:
    original = getattr(loop, name)

    def call(*arguments: Any) -> Any:
        began = time.process_time()
        try:
            return original(*arguments)
        finally:
            spent[name].append(time.process_time() - began)

    return call


def first_images(config: ExperimentConfig, train: int) -> PreparedDataset:
    """So many images of the training split, and a fifth as many of each of the others."""
    table = read_dataset(config)
    splits = np.array(table.column("split"))
    kept = np.zeros(len(table), bool)
    for name in ("train", "val", "test"):
        part = table.split(name)
        kept[splits == name] = part.image_codes < (train if name == "train" else train // 5)
    table = table.filter(kept)
    size, framing = config.train.model.input_size, config.train.model.framing
    images = {
        name: open_images(table.split(name), size, torch.device("cpu"), "always", framing=framing)
        for name in table.splits()
    }
    return PreparedDataset(table, images)


def measure(config: ExperimentConfig, data: PreparedDataset) -> dict[str, Any]:
    spent: dict[str, list[float]] = {"plan_epoch": [], "take_steps": []}
    originals = {name: getattr(loop, name) for name in spent}
    for name in spent:
        setattr(loop, name, timed(name, spent))
    try:
        with tempfile.TemporaryDirectory() as run:
            found = run_experiment(config, Path(run), data)
    finally:
        for name, original in originals.items():
            setattr(loop, name, original)
    looks, steps = spent["plan_epoch"][1:], spent["take_steps"][1:]
    assert found.detection is not None
    return {
        "share_of_an_epoch": round(sum(looks) / (sum(looks) + sum(steps)), 4),
        "look_seconds": round(sum(looks) / len(looks), 3),
        "step_seconds": round(sum(steps) / len(steps), 3),
        "first_look_seconds": round(spent["plan_epoch"][0], 2),
        "auroc": found.detection.auroc,
        "estimated_rate": found.detection.estimated_rate,
        "true_rate": found.detection.true_rate,
        "test_mr": found.test.recall.mr,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=["scenes"], choices=["scenes", "rsicd"])
    parser.add_argument("--rsicd", type=Path, help="folder of RSICD")
    parser.add_argument("--images", type=int, default=700, help="to train on: scenes, or images of RSICD")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    cases: dict[str, Any] = json.loads(options.out.read_text())["cases"] if options.out.is_file() else {}
    for case in options.cases:
        encoders = "light" if case == "rsicd" else "tiny"
        base = demo_config(options.images, RATE, 0, options.epochs, encoders)
        settings = {"calibration_epochs": options.epochs // 2}
        base = replace(base, train=replace(base.train, settings=settings, checkpoint_every=-1))
        if case == "rsicd":
            base = replace(base, dataset=str(options.rsicd))
            data = first_images(base, options.images)
        else:
            data = prepare_dataset(base)
        runs = []
        for seed in options.seeds:
            pair = {
                look: measure(replace(base, train=replace(base.train, seed=seed, look=look)), data)
                for look in ("anew", "steps")
            }
            lost = round(pair["anew"]["auroc"] - pair["steps"]["auroc"], 5)
            runs.append({"seed": seed, **pair, "auroc_lost": lost})
            print(case, json.dumps(runs[-1]), flush=True)
        cases[case] = {
            "pairs": len(data.table.split("train")), "epochs": options.epochs, "runs": runs,
            "met": {
                look: all(run[look]["share_of_an_epoch"] <= AIM["share_of_an_epoch"] for run in runs)
                for look in ("anew", "steps")
            } | {"auroc": all(run["auroc_lost"] <= AIM["auroc_lost"] for run in runs)},
        }  # fmt: skip
    result = {
        "aim": AIM,
        "rate": RATE,
        "cases": cases,
        "commit": current_commit(),
        "hardware": describe_hardware(),
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
