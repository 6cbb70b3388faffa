"""issues.parquet and summary.json: what is written comes back."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from pmpguard.audit.issues import read_issues, read_summary, write_issues, write_summary
from pmpguard.audit.rows import ISSUE_TYPES, AuditRow, AuditSummary, Proposal, WordVerdict
from pmpguard.errors import DataError


def rows():
    word = WordVerdict(0, 4, 0.25, True, (0.5, -0.25))
    proposal = Proposal("a better one", 0.75, "b", (WordVerdict(2, 8, 0.5, False),))
    return [
        AuditRow("b", "b.png", "quiet", "val", "", 0.9, False, 2, {"score": 1.5}),
        AuditRow("a", "a.png", "loud <b>", "train", "x", 0.125, True, 1, {"score": -1.0, "agreement": 0.5},
                 (word,), (1, 2), (proposal,)),
    ]  # fmt: skip


def test_rows_come_back_in_order_of_rank(tmp_path):
    path = tmp_path / "issues.parquet"
    write_issues(path, rows())
    assert read_issues(path) == sorted(rows(), key=lambda row: row.rank)


def test_machines_find_plain_columns(tmp_path):
    path = tmp_path / "issues.parquet"
    write_issues(path, rows())
    table = pq.read_table(path)
    assert table.column_names == [
        "pair_id", "image", "caption", "split", "label", "p_match", "flag", "rank", "evidence", "words",
        "grid", "proposals",
        *(name for kind in ISSUE_TYPES for name in (f"{kind}_score", f"is_{kind}")),
        "issue_notes", "shifted_from",
    ]  # fmt: skip
    assert table["evidence"].to_pylist()[0] == {"agreement": 0.5, "score": -1.0}
    assert table["words"].to_pylist()[0][0]["wrong"] is True


def test_an_audit_of_nothing_is_written_too(tmp_path):
    write_issues(tmp_path / "issues.parquet", [])
    assert read_issues(tmp_path / "issues.parquet") == []


def test_summary_comes_back(tmp_path):
    summary = AuditSummary(10, 2, 3, 0.3, (0.2, 0.4), 1, 0, ("x.png",), ("few",), "model", "ff")
    write_summary(tmp_path / "summary.json", summary)
    assert read_summary(tmp_path / "summary.json") == summary


def test_what_is_no_audit_is_refused(tmp_path):
    with pytest.raises(DataError, match="file not found"):
        read_issues(tmp_path / "issues.parquet")
    with pytest.raises(DataError, match="finished audit"):
        read_summary(tmp_path / "summary.json")
    (tmp_path / "issues.parquet").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="not a readable parquet file"):
        read_issues(tmp_path / "issues.parquet")
