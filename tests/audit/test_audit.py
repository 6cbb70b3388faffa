"""Whole audits: by embeddings with planted mismatched pairs, by a model, by judges of its own; bad input."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.planted_embeddings import clusters
from helpers.planted_pairs import planted, write_clip_folder
from sklearn.metrics import roc_auc_score

import pmpguard
from pmpguard.audit import audit as whole_audit
from pmpguard.audit import notes
from pmpguard.audit.audit import AuditConfig, audit_dataset
from pmpguard.audit.crossfit import CrossfitConfig, has_weights
from pmpguard.audit.issues import read_issues, read_summary
from pmpguard.audit.judging import judged_part
from pmpguard.audit.notes import language_warnings
from pmpguard.data.formats.embeddings import read_clip_embeddings
from pmpguard.data.pairs import PairTable
from pmpguard.detection.detector import NoiseDetector
from pmpguard.engine.parts import ALONE, Engine
from pmpguard.errors import ConfigError, DataError, ModelError
from pmpguard.files import read_json
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever
from pmpguard.noise.inject import corrupt_pairs
from pmpguard.synthetic.scenes import synthetic_scenes, write_world

QUICK = CrossfitConfig(folds=2, encoders="tiny", image_size=32, epochs=2, device="cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An untrained model: every step of an audit runs, though it judges nothing well."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "model"
    config = preset("tiny", dim=32, image_size=32, cross_gated=preset("tiny").cross_gated)
    Retriever.create(config, ["a red roof beside two green trees", "a blue river with boats"]).save(path)
    return path


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    return write_world(synthetic_scenes(24, size=32), tmp_path_factory.mktemp("scenes") / "world")


def test_planted_mismatched_pairs_are_found_by_embeddings(tmp_path):
    pairs = planted(images=150, rate=0.3)
    write_clip_folder(tmp_path / "emb", pairs)
    table = read_clip_embeddings(tmp_path / "emb").table
    outcome = audit_dataset(table, tmp_path / "out", embeddings=tmp_path / "emb")
    by_id = {row.pair_id: row for row in outcome.rows}
    p_match = [by_id[pair].p_match for pair in table.column("pair_id")]
    assert roc_auc_score(~pairs.wrong, p_match) > 0.97
    assert outcome.summary.mismatch_rate == pytest.approx(pairs.wrong.mean(), abs=0.06)
    low, high = outcome.summary.mismatch_interval
    assert low <= pairs.wrong.mean() <= high
    own_of = dict(zip(table.column("pair_id"), pairs.own, strict=True))
    flagged = [row for row in outcome.rows if row.flag]
    assert all(row.proposals and not row.words for row in flagged)
    right = [own_of[row.proposals[0].source_pair] == int(row.image[7:-4]) for row in flagged]
    assert np.mean(right) > 0.5  # a caption that really describes the image, where one is left
    assert outcome.page.is_file() and outcome.unjudged == {}
    assert outcome.summary.duplicate_images is None and outcome.summary.unreadable is None  # not looked at
    assert read_issues(tmp_path / "out/issues.parquet")[0].rank == 1
    assert read_summary(tmp_path / "out/summary.json") == outcome.summary
    assert outcome.summary.dataset == table.fingerprint


def test_pairs_without_an_embedding_are_left_out_and_counted(tmp_path):
    write_clip_folder(tmp_path / "emb", planted(images=60))
    table = read_clip_embeddings(tmp_path / "emb").table
    renamed = table.with_column("caption", ["unknown to the embeddings", *table.captions[1:]])
    outcome = audit_dataset(renamed, tmp_path / "out", embeddings=tmp_path / "emb")
    assert outcome.unjudged == {"without an embedding": 1}
    assert outcome.summary.pairs == 239 and any("not judged" in told for told in outcome.summary.warnings)


@pytest.mark.slow
def test_a_model_judges_directly(tmp_path, scenes, model):
    outcome = audit_dataset(
        scenes, tmp_path / "out", AuditConfig(("train",), heat_maps=5, bootstrap=5), model=model
    )
    assert outcome.summary.pairs == len(scenes.split("train")) == len(outcome.rows)
    assert [row.rank for row in outcome.rows] == list(range(1, len(outcome.rows) + 1))
    assert {row.split for row in outcome.rows} == {"train"}
    assert set(outcome.rows[0].evidence) == {
        "similarity",
        "caption_agreement",
        "words",
        "regression",
        "reverse_regression",
        "neighbour_text",
        "neighbour_image",
        "competition",
    }
    for row in outcome.rows:
        for word in row.words:
            assert len(word.regions) == (row.grid[0] * row.grid[1] if row.rank <= 5 else 0)
        assert bool(row.proposals) == row.flag
    assert PairTable.from_columns(scenes.arrow).fingerprint == outcome.summary.dataset


@pytest.mark.slow
@pytest.mark.skipif(not has_weights(), reason="needs the extra 'weights'")
def test_a_quick_audit_trains_nothing_and_finds_wrong_captions(tmp_path):
    table = write_world(synthetic_scenes(100, size=96), tmp_path / "world")
    dirty = corrupt_pairs(table, 0.375, 0)
    config = AuditConfig(bootstrap=5, quick=True, crossfit=CrossfitConfig(image_size=96, device="cpu"))
    outcome = audit_dataset(dirty.table, tmp_path / "out", config)
    assert "without training" in outcome.summary.model and not (tmp_path / "out/folds").exists()
    names = set(outcome.rows[0].evidence)
    assert names >= {"regression", "neighbour_text", "neighbour_image", "caption_agreement"}
    assert not names & {"similarity", "words"}
    p_match = {row.pair_id: row.p_match for row in outcome.rows}
    found = [p_match[pair] for pair in dirty.table.column("pair_id")]
    assert roc_auc_score(~dirty.is_noisy, found) > 0.9
    assert outcome.summary.mismatch_rate == pytest.approx(dirty.is_noisy.mean(), abs=0.1)
    assert all(bool(row.proposals) == row.flag and not row.words for row in outcome.rows)


@pytest.mark.slow
@pytest.mark.skipif(not has_weights(), reason="needs the extra 'weights'")
def test_a_quick_audit_by_several_workers_judges_as_one_process(tmp_path, scenes):
    config = AuditConfig(bootstrap=2, quick=True, crossfit=CrossfitConfig(image_size=32, device="cpu"))
    alone, shared = (
        audit_dataset(scenes, tmp_path / name, config, engine=engine)
        for name, engine in (("alone", ALONE), ("shared", Engine(2)))
    )
    told = [{row.pair_id: row.p_match for row in outcome.rows} for outcome in (alone, shared)]
    # a worker's threads may be fewer than those of a process alone, and then sums end in other digits
    assert told[1] == pytest.approx(told[0], abs=1e-6)
    assert shared.summary.mismatch_rate == pytest.approx(alone.summary.mismatch_rate, abs=1e-6)
    assert shared.summary.issues == alone.summary.issues and shared.unjudged == alone.unjudged


def test_a_quick_audit_needs_pretrained_encoders_and_no_other_judge(tmp_path, scenes, model):
    tiny = AuditConfig(crossfit=CrossfitConfig(encoders="tiny"), quick=True)
    with pytest.raises(ConfigError, match="pretrained encoders"):
        audit_dataset(scenes, tmp_path / "out", tiny)
    with pytest.raises(ConfigError, match="quick"):
        audit_dataset(scenes, tmp_path / "out", AuditConfig(quick=True), model=model)


@pytest.mark.slow
def test_judges_are_trained_for_every_fold_and_not_again(tmp_path, scenes):
    config = AuditConfig(crossfit=QUICK, bootstrap=5)
    first = audit_dataset(scenes, tmp_path / "out", config)
    assert first.summary.model == "2 models trained on the dataset itself, tiny + tiny"
    assert len(first.rows) == len(scenes)
    assert any("trained from scratch on this dataset's 24 images" in told for told in first.summary.warnings)
    weights = [tmp_path / f"out/folds/fold-{fold}/model/model.safetensors" for fold in (1, 2)]
    written = [path.stat().st_mtime_ns for path in weights]
    again = audit_dataset(scenes, tmp_path / "out", config)
    assert [path.stat().st_mtime_ns for path in weights] == written
    assert [(row.pair_id, row.p_match) for row in again.rows] == [
        (row.pair_id, row.p_match) for row in first.rows
    ]


@pytest.mark.slow
@pytest.mark.skipif(not has_weights(), reason="needs the extra 'weights'")
def test_judges_trained_on_the_dataset_find_its_wrong_captions(tmp_path):
    table = write_world(synthetic_scenes(150, size=96), tmp_path / "world")
    dirty = corrupt_pairs(table, 0.375, 0)  # of the training captions: 30 % of all
    assert dirty.is_noisy.mean() == pytest.approx(0.3, abs=0.01)
    crossfit = CrossfitConfig(folds=2, encoders="light", image_size=96, epochs=4, device="cpu")
    outcome = audit_dataset(dirty.table, tmp_path / "out", AuditConfig(bootstrap=5, crossfit=crossfit))
    p_match = {row.pair_id: row.p_match for row in outcome.rows}
    found = [p_match[pair] for pair in dirty.table.column("pair_id")]
    assert roc_auc_score(~dirty.is_noisy, found) > 0.85
    assert outcome.summary.mismatch_rate == pytest.approx(dirty.is_noisy.mean(), abs=0.15)


# ------------------------------------------------------------------------------------ one report on another


@pytest.mark.slow
def test_a_report_with_a_summary_is_whole(tmp_path, scenes, model, monkeypatch):
    """A new audit that fails before writing leaves the earlier report; one that dies writing, no summary."""
    out, told = tmp_path / "out", []
    audit_dataset(scenes, out, AuditConfig(bootstrap=0), model=model, tell=told.append)
    assert not any("replaced" in text for text in told)
    earlier = (out / "summary.json").read_bytes()
    with pytest.raises(DataError, match="nothing can be judged"):
        audit_dataset(scenes.take(np.arange(5)), out, model=model)
    assert (out / "summary.json").read_bytes() == earlier

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(whole_audit, "write_issues", full)
        with pytest.raises(OSError, match="No space left"):
            audit_dataset(scenes, out, AuditConfig(bootstrap=0), model=model, tell=told.append)
    assert not (out / "summary.json").exists()
    assert f"the earlier report in {out} will be replaced" in told
    audit_dataset(scenes, out, AuditConfig(bootstrap=0), model=model)
    assert (out / "summary.json").read_bytes() == earlier


def test_a_wrong_model_is_told_before_images_are_looked_at(tmp_path, scenes, monkeypatch):
    def look(*_):
        raise AssertionError("looked at images")

    monkeypatch.setattr(whole_audit, "look", look)
    with pytest.raises(ModelError, match="typo"):
        audit_dataset(scenes, tmp_path / "out", model=tmp_path / "typo")
    assert not (tmp_path / "out").exists()


# ------------------------------------------------------------------------------------------------- bad input


def test_missing_and_damaged_images_are_left_out(tmp_path, model):
    table = write_world(synthetic_scenes(12, size=32), tmp_path / "world")
    (table.root / "scene-000003.png").unlink()
    (table.root / "scene-000005.png").write_bytes(b"no image")
    outcome = audit_dataset(table, tmp_path / "out", model=model)
    assert outcome.summary.unreadable == ("scene-000003.png", "scene-000005.png")
    assert outcome.unjudged == {"with an image that cannot be read": 10}
    rows = read_issues(tmp_path / "out/issues.parquet")
    assert outcome.summary.pairs == 50 and len(rows) == 60
    assert sum("unreadable" in row.issues for row in rows) == 10
    assert any("10 pairs with an image that cannot be read" in told for told in outcome.summary.warnings)


def test_blank_captions_are_left_out(tmp_path, scenes, model):
    blank = scenes.with_column("caption", ["  ", "...", *scenes.captions[2:]])
    outcome = audit_dataset(blank, tmp_path / "out", model=model)
    assert outcome.unjudged == {"with a caption without words": 2}


def test_copies_and_repeated_pairs_are_counted(tmp_path, model):
    table = write_world(synthetic_scenes(12, size=32), tmp_path / "world")
    (table.root / "scene-000004.png").write_bytes((table.root / "scene-000001.png").read_bytes())
    repeated = table.with_column("caption", [table.captions[1], *table.captions[1:]])
    outcome = audit_dataset(repeated, tmp_path / "out", model=model)
    assert (outcome.summary.duplicate_images, outcome.summary.duplicate_pairs) == (1, 1)


def test_what_was_left_out_is_said():
    given = clusters(120, 0.2)
    table = PairTable.from_columns(
        {"image": [f"{row}.png" for row in range(120)], "caption": [f"caption {row}" for row in range(120)]}
    )
    detector = NoiseDetector(bootstrap=0, exact_up_to=50).fit(given.texts, given.images)
    told = notes.left_out_warnings([judged_part(table, detector)] * 2)
    assert told == [
        "not used: similarity: texts and images have no common space",
        "not used: exact neighbours: inverted lists search more than 50 vectors",
    ]
    equal = pmpguard.audit(table, texts=torch.ones(120, 4), images=given.images, bootstrap=0)
    assert any("not used: texts: all vectors are equal" in warning for warning in equal.summary.warnings)
    assert not equal.summary.informative
    with pytest.raises(ConfigError, match="could not tell which pairs are wrong"):
        equal.clean("drop")


def test_figures_for_one_caption_an_image_are_the_recorded_ones():
    cases = read_json(Path("benchmarks/results/audit_quick_rsicd_one_caption.json"))
    mean = {name: np.mean([case[name] for case in cases["cases"]]) for name in cases["cases"][0]
            if name in ("auroc", "flags_precision", "flags_recall", "rate")}  # fmt: skip
    said = (
        f"On {cases['images']:,} images of RSICD with one caption, {mean['rate']:.0%} of the pairs "
        f"mismatched, a quick audit reaches AUROC {mean['auroc']:.3f}; {mean['flags_precision']:.0%} of its "
        f"flags are right, and {mean['flags_recall']:.0%} of the mismatched pairs are flagged"
    )
    assert said.replace("%", " %") in notes.ONE_CAPTION


def test_one_caption_an_image_is_said(tmp_path, scenes, model):
    single = scenes.take(scenes.first_rows)
    outcome = audit_dataset(single, tmp_path / "out", model=model)
    assert any("one caption" in told for told in outcome.summary.warnings)
    assert "caption_agreement" not in outcome.rows[0].evidence


@pytest.mark.parametrize("change", ["one image", "equal captions", "no images"])
def test_what_cannot_be_judged_is_said(tmp_path, scenes, model, change):
    if change == "one image":
        table, told = (
            scenes.take(np.arange(5)),
            "1 image and 5 different captions: nothing can be judged",
        )
    elif change == "equal captions":
        table, told = (
            scenes.with_column("caption", ["a pond"] * len(scenes)),
            "1 different caption: nothing",
        )
    else:
        table, told = PairTable(scenes.arrow, tmp_path / "nowhere", "scenes"), "0 can be looked at"
    with pytest.raises(DataError, match=told):
        audit_dataset(table, tmp_path / "out", model=model)


def test_too_few_images_to_train_on(tmp_path, scenes):
    with pytest.raises(DataError, match="too few to train 3 judges"):
        audit_dataset(scenes.take(np.arange(30)), tmp_path / "out")


def test_captions_in_another_script(tmp_path, scenes, model):
    words = ["река", "мост", "лес", "поле", "дорога"]
    foreign = [f"{words[row % 5]} {words[row // 5 % 5]} {row}" for row in range(len(scenes))]
    outcome = audit_dataset(scenes.with_column("caption", foreign), tmp_path / "out", model=model)
    assert any("unknown to the judge's text encoder" in told for told in outcome.summary.warnings)
    assert len(outcome.rows) == len(scenes)


def test_letters_the_text_encoder_may_not_read(scenes, monkeypatch):
    monkeypatch.setattr(notes, "unknown_words", lambda *_: 0.0)
    russian = scenes.with_column("caption", [f"река {row}" for row in range(len(scenes))])

    def told(text, table):
        return language_warnings(SimpleNamespace(config=SimpleNamespace(text=text)), table)

    (warning,) = told("minilm-l6", russian)
    assert "not Latin, and minilm-l6 may not read them: use a multilingual model" in warning
    assert told("minilm-l6", scenes) == told("tiny", russian) == []


def test_contradicting_wishes(tmp_path, scenes, model):
    with pytest.raises(ConfigError, match="give one of the two"):
        audit_dataset(scenes, tmp_path / "out", model=model, embeddings=model)
    with pytest.raises(DataError, match="no split named 'nowhere'"):
        audit_dataset(scenes, tmp_path / "out", AuditConfig(("nowhere",)), model=model)
    with pytest.raises(ConfigError, match="bootstrap: -1 is negative"):
        AuditConfig(bootstrap=-1)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        audit_dataset(scenes, tmp_path / "file", model=model)


def test_everything_wrong_is_said(tmp_path):
    pairs = planted(images=200, rate=1.0)
    write_clip_folder(tmp_path / "emb", pairs)
    outcome = audit_dataset(
        read_clip_embeddings(tmp_path / "emb").table, tmp_path / "out", embeddings=tmp_path / "emb"
    )
    assert outcome.summary.mismatch_rate > 0.85
    assert any("most captions are wrong" in told for told in outcome.summary.warnings)
    assert json.loads((tmp_path / "out/summary.json").read_text())["flagged"] > 600
