"""The coastline under the map: its file is the Earth's land, and it is drawn where it is."""

from __future__ import annotations

import importlib.util
import itertools
import math
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from helpers.fake_searcher import FakeSearcher
from helpers.page_browser import opened, search
from helpers.running_server import running_server

from pmpguard.serving.app import create_app

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "src" / "pmpguard" / "web" / "shared" / "coastline.js"
LAND = {
    "Zug": (8.5, 47.2),
    "Alice Springs": (133.9, -23.7),
    "Manaus": (-60, -3),
    "Vostok": (106.8, -78.5),
    "Chukotka": (-179, 67),
}
SEA = {"Atlantic": (-30, 0), "Pacific": (-150, 20), "Ross Sea": (-175, -70), "Caspian": (51, 42)}


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_coastline", ROOT / "tools" / "make_coastline.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def rings() -> list[list[tuple[int, int]]]:
    """Read letter by letter, in hundredths of a degree."""
    digits = maker().DIGITS
    found = re.search(r'COASTLINE = "([^"]+)"', FILE.read_text(encoding="utf-8"))
    assert found is not None
    made = []
    for word in found[1].split():
        groups = re.findall(f"[{re.escape(digits[32:])}]*[{re.escape(digits[:32])}]", word)
        numbers = []
        for group in groups:
            value = sum((digits.index(letter) & 31) << (5 * place) for place, letter in enumerate(group))
            numbers.append(-(value + 1) // 2 if value & 1 else value // 2)
        x = y = 0
        ring = []
        for across, up in zip(numbers[::2], numbers[1::2], strict=True):
            x, y = x + across, y + up
            ring.append((x, y))
        made.append(ring)
    return made


def is_land(x: float, y: float) -> bool:
    """Whether an odd number of edges lies east of a point, this turn or the next."""
    count = 0
    for ring in rings():
        for (x1, y1), (x2, y2) in zip(ring, ring[1:] + ring[:1], strict=True):
            if (y1 > 100 * y) != (y2 > 100 * y):
                at = x1 + (100 * y - y1) * (x2 - x1) / (y2 - y1)
                count += sum(at + turn > 100 * x for turn in (-36_000, 0, 36_000))
    return count % 2 == 1


def test_it_is_the_land_of_the_earth():
    assert len(rings()) > 100 and FILE.stat().st_size < 50_000
    for ring in rings():
        assert all(abs(y) <= 9_000 for _, y in ring)
        assert max(abs(a - b) for (a, _), (b, _) in itertools.pairwise(ring[:-2])) < 9_000, "no jump back"
    assert {name for name, place in LAND.items() if is_land(*place)} == {*LAND}
    assert not [name for name, place in SEA.items() if is_land(*place)]
    area = 0.0  # in square radians of the sphere, by trapezia of equal area
    for ring in rings():
        for (x1, y1), (x2, y2) in zip(ring, ring[1:] + ring[:1], strict=True):
            across = math.radians((x2 - x1) / 100)
            area += across * (math.sin(math.radians(y1 / 100)) + math.sin(math.radians(y2 / 100))) / 2
    assert abs(abs(area) / (4 * math.pi) - 0.29) < 0.01


def test_the_script_writes_what_it_reads(tmp_path):
    made = maker()
    written = made.encoded(rings())
    assert f'"{written}"' in FILE.read_text(encoding="utf-8")
    topology = {
        "transform": {"scale": [0.5, 0.5], "translate": [-10, 0]},
        "arcs": [
            [[0, 0], [4, 0], [0, 4]],
            [[0, 0], [0, 4], [4, 0]],
            [[340, 4], [200, 0], [-720, 0], [280, 0], [240, 0]],
        ],
        "objects": {"land": {"geometries": [{"type": "MultiPolygon", "arcs": [[[0, -2]], [[2]]]}]}},
    }
    square, band = made.rings_of(topology)
    assert square == [(-1000, 0), (-800, 0), (-800, 200), (-1000, 200)]
    turns = [-20_000, -10_000, 4_000, 16_000]
    assert band == [*((x, 200) for x in turns), (16_000, 9_000), (-20_000, 9_000)], "around the pole"


POINTS = """() => {
    const svg = document.querySelector("#map svg");
    const inside = (x, y) => [...svg.querySelectorAll(".land path")].some(path => {
        const point = svg.createSVGPoint(); point.x = x; point.y = y;
        return path.isPointInFill(point);
    });
    return [...svg.querySelectorAll(".footprint circle")].map(
        one => [Number(one.closest("g").dataset.place), inside(one.cx.baseVal.value, one.cy.baseVal.value)]);
}"""


@pytest.fixture
def world() -> FakeSearcher:
    """One image at each place, those of the land first, and one across the antimeridian."""
    searcher = FakeSearcher(10)
    for place, (x, y) in enumerate([*LAND.values(), *SEA.values()]):
        searcher.metadata[place] |= {"west": x - 0.1, "south": y - 0.1, "east": x + 0.1, "north": y + 0.1}
    searcher.metadata[9] |= {"west": 178.5, "south": 65.5, "east": -178.5, "north": 67.5}  # Chukotka
    searcher.captions = ["tanks"] * 10
    return searcher


def test_it_is_drawn_where_the_places_are(world, browser):
    pytest.importorskip("fastapi", reason="the extra serve is not installed")
    with running_server(create_app(world, refresh_seconds=100)) as address:
        for page in opened(browser, address):
            search(page, address, "tanks")
            found = dict(page.evaluate(POINTS))
            assert {place for place, is_land in found.items() if is_land} == {0, 1, 2, 3, 4, 9}
            assert len(found) == 10
            page.goto(f"{address}/?text=tanks&where=cover%3C%3D0")
            page.wait_for_selector("#map .footprint")
            assert page.locator("#map .land path").count() == 0, "too near for a coast this coarse"
