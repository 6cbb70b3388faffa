"""What the estimate before a training says, and what the training then takes, in three configurations.

    python benchmarks/training_estimates.py [--scenes 1000] [--cases infonce pmpguard frozen-light]

Run it on an idle machine. Cases that are not named keep what an earlier run has written of them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from pmpguard.config import from_dict
from pmpguard.experiments.recipe_names import find_recipe
from pmpguard.experiments.run import (
    ExperimentConfig,
    NoiseConfig,
    prepare_dataset,
    resolve_experiment,
    run_experiment,
)
from pmpguard.models.config import preset
from pmpguard.training.config import TrainConfig
from pmpguard.training.estimate import training_estimate
from pmpguard.training.tracking import current_commit, describe_hardware

CASES = ("infonce", "pmpguard", "frozen-light")
OUT = Path(__file__).parent / "results" / "training_estimates.json"


def training_of(case: str, device: str) -> TrainConfig:
    """Tiny encoders that are trained, or the recipe of frozen light ones."""
    if case in ("infonce", "pmpguard"):
        return TrainConfig(case, model=preset("tiny"), epochs=4, device=device)
    plain = yaml.safe_load(find_recipe(case, "train").read_text(encoding="utf-8"))
    return replace(from_dict(TrainConfig, plain["train"], case), device=device)


def measured(case: str, scenes: int, device: str) -> dict[str, Any]:
    """Seconds and gigabytes: as estimated, and the seconds that went by."""
    config = resolve_experiment(
        ExperimentConfig(scenes=scenes, noise=NoiseConfig(0.4), train=training_of(case, device))
    )
    data = prepare_dataset(config)
    parts = data.table.split("train"), data.images["train"]
    began = time.perf_counter()
    estimated = training_estimate(*parts, config.train, held_out=data.table.split("val"))
    estimating = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run_experiment(config, Path(folder) / "run", data)
        took = time.perf_counter() - began
    return {
        "estimated_s": round(estimated.seconds, 1), "took_s": round(took, 1),
        "ratio": round(estimated.seconds / took, 2), "estimating_s": round(estimating, 1),
        "memory_gb": round(estimated.memory / 1e9, 2),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    known = json.loads(options.out.read_text()) if options.out.exists() else {"cases": {}}
    for case in options.cases:
        found = measured(case, options.scenes, options.device)
        known["cases"][case] = {**found, "commit": current_commit()}
        print(case, known["cases"][case], flush=True)
        facts = {"scenes": options.scenes, "hardware": describe_hardware(options.device)}
        known |= {**facts, "commit": current_commit()}
        options.out.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
