"""Addresses among options: read where a verb can, refused before anything is written where it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from pmpguard.cli.addresses import read_here
from pmpguard.cli.main import main
from pmpguard.errors import ConfigError
from pmpguard.experiments.run import NoiseConfig


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("data convert pairs.csv s3://b/out.parquet", "target"),
        ("clean report --out s3://b/out.parquet", "out"),
        ("train s3://b/run --dataset pairs.csv", "run"),
        ("index build s3://b/index --embeddings embedded", "index"),
        ("convert s3://b/model.pt model", "source"),
    ],
)
def test_what_cannot_be_at_an_address_is_refused(
    words: str,
    option: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 1
    said = capsys.readouterr().err
    assert f"{option}: s3://b/" in said and "Fix: give a path of this machine" in said
    assert not list(tmp_path.iterdir())


def test_addresses_that_are_read_stay_and_files_become_paths() -> None:
    remote = Path("s3://b/set")
    assert read_here("train", "images", remote) == read_here("audit", "out", remote) == remote
    assert read_here("train", "dataset", "s3://b/set") == "s3://b/set"
    assert read_here("table", "datasets", ["scenes", "file:///a/b"]) == ["scenes", "/a/b"]
    assert read_here("train", "noise", NoiseConfig(file=Path("file:///n.json"))).file == Path("/n.json")
    with pytest.raises(ConfigError, match=r"out: s3://b/set is an address"):
        read_here("clean", "out", remote)
