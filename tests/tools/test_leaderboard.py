"""The leaderboard says what the rows say; a browser without a network sorts, filters and opens it."""

from __future__ import annotations

import json
import re
import shutil
import statistics
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from helpers.report_pages import PageOpener

from pmpguard.experiments.rows import ResultRow, append_row
from tools.leaderboard import (
    FILES,
    documentation_page,
    encoder_class,
    models_trained,
    read_entries,
    standalone_page,
)

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Rows(HTMLParser):
    """The data of every line of a board."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: list[dict[str, str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        given = {name.removeprefix("data-"): value for name, value in attributes}
        if tag == "tr" and "entry" in given:
            self.lines.append(given)


def recorded() -> list[dict[str, Any]]:
    files = [RESULTS / f"{name}.jsonl" for name in FILES]
    lines = [line for path in files if path.is_file() for line in path.read_text().splitlines()]
    return list({row["fingerprint"]: row for row in map(json.loads, lines)}.values())


def test_page_and_rows_agree() -> None:
    page = documentation_page(RESULTS)
    lines, rows = Rows(page).lines, recorded()
    runs = json.loads(re.findall(r'id="leaderboard-runs">(.*)</script>', page)[0])
    shown = set()
    for line in lines:
        told = runs[int(line["entry"])]
        prints = {run["settings' fingerprint"] for run in told["runs"]}
        own = [row for row in rows if row["fingerprint"] in prints and row["method"] == line["method"]]
        assert len(own) == len(prints)
        shown |= prints
        for key in ("mr", "i2t_r1", "t2i_r1"):
            assert float(line[key]) == pytest.approx(
                statistics.fmean(row["metrics"][key] for row in own), rel=1e-5
            )
        for row in own:
            one = "one" if row["settings"].get("one_caption") else "all"
            assert (line["dataset"], line["level"], line["captions"]) == (row["dataset"], row["level"], one)
            assert float(line["rate"]) == row["rate"] and f"{row['seed']}" in {
                str(r["seed"]) for r in told["runs"]
            }
            assert row["commit"] in {run["commit"] for run in told["runs"]}
        lowest = min(own, key=lambda row: row["seed"])["settings"]
        assert told["settings"]["train"] | {"seed": lowest["train"]["seed"]} == lowest["train"]
    assert len(lines) == len(runs)
    settings = {row["fingerprint"]: json.dumps(row["settings"], sort_keys=True) for row in rows}
    assert {settings[each] for each in shown} == set(settings.values())  # a run of two tables: once


def row(method: str, seed: int, mr: float, **more: Any) -> ResultRow:
    metrics = {"mr": mr, "i2t_r1": 1.0, "t2i_r1": 1.0, **more.pop("metrics", {})}
    rate, encoder = more.pop("rate", 0.4), {"vision_options": {"frozen": more.pop("frozen", False)}}
    settings = {"train": {"model": encoder, "seed": seed}, "noise": {"seed": seed}, "id": [method, rate]}
    settings |= more.pop("settings", {})
    return ResultRow("rsicd", method, "caption", rate, seed, "mobilenet-v2+minilm-l6", "val", metrics,
                     settings, fingerprint=f"{method}{seed}{rate}", **more)  # fmt: skip


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Three competitors, one with a name to be careful with, and an oracle."""
    path = tmp_path / "results" / "rsicd-light.jsonl"
    for seed in range(3):
        append_row(path, row("ours", seed, 20 + seed, noise_sha256="5e" * 32, commit="c0ffee"))
        append_row(path, row("<img src=x onerror=alert(1)>", seed, 15 + seed + 0.1 * seed))
        append_row(path, row("oracle", seed, 30.0, settings={"oracle": True}))
    append_row(path, row("once", 0, 18.0))
    append_row(path, row("ours", 0, 12.0, rate=0.8, metrics={"models_trained": 2.0}))
    return tmp_path / "results"


def test_one_method_trained_frozen_and_with_one_caption_is_three_lines(tmp_path: Path) -> None:
    for seed in range(3):
        append_row(tmp_path / "submissions.jsonl", row("ours", seed, 20.0 + seed))
        append_row(tmp_path / "submissions.jsonl", row("ours", seed, 30.0 + seed, frozen=True))
        append_row(tmp_path / "submissions.jsonl", row("ours", seed, 40.0, settings={"one_caption": True}))
    found = {(each.encoders, each.captions): each for each in read_entries(tmp_path)}
    assert [found["light, trained", "all"].metrics["mr"].mean, len(found)] == [21.0, 3]
    assert found["light, frozen", "all"].metrics["mr"].mean == 31.0
    assert all(len(each.rows) == 3 for each in found.values())


def test_lines_say_what_they_are(small: Path) -> None:
    entries = {(each.method, each.rate): each for each in read_entries(small)}
    assert [entries["ours", rate].models for rate in (0.4, 0.8)] == [1, 2]
    assert entries["oracle", 0.4].told and not entries["ours", 0.4].told
    page = standalone_page(small)
    assert "22 (95 %" not in page and "-4.90 (95 % -5.15 to -4.65) to ours, the best here: behind" in page
    assert "-2.00 to ours, the best here: one seed" in page
    assert "onerror=alert(1)>" not in page.replace('"', "").split("<tbody>")[1].split("</tbody>")[0]
    assert "http" not in page.split("<tbody>")[0] and "\n\n" not in page


def test_earlier_rows_tell_models_and_encoders_by_their_settings() -> None:
    second = {"train": {"settings": {"distill_above_rate": 0.5}}}
    high, low = ({"detection_estimated_rate": rate} for rate in (0.6, 0.4))
    assert models_trained(row("m", 0, 1.0, settings=second, metrics=high)) == 2
    assert models_trained(row("m", 0, 1.0, settings=second, metrics=low)) == 1
    assert models_trained(row("m", 0, 1.0, metrics=high)) == 1
    frozen = {"train": {"model": {"vision_options": {"frozen": True}}}}
    assert encoder_class(row("m", 0, 1.0)) == "light, trained"
    assert encoder_class(row("m", 0, 1.0, settings=frozen)) == "light, frozen"


@pytest.fixture
def board(small: Path, tmp_path: Path) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("the page's test needs chromium")
    file = tmp_path / "board.html"
    file.write_text(standalone_page(small), encoding="utf-8")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        opener = PageOpener(browser, wait_for="#leaderboard-count:not(:empty)")
        yield lambda **options: opener(file, **options)
        opener.close()
        browser.close()
    assert opener.errors == [] and opener.requests_elsewhere == []


@pytest.mark.slow
def test_sorting_filtering_and_details_by_keyboard_and_on_a_phone(board: Any) -> None:
    page = board(color_scheme="dark")

    def methods() -> list[str]:
        return page.locator("#board tbody tr:not([hidden]):not(.detail) button").all_inner_texts()

    nasty = "<img src=x onerror=alert(1)>"
    assert methods() == ["oracle", "ours", "once", nasty]  # the usual filters: 40 %
    page.locator("thead [data-key=mr] button").press("Enter")
    assert methods() == [nasty, "once", "ours", "oracle"]
    page.locator("thead [data-key=method] button").press("Enter")
    assert methods() == [nasty, "once", "oracle", "ours"]
    page.locator("select[name=rate]").select_option("0.8")
    assert methods() == ["ours"] and "1 line of 5" in page.locator("#leaderboard-count").inner_text()
    page.locator("select[name=rate]").select_option("")
    page.locator("select[name=models]").select_option("2")
    assert methods() == ["ours"]
    page.reload()  # what was chosen stands in the address
    assert (
        methods() == ["ours"]
        and page.locator("th[aria-sort=ascending]").get_attribute("data-key") == "method"
    )
    page.locator("select[name=models]").select_option("1")
    page.locator("select[name=rate]").select_option("0.4")
    first = page.locator("#board tbody tr:not([hidden]) button").first
    first.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    detail = page.locator("tr.detail").inner_text()
    assert "5e" * 32 in detail and "c0ffee" in detail and '"vision_options"' in detail
    assert page.locator("button[aria-expanded=true]").inner_text() == "ours"
    page.keyboard.press("Enter")
    assert page.locator("tr.detail").count() == 0
    dark = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    phone = board(viewport={"width": 360, "height": 740}, has_touch=True)
    assert phone.evaluate("getComputedStyle(document.documentElement).backgroundColor") != dark
    assert phone.evaluate("document.documentElement.scrollWidth") <= 360
    phone.locator("#board tbody tr:not([hidden]) button").nth(1).tap()
    assert (
        phone.locator("tr.detail").is_visible()
        and phone.evaluate("document.documentElement.scrollWidth") <= 360
    )
    assert phone.locator("tr:not([hidden]) td.bar svg").first.is_visible()
