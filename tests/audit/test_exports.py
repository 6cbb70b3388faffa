"""An audit's issues in FiftyOne, Label Studio and spreadsheets, and decisions that come back."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import format_examples as examples

import pmpguard
from pmpguard.audit.cleaning import Decision, read_decisions
from pmpguard.audit.exports import choose_rows, export_issues, issues_csv
from pmpguard.audit.issues import read_issues, read_summary
from pmpguard.audit.label_studio import decisions_of_tasks
from pmpguard.audit.rows import AuditRow, Proposal
from pmpguard.cli.clean import clean
from pmpguard.cli.export_issues import export
from pmpguard.data.formats import read_pairs
from pmpguard.errors import ConfigError, DataError

PEERS = os.environ.get("PMPGUARD_EXPORT_PEERS")  # a Python that has fiftyone and label-studio-sdk
SCRIPT = Path(__file__).parents[1] / "peers" / "read_exports.py"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images inside parquet, three pairs exchanged."""
    folder = tmp_path_factory.mktemp("exports")
    table = read_pairs(examples.hugging_face_parquet(folder / "data"))
    generator = np.random.default_rng(0)
    images = generator.normal(size=(6, 32))
    texts = images[table.image_codes] + 0.2 * generator.normal(size=(30, 32))
    texts[[0, 7, 16]] = texts[[16, 0, 7]]
    pmpguard.audit(table, texts=texts, images=images, bootstrap=0).report(folder / "report")
    return folder / "report"


def test_samples_for_fiftyone(report: Path, tmp_path: Path) -> None:
    told = export(report, tmp_path / "out", "fiftyone", "all")
    samples = json.loads((tmp_path / "out" / "samples.json").read_text())["samples"]
    rows = read_issues(report / "issues.parquet")
    assert [sample["pair_id"] for sample in samples] == [row.pair_id for row in rows]
    assert all(Path(sample["filepath"]).read_bytes().startswith(b"\x89PNG") for sample in samples)
    assert {sample["verdict"]["label"] for sample in samples if sample["flag"]} == {"mismatched"}
    assert told.pairs == 30 and "--type fiftyone.types.FiftyOneDataset" in told.as_text()


def test_tasks_for_label_studio_and_decisions_back(report: Path, tmp_path: Path) -> None:
    export(report, tmp_path / "tasks", "label-studio", "all")
    tasks = json.loads((tmp_path / "tasks" / "tasks.json").read_text())
    ids = [task["data"]["pair_id"] for task in tasks]
    for number, task in enumerate(tasks[:4]):
        action = ("keep", "drop", "edit", "drop")[number]
        older = annotation("drop", "2026-01-01") | {"was_cancelled": number == 3}
        task["annotations"] = [annotation(action, "2026-01-02", "a lake <b>&amp;"), older]
    tasks[3]["annotations"] = tasks[3]["annotations"][1:]  # cancelled alone: no decision
    (tmp_path / "export.json").write_text(json.dumps(tasks))
    fingerprint = read_summary(report / "summary.json").dataset
    assert read_decisions(tmp_path / "export.json", fingerprint, ids) == {
        ids[0]: Decision("keep", None),
        ids[1]: Decision("drop", None),
        ids[2]: Decision("edit", "a lake <b>&amp;"),
    }
    done = clean(report, tmp_path / "cleaned", decisions=tmp_path / "export.json", format="hub")
    table = read_pairs(tmp_path / "cleaned", strict=True)
    said = dict(zip(table.column("pair_id"), table.captions, strict=True))
    assert ids[1] not in said and said[ids[2]] == "a lake <b>&amp;" and ids[0] in said
    card = (tmp_path / "cleaned" / "README.md").read_text()
    assert f"fingerprint {fingerprint}" in card and "Estimated noise rate before cleaning" in card
    assert done.changes["edited by reviewer"] == 1 and "1 edited by reviewer" in card


def annotation(action: str, when: str, caption: str = "") -> dict[str, Any]:
    """As Label Studio exports it."""
    result = [
        {"from_name": "decision", "to_name": "image", "type": "choices", "value": {"choices": [action]}}
    ]
    if action == "edit":
        value = {"text": [caption]}
        result += [{"from_name": "caption", "to_name": "image", "type": "textarea", "value": value}]
    return {"was_cancelled": False, "created_at": when, "result": result}


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([{"data": {"caption": "x"}}], r"a\.json \[0\]: no task with a pair_id"),
        ([3], r"a\.json \[0\]: no task with a pair_id"),
        ([{"data": {"pair_id": "1", "dataset": "other"}}], r"\[0\]: about another dataset"),
    ],
)
def test_other_lists_are_refused(tasks: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        decisions_of_tasks(tasks, "a.json", "f")


def test_an_odd_annotation_is_named(tmp_path: Path) -> None:
    odd = {"data": {"pair_id": "1", "dataset": "f"}, "annotations": [annotation("perhaps", "1")]}
    (tmp_path / "a.json").write_text(json.dumps([odd]))
    with pytest.raises(DataError, match=r"pair '1': action is 'perhaps'\nFix: one of keep, drop"):
        read_decisions(tmp_path / "a.json", "f", ["1"])


def row(caption: str, **fields: Any) -> AuditRow:
    return AuditRow("=1+1", "a.png", caption, "train", "", 0.25, True, 1, {"cosine": 0.5}, **fields)


def test_no_cell_is_a_formula_and_numbers_stay_numbers() -> None:
    proposal = Proposal("@SUM(A1)", 0.75, "-2")
    (line,) = csv.DictReader(io.StringIO(issues_csv([row("+cmd|' /C calc'!A0", proposals=(proposal,))])))
    assert [line[name] for name in ("pair_id", "caption", "proposal", "proposal_from")] == [
        "'=1+1",
        "'+cmd|' /C calc'!A0",
        "'@SUM(A1)",
        "'-2",
    ]
    assert float(line["p_match"]) == 0.25 and float(line["cosine"]) == 0.5


def test_which_pairs(report: Path, tmp_path: Path) -> None:
    rows = read_issues(report / "issues.parquet")
    assert choose_rows(rows, "flagged") == [each for each in rows if each.flag]
    assert len(choose_rows(rows, "flagged")) <= len(choose_rows(rows, "issues")) <= len(rows) == 30
    assert export(report, tmp_path / "out", "csv", "all").pairs == 30
    table = read_pairs(report / "pairs.parquet")
    with pytest.raises(ConfigError, match="tool 'excel' is unknown"):
        export_issues(table, rows, tmp_path / "x", "excel", "")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.skipif(not PEERS, reason="PMPGUARD_EXPORT_PEERS names no Python with fiftyone, label-studio-sdk")
def test_the_real_tools_take_the_exports(report: Path, tmp_path: Path, record_property: Any) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def peer(tool: Any) -> list[dict[str, Any]]:
        export(report, tmp_path / tool, tool, "all")
        command = [str(PEERS), str(SCRIPT), tool, str(tmp_path / tool)]
        done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True)
        found: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
        return found

    rows = read_issues(report / "issues.parquet")
    assert [(each["pair_id"], each["p_match"]) for each in peer("fiftyone")] == [
        (each.pair_id, each.p_match) for each in rows
    ]
    annotated = peer("label-studio")
    (tmp_path / "export.json").write_text(json.dumps(annotated))
    decided = read_decisions(
        tmp_path / "export.json", read_summary(report / "summary.json").dataset, [one.pair_id for one in rows]
    )
    record_property("samples in FiftyOne", len(rows))
    record_property("decisions of Label Studio", len(decided))
    assert len(decided) == 30 and decided[rows[3].pair_id] == Decision("edit", "written anew & <b>3</b>")
