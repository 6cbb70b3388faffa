"""`pmpguard demo`: the main job on the synthetic scenes, from wrong captions to a page of flagged pairs."""

from __future__ import annotations

import io
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from pmpguard.cli.caught_page import CaughtPair, MarkedWord, PageSummary, write_caught_page
from pmpguard.config import to_dict
from pmpguard.data.images.sources import ImagesInMemory
from pmpguard.data.images.transforms import Augmentation
from pmpguard.errors import MissingExtraError, require
from pmpguard.experiments.run import (
    ExperimentConfig,
    ExperimentResult,
    NoiseConfig,
    PreparedDataset,
    prepare_dataset,
    run_experiment,
)
from pmpguard.files import write_json
from pmpguard.models.config import RetrieverConfig, preset
from pmpguard.models.encoders.image import EncoderOptions
from pmpguard.models.retriever import Retriever
from pmpguard.training.config import OptimiserConfig, TrainConfig

METHODS = ("infonce", "pmpguard")
# Words that no image can show: never marked.
FUNCTION_WORDS = {
    *("a", "an", "the", "of", "in", "on", "at", "by", "to", "and", "or", "with", "is", "are", "there"),
    *("this", "that", "its", "it", "has", "have", "some", "many", "next", "near", "from", "here", "can"),
    *("be", "seen", "one", "all", "which", "while", "as", "into", "for"),
}


@dataclass(frozen=True)
class DemoReport:
    """What the demo measured and where it put things."""

    out: Path
    results: dict[str, ExperimentResult]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        rows = {name: to_dict(result.row) for name, result in self.results.items()}
        return {"out": str(self.out), "seconds": round(self.seconds, 1), "rows": rows}

    def as_text(self) -> str:
        lines = [f"{'':>10}  i2t R@1   R@5  R@10   t2i R@1   R@5  R@10      mR"]
        for name, result in self.results.items():
            i2t, t2i = result.test.recall.i2t, result.test.recall.t2i
            cells = " ".join(f"{value:5.1f}" for value in i2t), " ".join(f"{value:5.1f}" for value in t2i)
            lines.append(f"{name:>10}    {cells[0]}     {cells[1]}   {result.test.recall.mr:5.1f}")
        lines += [f"{name}: {value}" for name, value in summary_lines(self.results["pmpguard"])]
        lines += [
            f"model    {self.out / 'pmpguard' / 'model'}",
            f"page     {self.out / 'flagged.html'}",
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
    pairs: int = 24,
) -> DemoReport:
    """Mismatch captions of synthetic scenes, train plain InfoNCE and PMPGuard, show what was flagged.

    Args:
        out: folder for the runs, the plot and the page of flagged pairs.
        scenes: number of scenes.
        rate: share of the training captions that are made wrong.
        seed: of the noise and the training.
        epochs: of each training.
        encoders: frozen pretrained ones (extra "weights"), or tiny ones trained from scratch.
        pairs: flagged pairs on the page.
    """
    started = time.perf_counter()
    base = demo_config(scenes, rate, seed, epochs, encoders)
    data = prepare_dataset(base)
    results = {}
    for method in METHODS:
        config = replace(base, train=replace(base.train, method=method, settings=SETTINGS.get(method, {})))
        results[method] = run_experiment(config, out / method, data)
    report = DemoReport(out, results, time.perf_counter() - started)
    curve = learning_curves(out)
    if curve is not None:
        (out / "learning.png").write_bytes(curve)
    guarded = results["pmpguard"]
    title = f"PMPGuard on the synthetic scenes, {rate:.0%} of the captions wrong"
    flagged = flagged_pairs(guarded, data, pairs)
    write_caught_page(out / "flagged.html", PageSummary(title, tuple(summary_lines(guarded))), flagged, curve)
    write_json(out / "report.json", report.as_dict())
    return report


SETTINGS: dict[str, dict[str, Any]] = {
    "pmpguard": {"cga": False, "rematch": False, "ranking": "pooled+awareness", "calibration_epochs": 6}
}


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


def flagged_pairs(result: ExperimentResult, data: PreparedDataset, most: int) -> list[CaughtPair]:
    """The pairs with the lowest p(match), one per image, with their words explained."""
    method, retriever = result.trained.method, result.trained.retriever.eval()
    if method.p_match is None or method.proposed_caption is None or method.proposed_probability is None:
        return []
    table, clean = result.corruption.table.split("train"), data.table.split("train")
    p_match = method.p_match.cpu().numpy()
    order = np.argsort(p_match, kind="stable")
    order = order[p_match[order] < 0.5]
    _, first = np.unique(table.image_codes[order], return_index=True)
    captions = table.captions
    texts = dict(zip(table.caption_codes.tolist(), captions, strict=True))
    labels = clean.column("label")
    class_of = dict(zip(clean.captions, labels, strict=True))
    wrong = result.corruption.is_noisy[np.array(data.table.column("split")) == "train"]
    images = data.images["train"]
    assert isinstance(images, ImagesInMemory)
    flagged = []
    for row in order[np.sort(first)][:most]:
        image = Image.fromarray(images.pixels[table.image_codes[row]].permute(1, 2, 0).cpu().numpy())
        proposal = texts[int(method.proposed_caption[row])]
        flagged.append(
            CaughtPair(
                pair_id=table.arrow["pair_id"][int(row)].as_py(),
                image=image,
                caption=mark_words(retriever, captions[row], image, supported=False),
                p_match=float(p_match[row]),
                proposal=mark_words(retriever, proposal, image, supported=True),
                proposal_probability=float(method.proposed_probability[row]),
                label=labels[row],
                truly_wrong=bool(wrong[row]),
                proposal_right=class_of.get(proposal) == labels[row],
            )
        )
    return flagged


def mark_words(
    retriever: Retriever, text: str, image: Image.Image, *, supported: bool
) -> tuple[MarkedWord, ...]:
    """Each word with how well it is found in the image; marked are the found ones, or those that are not.

    Found means nearer to what matched words score than to what mismatched ones do.
    """
    matched, _, mismatched, _ = retriever.boundary.gaussians()
    middle = float(matched + mismatched) / 2
    words = []
    for word in retriever.explain(text, image).words:
        best = float(word.regions.max())
        shown = word.word.isalpha() and word.word.lower() not in FUNCTION_WORDS
        words.append(MarkedWord(word.word, best, shown and (best >= middle) == supported))
    return tuple(words)


def learning_curves(out: Path) -> bytes | None:
    """Validation mR by epoch of both methods as a PNG; None without matplotlib."""
    try:
        figures = require("matplotlib.figure", "plots")
    except MissingExtraError:
        return None
    figure = figures.Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for method, colour in zip(METHODS, ("tab:red", "tab:green"), strict=True):
        lines = (out / method / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        records = [record for record in map(json.loads, lines) if record["kind"] == "validation"]
        epochs = [record["epoch"] + 1 for record in records]
        axes.plot(epochs, [record["mr"] for record in records], "o-", color=colour, label=method)
    axes.set(xlabel="epoch", ylabel="validation mR", title="Learning from partly wrong captions")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.legend()
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return buffer.getvalue()
