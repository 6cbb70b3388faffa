"""`pmpguard audit`, `clean` and `figure`, one after the other, as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pmpguard.audit.issues_file import read_issues
from pmpguard.cli import run_verb
from pmpguard.commands.audit import audit
from pmpguard.commands.clean import clean
from pmpguard.commands.embed import embed
from pmpguard.commands.figure import figure
from pmpguard.data.formats import read_pairs
from pmpguard.data.scenes import scene_world, write_world
from pmpguard.errors import ConfigError, DataError
from pmpguard.model.retriever import Retriever
from pmpguard.model.retriever_config import preset


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """An audit by an untrained model: (dataset, report folder, model)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("audit")
    write_world(scene_world(16, size=32), folder / "world")
    Retriever.create(preset("tiny", dim=32, image_size=32), ["a red roof", "a blue river"]).save(
        folder / "model"
    )
    words = [
        str(folder / "world"),
        "--out",
        str(folder / "report"),
        "--model",
        str(folder / "model"),
        "--bootstrap",
        "5",
    ]
    assert run_verb("audit", audit, words) == 0
    return folder / "world", folder / "report", folder / "model"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_report_is_whole(report):
    names = {path.name for path in report[1].iterdir()}
    assert {"issues.parquet", "summary.json", "pairs.parquet", "index.html"} <= names
    assert read_pairs(report[1] / "pairs.parquet").image_path(0).is_file()


def test_machine_readable_output_and_exit_code(report, tmp_path, capsys):
    dataset, _, model = report
    broken = write_world(scene_world(8, size=32), tmp_path / "world")
    (broken.root / "scene-000002.png").unlink()
    words = [
        str(tmp_path / "world"),
        "--out",
        str(tmp_path / "out"),
        "--model",
        str(model),
        "--splits",
        "train,val",
        "--json",
    ]
    assert run_verb("audit", audit, words) == 3  # written, but something was left out
    captured = capsys.readouterr()
    told = json.loads(captured.out)
    assert captured.err.splitlines() == [
        "looking at 7 images",
        "judging 30 pairs of 6 images",
        "weighing the evidence on 30 pairs",
        f"writing the report to {tmp_path / 'out'}",
    ]
    assert told["unjudged"] == {"with an image that cannot be read": 5}
    assert told["summary"]["unreadable"] == ["scene-000002.png"]
    assert Path(told["page"]).is_file() and dataset.is_dir()


def test_text_output(report, tmp_path, capsys):
    dataset, _, model = report
    run_verb(
        "audit",
        audit,
        [str(dataset), "--out", str(tmp_path / "out"), "--model", str(model), "--bootstrap", "5"],
    )
    said = capsys.readouterr().out
    for part in ("80 pairs of 16 images", "estimated mismatch rate", "most suspicious", "index.html"):
        assert part in said


@pytest.mark.parametrize(
    ("name", "format", "columns"),
    [("a.parquet", None, True), ("a.jsonl", None, True), ("a.csv", None, False), ("a.json", None, False),
     ("a", "folder", True), ("a", "webdataset", True), ("a", "amfmn", False)],
)  # fmt: skip
def test_every_format_can_be_written(report, tmp_path, name, format, columns):
    dataset, folder, _ = report
    before = files_of(dataset)
    flagged = {row.pair_id for row in read_issues(folder / "issues.parquet") if row.flag}
    done = clean(folder, tmp_path / name, "drop", format=format)
    assert done.after == 80 - len(flagged) and done.changes["dropped"] == len(flagged)
    images = None if format in ("folder", "webdataset") else dataset / "images"
    again = read_pairs(tmp_path / name, images=images)
    assert len(again) == done.after
    assert ("provenance" in again.arrow.column_names) == columns
    assert any("provenance" in note for note in done.notes) != columns
    assert any(note.startswith("the audit said: only 80 pairs") for note in done.notes)
    assert files_of(dataset) == before
    for path in done.diff:
        assert path.is_file() and path.parent == tmp_path


def test_decisions_from_the_page(report, tmp_path):
    _, folder, _ = report
    summary = json.loads((folder / "summary.json").read_text())
    rows = read_issues(folder / "issues.parquet")
    pair = next(row for row in rows if row.flag)
    decided = {
        pair.pair_id: {"action": "edit", "caption": "what it is"},
        rows[-1].pair_id: {"action": "drop"},
    }
    path = tmp_path / "decisions.json"
    path.write_text(json.dumps({"dataset": summary["dataset"], "decisions": decided}))
    done = clean(folder, tmp_path / "a.parquet", "drop", decisions=path)
    table = read_pairs(tmp_path / "a.parquet")
    by_id = dict(zip(table.column("pair_id"), table.captions, strict=True))
    assert by_id[pair.pair_id] == "what it is" and rows[-1].pair_id not in by_id
    assert done.changes["edited by reviewer"] == 1
    path.write_text(json.dumps({"dataset": "another", "decisions": decided}))
    with pytest.raises(DataError, match="made for dataset another"):
        clean(folder, tmp_path / "b.parquet", decisions=path)
    assert not (tmp_path / "b.parquet").exists()


def test_weights_need_a_place(report, tmp_path):
    _, folder, _ = report
    clean(folder, tmp_path / "a.parquet", "weight")
    weights = read_pairs(tmp_path / "a.parquet").column("weight")
    assert len(weights) == 80 and 0 <= min(weights) <= max(weights) <= 1
    with pytest.raises(ConfigError, match="no place for weights"):
        clean(folder, tmp_path / "a.csv", "weight")


def test_nothing_is_overwritten(report, tmp_path):
    _, folder, _ = report
    (tmp_path / "a.parquet").write_text("mine")
    with pytest.raises(DataError, match="exists already"):
        clean(folder, tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="cannot be written"):
        clean(folder, tmp_path / "b", format="nwpu")
    with pytest.raises(ConfigError, match="say which with --format, one of karpathy"):
        clean(folder, tmp_path / "b")
    assert (tmp_path / "a.parquet").read_text() == "mine"


def test_pairs_that_are_not_those_audited_are_refused(report, tmp_path):
    import shutil

    shutil.copytree(report[1], tmp_path / "report")
    other = read_pairs(report[1] / "pairs.parquet").take(np.arange(10))
    other.write_parquet(tmp_path / "report/pairs.parquet")
    with pytest.raises(DataError, match="not the pairs that were audited"):
        clean(tmp_path / "report", tmp_path / "a.parquet")


def test_the_figure(report, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    ids = [row.pair_id for row in read_issues(report[1] / "issues.parquet")[:2]]
    words = [str(report[1]), "--out", str(tmp_path / "figure.png"), "--pairs", ",".join(ids), "--json"]
    assert run_verb("figure", figure, words) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == ids
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_a_clip_folder_is_a_dataset_of_its_own(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    generator = np.random.default_rng(0)
    for name in ("img_emb", "text_emb", "metadata"):
        (tmp_path / "emb" / name).mkdir(parents=True)
    np.save(tmp_path / "emb/img_emb/0.npy", generator.normal(size=(60, 8)).astype("float16"))
    np.save(tmp_path / "emb/text_emb/0.npy", generator.normal(size=(60, 8)).astype("float16"))
    columns = {
        "image_path": [f"{n // 2}.png" for n in range(60)],
        "caption": [f"text {n}" for n in range(60)],
    }
    pq.write_table(pa.table(columns), tmp_path / "emb/metadata/0.parquet")
    done = audit(tmp_path / "emb", tmp_path / "out", embeddings=tmp_path / "emb")
    assert done.exit_code == 0 and done.as_dict()["summary"]["pairs"] == 60
    assert any("no pictures in the report" in said for said in done.outcome.summary.warnings)


def test_what_embed_wrote_can_be_audited(report, tmp_path):
    dataset, _, model = report
    embed(dataset, model, tmp_path / "vectors", progress=False)
    done = audit(dataset, tmp_path / "out", embeddings=tmp_path / "vectors")
    assert done.exit_code == 0 and done.as_dict()["summary"]["pairs"] == 80
    alone = audit(tmp_path / "vectors", tmp_path / "alone", embeddings=tmp_path / "vectors")
    assert [(row.pair_id, row.p_match) for row in alone.outcome.rows] == [
        (row.pair_id, row.p_match) for row in done.outcome.rows
    ]
    assert not any("no pictures" in said for said in alone.outcome.summary.warnings)
