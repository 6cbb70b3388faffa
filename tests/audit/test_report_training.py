"""The report of a training run: the method's verdicts, the model's words, and the truth beside them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.report_pages import shown_ranks, text

from pmpguard.audit.issues import ISSUES, PAIRS, SUMMARY, read_issues, read_summary
from pmpguard.audit.report_folder import write_report_folder
from pmpguard.audit.report_training import audit_training
from pmpguard.cli.clean import clean
from pmpguard.data.formats import read_pairs
from pmpguard.detection.judge import FLAGGED_BELOW
from pmpguard.errors import ConfigError
from pmpguard.evaluation.detection import measure_detection
from pmpguard.experiments.run import ExperimentConfig, prepare_dataset
from pmpguard.models.config import RetrieverConfig, preset
from pmpguard.models.retriever import Retriever
from pmpguard.noise.inject import corrupt_pairs
from pmpguard.training.config import TrainConfig


@pytest.fixture(scope="module")
def run() -> tuple[Any, Any]:
    """Sixty scenes, 40 % of the captions mismatched, and verdicts that miss some of them."""
    torch.manual_seed(0)
    config = ExperimentConfig(scenes=60, train=TrainConfig(model=preset("tiny"), device="cpu"))
    data = prepare_dataset(config, ("train",))
    corruption = corrupt_pairs(data.table, 0.4, seed=3)
    table = corruption.table.split("train")
    is_noisy = corruption.is_noisy[np.array(data.table.column("split")) == "train"]
    p_match = torch.from_numpy(np.where(is_noisy, 0.1, 0.9) + np.linspace(0, 0.05, len(table)))
    p_match[int(np.flatnonzero(is_noisy)[0])] = 0.8  # missed
    p_match[int(np.flatnonzero(~is_noisy)[0])] = 0.2  # a false alarm
    method = SimpleNamespace(
        p_match=p_match,
        proposed_caption=torch.arange(len(table)) % len(set(table.captions)),
        proposed_probability=torch.full((len(table),), 0.7),
    )
    model = RetrieverConfig(
        vision="tiny", text="tiny", dim=16, image_size=data.images["train"].pixels.shape[-1]
    )
    result = SimpleNamespace(
        trained=SimpleNamespace(method=method, retriever=Retriever.create(model, table.captions)),
        detection=measure_detection(p_match.numpy(), is_noisy, estimated_rate=0.37),
        corruption=corruption,
        row=SimpleNamespace(method="pmpguard"),
    )
    return result, data


def test_rows_are_the_methods_own_verdicts_beside_the_truth(run):
    result, data = run
    judged = audit_training(result, data, heat_maps=5)
    clean_table, noisy = data.table.split("train"), result.corruption.table.split("train")
    p_match = result.trained.method.p_match.numpy()
    assert [row.p_match for row in judged.rows] == p_match.tolist()
    assert [row.caption for row in judged.rows] == noisy.captions
    assert sorted(row.rank for row in judged.rows) == list(range(1, len(noisy) + 1))
    for row, before in zip(judged.rows, clean_table.captions, strict=True):
        truth = judged.truth[row.pair_id]
        assert truth.caption == before and truth.mismatched == (row.caption != before)
        assert row.flag == (row.p_match < FLAGGED_BELOW) == bool(row.proposals)
        assert row.caption == before or truth.mismatched
        for word in row.words:
            assert row.caption[word.start : word.stop].isalnum()
            assert len(word.regions) == (row.grid[0] * row.grid[1] if row.rank <= 5 else 0)
        for one in row.proposals:
            source = judged.rows[noisy.column("pair_id").index(one.source_pair)]
            assert one.caption == source.caption and one.p_match == pytest.approx(0.7) and one.words
            others = [other.p_match for other in judged.rows if other.caption == one.caption]
            assert source.p_match == max(others)
    assert judged.summary.mismatch_rate == 0.37
    assert judged.summary.flagged == int((p_match < FLAGGED_BELOW).sum())
    assert np.asarray(judged.load_thumbnail(judged.rows[7].image)).tolist() == (
        data.images["train"].pixels[noisy.image_codes[7]].permute(1, 2, 0).tolist()
    )


def test_the_folder_is_a_whole_report_that_clean_reads(run, tmp_path):
    judged = audit_training(*run)
    page = write_report_folder(tmp_path / "report", judged)
    names = {path.name for path in page.parent.iterdir()}
    assert names - {".lock"} == {PAIRS, ISSUES, SUMMARY, "index.html"}
    assert read_summary(page.parent / SUMMARY) == judged.summary
    assert [row.pair_id for row in read_issues(page.parent / ISSUES)] == [
        row.pair_id for row in sorted(judged.rows, key=lambda row: row.rank)
    ]
    done = clean(page.parent, tmp_path / "cleaned.parquet")
    assert done.before - done.after == judged.summary.flagged
    assert len(read_pairs(tmp_path / "cleaned.parquet")) == done.after


def test_the_page_shows_and_filters_the_truth(run, tmp_path, open_page):
    judged = audit_training(*run)
    page = open_page(write_report_folder(tmp_path / "report", judged))
    mismatched = sum(truth.mismatched for truth in judged.truth.values())
    assert f"{mismatched}\n{mismatched - 1} of them flagged" in text(page, "#figures")
    by_rank = {row.rank: row for row in judged.rows}

    def shown(wanted: str) -> list[tuple[bool, bool]]:
        page.select_option("#truth", wanted)
        rows = [by_rank[rank] for rank in shown_ranks(page)]
        return [(judged.truth[row.pair_id].mismatched, row.flag) for row in rows]

    assert shown("mismatched") == [(True, True)] * (mismatched - 1) + [(True, False)]
    assert shown("missed") == [(True, False)]
    selected = next(row for row in judged.rows if judged.truth[row.pair_id].mismatched and not row.flag)
    assert text(page, "#truth-chip").startswith("Truth: mismatched")
    assert text(page, "#true-caption p") == judged.truth[selected.pair_id].caption
    assert shown("false") == [(False, True)]
    assert page.locator("#true-caption").is_hidden() and text(page, "#row-0 .truth") == "matched"
    assert page.locator("#row-0 .truth").get_attribute("data-agrees") == "false"


def test_a_report_without_truth_does_not_speak_of_it(open_page, small_report):
    page = open_page(small_report)
    assert page.locator("#truth").is_hidden() and page.locator("#true-caption").is_hidden()
    assert "Truly" not in text(page, "#figures") and text(page, "#truth-chip") == ""


def test_a_method_that_judges_nothing_has_no_report(run):
    _, data = run
    trained = SimpleNamespace(method=SimpleNamespace(p_match=None))
    with pytest.raises(ConfigError, match="judges no pairs"):
        audit_training(SimpleNamespace(trained=trained, detection=None), data)
