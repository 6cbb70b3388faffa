"""The report reviewed in a real browser, by keyboard and by touch; decisions kept, saved and loaded."""

from __future__ import annotations

import json

from helpers.report_pages import FINGERPRINT, decisions, press, selected, shown_ranks, text


def test_summary_and_first_pair_are_shown(open_page, small_report):
    page = open_page(small_report)
    figures = text(page, "#figures")
    for part in ("23.1 %", "21.0 % to 25.4 %", "of 18 pairs", "1 unreadable", "2 pairs, 1 image"):
        assert part in figures
    assert "<b>few</b> pairs" in text(page, "#notes") and "<u>m</u>" in text(page, "#about")
    assert text(page, "#count") == "18 pairs"
    assert text(page, "#caption") == "a pond number 12"
    assert text(page, "#caption .wrong") == "number"
    assert text(page, "#wrong-words") == "Not borne out: number"
    assert text(page, "#verdict-p") == "5 %" and text(page, "#verdict-chip") == "Flagged"
    assert page.locator(".proposal").all_inner_texts()[0].split("\n")[1] == "the best for 0"
    assert page.locator("#evidence dt").all_inner_texts() == ["cosine", "neighbours"]


def test_review_by_keyboard_alone(open_page, small_report):
    page = open_page(small_report)
    press(page, "a j k 2 y d")  # p0 best; on to p1, to p2 and back; p1 second; p2 kept; p3 dropped
    expected = {
        "p0": {"action": "accept", "caption": "the best for 0"},
        "p1": {"action": "accept", "caption": "second for 1"},
        "p2": {"action": "keep"},
        "p3": {"action": "drop"},
    }
    assert selected(page) == "p4" and decisions(page) == expected
    press(page, "e")
    assert page.locator("#edited").input_value() == "a river number 8"
    page.keyboard.type(" & <more> jkaud")
    press(page, "Enter")
    expected["p4"] = {"action": "edit", "caption": "a river number 8 & <more> jkaud"}
    assert selected(page) == "p5" and decisions(page) == expected
    assert text(page, "#row-4 .best") == "a river number 8 & <more> jkaud"
    assert text(page, "#row-3 .chip") == "Dropped"
    for pair in ("p4", "p3", "p2"):  # several levels of undo, each going back to its pair
        press(page, "u")
        del expected[pair]
        assert selected(page) == pair
    assert text(page, "#announce") == "Undone: p2"
    press(page, "u u")
    assert decisions(page) == {}
    press(page, "u")
    assert text(page, "#announce") == "There is nothing to undo."


def test_a_changed_mind_is_one_step_and_a_repeated_one_none(open_page, small_report):
    page = open_page(small_report)
    press(page, "y k d k d k")
    assert decisions(page) == {"p0": {"action": "drop"}}
    press(page, "u")
    assert decisions(page) == {"p0": {"action": "keep"}}
    press(page, "u")
    assert decisions(page) == {}
    press(page, "d k r")
    assert decisions(page) == {} and selected(page) == "p0"
    press(page, "u")
    assert decisions(page) == {"p0": {"action": "drop"}}


def test_editing_can_be_left_and_never_empties_a_caption(open_page, small_report):
    page = open_page(small_report)
    press(page, "e x Escape")
    assert decisions(page) == {} and text(page, "#caption") == "a pond number 12"
    press(page, "e Control+a Backspace Enter")
    assert "cannot be empty" in text(page, "#announce") and page.locator("#edited").is_visible()
    press(page, "Escape e Enter")
    assert text(page, "#announce") == "The caption is unchanged." and decisions(page) == {}


def test_a_pair_without_proposals_accepts_none(open_page, small_report):
    page = open_page(small_report)
    press(page, "j ArrowDown a")
    assert selected(page) == "p2" and text(page, "#announce") == "There is no proposal for this pair."
    assert page.locator("[data-action=accept]").is_disabled()
    press(page, "ArrowUp 3")
    assert text(page, "#announce") == "There is no proposal 3." and decisions(page) == {}


def test_moving_far_and_help(open_page, small_report):
    page = open_page(small_report)
    press(page, "End")
    assert text(page, "#place") == "Rank 18 of 18"
    press(page, "j Home k")
    assert text(page, "#place") == "Rank 1 of 18"
    press(page, "?")
    assert page.locator("#help").is_visible()
    press(page, "j Escape")
    assert not page.locator("#help").is_visible() and text(page, "#place") == "Rank 1 of 18"
    press(page, "/ j")
    assert page.locator("#text").input_value() == "j" and text(page, "#place") == "Rank 1 of 18"


def test_decisions_outlive_a_reload(open_page, small_report):
    page = open_page(small_report)
    press(page, "a d")
    page.reload()
    page.wait_for_selector(".row")
    expected = {"p0": {"action": "accept", "caption": "the best for 0"}, "p1": {"action": "drop"}}
    assert decisions(page) == expected
    assert text(page, "#count") == "18 pairs · 2 decided" and text(page, "#row-1 .chip") == "Dropped"
    assert page.evaluate("Object.keys(localStorage)") == [f"pmpguard-audit:{FINGERPRINT}"]


def test_decisions_are_loaded_from_a_file_as_one_step(open_page, small_report, tmp_path):
    page = open_page(small_report)
    press(page, "y")
    own = tmp_path / "own.json"
    loaded = {
        "p0": {"action": "drop"},
        "p5": {"action": "edit", "caption": "x", "extra": 1},
        "unknown": {"action": "keep"},
        "p6": {"action": "explode"},
        "p7": {"action": "accept"},
    }
    own.write_text(json.dumps({"dataset": FINGERPRINT, "decisions": loaded}))
    page.set_input_files("#loaded", own)
    page.locator("#announce", has_text="loaded").wait_for()
    assert text(page, "#announce") == "2 decisions loaded; 3 were of unknown pairs or not valid."
    assert decisions(page) == {"p0": {"action": "drop"}, "p5": {"action": "edit", "caption": "x"}}
    press(page, "u")
    assert decisions(page) == {"p0": {"action": "keep"}}


def test_foreign_files_are_refused(open_page, small_report, tmp_path):
    page = open_page(small_report)
    foreign = tmp_path / "foreign.json"
    for content, message in [
        ("{", "this is not a JSON file."),
        ("[]", "this file holds no decisions."),
        ('{"dataset": "other", "decisions": {}}', "these decisions are about another dataset (other)."),
        (f'{{"dataset": "{FINGERPRINT}", "decisions": []}}', "this file holds no decisions."),
    ]:
        foreign.write_text(content)
        page.set_input_files("#loaded", foreign)
        page.locator("#announce", has_text=f"foreign.json: {message}").wait_for()
        page.evaluate("announce('')")
    assert decisions(page) == {}


def test_reviewing_only_what_is_undecided(open_page, small_report):
    page = open_page(small_report)
    page.select_option("#decided", "undecided")
    page.locator("#list").focus()
    press(page, "j y d")  # each decided pair leaves, the next one takes its place
    assert shown_ranks(page)[:3] == [1, 4, 5] and selected(page) == "p3"
    press(page, "u")
    assert shown_ranks(page)[:3] == [1, 3, 4] and selected(page) == "p2"
    page.select_option("#decided", "keep")
    assert page.locator("#row-0 .rank").inner_text() == "2"
    assert shown_ranks(page) == [2]


def test_on_a_phone_a_pair_takes_the_screen(open_page, small_report):
    page = open_page(small_report, viewport={"width": 390, "height": 844}, has_touch=True)
    assert page.locator("#detail").is_hidden()
    page.tap("#row-1 .caption")
    assert page.locator("#detail").is_visible() and selected(page) == "p1"
    page.locator("#caption .word").nth(1).tap()
    assert "river" in text(page, "#legend")
    page.tap("[data-action=drop]")
    page.tap("#next")
    page.tap("[data-proposal='1']")
    page.tap("#back")
    assert page.locator("#detail").is_hidden()
    assert (text(page, "#row-1 .chip"), text(page, "#row-3 .best")) == ("Dropped", "second for 3")
    page.tap("#filters-toggle")
    page.tap("#flagged")
    page.wait_for_timeout(100)
    assert shown_ranks(page) == [1, 2, 3, 4]
    assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_chosen_file_follows_every_decision(open_page, small_report):
    page = open_page(small_report)
    page.evaluate("""() => {
      window.written = [];
      const stream = {write: async (content) => window.written.push(content), close: async () => {}};
      const handle = {name: "decisions.json", createWritable: async () => stream};
      window.showSaveFilePicker = async () => handle;
    }""")
    page.click("#autosave")
    page.locator("#announce", has_text="decisions.json now follows every decision.").wait_for()
    press(page, "d")
    page.wait_for_timeout(300)
    first, last = (json.loads(content)["decisions"] for content in page.evaluate("window.written"))
    assert (first, last) == ({}, {"p0": {"action": "drop"}})


def test_two_tabs_share_their_decisions(open_page, small_report):
    page = open_page(small_report)
    other = page.context.new_page()
    other.goto(small_report.as_uri())
    other.wait_for_selector(".row")
    press(other, "j d")
    page.locator("#count", has_text="1 decided").wait_for()
    press(page, "y")
    assert decisions(page) == {"p0": {"action": "keep"}, "p1": {"action": "drop"}}
