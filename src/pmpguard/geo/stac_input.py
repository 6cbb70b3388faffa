"""STAC catalogues, collections, items and item collections as scenes: links and assets are followed.

A catalogue may lie on disk or on the web. One on disk reaches files below its own folder and the web, one on
the web reaches the web alone. How many documents and bytes are read is bounded.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

from pmpguard.data.images.decode import ImageProblem
from pmpguard.errors import DataError
from pmpguard.files import file_name_of
from pmpguard.geo.bands import COLOURS, colour_of, plain_name
from pmpguard.geo.scene_files import SUFFIXES, SceneFiles
from pmpguard.geo.web import Web, is_web
from pmpguard.progress import watched

ROOTS = ("catalog.json", "collection.json")
MAX_DOCUMENTS = 20_000
MAX_DOCUMENT_BYTES = 64 * 2**20  # an item collection of thousands
MAX_ASSET_BYTES = 16 * 2**30
_SHOWN = 20  # names in an error
_FOLLOWED = {"child", "item", "items", "next"}
_SIDE_ROLES = {"thumbnail", "overview", "metadata"}

Item = Mapping[str, Any]


@dataclass(frozen=True)
class NamedScene:
    """A scene and the name its tiles go by."""

    files: SceneFiles
    name: str


@dataclass(frozen=True)
class StacScenes:
    """The scenes of a catalogue, and what could not be had of it."""

    scenes: tuple[NamedScene, ...]
    problems: tuple[ImageProblem, ...]


def stac_root(source: Path | str) -> str | None:
    """The document a path, or an address of file: or http:, means, if that is STAC; else None."""
    text = os.fspath(source)
    if is_web(text):
        return text
    path = Path(unquote(urlsplit(text).path) if text.startswith("file://") else text)
    for file in [path / name for name in ROOTS] if path.is_dir() else [path]:
        if file.suffix.lower() in (".json", ".geojson") and file.is_file():
            document = _parsed(file.read_bytes()[: MAX_DOCUMENT_BYTES + 1])
            if document is not None and _kind(document) is not None:
                return str(file)
    return None


def stac_scenes(
    start: str, downloads: Path, wanted: Sequence[int | str] = (), progress: bool = False
) -> StacScenes:
    """The scenes a document leads to; assets on the web are kept in `downloads`, and are not read twice."""
    reader = _Reader(start, downloads)
    scenes, problems = [], list[ImageProblem]()
    taken: dict[str, int] = {}
    items = watched(reader.items(problems), None, "STAC items", unit=" items", active=progress)
    for place, item in items:
        id = str(item.get("id", place))
        try:
            found = list(_scenes_of(item, place, reader, wanted))
        except DataError as error:
            problems.append(ImageProblem(id, place, "unreadable", f"{id}: {error.message}"))
            continue
        for scene in found:
            taken[scene.name] = taken.get(scene.name, 0) + 1
            again = f"_{taken[scene.name]}" if taken[scene.name] > 1 else ""  # of another collection
            scenes.append(NamedScene(scene.files, scene.name + again))
    if not scenes and not problems:
        raise DataError(f"{start}: no items here", fix="name a catalogue, a collection or an item")
    return StacScenes(tuple(scenes), tuple(problems))


class _Reader:
    """Documents and assets of one catalogue."""

    def __init__(self, start: str, downloads: Path) -> None:
        self.start = start if is_web(start) else str(Path(start).resolve())
        self.folder = None if is_web(start) else Path(self.start).parent
        self.downloads = downloads
        self.web = Web(start)

    def items(self, problems: list[ImageProblem]) -> Iterator[tuple[str, Item]]:
        """Every item with the place of the document it stands in, breadth first, each document once."""
        waiting, seen = deque([self.start]), {self.start}
        while waiting:
            place = waiting.popleft()
            try:
                document = self._document(place)
            except DataError as error:
                if place == self.start:
                    raise
                problems.append(ImageProblem(place, place, "unreadable", error.message))
                continue
            kind = _kind(document)
            if kind == "item":
                yield place, document
            elif kind == "items":
                yield from ((place, item) for item in document["features"] if _kind(item) == "item")
            for link in _followed(document, kind):
                try:
                    target = self.resolve(place, link)
                except DataError as error:
                    problems.append(ImageProblem(link, place, "unreadable", error.message))
                    continue
                if target not in seen and len(seen) < MAX_DOCUMENTS:
                    seen.add(target)
                    waiting.append(target)
                elif target not in seen:
                    reason = f"{self.start}: more than {MAX_DOCUMENTS:,} documents, the rest is left out"
                    problems.append(ImageProblem(target, place, "unreadable", reason))
                    waiting.clear()
                    break

    def _document(self, place: str) -> dict[str, Any]:
        if is_web(place):
            data = self.web.read(place, MAX_DOCUMENT_BYTES)
        else:
            try:
                with Path(place).open("rb") as stream:
                    data = stream.read(MAX_DOCUMENT_BYTES + 1)
            except OSError as error:
                fix = "check the catalogue's links"
                raise DataError(f"{place}: cannot be read ({error.strerror})", fix=fix) from error
        document = _parsed(data)
        if document is None or _kind(document) is None:
            raise DataError(f"{place}: not a STAC document", fix="name a catalogue, a collection or an item")
        return document

    def resolve(self, place: str, href: str) -> str:
        """What a link means: an address, or a path below the catalogue's folder."""
        if is_web(place) or is_web(href):
            return urljoin(place, href) if is_web(place) else href
        scheme = urlsplit(href).scheme
        if scheme and scheme != "file" and len(scheme) > 1:  # one letter is a drive
            raise DataError(f"{href[:200]}: {scheme} is not read", fix="download it, or link by https")
        path = Path(unquote(urlsplit(href).path) if scheme == "file" else href)
        target = (Path(place).parent / path).resolve()
        assert self.folder is not None
        if not target.is_relative_to(self.folder):
            raise DataError(
                f"{href[:200]}: leaves the folder of the catalogue, {self.folder}",
                fix="start from a catalogue above both",
            )
        return str(target)

    def asset(self, place: str, item: Item, key: str) -> Path:
        """The file of an asset, downloaded where it is on the web."""
        target = self.resolve(place, str(item["assets"][key].get("href", "")))
        if not is_web(target):
            if not Path(target).is_file():
                raise DataError(f"{target}: file not found", fix="check the item's assets")
            return Path(target)
        suffix = Path(urlsplit(target).path).suffix.lower()
        name = file_name_of(key) + (suffix if suffix in SUFFIXES else ".tif")
        path = self.downloads / file_name_of(f"{item.get('id')} {target}") / name
        self.web.save(target, path, MAX_ASSET_BYTES)
        return path


def _parsed(data: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _kind(document: Mapping[str, Any]) -> str | None:
    """What a STAC document is."""
    features = document.get("features")
    if document.get("type") == "FeatureCollection" and isinstance(features, list):
        is_stac = all(isinstance(one, dict) and _kind(one) == "item" for one in features[:3])
        return "items" if is_stac else None
    if "stac_version" not in document:
        return None
    if document.get("type") == "Feature" or (
        isinstance(document.get("assets"), dict) and "geometry" in document
    ):
        sound = isinstance(document.get("assets"), dict) and isinstance(document.get("properties"), dict)
        return "item" if sound else None
    return "catalogue" if isinstance(document.get("links"), list) else None


def _followed(document: Mapping[str, Any], kind: str | None) -> list[str]:
    """Links down the tree, and to the next page; of an item none."""
    links = document.get("links")
    if kind == "item" or not isinstance(links, list):
        return []
    return [
        str(link["href"])
        for link in links
        if isinstance(link, dict)
        and link.get("rel") in _FOLLOWED
        and "href" in link
        and str(link.get("method", "GET")).upper() == "GET"
    ]


def _scenes_of(item: Item, place: str, reader: _Reader, wanted: Sequence[int | str]) -> Iterator[NamedScene]:
    """The scene of an item, in true colour or in the bands asked for."""
    assets = {
        key: asset
        for key, asset in item["assets"].items()
        if isinstance(asset, dict) and _is_geotiff(asset) and not _SIDE_ROLES & {*_roles(asset)}
    }
    if not assets:
        raise DataError("no GeoTIFF among its assets", fix="choose items with imagery")
    id = file_name_of(str(item["id"]))
    facts = {**item, "properties": {**item["properties"], "item": item["id"]}}
    if item.get("collection"):
        facts["properties"]["collection"] = item["collection"]
    stack = _band_assets(assets, wanted)
    if stack:
        files = tuple(reader.asset(place, item, key) for key in stack)
        called = tuple(map(str, wanted)) or COLOURS
        yield NamedScene(SceneFiles(Path(f"{item['id']}.tif"), files, called, facts), id)
        return
    whole = [key for key, asset in assets.items() if len(_bands(asset)) != 1]
    visual = [key for key in whole if key == "visual" or "visual" in _roles(assets[key])]
    chosen = visual if visual and not wanted else whole or (list(assets) if len(assets) == 1 else [])
    if not chosen:
        names = ", ".join(list(assets)[:_SHOWN])
        raise DataError(f"no red, green and blue among its assets {names}", fix="name three with --bands")
    for key in chosen[:1] if visual and not wanted else chosen:
        bands = tuple(_band_names(band)[0] for band in _bands(assets[key]))
        scene = SceneFiles(reader.asset(place, item, key), names=bands, item=facts)
        yield NamedScene(scene, id if len(chosen) == 1 or visual else f"{id}_{file_name_of(key)}")


def _band_assets(assets: Mapping[str, Any], wanted: Sequence[int | str]) -> list[str]:
    """The assets of one band each that are wanted, by key, name or colour; none where one is missing.

    A true-colour asset is as good as three, and one file.
    """
    single = {key: asset for key, asset in assets.items() if len(_bands(asset)) <= 1}
    if not wanted and any(key == "visual" or "visual" in _roles(asset) for key, asset in assets.items()):
        return []
    chosen = []
    for band in wanted or COLOURS:
        by_name = [key for key, asset in single.items() if str(band).lower() in _called(key, asset)]
        if isinstance(band, int) or not by_name:
            return []
        chosen.append(by_name[0])
    return chosen if len(chosen) in (1, 3) and len({*chosen}) == len(chosen) else []


def _called(key: str, asset: Mapping[str, Any]) -> set[str]:
    """Everything an asset of one band is called, its colour too."""
    names = [*(name for band in _bands(asset) for name in _band_names(band)), key]
    colours = [colour for name in names if (colour := colour_of(name))]
    return {*(name.lower() for name in names), *map(plain_name, names), *colours[:1]}


def _bands(asset: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    bands = asset.get("eo:bands") or asset.get("bands") or []
    return [band for band in bands if isinstance(band, dict)] if isinstance(bands, list) else []


def _band_names(band: Mapping[str, Any]) -> list[str]:
    """A band's names, its common one first: that is the same for all satellites."""
    found = [band.get("eo:common_name"), band.get("common_name"), band.get("name")]
    return [str(name) for name in found if name] or [""]


def _is_geotiff(asset: Mapping[str, Any]) -> bool:
    path = urlsplit(str(asset.get("href", ""))).path
    return "tiff" in str(asset.get("type", "")).lower() or path.lower().endswith(SUFFIXES)


def _roles(asset: Mapping[str, Any]) -> list[str]:
    roles = asset.get("roles")
    return [str(role) for role in roles] if isinstance(roles, list) else []
