"""The natural-noise track: the list of known pairs, how a ranking is scored by it, what the judges find."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
import torch

from pmpguard.data.pairs import PairTable


@pytest.fixture
def track(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("natural_noise")


def test_every_listed_pair_says_where_its_truth_is_known_from(track: ModuleType) -> None:
    with track.LISTED.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert all(row["verdict"] in ("wrong", "right", "doubtful") and row["source"] for row in rows)
    assert len({(row["dataset"], row["pair_id"]) for row in rows}) == len(rows)
    known = {name: Counter(track.read_known(name).values()) for name in ("ucm", "rsicd")}
    block = [row for row in rows if row["dataset"] == "ucm" and track.BLOCK & set(row["caption"].split())]
    assert sum(row["verdict"] == "wrong" for row in block) == 55  # eleven images with five captions each
    assert known["ucm"]["wrong"] >= 55 and known["rsicd"]["wrong"] >= 12


@pytest.mark.parametrize("dataset", ["ucm", "rsicd"])
def test_a_further_reading_is_whole_and_in_the_list(track: ModuleType, dataset: str) -> None:
    with (track.RESULTS / f"natural_noise_{dataset}_reading.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    with track.LISTED.open(newline="") as stream:
        listed = {row["pair_id"]: row for row in csv.DictReader(stream) if row["dataset"] == dataset}
    assert len({row["pair_id"] for row in rows}) == len(rows)
    said: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        assert row["verdict"] in ("wrong", "right", "doubtful") and row["note"]
        same = listed[row["pair_id"]]
        assert (same["caption"], same["verdict"]) == (row["caption"], row["verdict"])
        assert row["reader"] and row["reader"] in same["source"]
        said.setdefault((row["pair_id"].split("#")[0], row["caption"]), set()).add(row["verdict"])
    assert all(len(verdicts) == 1 for verdicts in said.values())  # a repeated pair is judged alike


def test_a_ranking_is_scored_by_what_is_known(track: ModuleType) -> None:
    ids = list("abcdefgh")
    known = {"a": "wrong", "b": "right", "c": "doubtful", "e": "wrong", "f": "right", "z": "wrong"}
    found = track.scored(np.array([9.0, 8, 7, 6, 5, 4, 3, 2]), ids, known, at=4)
    assert found["first_4"] == {"wrong": 1, "doubtful": 1, "right": 1, "unread": 1}
    assert found["precision_at_4"] == [0.25, 0.5]
    pairs = [(9.0, 8.0), (9.0, 4.0), (5.0, 8.0), (5.0, 4.0)]  # of a wrong and a right pair each
    assert found["auroc_of_known"] == sum(wrong > right for wrong, right in pairs) / 4


@pytest.mark.slow
def test_every_judge_finds_planted_pairs(track: ModuleType) -> None:
    draw = torch.Generator().manual_seed(0)
    scenes = torch.randn(600, 12, generator=draw)
    texts, images = (scenes @ torch.randn(12, d, generator=draw) for d in (20, 24))
    caption_of = np.arange(600)
    caption_of[:60] = np.roll(caption_of[:60], 1)
    table = PairTable.from_columns(
        {"image": [f"{n}.png" for n in range(600)], "caption": [f"text {n}" for n in caption_of]}
    )
    codes = np.unique(table.caption_codes, return_index=True)[1]
    data = track.Features(table, texts[caption_of[codes]], images)
    ids = [f"{n}.png#0" for n in range(600)]
    known = {pair: "wrong" if row < 60 else "right" for row, pair in enumerate(ids)}
    for judge, suspicion in track.judged(data).items():
        found = track.scored(suspicion, ids, known, at=60)
        low, high = found["precision_at_60"]
        assert low == high > (0.5 if judge == "loss-GMM" else 0.8), judge
        assert found["auroc_of_known"] > 0.8, judge
