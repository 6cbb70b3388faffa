"""`--workers` and `--engine` on the command line: the files and words of one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.search_examples import files_of, make_world

from pmpguard.cli.main import main

ALONE = ["--workers", "1"]


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A dataset, a model, and what one process makes of them."""
    folder = tmp_path_factory.mktemp("workers")
    make_world(folder)
    assert embed(folder, "alone", ALONE) == 0 and build(folder, "alone", ALONE) == 0
    return folder


def embed(folder: Path, name: str, shared: list[str]) -> int:
    return main(["embed", str(folder / "world"), "--model", str(folder / "model"), "--out",
                 str(folder / name / "emb"), "--partition_size", "9", "--device", "cpu", "--progress",
                 "false", *shared])  # fmt: skip


def build(folder: Path, name: str, shared: list[str]) -> int:
    return main(["index", "build", str(folder / name / "index"), "--embeddings",
                 str(folder / "alone" / "emb"), *shared])  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("shared", [["--workers", "3"], ["--workers", "2", "--engine", "ray"]], ids=" ".join)
def test_embed_and_index_build_write_the_same_files(made, shared):
    name = "-".join(shared)
    assert embed(made, name, shared) == 0 and build(made, name, shared) == 0
    for kind in ("emb", "index"):
        assert files_of(made / name / kind) == files_of(made / "alone" / kind)


@pytest.mark.slow
def test_check_says_the_same(made, capsys):
    def said(workers: str) -> dict[str, object]:
        code = main(["data", "check", str(made / "world"), "--progress", "false", "--json", *workers.split()])
        return {"code": code, **json.loads(capsys.readouterr().out)}

    assert said("--workers 1") == said("--workers 3")


@pytest.mark.parametrize("verb", ["embed", "index build", "data check", "audit"])
def test_a_ray_address_that_does_not_fit_is_refused(made, verb, capsys):
    words = {
        "embed": ["embed", made / "world", "--model", made / "model", "--out", made / "refused"],
        "index build": ["index", "build", made / "refused", "--embeddings", made / "alone" / "emb"],
        "data check": ["data", "check", made / "world"],
        "audit": ["audit", made / "world", "--out", made / "refused", "--quick"],
    }[verb]
    assert main([*map(str, words), "--address", "head:6379"]) == 1
    assert "no engine that has one" in capsys.readouterr().err
