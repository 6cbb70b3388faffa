"""Policies, decisions that go before them, provenance, and the list of changes."""

from __future__ import annotations

import csv
import json
import math
import weakref
from dataclasses import replace

import pytest

from pmpguard.audit.cleaning import Decision, check_informative, clean_pairs, read_decisions, write_difference
from pmpguard.audit.issues import iter_issues, read_issues, write_issues
from pmpguard.audit.rows import AuditRow, AuditSummary, Proposal, WordVerdict
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError


def table():
    captions = ["a pond", "wrong one", "wrong two", "a road", "never judged"]
    return PairTable.from_columns(
        {"pair_id": list("abcde"), "image": [f"{name}.png" for name in "abcde"], "caption": captions}
    )


def rows():
    def row(pair, caption, p, rank, *proposals):
        return AuditRow(
            pair, f"{pair}.png", caption, "train", "", p, p < 0.5, rank, {}, (), (0, 0), proposals
        )

    return [
        row("b", "wrong one", 0.1, 1, Proposal("a lake", 0.8, "a"), Proposal("a sea", 0.6, "d")),
        row("c", "wrong two", 0.2, 2, Proposal("a hill", 0.1, "d")),
        row("a", "a pond", 0.9, 3),
        row("d", "a road", 0.7, 4),
    ]


def test_drop_leaves_out_what_was_judged_wrong():
    cleaned = clean_pairs(table(), rows(), "drop")
    assert cleaned.table.column("pair_id") == ["a", "d", "e"]
    assert cleaned.table.column("provenance") == ["kept", "kept", "not judged"]
    assert cleaned.table.column("p_match") == [0.9, 0.7, None]
    assert cleaned.counts == {"kept": 2, "dropped": 2, "not judged": 1}


def test_nothing_is_dropped_unseen_where_the_evidence_tells_nothing():
    blind = AuditSummary(4, 4, 3, 0.99, None, 0, None, informative=False)
    with pytest.raises(ConfigError, match="flags 3 of 4") as caught:
        check_informative(blind, "drop", None)
    assert "--decisions" in caught.value.fix
    check_informative(blind, "drop", {"b": Decision("keep")})
    check_informative(blind, "weight", None)
    check_informative(replace(blind, informative=True), "drop", None)


def test_rematch_takes_good_proposals_only():
    cleaned = clean_pairs(table(), rows(), "rematch")
    assert cleaned.table.captions == ["a pond", "a lake", "a road", "never judged"]
    assert cleaned.table.column("provenance")[1] == "rematched from a"
    assert cleaned.table.column("original_caption") == [None, "wrong one", None, None]
    generous = clean_pairs(table(), rows(), "rematch", min_probability=0.05)
    assert generous.table.captions[2] == "a hill"
    with pytest.raises(ConfigError, match="not between 0 and 1"):
        clean_pairs(table(), rows(), "rematch", min_probability=50)


@pytest.mark.parametrize("policy", ["drop", "rematch", "weight"])
def test_rows_are_read_one_by_one_and_few_are_held(policy, tmp_path, monkeypatch):
    monkeypatch.setattr("pmpguard.audit.issues.ROWS_AT_ONCE", 5)
    words = (WordVerdict(0, 1, 0.5, False, (0.5,) * 9),)
    flagged = {3, 40}
    judged = [
        AuditRow(f"p{n}", f"{n}.png", f"pond {n}", "train", "", 0.1 if n in flagged else 0.9, n in flagged,
                 n + 1, {"similarity": 1.0}, words, (3, 3), (Proposal(f"lake {n}", 0.8, "p0", words),))
        for n in range(50)
    ]  # fmt: skip
    columns = {name: [getattr(row, name) for row in judged] for name in ("pair_id", "image", "caption")}
    write_issues(tmp_path / "issues.parquet", judged)
    alive, most = weakref.WeakSet(), 0

    def one_by_one():
        nonlocal most
        for row in iter_issues(tmp_path / "issues.parquet", brief=True):
            assert not row.words and not row.evidence
            alive.add(row)
            most = max(most, len(alive))
            yield row

    monkeypatch.setattr(AuditRow, "__hash__", object.__hash__)
    pairs, decisions = PairTable.from_columns(columns), {"p7": Decision("accept")}
    found = clean_pairs(pairs, one_by_one(), policy, decisions)
    whole = clean_pairs(pairs, read_issues(tmp_path / "issues.parquet"), policy, decisions)
    assert found.changes == whole.changes and found.table.arrow.equals(whole.table.arrow)
    assert most <= 5  # the flagged ones, the one decided on, the one at hand and the one before it


def test_an_unknown_policy_is_refused():
    with pytest.raises(ConfigError, match=r"policy 'burn' is not known\nFix: one of drop, rematch, weight"):
        clean_pairs(table(), rows(), "burn")


def test_no_image_gets_the_same_caption_twice():
    """Wrong captions of one image share their proposals; the second takes the next best one."""
    captions = ["wrong one", "wrong two", "wrong three", "wrong four", "wrong five"]
    pairs = PairTable.from_columns(
        {"pair_id": list("abcde"), "image": ["x.png"] * 4 + ["y.png"], "caption": captions}
    )
    offers = (Proposal("a lake", 0.9, "p"), Proposal("a sea", 0.8, "q"), Proposal("a hill", 0.1, "r"))
    judged = [
        AuditRow(pair, image, caption, "train", "", 0.1, True, 1, {}, (), (0, 0), offers)
        for pair, image, caption in zip("abcde", pairs.column("image"), captions, strict=True)
    ]
    cleaned = clean_pairs(pairs, judged, "rematch")
    assert cleaned.table.column("pair_id") == ["a", "b", "e"]
    assert cleaned.table.captions == ["a lake", "a sea", "a lake"]
    reviewed = clean_pairs(pairs, judged, "rematch", {"c": Decision("accept", "a lake")})
    assert dict(zip(reviewed.table.column("pair_id"), reviewed.table.captions, strict=True)) == {
        "a": "a sea", "c": "a lake", "e": "a lake",
    }  # fmt: skip


def test_weight_keeps_everything():
    cleaned = clean_pairs(table(), rows(), "weight", {"b": Decision("keep")})
    assert cleaned.table.captions == table().captions
    assert cleaned.table.column("weight") == [0.9, 1.0, 0.2, 0.7, 1.0]  # a reviewer's keep counts fully


def test_decisions_go_before_the_policy():
    decisions = {
        "a": Decision("drop"),
        "b": Decision("accept", "a sea"),
        "c": Decision("keep"),
        "d": Decision("edit", "  a wide   road "),
    }
    cleaned = clean_pairs(table(), rows(), "drop", decisions)
    assert cleaned.table.column("pair_id") == ["b", "c", "d", "e"]
    assert cleaned.table.captions == ["a sea", "wrong two", "a wide road", "never judged"]
    assert cleaned.table.column("provenance") == [
        "proposal accepted by reviewer from d", "kept by reviewer", "edited by reviewer", "not judged",
    ]  # fmt: skip
    assert clean_pairs(table(), rows(), "drop", {"b": Decision("accept")}).table.captions[1] == "a lake"
    with pytest.raises(DataError, match="there is none"):
        clean_pairs(table(), rows(), "drop", {"a": Decision("accept")})


def test_the_audited_table_stays_as_it_is():
    given = table()
    before = given.fingerprint
    clean_pairs(given, rows(), "rematch")
    assert PairTable(given.arrow).fingerprint == before and "provenance" not in given.arrow.column_names


def test_a_changed_dataset_is_refused():
    changed = table().with_column("caption", ["another", *table().captions[1:]])
    with pytest.raises(DataError, match="audit the dataset again"):
        clean_pairs(changed, rows(), "drop")


def test_nothing_left_is_an_error():
    few = table().take([1, 2])
    with pytest.raises(DataError, match="no pair is left"):
        clean_pairs(few, rows(), "drop")


def test_the_list_of_changes(tmp_path):
    given = table()
    decided = {"d": Decision("edit", 'a "road", wide'), "e": Decision("edit", "=1+1")}
    cleaned = clean_pairs(given, rows(), "rematch", decided)
    machine, human = write_difference(tmp_path / "clean.parquet", given, cleaned)
    with machine.open(newline="") as stream:
        listed = list(csv.DictReader(stream))
    assert [(one["pair_id"], one["change"], one["after"], one["source_pair"]) for one in listed] == [
        ("b", "rematched", "a lake", "a"),
        ("c", "dropped", "", ""),
        ("d", "edited by reviewer", 'a "road", wide', ""),
        ("e", "edited by reviewer", "'=1+1", ""),  # no cell begins a formula
    ]
    text = human.read_text()
    assert "5 pairs before, 4 after" in text and "- wrong one\n+ a lake   (from a)" in text


def decisions_file(tmp_path, content):
    path = tmp_path / "decisions.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_decisions_are_read(tmp_path):
    decided = {"a": {"action": "keep"}, "b": {"action": "accept", "caption": "x"}}
    path = decisions_file(tmp_path, {"dataset": "ff", "decisions": decided})
    assert read_decisions(path, "ff", ["a", "b"]) == {"a": Decision("keep"), "b": Decision("accept", "x")}


def test_a_mistyped_path_of_decisions_is_named(tmp_path):
    with pytest.raises(DataError, match=r"typo\.json: file not found\nFix: check the path"):
        read_decisions(tmp_path / "typo.json", "ff", ["a"])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "not valid JSON"),
        ([], "no decisions"),
        ({"dataset": "ff", "decisions": []}, "no decisions"),
        ({"dataset": "other", "decisions": {}}, "made for dataset other"),
        ({"dataset": "ff", "decisions": {"z": {"action": "keep"}}}, "not a pair of this dataset"),
        ({"dataset": "ff", "decisions": {"a": {"action": "burn"}}}, "action is 'burn'"),
        ({"dataset": "ff", "decisions": {"a": "keep"}}, "action is None"),
        ({"dataset": "ff", "decisions": {"a": {"action": "edit", "caption": "  "}}}, "there is no caption"),
        ({"dataset": "ff", "decisions": {"a": {"action": "accept", "caption": 3}}}, "not text"),
        (
            {"dataset": "ff", "decisions": {"a": {"action": "edit", "caption": "x" * 10_001}}},
            "10,001 characters",
        ),
        (
            {"dataset": "ff", "decisions": {"a": {"action": "accept", "caption": "\ud800"}}},
            "pair 'a'.*caption",
        ),
    ],
)
def test_bad_decisions_are_refused(tmp_path, content, said):
    with pytest.raises(DataError, match=said):
        read_decisions(decisions_file(tmp_path, content), "ff", ["a", "b"])


@pytest.mark.parametrize("policy", ["drop", "rematch", "weight"])
def test_what_cannot_be_read_is_dropped_under_every_policy(policy):
    damaged = AuditRow(
        "e", "e.png", "never judged", "train", "", math.nan, False, 5, {}, issues=("unreadable",)
    )
    cleaned = clean_pairs(table(), [*rows(), damaged], policy)
    assert "e" not in cleaned.table.column("pair_id") and cleaned.counts["dropped, cannot be read"] == 1
    kept = clean_pairs(table(), [*rows(), damaged], policy, {"e": Decision("keep")})
    assert "e" in kept.table.column("pair_id")  # a reviewer's word goes before
