"""`pmpguard train` and `pmpguard evaluate`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pmpguard
from pmpguard.config import to_dict
from pmpguard.data.formats import read_pairs
from pmpguard.evaluation.detection import Detection
from pmpguard.evaluation.evaluate import EvaluationReport, Gallery, evaluate_retriever
from pmpguard.training.config import TrainConfig
from pmpguard.training.experiment import SCENES, ExperimentConfig, NoiseConfig, prepare_dataset, run_experiment
from pmpguard.training.loop import Interrupted, pick_device
from pmpguard.training.pictures import open_pictures


@dataclass(frozen=True)
class TrainReport:
    """What `pmpguard train` prints."""

    run: Path
    values: dict[str, Any]
    text: str
    exit_code: int = 0

    def as_dict(self) -> dict[str, Any]:
        return {"run": str(self.run), **self.values}

    def as_text(self) -> str:
        return self.text


def train(
    run: Path,
    dataset: str = SCENES,
    images: Path | None = None,
    scenes: int = 2000,
    noise: NoiseConfig = NoiseConfig(),
    oracle: bool = False,
    train: TrainConfig = TrainConfig(),
) -> TrainReport:
    """Train a retriever, select it on validation and measure it once on the test split.

    The run's folder holds config, metrics, noise file, checkpoints and model. Running the same command again
    continues where it stopped.

    Args:
        run: folder of the run.
        dataset: a dataset in any known format, or "scenes" for the embedded world.
        images: folder of the pictures, where they are not beside the pairs.
        scenes: number of scenes of the embedded world.
        noise: captions to make wrong, for experiments.
        oracle: train on the truly clean pairs alone, knowing the labels: a yardstick.
        train: method, model and optimisation.
    """
    config = ExperimentConfig(dataset, images, scenes, noise, oracle, train)
    try:
        result = run_experiment(config, run)
    except Interrupted as stop:
        return TrainReport(run, {"interrupted": str(stop)}, str(stop), exit_code=130)
    catching = describe_catching(result.detection) if result.detection is not None else ""
    text = "\n".join(
        part for part in (
            result.test.as_text(), catching,
            f"selected epoch {result.trained.best_epoch} on validation (mR {result.trained.best_mr:.2f}), "
            f"{result.trained.pairs_per_second:,.0f} pairs/s, model in {run / 'model'}",
        ) if part
    )  # fmt: skip
    return TrainReport(run, {**result.test.as_dict(), "row": to_dict(result.row)}, text)


def describe_catching(found: Detection) -> str:
    """One line on what catching estimated and how true it was."""
    quality = f", AUROC {found.auroc:.3f}, F1 {found.f1:.3f}" if found.auroc is not None else ""
    return f"catching: estimated mismatch rate {found.estimated_rate:.3f}, true {found.true_rate:.3f}{quality}"


def evaluate(
    model: Path,
    dataset: str = SCENES,
    split: str = "test",
    images: Path | None = None,
    scenes: int = 2000,
    rankings: list[str] | None = None,
    shortlist: int | None = None,
    bootstrap: int = 1000,
    device: str = "auto",
) -> EvaluationReport:
    """Measure any model directory on any dataset: recalls both ways, with seconds and memory.

    Args:
        model: a model directory.
        dataset: a dataset in any known format, or "scenes" for the embedded world.
        split: which split to retrieve in.
        images: folder of the pictures, where they are not beside the pairs.
        scenes: number of scenes of the embedded world.
        rankings: further rankings to report beside the model's own (S, z, S+z, pooled, pooled+S).
        shortlist: re-rank only this many candidates found by pooled vectors; by default all pairs are scored.
        bootstrap: resamples for the 95 % interval, 0 for none.
        device: "auto", "cpu" or "cuda".
    """
    chosen = pick_device(device)
    retriever = pmpguard.load(model).to(chosen)
    size = retriever.config.image_size
    if dataset == SCENES:
        settings = ExperimentConfig(scenes=scenes, train=TrainConfig(model=retriever.config, device=device))
        gallery = prepare_dataset(settings, (split,)).gallery(split)
    else:
        table = read_pairs(Path(dataset), images=images).split(split)
        gallery = Gallery(table, open_pictures(table, size, chosen))
    return evaluate_retriever(
        retriever, gallery, split=split, rankings=rankings, shortlist=shortlist, bootstrap=bootstrap, device=chosen
    )
