"""The page in a real browser, over a fake index; nothing outside the server may be asked for."""

from __future__ import annotations

import base64
import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from helpers.fake_searcher import SCRIPT, FakeSearcher
from helpers.page_browser import brightest, ids, opened, search, until, until_answered, until_first
from helpers.running_server import running_server
from PIL import Image

from pmpguard.search.query import Query, SearchHit
from pmpguard.serving.app import create_app

pytest.importorskip("fastapi", reason="the extra serve is not installed")


def test_a_search_shows_the_hits_in_order_with_score_and_probability(page, address, searcher):
    search(page, address)
    expected = [hit.id for hit in searcher.search_many([Query("white storage tanks")], 20)[0]]
    assert ids(page) == expected
    assert page.locator(".card").first.inner_text().split("\n")[:2] == [">99 %", "1.00"]
    until(page, "[...document.querySelectorAll('.card img')].slice(0, 4).every(i => i.naturalWidth > 0)")
    assert "20 of 24" in page.inner_text("#status")
    assert page.url == f"{address}/?text=white+storage+tanks"


def test_pointing_at_a_word_lights_its_regions_in_every_hit(page, address):
    search(page, address, "tanks beside water")
    page.hover("#words .word >> nth=1")
    until(page, "document.querySelectorAll('.card canvas.heat:not([hidden])').length === 20")
    place = int(ids(page)[2].removeprefix("scene/"))
    row, column = divmod((5 + place) % 16, 4)
    x, y = brightest(page, ".card >> nth=2 >> canvas")
    assert (int(4 * x), int(4 * y)) == (column, row)
    page.mouse.move(640, 790)
    until(page, "document.querySelectorAll('.card canvas.heat:not([hidden])').length === 0")


def test_a_hit_opens_large_and_its_words_light_by_pointing_and_by_choosing(page, address):
    search(page, address, "tanks beside water")
    page.click(".card >> nth=1")
    page.wait_for_selector("#viewer[open]")
    page.wait_for_selector("#viewer .word svg")
    place = int(ids(page)[1].removeprefix("scene/"))
    page.hover("#viewer .word >> nth=2")
    page.wait_for_selector("#viewer canvas.heat:not([hidden])")
    row, column = divmod((10 + place) % 16, 4)
    x, y = brightest(page, "#viewer canvas")
    assert (int(4 * x), int(4 * y)) == (column, row)
    assert "water" in page.inner_text("#viewer .hint")
    assert "Bars and light are relative" in page.inner_text("#viewer .relative")
    frame, heat = (page.locator(f"#viewer .frame {part}").bounding_box() for part in ("img", "canvas"))
    assert all(abs(frame[side] - heat[side]) < 1.5 for side in frame)
    page.click("#viewer .word >> nth=0")
    page.mouse.move(5, 5)
    assert page.locator("#viewer canvas.heat:not([hidden])").count() == 1  # it stays
    page.keyboard.press("Escape")
    page.wait_for_selector("#viewer", state="hidden")


def test_a_wide_image_is_lit_where_it_is(browser):
    searcher = FakeSearcher(6)
    searcher.images = [Image.new("RGB", (600, 150), "grey")] * 6
    with running_server(create_app(searcher, refresh_seconds=100)) as address:
        for page in opened(browser, address):
            search(page, address, "tanks")
            page.click(".card >> nth=0")
            page.hover("#viewer .word >> nth=0")
            page.wait_for_selector("#viewer canvas.heat:not([hidden])")
            frame, heat = (
                page.locator(f"#viewer .frame {part}").bounding_box() for part in ("img", "canvas")
            )
            assert all(abs(frame[side] - heat[side]) < 1.5 for side in frame)
            assert 3.9 < frame["width"] / frame["height"] < 4.1


def test_hostile_captions_and_metadata_are_text(page, address):
    search(page, address, "a plane")
    assert SCRIPT in page.locator(".card .caption").first.text_content()
    page.click(".card >> nth=0")
    page.wait_for_selector("#viewer .word svg")
    assert SCRIPT in page.locator("#viewer .caption").text_content()
    assert SCRIPT in page.locator("#viewer .facts").text_content()
    page.keyboard.press("Escape")
    page.goto(f"{address}/?text={'%3Cimg%20src=x%20onerror=cracked=1%3E'}&hit=%22%3E%3Cscript%3E")
    page.wait_for_selector(".card")
    assert page.evaluate("window.cracked") is None
    assert page.locator("main script, main img[src='x']").count() == 0


def image_of(searcher, place: int) -> bytes:
    stream = io.BytesIO()
    searcher.images[place].save(stream, "PNG")
    return stream.getvalue()


GIVE = """([data, kind]) => {
    const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    const transfer = new DataTransfer();
    transfer.items.add(new File([bytes], "a.png", { type: "image/png" }));
    const event = kind === "paste"
        ? new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true })
        : new DragEvent(kind, { dataTransfer: transfer, bubbles: true, cancelable: true });
    document.body.dispatchEvent(event);
}"""


@pytest.mark.parametrize("way", ["drop", "paste", "choose"])
def test_a_image_is_searched_by(page, address, searcher, way):
    data = image_of(searcher, 9)
    page.goto(address)
    if way == "choose":
        page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": data})
    else:
        if way == "drop":
            page.evaluate(GIVE, [base64.b64encode(data).decode(), "dragover"])
            assert page.is_visible("#drop")
        page.evaluate(GIVE, [base64.b64encode(data).decode(), way])
    page.wait_for_selector(".card")
    assert ids(page)[0] == "scene/009"
    assert page.is_visible("#given") and page.is_hidden("#drop") and page.is_hidden("#words")
    page.fill("#text", "blue water")
    page.press("#text", "Enter")
    until_answered(page, "location.search.includes('text=blue+water')")
    page.wait_for_selector("#weight:not([hidden])")
    assert searcher.asked[-1][0][0].image is not None and searcher.asked[-1][0][0].text == "blue water"
    page.click("#given-remove")
    page.wait_for_selector("#given", state="hidden")
    page.go_back()
    page.wait_for_selector("#given")  # the image is remembered


def test_find_similar_is_in_the_address(page, address):
    search(page, address)
    page.click(".card >> nth=3")
    wanted = ids(page)[3]
    page.click("#viewer .similar")
    page.wait_for_url("**/?like=*")
    until_first(page, wanted)
    page.reload()
    page.wait_for_selector(".card")
    assert ids(page)[0] == wanted and page.is_visible("#given")


def test_filters_are_applied_shown_and_cleared(page, address, searcher):
    search(page, address)
    page.keyboard.press("f")
    page.locator(".pill", has_text="odd").click()
    for name, value in (("west", "5"), ("south", "45"), ("east", "9"), ("north", "50")):
        page.fill(f"#filters input[name={name}]", value)
    page.fill("#filters input[name=start]", "2024-02-01")
    page.click("#filters button[type=submit]")
    until(page, "document.getElementById('filters-count').textContent === '3'")
    until(page, "document.querySelectorAll('.card').length < 10")
    filters = searcher.asked[-1][3]
    assert filters.columns == {"class": ("odd",)} and filters.box == (5.0, 45.0, 9.0, 50.0)
    assert filters.start == "2024-02-01" and filters.stop is None
    assert ids(page) and all(int(id[-3:]) % 2 for id in ids(page))
    page.reload()
    page.wait_for_selector(".card")
    assert page.is_checked(".pill:has-text('odd') input")
    page.click("#filters-toggle")
    page.click("#filters-clear")
    until(page, "document.querySelectorAll('.card').length === 20")
    assert page.is_hidden("#filters-count")


def asked_conditions(searcher):
    return {(one.column, one.comparison, one.values[0]) for one in searcher.asked[-1][3].conditions}


def test_numbers_and_times_of_any_column_are_filtered_by_ranges(page, address, searcher):
    search(page, address)
    page.keyboard.press("f")
    assert page.get_attribute("#filters input[name='west to']", "placeholder") == "10.3"
    page.fill("#filters input[name='west from']", "7")
    page.fill("#filters input[name='west to']", "9")
    page.fill("#filters input[name='acquired from']", "2024-04-01")
    page.click("#filters button[type=submit]")
    until(page, "document.querySelectorAll('.card').length === 6")
    wanted = {("west", ">=", "7"), ("west", "<=", "9"), ("acquired", ">=", "2024-04-01")}
    assert asked_conditions(searcher) == wanted
    page.reload()
    page.wait_for_selector(".card")
    assert page.input_value("#filters input[name='west to']") == "9"
    assert page.input_value("#filters input[name='acquired from']") == "2024-04-01"
    assert page.locator(".card").count() == 6
    page.keyboard.press("f")
    page.fill("#filters input[name='west from']", "10")
    page.click("#filters button[type=submit]")
    assert page.evaluate("!document.querySelector('#filters').checkValidity()"), "from is larger than to"
    assert asked_conditions(searcher) == wanted


def test_a_condition_the_form_has_no_field_for_is_shown_and_kept(page, address, searcher):
    page.goto(f"{address}/?text=tanks&where=west%3E%3D7&where=west%3C9&where=cover%3E3")
    page.wait_for_selector(".card")
    page.keyboard.press("f")
    assert page.input_value("#filters input[name='west from']") == "7"
    assert page.input_value("#filters input[name='west to']") == ""
    assert page.input_value("#filters input[name=others]") == "west<9, cover>3"
    before = asked_conditions(searcher), searcher.asked[-1][3].columns
    page.click("#filters button[type=submit]")
    until(page, "document.querySelector('#filters input[name=others]') !== null")
    page.wait_for_selector(".card")
    assert (asked_conditions(searcher), searcher.asked[-1][3].columns) == before


def test_many_values_are_a_list_to_tick_and_to_narrow(page, address, searcher):
    search(page, address)
    page.keyboard.press("f")
    assert page.locator(".list label:visible").count() == 24
    page.fill(".ticks input[type=search]", "GRANULE 1")
    assert page.locator(".list label:visible").count() == 11
    page.check(".list label:has-text('granule 13') input")
    page.fill(".ticks input[type=search]", "granule 2")
    page.check(".list label:has-text('granule 20') input")
    page.click("#filters button[type=submit]")
    until(page, "document.querySelectorAll('.card').length === 2")
    assert {*ids(page)} == {"scene/013", "scene/020"}
    assert page.locator(".list label").first.inner_text() == "granule 13"


def test_captions_can_be_searched_too(page, address):
    page.goto(f"{address}/?text=white+tanks&kind=caption")
    page.wait_for_selector(".captions .card")
    until(page, "document.querySelector('.card img').naturalWidth > 0")
    page.click(".card >> nth=0")
    page.wait_for_selector("#viewer .word svg")  # the caption is explained in its image


def test_the_map_and_the_hits_point_at_each_other(page, address):
    search(page, address)
    assert page.locator("#map .footprint").count() == 20
    page.hover(".card >> nth=4")
    assert page.get_attribute("#map .footprint.marked", "data-place") == "4"
    page.hover("#map .footprint[data-place='7']")
    assert page.get_attribute("#grid .marked", "data-place") == "7"
    page.click("#map .footprint[data-place='7']")
    page.wait_for_selector("#viewer[open]")
    assert "8 of 20" in page.inner_text("#viewer nav")
    page.keyboard.press("Escape")
    page.click("#map-toggle")
    assert page.is_hidden("#map")


def test_an_area_drawn_on_the_map_becomes_a_filter(page, address, searcher):
    search(page, address)
    page.click("#map button")
    frame = page.locator("#map svg").bounding_box()
    page.mouse.move(frame["x"] + 5, frame["y"] + 5)
    page.mouse.down()
    page.mouse.move(frame["x"] + frame["width"] / 2, frame["y"] + frame["height"] / 2, steps=3)
    page.mouse.up()
    until(page, "document.querySelectorAll('.card').length < 20")
    west, south, east, north = searcher.asked[-1][3].box
    assert west < 6 < east < 9 and 46 < south < 47.5 < north
    assert page.locator("#map .area").count() == 1 and "box=" in page.url


def test_hits_are_exported_as_geojson(page, address):
    search(page, address)
    with page.expect_download() as download:
        keep(page, "geojson")
    written = json.loads(Path(download.value.path()).read_text())
    assert download.value.suggested_filename == "hits.geojson" and len(written["features"]) == 20
    feature = written["features"][0]
    assert feature["geometry"]["type"] == "Polygon" and feature["properties"]["id"] == feature["id"]
    assert feature["properties"]["class"] in ("even", "odd"), "flat"


def test_hits_are_kept_as_csv_and_geoparquet_whatever_was_asked(page, address, searcher):
    page.goto(address)
    page.set_input_files("#file", {"name": "a.png", "mimeType": "image/png", "buffer": image_of(searcher, 0)})
    page.wait_for_selector(".card")
    with page.expect_download() as download:
        keep(page, "csv")
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text("utf-8-sig"))))
    assert [row["id"] for row in rows] == ids(page) and download.value.suggested_filename == "hits.csv"
    assert (
        rows[0]["caption"] == searcher.captions[0] and rows[0]["note"] == f"'{searcher.metadata[0]['note']}"
    )
    with page.expect_download() as download:
        keep(page, "geoparquet")
    table = pq.read_table(download.value.path())
    assert sorted(table["id"].to_pylist()) == sorted(ids(page)) and b"geo" in table.schema.metadata
    page.keyboard.press("Escape")


def keep(page, format):
    page.click("#files summary")
    page.click(f"#files button[data-format={format}]")


def test_more_like_one_but_with_words(page, address, searcher):
    search(page, address)
    wanted = ids(page)[3]
    page.click(".card >> nth=3")
    page.fill("#viewer .more input", "more  water")
    page.press("#viewer .more input", "Enter")
    until_answered(page, "location.search.startsWith('?text=more+water&like=')")
    page.wait_for_selector("#weight:not([hidden])")
    query = searcher.asked[-1][0][0]
    assert query.text == "more water" and query.image is not None and query.text_weight == 0.5
    assert page.is_visible("#given") and wanted in page.url.replace("%2F", "/")
    page.locator("#text-weight").fill("0.9")
    until_answered(page, "location.search.includes('text_weight=0.9')")
    assert searcher.asked[-1][0][0].text_weight == 0.9


def test_near_a_place_is_a_filter_and_enough_to_ask_for(page, address, searcher):
    page.goto(address)
    page.click("#filters-toggle")
    page.fill("#filters input[name=near]", "8.0; 46.2")
    page.click("#filters button[type=submit]")
    assert page.evaluate("!document.querySelector('#filters').checkValidity()"), "no two numbers"
    page.fill("#filters input[name=near]", "8.0, 46.2")
    page.click("#filters button[type=submit]")
    until_answered(page, "location.search === '?near=8.0%2C+46.2'")
    query, filters = searcher.asked[-1][0][0], searcher.asked[-1][3]
    assert filters.near == (8.0, 46.2, 8.0, 46.2) and filters.radius is None and not query.has_content
    away = [float(text.split(" km")[0]) for text in page.locator(".card .score").all_inner_texts()]
    assert away == sorted(away) and away[0] == 0.0 < away[-1] and page.is_hidden("#words")
    page.fill("#filters input[name=radius]", "60")
    page.click("#filters button[type=submit]")
    until_answered(page, "location.search === '?near=8.0%2C+46.2&radius=60'")
    page.fill("#text", "white tanks")
    page.press("#text", "Enter")
    until_answered(page, "location.search === '?text=white+tanks&near=8.0%2C+46.2&radius=60'")
    assert searcher.asked[-1][3].radius == 60 and 0 < len(ids(page)) < 12
    page.fill("#filters input[name=radius]", "")
    page.click("#filters button[type=submit]")
    assert page.evaluate("!document.querySelector('#filters').checkValidity()"), "words, but not how near"
    page.reload()
    page.wait_for_selector(".card")
    page.keyboard.press("f")
    assert page.input_value("#filters input[name=near]") == "8.0, 46.2"
    assert page.inner_text("#filters-count") == "1"
    page.click("#filters-clear")
    until(page, "document.querySelectorAll('.card').length === 20")


def test_areas_and_times_are_offered_before_anything_was_found(page, address):
    page.goto(address)
    page.click("#filters-toggle")
    page.wait_for_selector("#filters input[name=west]")
    assert page.is_visible("#filters input[name=start]")


def test_without_coordinates_there_is_no_map(browser):
    with running_server(create_app(FakeSearcher(6, located=False), refresh_seconds=100)) as address:
        for page in opened(browser, address):
            search(page, address)
            assert page.is_hidden("#map") and page.is_hidden("#map-toggle")
            page.click("#filters-toggle")
            assert page.locator("#filters input[name=west], #filters input[name=start]").count() == 0


def test_with_the_model_that_comes_along_the_page_says_how_a_larger_one_is_used(browser):
    searcher = FakeSearcher(6)
    searcher.model_name, searcher.caption_count = "default: small encoders", 0
    with running_server(create_app(searcher, refresh_seconds=100)) as address:
        for page in opened(browser, address):
            page.goto(address)
            until(page, "document.querySelector('#welcome-model').textContent.includes('--model')")
            assert "6 images, index" in page.locator("#help-index").text_content()
            told = page.locator("#help-index").text_content()
            assert "may search better and needs no training" in told and "--model hub:ORG/NAME" in told


class WithoutCaptions(FakeSearcher):
    """Images alone, as `pmpguard up` finds them in a folder."""

    def _hit(self, place: int, score: float, query: Query) -> SearchHit:
        return replace(super()._hit(place, score, query), caption=None)


def test_times_and_long_names_are_written_to_be_read(browser):
    searcher = WithoutCaptions(6)
    searcher.metadata[0] |= {"time": "2024-01-01T00:00:00+00:00", "acquired": "2024-01-01T10:06:01.5Z"}
    with running_server(create_app(searcher, refresh_seconds=100)) as address:
        for page in opened(browser, address):
            page.goto(f"{address}/?like=scene/000")
            page.click(".card >> nth=0")
            facts = page.locator("#viewer .facts").inner_text().split("\n")
            assert {"2024-01-01", "2024-01-01 10:06:01 UTC"} <= set(facts)
            name = page.locator(".card .caption >> nth=0")
            assert name.inner_html() == "scene/<wbr>000" and name.text_content() == "scene/000"
