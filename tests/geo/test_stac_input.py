"""STAC catalogues, collections, items and item collections as scenes; on disk and over http."""

from __future__ import annotations

import functools
import http.server
import json
import threading
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

pytest.importorskip("rasterio", reason="the extra geo is not installed")

from helpers.geo_scene_files import cut, pixels_of, random_pixels, write_scene

from pmpguard.cli.main import run_verb
from pmpguard.cli.tile import tile
from pmpguard.errors import DataError
from pmpguard.geo.stac_input import stac_root
from pmpguard.geo.web import Web

TIFF = "image/tiff; application=geotiff; profile=cloud-optimized"


def write(path: Path, document: dict) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


def item(id: str, assets: dict, **properties) -> dict:
    return {
        "type": "Feature",
        "stac_version": "1.0.0",
        "id": id,
        "geometry": None,
        "properties": {"datetime": "2023-07-01T10:00:00Z", "eo:cloud_cover": 12.5, **properties},
        "links": [{"rel": "self", "href": f"https://elsewhere.example/{id}.json"}],
        "assets": assets,
    }


def asset(href: str, *bands: dict, **more) -> dict:
    return {"href": href, "type": TIFF, **({"eo:bands": list(bands)} if bands else {}), **more}


def catalogue(kind: str, links: list[tuple[str, str]]) -> dict:
    found = [{"rel": rel, "href": href} for rel, href in links]
    return {"type": kind, "stac_version": "1.0.0", "id": "c", "description": "c", "links": found}


@pytest.fixture
def tree(tmp_path) -> tuple[Path, dict[str, np.ndarray]]:
    """A catalogue with a collection of two items: bands apart, and several bands in one file."""
    root, pixels = tmp_path / "catalogue", {}
    links = [("self", "catalog.json"), ("child", "./s2/collection.json")]
    write(root / "catalog.json", catalogue("Catalog", links))
    links = [("root", "../catalog.json"), ("item", "./apart/apart.json"), ("item", "together.json")]
    write(root / "s2" / "collection.json", catalogue("Collection", links))
    assets = {"thumbnail": {"href": "x.png", "type": "image/png", "roles": ["thumbnail"]}}
    for name, colour in (("B02", "blue"), ("B03", "green"), ("B04", "red"), ("B08", "nir")):
        pixels[name] = random_pixels((1, 30, 30), seed=len(pixels))[0]
        write_scene(root / "s2" / "apart" / f"{name}.tif", pixels[name][None])
        assets[colour] = asset(f"./{name}.tif", {"name": name, "common_name": colour})
    write(root / "s2" / "apart" / "apart.json", item("apart", assets, platform="sentinel-2b"))
    pixels["together"] = random_pixels((4, 30, 30), seed=9)
    write_scene(root / "s2" / "together.tif", pixels["together"], photometric="MINISBLACK")
    bands = [{"name": name} for name in ("B08", "B04", "B03", "B02")]
    write(root / "s2" / "together.json", item("together", {"data": asset("together.tif", *bands)}))
    return root, pixels


def shown(out, row):
    return np.moveaxis(pixels_of(out, row), -1, 0)  # (3,h,w)


@pytest.mark.parametrize("start", ["catalog.json", "", "s2/collection.json"])
def test_links_and_assets_are_followed_and_bands_named(tree, tmp_path, start):
    root, pixels = tree
    report, rows = cut(root / start, tmp_path / "out", size=30)
    assert report.exit_code == 0 and report.warnings == ()
    apart, together = sorted(rows, key=lambda row: row["scene"])
    assert np.array_equal(shown(tmp_path / "out", apart), [pixels[name] for name in ("B04", "B03", "B02")])
    assert np.array_equal(shown(tmp_path / "out", together), pixels["together"][1:])
    assert apart["time"] == "2023-07-01T10:00:00Z" and apart["time_source"] == "stac"
    assert apart["cloud_cover"] == 12.5 and apart["platform"] == "sentinel-2b" and apart["item"] == "apart"
    again, _ = cut(root / start, tmp_path / "out", size=30)
    assert (again.cut, again.found_done) == (0, 2)


def test_bands_are_asked_for_by_name_and_an_item_stands_alone(tree, tmp_path):
    root, pixels = tree
    _, [row] = cut(root / "s2/apart/apart.json", tmp_path / "out", size=30, bands=("nir", "B04", "green"))
    assert np.array_equal(shown(tmp_path / "out", row), [pixels[name] for name in ("B08", "B04", "B03")])
    _, [row] = cut(root / "s2/together.json", tmp_path / "more", size=30, bands=("B08", "B04", "B03"))
    assert np.array_equal(shown(tmp_path / "more", row), pixels["together"][:3])


def test_common_names_tell_colours_where_numbers_mislead(tmp_path):
    """Landsat 7: its first band is blue."""
    pixels, assets = random_pixels((4, 30, 30)), {}
    for place, colour in enumerate(("blue", "green", "red", "nir08")):
        write_scene(tmp_path / f"LE07_x_SR_B{place + 1}.tif", pixels[place : place + 1])
        assets[f"B{place + 1}"] = asset(f"LE07_x_SR_B{place + 1}.tif", {"common_name": colour})
    path = write(tmp_path / "item.json", item("LE07_x", assets))
    _, [row] = cut(path, tmp_path / "out", size=30)
    assert np.array_equal(shown(tmp_path / "out", row), pixels[[2, 1, 0]])


def test_addresses_of_files_are_paths(tree, tmp_path):
    root, pixels = tree
    for path in root.rglob("*.json"):
        document = json.loads(path.read_text())
        for one in [*document["links"], *document.get("assets", {}).values()]:
            if not one["href"].startswith("http"):
                one["href"] = (path.parent / one["href"]).resolve().as_uri()
        write(path, document)
    assert "file:///" in (root / "catalog.json").read_text()
    for start in (root / "catalog.json", root):
        report, rows = cut(start.as_uri(), tmp_path / "out", size=30)
        assert report.exit_code == 0 and {row["scene"] for row in rows} == {"apart", "together"}
    apart = next(row for row in rows if row["scene"] == "apart")
    assert np.array_equal(shown(tmp_path / "out", apart), [pixels[name] for name in ("B04", "B03", "B02")])


def test_an_item_collection(tree, tmp_path):
    root, _ = tree
    both = [json.loads((root / "s2" / name).read_text()) for name in ("apart/apart.json", "together.json")]
    for one in both[0]["assets"].values():
        one["href"] = f"apart/{one['href']}"
    path = write(root / "s2" / "found.geojson", {"type": "FeatureCollection", "features": both, "links": []})
    _, rows = cut(path, tmp_path / "out", size=30)
    assert {row["scene"] for row in rows} == {"apart", "together"}


def test_nothing_outside_the_catalogues_folder_is_read(tree, tmp_path):
    root, _ = tree
    write_scene(tmp_path / "secret.tif", random_pixels((3, 30, 30)))
    hrefs = [
        "../../secret.tif",
        str(tmp_path / "secret.tif"),
        f"file://{tmp_path}/secret.tif",
        "s3://a/b.tif",
    ]
    (root / "s2" / "link.tif").symlink_to(tmp_path / "secret.tif")
    links = []
    for number, href in enumerate([*hrefs, "link.tif"]):
        write(root / "s2" / f"{number}.json", item(f"bad{number}", {"visual": asset(href)}))
        links.append(("item", f"{number}.json"))
    links.append(("child", "../../outside.json"))
    write(root / "s2" / "collection.json", catalogue("Collection", links))
    report, rows = cut(root / "catalog.json", tmp_path / "out", size=30)
    assert rows == [] and report.exit_code == 1 and len(report.problems) == 6
    reasons = [problem.reason for problem in report.problems]
    assert sum("leaves the folder" in reason for reason in reasons) == 5
    assert sum("s3 is not read" in reason for reason in reasons) == 1


def test_what_cannot_be_had_is_named_and_the_rest_is_cut(tree, tmp_path):
    root, _ = tree
    links = [("item", name) for name in ("together.json", "gone.json", "broken.json", "grey.json")]
    write(root / "s2" / "collection.json", catalogue("Collection", [*links, ("child", "collection.json")]))
    (root / "s2" / "broken.json").write_text("{")
    two = {name: asset(f"{name}.tif", {"name": name}) for name in ("VV", "VH")}
    write(root / "s2" / "grey.json", item("grey", two))
    report, rows = cut(root / "catalog.json", tmp_path / "out", size=30)
    assert [row["scene"] for row in rows] == ["together"]
    reasons = " ".join(problem.reason for problem in report.problems)
    assert "gone.json" in reasons and "broken.json" in reasons and "no red, green and blue" in reasons


def test_what_is_no_stac_is_no_catalogue(tmp_path):
    write(tmp_path / "a.json", {"type": "FeatureCollection", "features": [{"type": "Feature"}]})
    (tmp_path / "catalog.json").write_text("[1]")
    assert stac_root(tmp_path / "a.json") is None and stac_root(tmp_path) is None
    write(tmp_path / "catalog.json", catalogue("Catalog", []))
    with pytest.raises(DataError, match="no items here"):
        cut(tmp_path, tmp_path / "out")


class Counted(http.server.SimpleHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self):
        self.asked.append(self.path)
        if self.path == "/private":
            self.send_response(302)
            self.send_header("Location", "file:///etc/passwd")
            self.end_headers()
            return
        super().do_GET()

    def log_message(self, *_):
        pass


@pytest.fixture
def site(tree):
    Counted.asked = []
    handler = functools.partial(Counted, directory=str(tree[0]))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def test_a_catalogue_on_the_web(tree, site, tmp_path, capsys):
    _, pixels = tree
    out = tmp_path / "out"
    for run in range(2):
        words = [f"{site}/catalog.json", "--out", str(out), "--size", "30", "--progress", "false"]
        assert run_verb("tile", tile, words) == 0
        assert f"{2 - 2 * run} scenes cut now" in capsys.readouterr().out
    assert "/s2/apart/B08.tif" not in Counted.asked, "a band that is not shown is not downloaded"
    _, rows = cut(tree[0], out, size=30)
    apart = next(row for row in rows if row["scene"] == "apart")
    assert np.array_equal(shown(out, apart), [pixels[name] for name in ("B04", "B03", "B02")])


def test_a_catalogue_on_the_web_reaches_no_file_of_this_machine(tree, site, tmp_path):
    root, _ = tree
    write_scene(tmp_path / "secret.tif", random_pixels((3, 30, 30)))
    for number, href in enumerate(
        [f"file://{tmp_path}/secret.tif", str(tmp_path / "secret.tif"), "/private"]
    ):
        write(root / f"{number}.json", item(f"bad{number}", {"visual": asset(href)}))
    write(root / "catalog.json", catalogue("Catalog", [("item", f"{number}.json") for number in range(3)]))
    report, rows = cut(f"{site}/catalog.json", tmp_path / "out", size=30)
    assert rows == [] and len(report.problems) == 3


def test_nothing_leads_from_outside_into_a_private_network():
    public = Web("https://example.org/catalog.json")
    for address in (
        "http://127.0.0.1/a",
        "http://169.254.169.254/latest",
        "http://[::1]/",
        "http://10.0.0.1/",
    ):
        with pytest.raises(DataError, match="private network"):
            public.read(address, 10)
    with pytest.raises(DataError, match="not an http"):
        public.read("ftp://example.org/a", 10)


def test_files_and_documents_are_bounded(site, tmp_path):
    web = Web(site)
    with pytest.raises(DataError, match="more than 10 bytes"):
        web.read(f"{site}/catalog.json", 10)
    with pytest.raises(DataError, match="more than 10 bytes"):
        web.save(f"{site}/s2/together.tif", tmp_path / "a.tif", 10)
    assert not (tmp_path / "a.tif").exists()
    with pytest.raises(DataError, match="cannot be read"):
        web.read(f"{site}/nothing.json", 10)
