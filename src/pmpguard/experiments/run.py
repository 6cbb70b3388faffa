"""One measured run: corrupt, train, select on validation, read the test split once, write down a row."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from pmpguard.config import fingerprint, to_dict
from pmpguard.data.formats import read_pairs
from pmpguard.data.images.framing import Framing
from pmpguard.data.images.sources import ImagesInMemory, ImageSource, open_images
from pmpguard.data.known_datasets import named_as_stand_in
from pmpguard.data.pairs import PairTable
from pmpguard.data.splits import HoldOut, draw_splits, keep_one_caption, with_captions
from pmpguard.detection.rematch import Proposals
from pmpguard.device import pick_device
from pmpguard.errors import ConfigError, DataError
from pmpguard.evaluation.detection import Detection, RematchPrecision, measure_detection, rematch_precision
from pmpguard.evaluation.evaluate import EvaluationReport, Gallery, evaluate_retriever
from pmpguard.experiments.oracle import oracle_data
from pmpguard.experiments.rows import ResultRow, row_fingerprint
from pmpguard.experiments.run_page import write_run_page
from pmpguard.files import sha256_file
from pmpguard.methods.method import Method
from pmpguard.models.config import Ranking
from pmpguard.noise.inject import Corruption, corrupt_pairs
from pmpguard.noise.manifest import apply_manifest, save_manifest
from pmpguard.remote import as_path
from pmpguard.synthetic.scenes import synthetic_scenes
from pmpguard.training.config import TrainConfig, resolve
from pmpguard.training.distillation import train_with_distillation
from pmpguard.training.estimate import training_estimate
from pmpguard.training.loop import TrainingData, TrainResult
from pmpguard.training.outside_judge import JudgeVectors, judge_vectors, read_judge
from pmpguard.training.tracking import current_commit, describe_hardware

SCENES = "scenes"
log = logging.getLogger("pmpguard")


@dataclass(frozen=True)
class NoiseConfig:
    """Which training captions are made wrong.

    Args:
        rate: share of the pairs (or images) that are mismatched.
        level: "caption" replaces single captions, "image" all captions of an image.
        seed: seed of the corruption; by default the run's own.
        file: a noise file that `pmpguard corrupt` wrote, to use instead of drawing one.
    """

    rate: float = 0.0
    level: Literal["caption", "image"] = "caption"
    seed: int | None = None
    file: Path | None = None


@dataclass(frozen=True)
class ExperimentConfig:
    """A dataset, its corruption and a training run.

    Args:
        dataset: a dataset in any known format, or "scenes" for the synthetic scenes.
        images: folder of the images, where they are not beside the pairs.
        scenes: number of scenes of the synthetic scenes.
        noise: which captions are made wrong.
        oracle: train on the truly clean pairs alone, knowing the labels: no competitor, a yardstick. A method
            that weights pairs is told which are right and sees the same batches as without; others get the
            clean pairs only.
        train: the training run.
        hold_out: images kept from training, for a dataset without splits of its own.
        one_caption: train with one caption of each image (`keep_one_caption`), as archives have them.
        judge: a folder of embeddings or a model that helps to flag pairs, as far as it agrees with the rest.
        format: the dataset's format, where it cannot be told from the path.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
    """

    dataset: str = SCENES
    images: Path | None = None
    scenes: int = 2000
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    oracle: bool = False
    train: TrainConfig = field(default_factory=TrainConfig)
    hold_out: HoldOut | None = None
    one_caption: bool = False
    judge: Path | None = None
    format: str | None = None
    columns: str | None = None


@dataclass(frozen=True)
class PreparedDataset:
    """A dataset with its splits' images opened once, for any number of runs."""

    table: PairTable
    images: Mapping[str, ImageSource]

    def gallery(self, split: str) -> Gallery:
        return Gallery(self.table.split(split), self.images[split])


@dataclass(frozen=True, repr=False)
class ExperimentResult:
    """A trained model with everything measured on it."""

    row: ResultRow
    trained: TrainResult
    test: EvaluationReport
    detection: Detection | None
    rematching: RematchPrecision | None
    corruption: Corruption

    def __repr__(self) -> str:
        row, found = self.row, self.detection
        lines = [f"{row.method} on {row.dataset}, {row.rate:.0%} mismatched: mR {row.metrics['mr']:.2f}"]
        if found is not None:
            lines.append(f"  noise rate estimated {found.estimated_rate:.3f}, true {found.true_rate:.3f}")
        return "\n".join(lines)


def resolve_experiment(config: ExperimentConfig) -> ExperimentConfig:
    """With every setting that its training run, its noise and its splits are decided by."""
    noise = config.noise if config.noise.seed is not None else replace(config.noise, seed=config.train.seed)
    return replace(config, train=resolve(config.train), noise=noise)


def deciding_settings(config: ExperimentConfig) -> dict[str, Any]:
    """A resolved experiment as plain values, without where files lie and which device computes."""
    plain = to_dict(config)
    plain["dataset"] = Path(config.dataset).name
    del plain["images"], plain["format"], plain["train"]["device"]
    for name in ("columns", "one_caption", "judge"):  # say nothing where they are not used
        if not plain[name]:
            del plain[name]
    if config.train.model.fit == "squash":
        del plain["train"]["model"]["fit"]
    if config.train.look == "anew":
        del plain["train"]["look"]
    if config.judge is not None:
        plain["judge"] = config.judge.name
    if config.noise.file is not None:
        plain["noise"]["file"] = f"{config.noise.file.name}, sha256 {sha256_file(config.noise.file)[:16]}"
    return dict(plain)


def read_dataset(config: ExperimentConfig) -> PairTable:
    """The pairs with their own splits, or with those that holding out images makes."""
    path = as_path(config.dataset)
    table = read_pairs(path, config.columns, format=config.format, images=config.images)
    table = with_captions(named_as_stand_in(table, path))
    table = table if config.hold_out is None else draw_splits(table, config.hold_out)
    return keep_one_caption(table) if config.one_caption else table


def prepare_dataset(
    config: ExperimentConfig,
    splits: tuple[str, ...] = ("train", "val", "test"),
    framing: Framing | None = None,
) -> PreparedDataset:
    """Read the pairs and open the images of every needed split."""
    device, size = pick_device(config.train.device), config.train.model.input_size
    if config.dataset == SCENES:
        world = synthetic_scenes(config.scenes, seed=0, size=size)
        images: dict[str, ImageSource] = {}
        for split in splits:
            rows = world.table.split(split)
            chosen = world.table.image_codes[np.flatnonzero(np.array(world.table.column("split")) == split)]
            order = chosen[rows.first_rows]
            images[split] = ImagesInMemory(world.images[torch.from_numpy(order)], device)
        return PreparedDataset(keep_one_caption(world.table) if config.one_caption else world.table, images)
    table = read_dataset(config)
    enough = min(500, -(-len(table.first_rows) // 10))
    for split in splits:
        if split not in table.splits():
            raise DataError(
                f"{config.dataset}: no split {split!r}, which is needed to "
                + {"train": "train on", "val": "select the model", "test": "measure it"}[split],
                fix=f"it has {', '.join(table.splits())}; --hold_out.test {enough} --hold_out.val {enough} "
                "keeps so many images from training instead",
            )
    train, framing = config.train, framing or config.train.model.framing
    keep = train.cache_images, train.cache_images_gb
    opened = {split: open_images(table.split(split), size, device, *keep, framing) for split in splits}
    return PreparedDataset(table, opened)


def corrupt_dataset(table: PairTable, noise: NoiseConfig, seed: int) -> Corruption:
    """The corruption of the training split that a config asks for: from a file, or drawn."""
    if noise.file is None:
        return corrupt_pairs(table, noise.rate, noise.seed if noise.seed is not None else seed, noise.level)
    corruption = apply_manifest(table, noise.file)
    if corruption.split != "train":
        raise DataError(
            f"{noise.file}: corrupts split {corruption.split!r}, but training reads 'train'",
            fix="make a noise file of the training split: pmpguard corrupt --split train",
        )
    return corruption


def noise_fingerprint(corruption: Corruption, oracle: bool) -> str:
    """Identifies what a run trains on; two noise files never share it, nor do a run and its oracle."""
    drawn = corruption.requested_rate, corruption.level, corruption.seed, corruption.mode, corruption.split
    return fingerprint([*drawn, corruption.table.fingerprint, oracle])


def run_experiment(
    config: ExperimentConfig,
    run: Path,
    data: PreparedDataset | None = None,
    tell: Callable[[str], None] | None = None,
) -> ExperimentResult:
    """Train as configured in folder `run` (continuing what is there) and measure the selected model.

    The injected labels go to the detection metric only, and to the `oracle`, which is told so. `tell` is told
    beforehand how long a new run takes.
    """
    started = time.perf_counter()
    config = resolve_experiment(config)
    data = data or prepare_dataset(config)
    device = pick_device(config.train.device)
    if tell is not None and not (run / "metrics.jsonl").exists():
        parts = data.table.split("train"), data.images["train"]
        needs = training_estimate(*parts, config.train, held_out=data.table.split("val"))
        epochs = "one epoch" if config.train.epochs == 1 else f"{config.train.epochs} epochs"
        tell(f"training for {epochs} by {config.train.method} takes {needs} here")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    corruption = corrupt_dataset(data.table, config.noise, config.train.seed)
    if corruption.effective_rate >= 1:
        log.warning("%s: every training caption is wrong, there is nothing true to learn", data.table.name)
    is_noisy = corruption.is_noisy[np.array(data.table.column("split")) == "train"]
    train_table, images = corruption.table.split("train"), data.images["train"]
    known = judge = None
    noise = noise_fingerprint(corruption, config.oracle)
    if config.judge is not None:
        judge = read_training_judge(config, config.judge, train_table)
        noise = fingerprint([noise, judge.fingerprint])
    if config.oracle:
        train_table, images, known = oracle_data(config.train.method, train_table, images, is_noisy, device)

    def observe(epoch: int, p_match: np.ndarray) -> dict[str, float]:
        return {f"true_{key}": value for key, value in measure_detection(p_match, is_noisy).as_dict().items()}

    trained = train_with_distillation(
        config.train,
        TrainingData(
            train_table,
            images,
            data.gallery("val"),
            data.table.fingerprint,
            noise,
            known,
            judge,
            record=lambda: save_manifest(corruption, run / "noise.json"),
        ),
        run,
        observe=None if config.oracle else observe,
    )
    test = evaluate_retriever(
        trained.retriever,
        data.gallery("test"),
        split="test",
        device=device,
        precision=config.train.precision,
        rankings=extra_rankings(trained),
    )
    detection = rematching = None
    if not config.oracle:
        detection = method_detection(trained.method, is_noisy)
        rematching = method_rematching(trained.method, data.table.split("train"), train_table)
    name = "oracle" if config.oracle else config.train.method
    settings = deciding_settings(config)
    row = ResultRow(
        dataset=data.table.name,
        method=name,
        level=corruption.level,
        rate=corruption.requested_rate,
        seed=config.train.seed,
        encoder=f"{config.train.model.vision}+{config.train.model.text}",
        selected_on="val",
        metrics=row_metrics(trained, test, detection, rematching, corruption),
        settings=settings,
        fingerprint=row_fingerprint(name, settings),
        noise_sha256=sha256_file(run / "noise.json"),
        commit=current_commit(),
        hardware=describe_hardware(device),
        seconds=round(time.perf_counter() - started, 2),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )
    write_run_page(run, row.metrics, test.recall.intervals, test.notes())
    return ExperimentResult(row, trained, test, detection, rematching, corruption)


def read_training_judge(config: ExperimentConfig, folder: Path, table: PairTable) -> JudgeVectors:
    """What the judge from outside makes of the training pairs."""
    if config.oracle:
        raise ConfigError("oracle: it is told which pairs are right and asks no judge", fix="leave one out")

    def opened(size: int, framing: Framing) -> ImageSource:
        model = replace(config.train.model, image_size=size)
        sized = replace(config, train=replace(config.train, model=model))
        return prepare_dataset(sized, ("train",), framing).images["train"]

    return judge_vectors(read_judge(folder), table, opened, pick_device(config.train.device))


def extra_rankings(trained: TrainResult) -> list[Ranking]:
    """Every other ranking the trained model offers, reported beside its own."""
    model = trained.retriever.config
    gated: list[Ranking] = ["gated", "awareness+gated"] if model.cross_gated.use else []
    return [] if model.ranking == "pooled" else ["pooled", "awareness", *gated]


def method_detection(method: Method, is_noisy: np.ndarray) -> Detection | None:
    """The final verdicts against the truth; None for a method that judges no pairs."""
    if method.p_match is None:
        return None
    p_match = method.p_match.float().cpu().numpy()
    rate = -1.0 if method.estimated_rate is None else float(method.estimated_rate)
    return measure_detection(p_match, is_noisy, estimated_rate=rate if rate >= 0 else None)


def method_rematching(method: Method, clean: PairTable, trained_on: PairTable) -> RematchPrecision | None:
    """The captions proposed for flagged pairs' images against the clean ones; None where there are none.

    Proposals number captions as the table trained on does. A caption that was written anew describes no
    image.
    """
    proposals = flagged_proposals(method, trained_on)
    if proposals is None:
        return None
    number_of = dict(zip(trained_on.captions, trained_on.caption_codes.tolist(), strict=True))
    known = [(number_of.get(caption, -1), image)
             for caption, image in zip(clean.captions, clean.image_codes.tolist(), strict=True)]  # fmt: skip
    described = [pair for pair in known if pair[0] >= 0] or [(-1, 0)]  # nothing true is left
    labels = clean.column("label")
    classes = {label: number for number, label in enumerate(sorted({label for label in labels if label}))}
    if not classes:
        return rematch_precision(proposals, described)
    image_class = [classes.get(labels[row], -1) for row in clean.first_rows]
    caption_class = np.full(len(number_of), -2)  # without a known class it equals no image's
    for (number, _), label in zip(known, labels, strict=True):
        if number >= 0 and label in classes:
            caption_class[number] = classes[label]
    return rematch_precision(proposals, described, image_class=image_class, caption_class=caption_class)


def flagged_proposals(method: Method, trained_on: PairTable) -> Proposals | None:
    """What the method proposes for the image of every pair it flagged, each image once."""
    if method.p_match is None or method.proposed_caption is None or method.proposed_probability is None:
        return None
    captions = method.proposed_caption.cpu().numpy()
    probabilities = method.proposed_probability.double().cpu().numpy()
    rows = np.flatnonzero((method.p_match.cpu().numpy() < 0.5) & (captions >= 0))
    images, first = np.unique(trained_on.image_codes[rows], return_index=True)
    rows = rows[first]
    return Proposals(images, captions[rows], probabilities[rows], probabilities[rows])


def row_metrics(
    trained: TrainResult,
    test: EvaluationReport,
    detection: Detection | None,
    rematching: RematchPrecision | None,
    corruption: Corruption,
) -> dict[str, float]:
    """The numbers of a row, flat."""
    metrics = {
        **test.recall.as_dict(),
        **dict(zip(("mr_low", "mr_high"), test.recall.intervals["mr"], strict=True)),
        "val_mr": trained.best_mr,
        "best_epoch": float(trained.best_epoch),
        "model_kept": float(trained.model_kept),
        "models_trained": float(trained.models_trained),
        "effective_rate": corruption.effective_rate,
        "pairs_per_second": round(trained.pairs_per_second, 1),
        "train_seconds": round(trained.seconds, 2),
        "test_images": float(test.images),
    }
    if test.peak_memory_gb is not None:
        metrics["peak_memory_gb"] = round(test.peak_memory_gb, 3)
    metrics |= {f"mr[{name}]": recall.mr for name, recall in test.rankings.items()}
    if detection is not None:
        found = detection.as_dict(ranks_only=trained.method.only_ranks)
        metrics |= {f"detection_{name}": value for name, value in found.items()}
    if rematching is not None:
        shares = {"same_image": rematching.same_image, "same_class": rematching.same_class}
        metrics["rematch_proposals"] = float(rematching.proposals)
        metrics |= {f"rematch_{name}": share for name, share in shares.items() if share is not None}
    return metrics
