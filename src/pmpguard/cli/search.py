"""`pmpguard search`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL.Image import Image

from pmpguard.cli.store import take_store
from pmpguard.config import to_dict
from pmpguard.data.contact_sheet import tidy, write_sheet
from pmpguard.data.images.decode import ImageError, load_image
from pmpguard.device import pick_device
from pmpguard.files import write_atomic, write_json
from pmpguard.geo.distance import parse_place
from pmpguard.geo.footprints import parse_box
from pmpguard.geo.geojson import hits_to_geojson
from pmpguard.geo.geoparquet import hits_to_geoparquet
from pmpguard.geo.hit_rows import hits_to_csv
from pmpguard.geo.stac import hits_to_stac
from pmpguard.models.explain import Explanation
from pmpguard.safe_text import one_line, tell
from pmpguard.search.filters import parse_where
from pmpguard.search.folder_index import index_of
from pmpguard.search.plain_values import explanation_values
from pmpguard.search.query import Filters, Kind, Query, SearchHit
from pmpguard.search.query_checks import QueryError
from pmpguard.search.searcher import DISTANCE, Searcher

WIDEST_ID, WIDEST_CAPTION = 40, 60


@dataclass(frozen=True)
class SearchAnswer:
    """Hits as a table, or as JSON."""

    hits: list[SearchHit]
    version: str
    count: int  # of what was searched, images or captions
    kind: Kind = "image"
    explanations: Mapping[str, Explanation] = field(default_factory=dict)
    written: Mapping[str, Path] = field(default_factory=dict)  # what, and where

    def as_dict(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "count": self.count,
            "hits": [
                to_dict(hit)
                | (
                    {"explanation": explanation_values(self.explanations[hit.id])}
                    if hit.id in self.explanations
                    else {}
                )
                for hit in self.hits
            ],
        }

    def as_text(self) -> str:
        return "\n".join([*self._table(), *(f"{what}: {path}" for what, path in self.written.items())])

    def _table(self) -> list[str]:
        if not self.hits:
            what = "images" if self.kind == "image" else "captions"
            return [f"nothing found among {self.count:,} {what}"]
        width = min(WIDEST_ID, max(len(one_line(hit.id)) for hit in self.hits))
        away = [hit.metadata.get(DISTANCE) for hit in self.hits]
        column = "" if away[0] is None else f"{'km':>9}  "
        lines = [f"{'':>3}  {'score':>7}  {'match':>5}  {column}{'id':<{width}}  caption"]
        for place, hit in enumerate(self.hits, 1):
            likely = "" if hit.probability is None else f"{hit.probability:.0%}"
            column = "" if away[place - 1] is None else f"{away[place - 1]:9.3f}  "
            row = f"{place:>3}  {hit.score:7.3f}  {likely:>5}  {column}{_cut(hit.id, width):<{width}}  "
            lines.append((row + _cut(tidy(hit.caption or ""), WIDEST_CAPTION)).rstrip())
            if hit.id in self.explanations:
                lines += [f"     {line}" for line in self.explanations[hit.id].as_text().splitlines()]
        return lines


def search(
    index: Path,
    text: str = "",
    /,
    k: int = 20,
    image: Path | None = None,
    text_weight: float = 0.5,
    kind: Kind = "image",
    shortlist: int = 100,
    box: str | None = None,
    near: str | None = None,
    radius: float | None = None,
    start: str | None = None,
    stop: str | None = None,
    where: tuple[str, ...] = (),
    explain: bool = False,
    sheet: Path | None = None,
    geojson: Path | None = None,
    geoparquet: Path | None = None,
    csv: Path | None = None,
    stac: Path | None = None,
    device: str = "auto",
    model: Path | None = None,
    store: str | None = None,
) -> SearchAnswer:
    """Find images or captions by a text, an image, or both, or what is nearest to a place.

    Args:
        index: the folder of the index; or a folder of images, whose index is made at the first search
            and used as it is from then on; `pmpguard up` brings it up to date.
        text: what to look for; may be left out to search by --image alone.
        k: how many hits to show.
        image: an image to search by, alone or beside the text.
        text_weight: how much the text counts when an image is given too, from 0 to 1.
        kind: whether to find images or captions.
        shortlist: how many of the images nearest by pooled vectors the model's own score orders.
        box: only images whose bounds meet this box of degrees: west,south,east,north.
        near: a place as longitude,latitude, or a box as west,south,east,north; without text and image the
            nearest images come first.
        radius: only images within this many kilometres of --near.
        start: only images from this ISO 8601 time on.
        stop: only images up to this ISO 8601 time.
        where: a condition on metadata, as column=value or column<number (also <=, > and >=); give it several
            times for several, all of which must hold. column=value,column=other allows either value.
        explain: say which words speak for each image found, and where in it.
        sheet: a PNG file to write, with the images found side by side.
        geojson: a GeoJSON file to write, with the footprints of the hits.
        geoparquet: a GeoParquet file to write, with a row for each hit.
        csv: a CSV file to write, with a row for each hit.
        stac: a folder to write the hits to as a STAC collection.
        device: where the model runs: "auto", "cpu" or "cuda".
        model: the model for a folder of images that has no index yet; by default the small one that comes
            with pmpguard.
        store: the PostgreSQL database of the index, as postgresql://USER@HOST/DATABASE; by default the one in
            PMPGUARD_STORE, or where the index was built.
    """
    take_store(store, index)
    if explain and (kind != "image" or not text):
        raise QueryError("only images found by words can be explained", fix="leave out --explain")
    query = Query(text or None, None if image is None else _image(image), text_weight, kind)
    area, conditions = None if box is None else parse_box(box), parse_where(where)
    device = str(pick_device(device))
    index = index_of(index, model=model, device=device, progress=True, tell=tell)
    searcher = Searcher.open(index, device=device)
    place = None if near is None else parse_place(near)
    filters = Filters(area, start, stop, conditions=conditions, near=place, radius=radius)
    hits = searcher.search(query, k, shortlist, filters)
    explanations = {hit.id: searcher.explain(hit.id, text) for hit in hits} if explain else {}
    files = {
        "images": sheet if hits else None, "footprints": geojson, "GeoParquet": geoparquet, "table": csv,
        "STAC collection": stac,
    }  # fmt: skip
    written = {what: path for what, path in files.items() if path is not None}
    for path in written.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    if sheet is not None and hits:
        _draw(searcher, hits, sheet)
    if geojson is not None:
        write_json(geojson, hits_to_geojson(hits))
    if geoparquet is not None:
        hits_to_geoparquet(hits, geoparquet)
    if csv is not None:
        write_atomic(csv, hits_to_csv(hits))
    if stac is not None:
        places = {hit.id: searcher.image_path(_image_id(hit)) for hit in hits}
        hits_to_stac(hits, stac, images=places)
    count = searcher.count if kind == "image" else searcher.caption_count
    return SearchAnswer(hits, searcher.version, count, kind, explanations, written)


def _draw(searcher: Searcher, hits: list[SearchHit], path: Path) -> None:
    captions = [f"{place}. {hit.score:.3f} {hit.caption or hit.id}" for place, hit in enumerate(hits, 1)]
    write_sheet(path, [searcher.image(_image_id(hit)) for hit in hits], captions, columns=5)


def _image_id(hit: SearchHit) -> str:
    """The id of a hit's image, which for a caption is not its own."""
    return str(hit.metadata["image_id"]) if hit.kind == "caption" else hit.id


def _image(path: Path) -> Image:
    try:
        return load_image(path)
    except ImageError as error:
        raise QueryError(str(error.message), fix="give the path of another image after --image") from error


def _cut(text: str, width: int) -> str:
    text = one_line(text)
    return text if len(text) <= width else f"{text[: width - 3]}..."
