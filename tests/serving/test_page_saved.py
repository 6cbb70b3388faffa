"""Saved searches in a real browser: kept, chosen, forgotten, taken elsewhere as a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.page_browser import opened, search, until

pytest.importorskip("fastapi", reason="the extra serve is not installed")

HOSTILE = "<img src=x onerror=window.cracked=1>"
NAMES = "[...document.querySelectorAll('#saved-list b')].map(one => one.textContent)"


def give(page, text):
    file = {"name": "searches.json", "mimeType": "application/json", "buffer": text.encode()}
    page.set_input_files("#saved-file", file)


def test_a_search_is_kept_chosen_and_forgotten(page, address, searcher):
    page.goto(f"{address}/?text=white+tanks&where=class%3Dodd&where=cover%3E%3D3&box=5,45,9,50")
    page.wait_for_selector(".card")
    page.keyboard.press("v")
    page.fill("#saved-name", "Tanks near Bern")
    page.press("#saved-name", "Enter")
    until(page, f"{NAMES}.length === 1")
    assert "class=odd · cover>=3 · in 5,45,9,50" in page.inner_text("#saved-list")
    page.keyboard.press("Escape")
    page.wait_for_selector("#saved", state="hidden")
    page.goto(address)
    page.wait_for_selector("#welcome h1")
    page.click("#saved-open")
    assert page.is_disabled("#saved-keep") and "Search first" in page.inner_text("#saved-said")
    page.click("#saved-list a")
    page.wait_for_selector(".card")
    filters = searcher.asked[-1][3]
    assert filters.columns == {"class": ("odd",)} and filters.box == (5.0, 45.0, 9.0, 50.0)
    assert [one.values for one in filters.conditions] == [("3",)] and page.input_value(
        "#text"
    ) == "white tanks"
    page.click("#saved-open")
    page.click("#saved-list button")
    until(page, f"{NAMES}.length === 0")
    assert page.evaluate("localStorage.getItem('pmpguard-searches')") == "[]"


def test_they_are_taken_elsewhere_as_a_file(page, address, browser):
    search(page, address, "a pond")
    page.click("#saved-open")
    page.click("#saved-keep")
    with page.expect_download() as download:
        page.click("#saved-export")
    written = Path(download.value.path()).read_text()
    assert json.loads(written) == [{"name": "a pond", "query": "?text=a+pond"}]
    for other in opened(browser, address):
        other.goto(address)
        other.click("#saved-open")
        give(other, written)
        until(other, f"{NAMES}.length === 1")
        other.click("#saved-list a")
        other.wait_for_url("**/?text=a+pond")


def test_a_file_of_a_stranger_is_names_and_fields_alone(page, address):
    page.goto(address)
    page.click("#saved-open")
    for text in ("{", "{}", '[{"name": 1}]', '["x"]'):
        give(page, text)
        until(page, "document.getElementById('saved-said').textContent.includes('holds no saved')")
        page.evaluate("document.getElementById('saved-said').textContent = ''")
    entries = [
        {"name": HOSTILE, "query": f"javascript:alert(1)?text={HOSTILE}"},
        {"name": "far", "query": "https://elsewhere.example/?text=a&evil=1&hit=x"},
        {"name": "long", "query": "?text=" + "a" * 5000},
    ]
    give(page, json.dumps(entries))
    until(page, f"{NAMES}.length === 2")
    hrefs = page.eval_on_selector_all("#saved-list a", "all => all.map(one => one.href)")
    assert all(href.startswith(f"{address}/") for href in hrefs) and "evil" not in hrefs[1]
    assert page.evaluate("window.cracked") is None and page.locator("#saved-list img").count() == 0
