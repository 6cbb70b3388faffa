"""`pmpguard train` and `pmpguard evaluate`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pmpguard
from pmpguard.config import to_dict
from pmpguard.data.images.sources import open_images
from pmpguard.data.splits import HoldOut
from pmpguard.device import pick_device
from pmpguard.evaluation.detection import RematchPrecision
from pmpguard.evaluation.evaluate import EvaluationReport, Gallery, evaluate_retriever
from pmpguard.experiments.downloads import require_dataset
from pmpguard.experiments.run import (
    SCENES,
    ExperimentConfig,
    NoiseConfig,
    prepare_dataset,
    read_dataset,
    resolve_experiment,
    run_experiment,
)
from pmpguard.files import require_writable
from pmpguard.models.config import Ranking
from pmpguard.safe_text import printable
from pmpguard.training.config import TrainConfig, resolve
from pmpguard.training.distributed import joined_processes
from pmpguard.training.interrupt import Interrupted

NO_NOISE, USUAL = NoiseConfig(), TrainConfig()
FROM_SCRATCH = (
    "note: the tiny encoders learn from scratch, which suits synthetic scenes and tests; "
    "--config frozen-light (no GPU) or --config light starts from pretrained ones"
)


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


def train_model(
    run: Path,
    dataset: str = SCENES,
    images: Path | None = None,
    scenes: int = 2000,
    noise: NoiseConfig = NO_NOISE,
    oracle: bool = False,
    train: TrainConfig = USUAL,
    hold_out: HoldOut | None = None,
    one_caption: bool = False,
    judge: Path | None = None,
    format: str | None = None,
    columns: str | None = None,
) -> TrainReport:
    """Train a retriever, select it on validation and measure it once on the test split.

    The run's folder holds config, metrics, noise file, checkpoints and model. Running the same command again
    continues where it stopped. Under torchrun all processes train together.

    Args:
        run: folder of the run.
        dataset: a dataset in any known format, or "scenes" for the synthetic scenes.
        images: folder of the images, where they are not beside the pairs.
        scenes: number of scenes of the synthetic scenes.
        noise: captions to make wrong, for experiments.
        oracle: train on the truly clean pairs alone, knowing the labels: a yardstick.
        train: method, model and optimisation.
        hold_out: images kept from training, for a dataset without splits of its own:
            --hold_out.test 500 --hold_out.val 500.
        one_caption: train with one caption of each image.
        judge: vectors of any CLIP (img_emb, text_emb and metadata, as clip-retrieval and `pmpguard embed`
            write them) or a model directory: one more kind of evidence on which pairs are mismatched.
        format: the dataset's format, where it cannot be told from the path.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
    """
    config = resolve_experiment(
        ExperimentConfig(
            dataset, images, scenes, noise, oracle, train, hold_out, one_caption, judge, format, columns
        )
    )
    pick_device(train.device)
    require_writable(run)
    if dataset != SCENES:
        require_dataset(Path(dataset))
        if "tiny" in (train.model.vision, train.model.text):
            tell_main(FROM_SCRATCH)
    try:
        with joined_processes(train.device):
            result = run_experiment(config, run, tell=tell_main)
    except Interrupted as stop:
        return TrainReport(run, {"interrupted": str(stop)}, str(stop), exit_code=130)
    trained, told = result.trained, result.row.metrics
    judged = {name.removeprefix("detection_"): value for name, value in told.items() if "detection" in name}
    which = f"model {trained.model_kept} of 2, " if trained.models_trained == 2 else ""
    lines = [
        result.test.as_text(),
        *([] if not judged else [describe_detection(judged)]),
        *(
            [describe_rematching(result.rematching)]
            if result.rematching and result.rematching.proposals
            else []
        ),
        f"selected {which}epoch {trained.best_epoch} on validation (mR {trained.best_mr:.2f}), "
        f"{trained.pairs_per_second:,.0f} pairs/s, model in {run / 'model'}",
        f"curves and settings in a browser: {run / 'index.html'}",
    ]
    return TrainReport(run, {**result.test.as_dict(), "row": to_dict(result.row)}, "\n".join(lines))


def tell_main(text: str) -> None:
    """Say on stderr what goes on; of several processes that train together the first one speaks."""
    if os.environ.get("RANK", "0") == "0":
        print(printable(text), file=sys.stderr, flush=True)


def check_given(options: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Settings of the model that the method decides may not be given with another value."""
    if "train" in given:
        resolve(options["train"], given["train"].get("model", {}))


train = train_model  # the verb; a parser takes no option of its function's own name


def describe_detection(found: Mapping[str, float]) -> str:
    """One line on what detection estimated and how true it was."""
    injected = f"{found['true_rate']:.3f} injected" if found["true_rate"] else "none injected"
    rates = f"estimated mismatch rate {found['estimated_rate']:.3f}, " if "estimated_rate" in found else ""
    names = {"auroc": "AUROC", "f1": "F1"}
    quality = [f"{title} {found[name]:.3f}" for name, title in names.items() if name in found]
    return f"detection: {', '.join([rates + injected, *quality])}"


def describe_rematching(found: RematchPrecision) -> str:
    """One line on what was proposed for flagged pairs and how true it was."""
    right = f", {found.same_image:.1%} for the right image" if found.same_image is not None else ""
    classed = f", {found.same_class:.1%} of its scene class" if found.same_class is not None else ""
    return f"rematching: {found.proposals} captions proposed{right}{classed}"


def evaluate(
    model: Path,
    dataset: str = SCENES,
    split: str = "test",
    images: Path | None = None,
    scenes: int = 2000,
    rankings: list[Ranking] | None = None,
    shortlist: int | None = None,
    bootstrap: int = 1000,
    device: str = "auto",
    hold_out: HoldOut | None = None,
    format: str | None = None,
    columns: str | None = None,
) -> EvaluationReport:
    """Measure any model directory on any dataset: recalls both ways, with seconds and memory.

    Args:
        model: directory of a trained model, or of a CLIP.
        dataset: a dataset in any known format, or "scenes" for the synthetic scenes.
        split: which split to retrieve in.
        images: folder of the images, where they are not beside the pairs.
        scenes: number of scenes of the synthetic scenes.
        rankings: further rankings to report beside the model's own (awareness, gated, awareness+gated,
            pooled, pooled+awareness).
        shortlist: re-rank only this many candidates found by pooled vectors; by default all pairs are scored.
        bootstrap: resamples for the 95 % interval, 0 for none.
        device: where the model runs: "auto", "cpu" or "cuda".
        hold_out: as in training, for a dataset without splits of its own.
        format: the dataset's format, where it cannot be told from the path.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
    """
    chosen = pick_device(device)
    retriever = pmpguard.load(model).to(chosen)
    measured = TrainConfig(model=retriever.config, device=device)
    settings = ExperimentConfig(
        dataset, images, scenes, train=measured, hold_out=hold_out, format=format, columns=columns
    )
    if dataset == SCENES:
        gallery = prepare_dataset(settings, (split,)).gallery(split)
    else:
        require_dataset(Path(dataset))
        table = read_dataset(settings).split(split)
        opened = open_images(table, retriever.config.input_size, chosen, framing=retriever.framing)
        gallery = Gallery(table, opened)
    return evaluate_retriever(
        retriever,
        gallery,
        split=split,
        rankings=rankings,
        shortlist=shortlist,
        bootstrap=bootstrap,
        device=chosen,
    )
