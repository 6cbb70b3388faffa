"""One measured run: who may read the injected labels, what identifies the noise, what a row says."""

from __future__ import annotations

import json
import logging
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.prepared_squares import prepared_squares
from helpers.small_runs import SIZE, small_config
from PIL import Image

import pmpguard
from pmpguard.data.images.sources import StreamedImages
from pmpguard.data.pairs import PairTable
from pmpguard.errors import CheckpointError, DataError
from pmpguard.experiments import run as experiment
from pmpguard.experiments.oracle import clean_pairs
from pmpguard.experiments.run import (
    ExperimentConfig,
    ExperimentResult,
    NoiseConfig,
    corrupt_dataset,
    deciding_settings,
    method_detection,
    method_rematching,
    noise_fingerprint,
    prepare_dataset,
    run_experiment,
)
from pmpguard.noise.inject import Corruption, corrupt_pairs
from pmpguard.noise.manifest import save_manifest
from pmpguard.training.config import TrainConfig
from pmpguard.training.distillation import STUDENT, train_with_distillation
from pmpguard.training.loop import build_method

DATA = prepared_squares()
WITH_GATES = {"detect_from_epoch": 1, "rematch": True, "rematch_from": 2, "cga": True, "ranking": "awareness"}
GUARD = small_config(method="pmpguard", epochs=3, settings=WITH_GATES)


def config(rate: float = 0.4, train: TrainConfig = GUARD, **changes: Any) -> ExperimentConfig:
    return replace(ExperimentConfig(noise=NoiseConfig(rate), train=train), **changes)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ExperimentResult]:
    """A finished run of PMPGuard with 40 % wrong captions, and its folder."""
    run = tmp_path_factory.mktemp("guarded")
    return run, run_experiment(config(), run, DATA)


def metrics(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


# --------------------------------------------------------------------------- who may read the injected labels


class Tripwire:
    """Whether training is under way, and how often the labels were read by whom they are for."""

    armed = False
    allowed_reads = 0

    def touch(self) -> None:
        if not self.armed:
            return
        frame: Any = sys._getframe(2)
        while frame is not None:
            if frame.f_code.co_name == "measure_detection":
                self.allowed_reads += 1
                return
            frame = frame.f_back
        raise AssertionError("something other than the detection metric read the injected labels")


class GuardedLabels:
    """Stands in for an array of labels; every way to look at it touches the wire."""

    def __init__(self, values: np.ndarray, wire: Tripwire) -> None:
        self._values, self._wire = values, wire

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        self._wire.touch()
        return np.asarray(self._values, dtype=dtype)

    def __getitem__(self, rows: Any) -> GuardedLabels:
        self._wire.touch()
        return GuardedLabels(self._values[rows], self._wire)

    def __getattr__(self, name: str) -> Any:
        self._wire.touch()
        return getattr(self._values, name)

    def __invert__(self) -> np.ndarray:
        self._wire.touch()
        return ~self._values

    def __len__(self) -> int:
        self._wire.touch()
        return len(self._values)


@pytest.mark.slow
def test_nothing_but_the_detection_metric_reads_the_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Tripwire()

    def guarded(*arguments: Any) -> Corruption:
        corruption = corrupt_dataset(*arguments)
        labels = (GuardedLabels(values, wire) for values in (corruption.is_noisy, corruption.source_rows))
        return replace(corruption, **dict(zip(("is_noisy", "source_rows"), labels, strict=True)))

    def watched(*arguments: Any, **named: Any) -> Any:
        wire.armed = True
        try:
            return train_with_distillation(*arguments, **named)
        finally:
            wire.armed = False

    monkeypatch.setattr(experiment, "corrupt_dataset", guarded)
    # writes them down before training
    monkeypatch.setattr(experiment, "save_manifest", lambda _, path: path.write_text("{}"))
    monkeypatch.setattr(experiment, "train_with_distillation", watched)
    twice = replace(GUARD, settings={**WITH_GATES, "distill_above_rate": 0.0})
    result = run_experiment(config(train=twice), tmp_path, DATA)
    assert (tmp_path / STUDENT).exists()
    assert wire.allowed_reads >= 6  # once an epoch of both models, for the log
    assert result.detection is not None and result.detection.true_rate == pytest.approx(0.4, abs=0.01)


def test_the_tripwire_can_trip() -> None:
    wire = Tripwire()
    labels: Any = GuardedLabels(np.array([True, False]), wire)
    np.asarray(labels)
    wire.armed = True
    for read in (np.asarray, len, lambda x: x[0], lambda x: x.sum(), lambda x: ~x):
        with pytest.raises(AssertionError, match="injected labels"):
            read(labels)


@pytest.mark.slow
def test_turned_labels_change_the_metric_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guarded: tuple[Path, ExperimentResult]
) -> None:
    _, right = guarded

    def turned(*arguments: Any) -> Corruption:
        corruption = corrupt_dataset(*arguments)
        return replace(corruption, is_noisy=~corruption.is_noisy)

    monkeypatch.setattr(experiment, "corrupt_dataset", turned)
    wrong = run_experiment(config(), tmp_path, DATA)
    for name, value in right.trained.method.state_dict().items():
        assert torch.equal(value, wrong.trained.method.state_dict()[name]), name
    assert right.detection is not None and right.detection.auroc is not None
    assert wrong.detection is not None and wrong.detection.auroc == pytest.approx(1 - right.detection.auroc)


def test_the_labels_have_no_name_where_training_happens() -> None:
    source = Path(pmpguard.__file__).parent
    readers = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.py")
        if any(name in path.read_text() for name in ("is_noisy", "source_rows"))
    }
    allowed = {"experiments/run.py", "cli/corrupt.py", "audit/report_training.py", "experiments/oracle.py"}
    assert {name for name in readers if not name.startswith("noise/")} <= allowed
    assert "experiments/run.py" in readers  # so that a renamed label does not empty this test


def test_the_observer_sees_each_epochs_verdicts_and_is_logged(
    tmp_path: Path, guarded: tuple[Path, ExperimentResult]
) -> None:
    run, result = guarded
    flagged = metrics(run, "detection")
    assert [line["epoch"] for line in flagged] == [0, 1, 2]
    assert all("true_auroc" in line and "true_rate_error" in line for line in flagged)
    assert 0.5 < flagged[0]["true_auroc"] <= 1  # captions are compared before the first step
    assert result.detection is not None
    assert flagged[-1]["true_auroc"] == pytest.approx(result.detection.auroc)
    plain = run_experiment(config(train=small_config(epochs=1)), tmp_path, DATA)
    assert plain.detection is None and metrics(tmp_path, "detection") == []


# ------------------------------------------------------------------------------------------------ methods


OWN_METHOD = '''
from dataclasses import dataclass

from pmpguard.methods.method import Method, labelled, pooled_cosines


@dataclass(frozen=True)
class Settings:
    margin: float = 0.2


class Closer(Method):
    """Pulls every caption to its image, away from the mean."""

    name = "closer"
    Settings = Settings

    def losses(self, batch):
        cosines = pooled_cosines(batch)
        gap = self.settings.margin + cosines.mean(1) - labelled(cosines, batch.image_of)
        return {"closer": gap.clamp(min=0)}
'''


def test_a_method_in_a_file_of_ones_own_trains_by_its_import_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_own_method.py").write_text(OWN_METHOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    settings = small_config(method="my_own_method:Closer", settings={"margin": 0.5}, epochs=2)
    result = run_experiment(config(0.0, settings), tmp_path / "run", DATA)
    assert type(result.trained.method).__name__ == "Closer"
    assert (
        result.row.method == "my_own_method:Closer"
        and result.row.settings["train"]["settings"]["margin"] == 0.5
    )
    assert all("closer" in line for line in metrics(tmp_path / "run", "step"))
    assert result.row.metrics["mr"] > 6  # chance is 4.4


# -------------------------------------------------------------------------------------------------- noise


def test_no_two_corruptions_share_a_mark() -> None:
    clean = corrupt_pairs(DATA.table, 0.4, seed=0)
    others = [
        corrupt_pairs(DATA.table, 0.6, seed=0),
        corrupt_pairs(DATA.table, 0.4, seed=1),
        corrupt_pairs(DATA.table, 0.4, seed=0, level="image"),
        corrupt_pairs(DATA.table, 0.4, seed=0, mode="permute"),
        corrupt_pairs(DATA.table, 0.4, seed=0, split="val"),
        replace(clean, table=clean.table.with_column("caption", clean.table.captions[::-1])),
    ]
    marks = [noise_fingerprint(one, oracle) for one in (clean, *others) for oracle in (False, True)]
    assert len(set(marks)) == len(marks)
    assert noise_fingerprint(corrupt_pairs(DATA.table, 0.4, seed=0), False) == marks[0]


def test_another_noise_file_of_equal_rate_level_and_seed_is_not_resumed(tmp_path: Path) -> None:
    settings = small_config(epochs=1)
    for mode in ("replace", "permute"):
        save_manifest(corrupt_pairs(DATA.table, 0.4, 0, mode=mode), tmp_path / f"{mode}.json")  # type: ignore[arg-type]
    noise = NoiseConfig(file=tmp_path / "replace.json")
    first = run_experiment(ExperimentConfig(noise=noise, train=settings), tmp_path / "run", DATA)
    assert first.row.rate == 0.4 and first.row.level == "caption"  # the file's, not the config's
    noise = NoiseConfig(file=tmp_path / "permute.json")
    with pytest.raises(CheckpointError, match="noise: "):
        run_experiment(ExperimentConfig(noise=noise, train=settings), tmp_path / "run", DATA)


def test_a_noise_file_of_another_split_is_refused(tmp_path: Path) -> None:
    save_manifest(corrupt_pairs(DATA.table, 0.4, 0, split="test"), tmp_path / "noise.json")
    with pytest.raises(DataError, match=r"noise\.json: corrupts split 'test'"):
        corrupt_dataset(DATA.table, NoiseConfig(file=tmp_path / "noise.json"), seed=0)


def test_the_run_keeps_its_noise_file(tmp_path: Path) -> None:
    result = run_experiment(config(0.4, small_config(epochs=1)), tmp_path, DATA)
    again = corrupt_dataset(DATA.table, NoiseConfig(file=tmp_path / "noise.json"), seed=9)
    assert noise_fingerprint(again, False) == noise_fingerprint(result.corruption, False)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["infonce", "pmpguard"])
def test_a_rate_of_one_trains_and_says_that_nothing_is_true(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, method: str
) -> None:
    settings = small_config(method="infonce") if method == "infonce" else GUARD
    with caplog.at_level(logging.WARNING, "pmpguard"):
        result = run_experiment(config(1.0, settings), tmp_path, DATA)
    assert "every training caption is wrong" in caplog.text
    assert result.row.metrics["effective_rate"] == 1.0 and np.isfinite(result.row.metrics["mr"])
    if result.detection is not None:
        assert result.detection.auroc is None and result.detection.true_rate == 1.0


def test_no_validation_split_is_an_error_that_names_it(tmp_path: Path) -> None:
    lines = [
        {"image": f"{n}.png", "caption": f"square {n}", "split": "train" if n < 4 else "test"}
        for n in range(6)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    wanted = ExperimentConfig(dataset=str(tmp_path / "pairs.jsonl"), train=small_config())
    with pytest.raises(DataError, match="no split 'val', which is needed to select the model"):
        prepare_dataset(wanted)


def test_images_are_cropped_where_the_model_asks_for_it(tmp_path: Path) -> None:
    half = np.zeros((SIZE, 2 * SIZE, 3), np.uint8)
    half[:, SIZE // 2 : SIZE + SIZE // 2] = 255  # the middle is white
    Image.fromarray(half).save(tmp_path / "0.png")
    lines = [{"image": "0.png", "caption": "a square", "split": "train"}]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    train, means, settings = small_config(), {}, {}
    for fit in ("squash", "crop"):
        model = replace(train.model, fit=fit)
        wanted = ExperimentConfig(dataset=str(tmp_path / "pairs.jsonl"), train=replace(train, model=model))
        settings[fit] = deciding_settings(wanted)["train"]["model"]
        images = prepare_dataset(wanted, ("train",)).images["train"]
        means[fit] = float(next(images.batches([np.array([0])])).float().mean())
    assert means["crop"] == 255 and means["squash"] < 150
    assert settings["crop"].pop("fit") == "crop"  # squashing is no setting of rows that were recorded before
    assert settings["crop"] == settings["squash"]


# ------------------------------------------------------------------------------------------ oracle and row


@pytest.mark.slow
def test_the_oracle_of_a_method_that_weights_pairs_is_told_the_weights(tmp_path: Path) -> None:
    result = run_experiment(config(oracle=True, train=replace(GUARD, batch_size=20)), tmp_path, DATA)
    assert result.row.method == "oracle" and result.detection is None and result.rematching is None
    noisy = result.corruption.is_noisy[np.array(DATA.table.column("split")) == "train"]
    assert np.array_equal(result.trained.method.weight.numpy() == 1, ~noisy) and noisy.sum() == 96
    assert result.trained.steps == GUARD.epochs * (240 // 20)  # as many as without
    assert not any(name.startswith(("detection", "rematch")) for name in result.row.metrics)


def test_the_oracle_of_any_other_method_gets_the_clean_pairs_only(tmp_path: Path) -> None:
    plain = replace(GUARD, method="infonce", settings={}, batch_size=20)
    result = run_experiment(config(oracle=True, train=plain), tmp_path, DATA)
    assert result.trained.steps == plain.epochs * (144 // 20)  # 60 % of 240 pairs
    with pytest.raises(NotImplementedError, match="does not weight pairs"):
        result.trained.method.set_clean_mask(torch.ones(144))


def test_clean_pairs_keep_their_own_images(tmp_path: Path) -> None:
    table, images = DATA.table.split("train"), DATA.images["train"]
    noisy = np.random.default_rng(0).random(len(table)) < 0.7
    kept, chosen = clean_pairs(table, images, noisy, torch.device("cpu"))
    pixels = {name: next(images.batches([np.array([code])]))
              for name, code in zip(table.column("image_id"), table.image_codes, strict=True)}  # fmt: skip
    for name, code in zip(kept.column("image_id"), kept.image_codes, strict=True):
        assert torch.equal(next(chosen.batches([np.array([code])])), pixels[name])
    for name, pixel in pixels.items():
        Image.fromarray(pixel[0].permute(1, 2, 0).numpy()).save(tmp_path / name)
    on_disk = PairTable(table.arrow, tmp_path, table.name)
    streamed = StreamedImages(on_disk, SIZE, torch.device("cpu"))
    again, from_disk = clean_pairs(on_disk, streamed, noisy, torch.device("cpu"))
    assert again.captions == kept.captions and len(from_disk) == len(chosen)
    every = [np.arange(len(chosen))]
    assert torch.equal(next(from_disk.batches(every)), next(chosen.batches(every)))


def test_the_oracle_needs_a_clean_pair(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no clean pair is left"):
        run_experiment(config(1.0, oracle=True), tmp_path, DATA)


def test_detection_reports_the_methods_own_estimate_of_the_rate() -> None:
    method = build_method(GUARD, 4, DATA.table.captions)
    assert method.p_match is not None
    method.p_match.copy_(torch.tensor([0.9, 0.8, 0.3, 0.2]))
    truth = np.array([False, False, True, True])
    assert method.estimated_rate is not None and float(method.estimated_rate) == -1
    found = method_detection(method, truth)
    assert found is not None and found.estimated_rate == pytest.approx(0.45)
    method.estimated_rate.fill_(0.5)
    found = method_detection(method, truth)
    assert found is not None and found.estimated_rate == 0.5 and found.auroc == 1.0
    assert method_detection(build_method(small_config(), 4, DATA.table.captions), truth) is None


def test_proposals_are_checked_against_the_clean_captions() -> None:
    columns = {"image": ["a", "b", "c", "d"], "caption": ["w", "x", "y", "z"], "label": ["p", "p", "q", None]}
    clean = PairTable.from_columns(columns)
    noisy = clean.with_column("caption", ["x", "w", "y", "x"])  # z is gone
    assert method_rematching(build_method(small_config(), 4, DATA.table.captions), clean, noisy) is None
    method = build_method(GUARD, 4, DATA.table.captions)
    # Captions are numbered x 0, w 1, y 2. Right: w for a; of its class: w for b; wrong: x for c, y for d.
    assert method.p_match is not None and method.proposed_caption is not None
    method.p_match.fill_(0.2)
    method.proposed_caption.copy_(torch.tensor([1, 1, 0, 2]))
    found = method_rematching(method, clean, noisy)
    assert found is not None
    assert (found.proposals, found.same_image, found.same_class) == (4, 0.25, 0.5)
    unlabelled = PairTable.from_columns({name: columns[name] for name in ("image", "caption")})
    found = method_rematching(method, unlabelled, noisy)
    assert found is not None and (found.same_image, found.same_class) == (0.25, None)
    found = method_rematching(method, clean.with_column("caption", list("abcd")), noisy)
    assert found is not None and found.same_image == 0.0


def test_a_row_holds_what_a_table_needs(guarded: tuple[Path, ExperimentResult]) -> None:
    _, result = guarded
    row = result.row
    assert (row.dataset, row.method, row.rate, row.seed, row.encoder, row.selected_on) == (
        "squares", "pmpguard", 0.4, 0, "tiny+tiny", "val",
    )  # fmt: skip
    names = {"mr", "i2t_r1", "t2i_r10", "mr_string", "val_mr", "mr[pooled]", "mr[gated]", "detection_auroc",
             "detection_rate_error", "effective_rate", "pairs_per_second"}  # fmt: skip
    assert names <= set(row.metrics)
    assert row.metrics["val_mr"] == result.trained.best_mr
    assert ("rematch_proposals" in row.metrics) == (result.rematching is not None)
    assert (
        row.seconds > 0 and row.commit and row.hardware and row.settings["train"]["preset"] == "recommended"
    )
