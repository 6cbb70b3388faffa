"""Rows made when asked for: a sequence like any other, and few at a time."""

from __future__ import annotations

import numpy as np
import pytest

from pmpguard.audit import row_list
from pmpguard.audit.issues import issues_table, read_issues, write_issues
from pmpguard.audit.row_list import AuditRows, evidence_names, in_order
from pmpguard.audit.rows import AuditRow


def row(rank: int, pair: str = "") -> AuditRow:
    evidence = {"similarity": rank / 8, "regression": 1.0}
    return AuditRow(pair or f"p{rank}", f"{rank}.png", "a pond", "train", "", 0.5, False, rank, evidence)


@pytest.fixture
def made():
    """Seven rows and an unread one, with a list of the places asked for."""
    asked: list[int] = []

    def make(place: int) -> AuditRow:
        asked.append(place)
        return row(place + 1)

    unread = AuditRow("u", "u.png", "", "train", "", float("nan"), False, 8)
    return AuditRows(np.arange(7)[::-1], make, ("similarity", "regression"), [unread]), asked


def test_rows_are_a_sequence_and_only_those_asked_for_are_made(made):
    rows, asked = made
    assert len(rows) == 8 and asked == []
    assert [one.rank for one in rows[2:4]] == [3, 4] and asked == [2, 3]
    assert rows[-1].pair_id == "u" and rows[0].rank == 1 and rows[-2].rank == 7
    assert [one.rank for one in rows] == [1, 2, 3, 4, 5, 6, 7, 8]
    with pytest.raises(IndexError):
        rows[8]


def test_a_list_of_rows_is_put_in_order():
    assert [one.rank for one in in_order([row(3), row(1), row(2)])] == [1, 2, 3]
    assert evidence_names([row(1)]) == ["regression", "similarity"]


def test_issues_written_in_blocks_are_those_written_at_once(made, tmp_path, monkeypatch):
    rows, _ = made
    whole = issues_table(list(rows))
    monkeypatch.setattr(row_list, "BLOCK", 3)
    write_issues(tmp_path / "issues.parquet", rows)
    assert read_issues(tmp_path / "issues.parquet")[:7] == list(rows)[:7]
    assert issues_table(rows).equals(whole)
