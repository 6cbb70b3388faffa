"""The page in a real browser: keys, its address, tokens, errors, sizes and touch."""

from __future__ import annotations

import json

import pytest
from helpers.fake_searcher import FakeSearcher
from helpers.page_browser import ids, opened, search, until, until_first
from helpers.running_server import running_server

from pmpguard.serving.app import create_app

pytest.importorskip("fastapi", reason="the extra serve is not installed")


def test_one_can_type_at_once_and_with_results_in_the_address_use_the_keys_at_once(page, address):
    page.goto(address)
    page.keyboard.type("white tanks")
    page.keyboard.press("Enter")
    page.wait_for_url("**/?text=white+tanks")
    page.reload()
    page.wait_for_selector(".card")
    page.keyboard.press("f")
    assert page.input_value("#text") == "white tanks"
    assert page.is_visible("#filters")


def test_keys(page, address):
    search(page, address)
    page.keyboard.press("?")
    page.wait_for_selector("#help[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#help", state="hidden")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    columns = page.evaluate(
        """() => {
            const tops = [...document.querySelectorAll('.card')].map(one => one.getBoundingClientRect().top);
            return tops.filter(top => top === tops[0]).length;
        }"""
    )
    page.keyboard.press("ArrowDown")
    at = "Number(document.activeElement.closest('li').dataset.place)"
    assert page.evaluate(at) == columns + 1
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate(at) == 0
    page.keyboard.press("Enter")
    page.wait_for_selector("#viewer[open]")
    page.keyboard.press("ArrowRight")
    assert "2 of 20" in page.inner_text("#viewer nav")
    page.keyboard.press("Escape")
    page.wait_for_selector("#viewer", state="hidden")
    assert page.evaluate(at) == 1  # back where one was
    page.keyboard.press("s")
    page.wait_for_url("**/?like=*")


def test_the_address_leads_back_and_forth(page, address):
    search(page, address, "white tanks")
    first = ids(page)
    page.fill("#text", "a blue pond")
    page.press("#text", "Enter")
    page.wait_for_url("**/?text=a+blue+pond")
    until(
        page, f"!document.querySelector('.card img').src.includes(encodeURIComponent({json.dumps(first[0])}))"
    )
    page.click(".card >> nth=0")
    page.wait_for_selector("#viewer[open]")
    assert "hit=" in page.url
    page.go_back()
    page.wait_for_selector("#viewer", state="hidden")
    page.go_back()
    until_first(page, first[0])
    assert page.input_value("#text") == "white tanks" and ids(page) == first
    page.go_forward()
    until(page, "document.getElementById('text').value === 'a blue pond'")


def test_a_token_comes_with_the_address_and_is_kept_out_of_it(browser):
    with running_server(create_app(FakeSearcher(6), token="s3cret", refresh_seconds=100)) as address:
        for page in opened(browser, address):
            page.goto(f"{address}/#token=s3cret")
            page.fill("#text", "a plane")
            page.press("#text", "Enter")
            page.wait_for_selector(".card")
            until(page, "document.querySelector('.card img').naturalWidth > 0")
            assert "s3cret" not in page.url


def test_without_its_token_the_page_asks_for_it(browser):
    with running_server(create_app(FakeSearcher(6), token="s3cret", refresh_seconds=100)) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{address}/?text=a+plane")
        page.wait_for_selector("#token[open]")
        page.fill("#token-text", "s3cret")
        page.press("#token-text", "Enter")
        page.wait_for_selector(".card")
        context.close()


def test_what_goes_wrong_is_said(browser):
    searcher = FakeSearcher(6)
    with running_server(create_app(searcher, refresh_seconds=100)) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{address}/?text=!!!")
        page.wait_for_selector("#notice:not([hidden])")
        assert "has no words" in page.inner_text("#notice")
        page.fill("#text", "a plane")
        page.press("#text", "Enter")
        page.wait_for_selector(".card")
        assert page.is_hidden("#notice")
        page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": b"no image"})
        page.wait_for_selector("#notice:not([hidden])")
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(360, 740), (820, 1100), (1600, 900)])
def test_nothing_sticks_out_from_phone_to_desktop(browser, address, width, height, scheme):
    for page in opened(browser, address, viewport={"width": width, "height": height}, color_scheme=scheme):
        search(page, address, "white storage tanks beside a very long road through the desert and the wood")
        wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(wide) <= 0
        page.click("#filters-toggle")
        assert page.evaluate(wide) <= 0
        page.click("#filters-toggle")
        page.click(".card >> nth=0")
        page.wait_for_selector("#viewer .word svg")
        box = page.locator("#viewer").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width + 0.5
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, background.removeprefix("rgb(").removesuffix(")").split(","))) < 200) == (
            scheme == "dark"
        )


def test_words_light_by_touch(browser, address):
    for page in opened(
        browser, address, viewport={"width": 390, "height": 800}, has_touch=True, is_mobile=True
    ):
        search(page, address, "tanks beside water")
        page.tap("#words .word >> nth=1")
        until(page, "document.querySelectorAll('.card canvas.heat:not([hidden])').length > 3")
        page.tap("#words .word >> nth=1")
        until(page, "document.querySelectorAll('.card canvas.heat:not([hidden])').length === 0")
