"""The report's files: what is embedded, what lies beside the page, and that nothing foreign can act in it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pmpguard.audit.report import SCRIPTS, SHARED, embedded_json, fill_page, write_report
from pmpguard.audit.report_columns import PairTruth, pack
from pmpguard.audit.rows import AuditRow, AuditSummary, Proposal, WordVerdict
from pmpguard.audit.sprites import (
    ACROSS,
    HEAT,
    THUMBNAIL,
    write_heat_maps,
    write_thumbnails,
)
from pmpguard.errors import DataError

SUMMARY = AuditSummary(2, 2, 1, 0.25, (0.2, 0.3), 0, 0, dataset="f" * 64)
COLOURS = [(200, 30, 30), (30, 200, 30), (30, 30, 200), (200, 200, 30), (30, 200, 200)]


def pair(number: int, caption: str = "a pond", **changes) -> AuditRow:
    values = {
        "pair_id": f"p{number}",
        "image": f"{number}.png",
        "caption": caption,
        "split": "train",
        "label": "pond",
        "p_match": 0.5,
        "flag": False,
        "rank": number,
        **changes,
    }
    return AuditRow(**values)


def plain(name: str) -> Image.Image:
    return Image.new("RGB", (300, 150), COLOURS[int(name.split(".")[0]) % len(COLOURS)])


def data_of(page: Path) -> dict:
    """What the page's script would read, by looking for the end of the element as a browser does."""
    text = page.read_text(encoding="utf-8")
    start = text.index('id="data">') + len('id="data">')
    return json.loads(text[start : text.index("</script", start)])


def unpack(column: dict) -> list:
    return np.frombuffer(base64.b64decode(column["data"]), f"<{column['type']}").tolist()


def test_rows_are_ordered_by_rank_and_strings_stand_once(tmp_path):
    rows = [pair(2, "a river"), pair(1, "a pond"), pair(3, "a pond", split="val")]
    data = data_of(write_report(tmp_path, rows, SUMMARY, plain))
    assert data["pairs"] == ["p1", "p2", "p3"]
    assert data["captions"] == ["a pond", "a river"]
    assert unpack(data["caption"]) == [0, 1, 0]
    assert [data["splits"][code] for code in unpack(data["split"])] == ["train", "train", "val"]
    assert unpack(data["rank"]) == [1, 2, 3]


def test_probabilities_proposals_and_evidence_arrive(tmp_path):
    rows = [
        pair(1, evidence={"cosine": 0.25}, flag=True, p_match=math.nan),
        pair(2, proposals=(Proposal("a lake", 0.75, "p9"), Proposal("a pond", 0.5, "p1")), p_match=0.125),
    ]
    data = data_of(write_report(tmp_path, rows, SUMMARY, plain))
    assert math.isnan(unpack(data["p"])[0]) and unpack(data["p"])[1] == 0.125
    assert unpack(data["flag"]) == [1, 0]
    proposals = data["proposals"]
    assert unpack(proposals["counts"]) == [0, 2]
    assert [data["captions"][code] for code in unpack(proposals["caption"])] == ["a lake", "a pond"]
    assert [proposals["sources"][code] for code in unpack(proposals["source"])] == ["p9", "p1"]
    assert unpack(proposals["p"]) == [0.75, 0.5]
    values = unpack(data["evidence"][0]["values"])
    assert data["evidence"][0]["name"] == "cosine" and values[0] == 0.25 and math.isnan(values[1])


def test_a_rate_that_is_not_known_is_null(tmp_path):
    summary = AuditSummary(1, 1, 0, math.nan, (math.nan, 1.0), 0, 0)
    data = data_of(write_report(tmp_path, [pair(1)], summary, plain))
    assert data["summary"]["rate"] is None and data["summary"]["interval"] == [None, 1.0]


def test_words_are_counted_as_the_browser_counts(tmp_path):
    caption = "🛩️ plane 🚢 ship"
    words = tuple(
        WordVerdict(caption.index(word), caption.index(word) + len(word), 0.5, word == "ship")
        for word in ("plane", "ship")
    )
    data = data_of(write_report(tmp_path, [pair(1, caption, words=words)], SUMMARY, plain))
    units = caption.encode("utf-16-le")
    found = [
        units[2 * start : 2 * (start + length)].decode("utf-16-le")
        for start, length in zip(unpack(data["words"]["start"]), unpack(data["words"]["length"]), strict=True)
    ]
    assert found == ["plane", "ship"]
    assert unpack(data["words"]["wrong"]) == [0, 1]
    assert unpack(data["words"]["support"]) == [128, 128]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (pair(1, "a pond", words=(WordVerdict(2, 9, 0.5, False),)), "'p1', word 1: characters 2 to 9"),
        (
            pair(1, "a pond", words=(WordVerdict(0, 3, 0.5, False), WordVerdict(2, 6, 0.5, False))),
            "'p1', word 2: characters 2 to 6",
        ),
        (
            pair(1, "a pond", words=(WordVerdict(2, 6, 0.5, False, (0.1, 0.2, 0.3)),), grid=(2, 2)),
            "3 regions do not fill a grid of 2x2",
        ),
        (pair(2), "'p2' is in the audit twice"),
    ],
)
def test_rows_that_contradict_themselves_are_refused(tmp_path, row, message):
    with pytest.raises(DataError, match=re.escape(message)) as flagged:
        write_report(tmp_path, [row, pair(2)], SUMMARY, plain)
    assert flagged.value.fix
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "kind"),
    [([], "u1"), ([255], "u1"), ([256], "u2"), ([65536], "u4"), ([-1, 70000], "i4"), ([0.5], "f4")],
)
def test_numbers_are_packed_as_narrow_as_they_fit(values, kind):
    packed = pack(np.array(values, float if kind == "f4" else int))
    assert packed["type"] == kind and unpack(packed) == values


def test_thumbnails_lie_where_the_columns_say():
    sheets: dict[str, bytes] = {}
    names = [f"{number}.png" for number in range(ACROSS * ACROSS + 3)]
    missing = {"1.png", "5.png"}
    placed = write_thumbnails(
        names, lambda name: None if name in missing else plain(name), sheets.__setitem__
    )
    assert list(sheets) == ["000.jpg", "001.jpg"]
    assert [names[index] for index in np.flatnonzero(placed.tile < 0)] == ["1.png", "5.png"]
    images = [np.asarray(Image.open(io.BytesIO(content))) for content in sheets.values()]
    assert images[1].shape == (THUMBNAIL, ACROSS * THUMBNAIL, 3)  # only as many rows of tiles as needed
    for index, tile in enumerate(placed.tile):
        if tile < 0:
            continue
        sheet, place = divmod(tile, ACROSS * ACROSS)
        top, left = place // ACROSS * THUMBNAIL, place % ACROSS * THUMBNAIL
        assert (placed.width[index], placed.height[index]) == (THUMBNAIL, THUMBNAIL // 2)
        cut = images[sheet][top : top + placed.height[index], left : left + placed.width[index]]
        inner = cut[2:-2, 2:-2].astype(int)  # JPEG blends the colours of neighbours along the edge
        assert np.abs(inner - COLOURS[index % len(COLOURS)]).max() < 8


def test_a_thumbnail_leaves_the_given_image_as_it_was():
    image = plain("0.png")
    write_thumbnails(["0.png"], lambda _: image, lambda *_: None)
    assert image.size == (300, 150)


def heat_rows() -> list[AuditRow]:
    """Three words each of two pairs with grids of different shape; one word has no regions."""
    cells = [0.0, 0.0, 0.0, 1.0]
    tall = (WordVerdict(0, 1, 1, False, tuple(cells + [0.0] * 2)), WordVerdict(2, 6, 0, True))
    square = (
        WordVerdict(0, 1, 1, False, tuple(cells)),
        WordVerdict(2, 6, 0, True, (1.0, 0.0, 0.0, math.nan)),
    )
    return [pair(1, words=tall, grid=(3, 2)), pair(2, words=square, grid=(2, 2))]


def test_heat_maps_show_each_word_its_regions():
    sheets: dict[str, bytes] = {}
    heat = write_heat_maps(heat_rows(), sheets.__setitem__)
    assert list(sheets) == ["heat-000.png"] and (heat.tile_height, heat.tile_width) == (3, 2)
    image = Image.open(io.BytesIO(sheets["heat-000.png"]))
    levels, colours = np.asarray(image), np.asarray(image.convert("RGBA"))
    tiles = [levels[:3, 2 * word : 2 * word + 2].tolist() for word in range(4)]
    assert tiles[0] == [[0, 0], [0, 255], [0, 0]]
    assert tiles[1] == [[0, 0], [0, 0], [0, 0]]
    assert tiles[2] == [[0, 0], [0, 255], [0, 0]]
    assert tiles[3] == [[255, 0], [0, 0], [0, 0]]
    assert (colours[0, 0].tolist(), colours[1, 1].tolist()) == (list(HEAT[0][1:]), list(HEAT[-1][1:]))


def test_many_words_fill_several_sheets():
    sheets: dict[str, bytes] = {}
    words = tuple(WordVerdict(n, n + 1, 1, False, (0.0,) * 899 + (float(n),)) for n in range(300))
    heat = write_heat_maps([pair(1, "x" * 300, words=words, grid=(30, 30))], sheets.__setitem__)
    assert heat.across == 17 and list(sheets) == ["heat-000.png", "heat-001.png"]
    first, second = (np.asarray(Image.open(io.BytesIO(content))) for content in sheets.values())
    assert first.shape == (17 * 30, 17 * 30) and second.shape == (30, 17 * 30)
    corners = np.array([*first[29::30, 29::30].ravel(), *second[29::30, 29::30].ravel()][:300], int)
    assert corners[1] < corners[150] < corners[299] and (np.diff(corners) >= 0).all()


def test_no_regions_no_heat_sheets():
    sheets: dict[str, bytes] = {}
    assert write_heat_maps([pair(1)], sheets.__setitem__).across == 0
    assert sheets == {}


def test_few_images_are_embedded_and_many_lie_beside_the_page(tmp_path):
    small = data_of(write_report(tmp_path / "small", heat_rows(), SUMMARY, plain))
    assert [path.name for path in (tmp_path / "small").iterdir()] == ["index.html"]
    assert sorted(small["sheets"]) == ["000.jpg", "heat-000.png"]
    tiny = Image.new("RGB", (2, 2))
    rows = [pair(number + 1) for number in range(1001)]
    large = data_of(write_report(tmp_path / "large", rows, SUMMARY, lambda _: tiny))
    assert large["sheets"] is None
    assert len(list((tmp_path / "large" / "sprites").glob("*.jpg"))) == math.ceil(1001 / 16)


def test_the_choice_can_be_forced_and_an_earlier_folder_goes(tmp_path):
    page = write_report(tmp_path, heat_rows(), SUMMARY, plain, single_file=False)
    assert (tmp_path / "sprites" / "heat-000.png").is_file() and data_of(page)["sheets"] is None
    (tmp_path / "issues.parquet").write_bytes(b"stays")
    page = write_report(tmp_path, heat_rows(), SUMMARY, plain, single_file=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "issues.parquet"]
    assert "000.jpg" in data_of(page)["sheets"]


def test_a_failing_image_leaves_the_earlier_report_whole(tmp_path):
    page = write_report(tmp_path, heat_rows(), SUMMARY, plain, single_file=False)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def broken(name: str) -> Image.Image:
        raise OSError("disk gone")

    with pytest.raises(OSError, match="disk gone"):
        write_report(tmp_path, heat_rows(), SUMMARY, broken, single_file=False)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert page.is_file()


def test_each_image_is_loaded_once(tmp_path):
    asked: list[str] = []

    def load(name: str) -> None:
        asked.append(name)

    write_report(tmp_path, [pair(1, image="7.png"), pair(2, image="7.png"), pair(3)], SUMMARY, load)
    assert asked == ["7.png", "3.png"]


NASTY = ["</script><script>alert(1)</script>", "<!-- x", "{{ script }}", "\u2028\u2029", "\ud83d", "\0"]


@pytest.mark.parametrize("text", NASTY)
def test_no_text_leaves_the_data_element(tmp_path, text):
    page = write_report(tmp_path, [pair(1, text, label=text, pair_id=text)], SUMMARY, plain)
    data = data_of(page)
    assert (data["captions"], data["labels"], data["pairs"]) == ([text], [text], [text])
    written = page.read_text(encoding="utf-8")
    assert written.count("<script") == 2 and written.count("</script>") == 2


def test_embedded_json_is_ascii_and_refuses_what_json_has_not():
    assert embedded_json({"a": "<é"}) == '{"a":"\\u003c\\u00e9"}'
    with pytest.raises(ValueError, match="not JSON compliant"):
        embedded_json(math.nan)


@pytest.mark.parametrize("sheets", [None, {}])
def test_the_policy_allows_this_script_and_style_and_no_network(sheets):
    page = fill_page({"sheets": sheets})
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    rules = {rule.split()[0]: rule.split()[1:] for rule in policy.split("; ")}
    assert rules["default-src"] == ["'none'"] and rules["form-action"] == ["'none'"]
    for tag, rule in (("<script>", "script-src"), ("<style>", "style-src")):
        body = page.split(tag)[1].split(tag.replace("<", "</"))[0]
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert rules[rule] == [f"'sha256-{digest}'"]
    assert rules["img-src"] == (["data:"] if sheets is not None else ["data:", "'self'", "file:"])
    assert not re.search(r"https?://", page)


def test_the_scripts_never_write_markup():
    page = fill_page({"sheets": None})
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "fetch(",
        "style=",
    ):
        assert word not in page
    web = Path(write_report.__code__.co_filename).parents[1] / "web"
    assert {path.name for path in (web / "report").glob("*.js")} == set(SCRIPTS)
    assert {path.name for path in (web / "shared").iterdir()} == {
        *SHARED,
        "coastline.js",
    }  # of the search page's map
    assert all(path.read_text().count("\n") <= 400 for path in web.rglob("*.*"))


def test_an_audit_without_pairs_still_gives_a_page(tmp_path):
    data = data_of(write_report(tmp_path, [], AuditSummary(0, 0, 0, 0.0, None, 0, 0), plain))
    assert data["pairs"] == [] and data["sheets"] == {}


def test_both_pages_have_one_look_of_heat_maps():
    script = (Path(write_report.__code__.co_filename).parents[1] / "web/shared/heat.js").read_text()
    written = re.search(r"const HEAT = (\[.*\]);", script)[1]
    assert json.loads(written) == [list(stop) for stop in HEAT]


def test_the_truth_stands_beside_the_verdicts_where_it_is_known(tmp_path):
    rows = [pair(2, "a river"), pair(1, "a pond", flag=True)]
    truth = {"p1": PairTruth("a harbour", True), "p2": PairTruth("a river", False)}
    data = data_of(write_report(tmp_path, rows, SUMMARY, plain, truth=truth))
    assert unpack(data["truth"]["mismatched"]) == [1, 0]
    assert [data["captions"][code] for code in unpack(data["truth"]["caption"])] == ["a harbour", "a river"]
    assert data_of(write_report(tmp_path, rows, SUMMARY, plain))["truth"] is None
    with pytest.raises(DataError, match="pair 'p2': its truth is missing"):
        write_report(tmp_path, rows, SUMMARY, plain, truth={"p1": truth["p1"]})


def test_the_page_shows_the_worst_pairs_and_says_how_many_more_there_are(tmp_path):
    asked = []

    def load(name: str) -> Image.Image:
        asked.append(name)
        return plain(name)

    rows = [pair(rank) for rank in (4, 1, 5, 2, 3)]
    data = data_of(write_report(tmp_path, rows, SUMMARY, load, most=3))
    assert data["pairs"] == [pair(rank).pair_id for rank in (1, 2, 3)] and len(asked) == 3
    assert data["summary"]["warnings"][-1].startswith("2 less suspicious pairs are not on this page")
    assert "issues.parquet" in data["summary"]["warnings"][-1]
    assert data_of(write_report(tmp_path, rows, SUMMARY, plain))["summary"]["warnings"] == []
