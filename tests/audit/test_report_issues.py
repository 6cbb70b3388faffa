"""Kinds of issues on the report's page: badges, notes, the filter, and all of it by keyboard."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.page_browser import until
from helpers.report_pages import grey, press, shown_ranks, small_audit, text

from pmpguard.audit.report import write_report

NASTY = "looks like <img src=x onerror='window.hacked = 1'>.png"
REPEATED = "duplicate_caption: on 7 images; language: misspelt: rivr (river)"


def audit_with_issues():
    rows, summary = small_audit()
    found = {
        1: (("shifted",), "shifted: the caption belongs 1 row after"),
        4: (("duplicate_caption", "language"), REPEATED),
        9: (("near_duplicate_image",), f"near_duplicate_image: {NASTY}"),
    }  # fmt: skip
    rows = [
        replace(row, issues=found[place][0], issue_notes=found[place][1]) if place in found else row
        for place, row in enumerate(rows)
    ]
    counts = {"shifted": 1, "duplicate_caption": 1, "near_duplicate_image": 1, "language": 1, "leak": 0}
    return rows, replace(summary, issues=counts)


@pytest.fixture
def page(open_page, tmp_path):
    return open_page(write_report(tmp_path, *audit_with_issues(), grey))


def test_rows_and_the_pair_carry_badges(page):
    assert page.locator("#row-1 .badge").all_inner_texts() == ["shifted"]
    assert page.locator("#row-4 .badge").all_inner_texts() == ["repeated", "language"]
    assert page.locator("#row-0 .badge").count() == 0
    press(page, "j")
    assert text(page, "#issues") == "shifted\nthe caption belongs 1 row after"
    press(page, "j j j")
    assert "misspelt: rivr (river)" in text(page, "#issues") and "on 7 images" in text(page, "#issues")
    press(page, "j j j j j")
    assert NASTY in text(page, "#issues")
    assert page.evaluate("window.hacked") is None


def test_the_filter_shows_one_kind(page):
    options = page.locator("#issue option").all_inner_texts()
    assert options == [
        "all", "shifted (1)", "duplicate caption (1)", "near duplicate image (1)", "language (1)",
        "any of these", "none of these",
    ]  # fmt: skip
    page.select_option("#issue", label="language (1)")
    assert shown_ranks(page) == [5]
    page.select_option("#issue", "any")
    assert shown_ranks(page) == [2, 5, 10]
    page.select_option("#issue", "none")
    assert len(shown_ranks(page)) == 15
    page.click("#clear")
    for _ in range(200):  # the list is drawn with the next frame
        if len(shown_ranks(page)) == 18:
            break
        page.wait_for_timeout(20)
    assert len(shown_ranks(page)) == 18


def test_issues_are_reached_by_keyboard(page):
    press(page, "i")
    assert page.evaluate("document.activeElement.id") == "issue"
    press(page, "ArrowDown")
    until(page, "view.length === 1")  # a chosen option is told of later than a key
    assert shown_ranks(page) == [2]
    press(page, "Escape")
    assert page.evaluate("document.activeElement.id") == "list"
    page.locator("#issues button").focus()
    page.select_option("#issue", "")
    page.locator("#issues button").focus()
    press(page, "Enter")
    until(page, "view.length === 1")
    assert shown_ranks(page) == [2]


def test_a_report_without_issues_offers_no_filter(open_page, small_report):
    page = open_page(small_report)
    assert not page.locator("#issue").is_visible()
    press(page, "i")
    assert "no other issues" in text(page, "#announce")
