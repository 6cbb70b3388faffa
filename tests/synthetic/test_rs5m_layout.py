"""The stand-in for RS5M: its layout and faults, and the recipe of table 3 that runs on it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from helpers.clip_checkpoint import save_tiny_clip

from pmpguard.cli.main import main
from pmpguard.data.formats import read_pairs
from pmpguard.data.images.decode import load_pair_image
from pmpguard.errors import ConfigError
from pmpguard.experiments.rows import read_rows
from pmpguard.synthetic import rs5m_layout
from pmpguard.synthetic.rs5m_layout import write_rs5m


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    folder = tmp_path_factory.mktemp("data") / "rs5m"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rs5m_layout, "SAMPLES_A_SHARD", 50)
        patch.setattr(rs5m_layout, "MISSING_CAPTIONS", 0.1)
        return folder, write_rs5m(folder, 240, val=0.25, size=32)


def test_members_names_and_splits_are_those_of_rs5m(stand_in: tuple[Path, dict[str, int]]) -> None:
    folder, told = stand_in
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.tar")) == [
        "train/pub11-train-0000.tar", "train/pub11-train-0001.tar", "train/rs3-train-0000.tar",
        "train/rs3-train-0001.tar", "val/pub11-val-0000.tar", "val/rs3-val-0000.tar",
    ]  # fmt: skip
    with tarfile.open(folder / "train/pub11-train-0000.tar") as tar:
        names = tar.getnames()
    assert names[:3] == [
        f"pub11-train-0000-000000.{ending}" for ending in ("img_content", "img_name", "caption")
    ]
    table = read_pairs(folder)
    assert table.splits() == {"train": 180, "val": 60} == {name: told[name] for name in ("train", "val")}
    blank = sum(not caption for caption in table.captions)
    assert blank == told["missing captions"] > 0
    assert sum(caption.startswith("a photo") for caption in table.captions) <= told["not overhead"]
    assert load_pair_image(table, 100).size == (32, 32)
    assert len(set(table.captions)) > 100  # scenes of different shards differ


def test_the_same_seed_writes_the_same(stand_in: tuple[Path, dict[str, int]], tmp_path: Path) -> None:
    assert (
        main(["data", "scenes", str(tmp_path / "a"), "--layout", "rs5m", "--count", "60", "--size", "32"])
        == 0
    )
    write_rs5m(tmp_path / "b", 60, size=32)
    first, second = (read_pairs(tmp_path / name) for name in "ab")
    assert first.fingerprint == second.fingerprint and first.splits() == {"train": 57, "val": 3}
    with pytest.raises(ConfigError, match="leaves a split empty"):
        write_rs5m(tmp_path / "c", 5, val=0.01)


@pytest.mark.slow
def test_table_3_runs_on_it(stand_in: tuple[Path, dict[str, int]], tmp_path: Path, caplog) -> None:
    folder, told = stand_in
    clip = str(save_tiny_clip(tmp_path / "clip", read_pairs(folder).captions, size=32, width=32))
    model = {"vision": clip, "text": clip, "dim": 32, "image_size": 32, "max_tokens": 24}
    train = {"epochs": 1, "batch_size": 40, "device": "cpu", "precision": "fp32", "model": model}
    given = {
        "dataset": str(folder), "lines": '["infonce", "pmpguard"]', "seeds": "[0]",
        "train": json.dumps(train),
        "hold_out": json.dumps({"test": 20, "val": 10, "train": 150, "of": "val"}),
        "work": str(tmp_path / "work"), "out": str(tmp_path / "out"), "rows": str(tmp_path / "rows.jsonl"),
    }  # fmt: skip
    words = ["table", "table3", *(f"--{name}={value}" for name, value in given.items())]
    with caplog.at_level("WARNING"):
        assert main(words) == 0
    assert f"{told['missing captions']} pairs have no caption and are left out" in caplog.text
    rows = read_rows(tmp_path / "rows.jsonl")
    assert sorted(row.method for row in rows) == ["infonce", "pmpguard"]
    assert {row.dataset for row in rows} == {"RS5M stand-in"}
    assert "printed" not in (tmp_path / "out" / "table.md").read_text()  # never beside the paper's
    assert all(0 <= row.metrics["mr"] <= 100 for row in rows)
