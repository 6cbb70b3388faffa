"""Two indexes of the same images side by side, in a real browser and through the API."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from helpers.fake_searcher import FakeSearcher
from helpers.page_browser import opened, search, until
from helpers.running_server import running_server

from pmpguard.search.query import Filters, Query, SearchHit
from pmpguard.serving.app import create_app, route_label

pytest.importorskip("fastapi", reason="the extra serve is not installed")

SHOWN = "[...document.querySelectorAll('#{} .card img')].map(image => new URL(image.src).pathname)"


class Reversed(FakeSearcher):
    """Finds the last first, and knows nothing of the first four images."""

    model_name = "another model"

    def __init__(self) -> None:
        super().__init__()
        self.name = "second"

    def _search(self, query: Query, k: int, filters: Filters) -> list[SearchHit]:
        found = super()._search(query, self.count, filters)[::-1]
        return [hit for hit in found if hit.id not in self.ids[:4]][:k]


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[str, FakeSearcher, FakeSearcher]]:
    first, second = FakeSearcher(), Reversed()
    with running_server(create_app(first, beside=second, refresh_seconds=0.05)) as address:
        yield address, first, second
    assert first.closed and second.closed


def test_the_other_index_is_asked_below_its_own_address(both):
    address, _, second = both
    with httpx.Client(base_url=address) as client:
        info, other = client.get("/info").json(), client.get("/beside/info").json()
        assert (info["name"], info["beside"], other["name"], other["beside"]) == (
            "fake",
            "second",
            "second",
            None,
        )
        assert other["model"] == "another model"
        found = [client.get(f"{base}/search?text=tanks&k=20").json()["hits"] for base in ("", "/beside")]
        assert found[0][0]["id"] != found[1][0]["id"] and len(found[1]) == 20
        id = found[1][0]["id"]
        assert client.get(f"/beside/images/{id}?size=64").headers["content-type"] == "image/jpeg"
        assert client.get(f"/beside/explain?id={id}&text=a+tank").status_code == 200
        assert 'model="another model"' in client.get("/beside/metrics").text
        assert "/beside/search" in client.get("/openapi.json").json()["paths"]
        second.broken = RuntimeError("gone")
        try:
            until_degraded = (client.get("/healthz").json()["status"] for _ in range(200))
            assert any(status == "degraded" for status in until_degraded)
        finally:
            second.broken = None
    assert route_label("/beside/images/a/b") == "/beside/images/{id}" and route_label("/beside/x") == "other"


def test_the_other_index_wants_the_token_too():
    with running_server(create_app(FakeSearcher(6), beside=Reversed(), token="s3cret")) as address:
        assert httpx.get(f"{address}/beside/info").status_code == 401
        headers = {"Authorization": "Bearer s3cret"}
        assert httpx.get(f"{address}/beside/info", headers=headers).status_code == 200


def test_without_another_index_there_is_nothing_to_compare_with(page, address):
    page.goto(f"{address}/?text=tanks&compare=1")
    page.wait_for_selector(".card")
    assert page.is_hidden("#compare-toggle") and page.is_hidden("#beside")
    assert httpx.get(f"{address}/beside/info").status_code == 404


def test_results_stand_side_by_side_and_say_where_the_other_has_them(both, browser):
    address, first, second = both
    for page in opened(browser, address):
        search(page, address)
        page.keyboard.press("c")
        page.wait_for_selector("#beside .card")
        expected = [
            [hit.id for hit in one.search_many([Query("white storage tanks")], 20)[0]]
            for one in (first, second)
        ]
        assert page.evaluate(SHOWN.format("first"))[0] == f"/images/{expected[0][0].replace('/', '%2F')}"
        assert (
            page.evaluate(SHOWN.format("beside"))[0] == f"/beside/images/{expected[1][0].replace('/', '%2F')}"
        )
        assert page.inner_text("#beside h2") == "second" and "another model" in page.inner_text(
            "#beside header"
        )
        shared = {*expected[0]} & {*expected[1]}
        assert page.inner_text("#status").startswith(f"{len(shared)} of 20 results in both")
        says = page.eval_on_selector_all("#first .there", "all => all.map(one => one.textContent)")
        wanted = [f"⇄ {expected[1].index(id) + 1}" if id in shared else "⇄ –" for id in expected[0]]
        assert says == wanted and "⇄ –" in wanted
        page.hover("#words .word >> nth=1")
        until(page, "document.querySelectorAll('#beside canvas.heat:not([hidden])').length === 20")
        place = next(place for place, id in enumerate(expected[0]) if id in shared)
        page.hover(f"#first .card >> nth={place}")
        at = "Number(document.querySelector('#beside .marked').dataset.place)"
        assert page.evaluate(at) == expected[1].index(expected[0][place])
        page.click("#beside .card >> nth=1")
        page.wait_for_selector("#viewer .word svg")
        assert "2 of 20, second" in page.inner_text("#viewer nav")
        page.reload()
        page.wait_for_selector("#viewer[open]")
        page.keyboard.press("Escape")
        page.wait_for_selector("#viewer", state="hidden")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.closest('#beside') !== null")
        page.keyboard.press("c")
        until(
            page,
            "document.getElementById('beside').hidden && document.querySelectorAll('.card').length === 20",
        )
        assert "compare" not in page.url and page.is_visible("#map")


def test_what_goes_wrong_in_one_leaves_the_other(both, browser):
    address, _, second = both
    second.ids[0], kept = "scene/elsewhere", second.ids[0]
    context = browser.new_context()
    page = context.new_page()
    try:
        page.goto(f"{address}/?like=scene%2F000&compare=1")
        page.wait_for_selector("#beside .wrong")
        assert "is not in the index" in page.inner_text("#beside .wrong")
        assert page.locator("#first .card").count() == 20
    finally:
        context.close()
        second.ids[0] = kept


def test_on_a_narrow_phone_nothing_is_wider_than_the_screen(both, browser):
    address, _, _ = both
    for page in opened(
        browser, address, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True
    ):
        for compared in ("", "&compare=1"):
            page.goto(f"{address}/?text=white+storage+tanks{compared}")
            page.wait_for_selector("#beside .card" if compared else "#map-toggle")
            page.wait_for_selector("#first .card")
            assert page.is_visible("#compare-toggle") and page.is_visible("#saved-open")
            assert page.evaluate("document.documentElement.scrollWidth") == 360
        page.tap("#files summary")
        left = page.locator("#files > div").bounding_box()["x"]
        assert left >= 0 and page.evaluate("document.documentElement.scrollWidth") == 360
