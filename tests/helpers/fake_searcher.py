"""A searcher without a model: images of the synthetic scenes, found by the words of their captions."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import torch
from PIL import Image

from pmpguard.errors import ConfigError, PmpguardError
from pmpguard.geo.distance import distances
from pmpguard.geo.footprints import Box, parse_time
from pmpguard.models.explain import Explanation, WordEvidence
from pmpguard.search.filters import ValueRange, allowed_spans, microseconds
from pmpguard.search.query import NO_FILTERS, Condition, Filters, Query, SearchHit
from pmpguard.search.query_checks import QueryError, UnknownIdError, checked_query
from pmpguard.search.searcher import DISTANCE
from pmpguard.synthetic.scenes import SyntheticScenes, synthetic_scenes

SCRIPT = "<script>window.cracked = true</script><img src=x onerror='window.cracked = true'>"


@cache
def small_world(count: int) -> SyntheticScenes:
    return synthetic_scenes(count, seed=3, size=96)


class FakeSearcher:
    """As many items as asked for, each with a place, a time and a class; the first caption is hostile."""

    model_name = "fake words"

    def __init__(self, count: int = 24, *, located: bool = True) -> None:
        world = small_world(count)
        self.name = "fake"
        self.version = "000001"
        self.count = self.caption_count = count
        self.has_places = self.has_times = located
        self.reads_texts = True
        self.columns: Mapping[str, tuple[str, ...]] = {
            "class": ("even", "odd"),
            "eo:sensor": ("A", "B"),
            "note": (),
            "only": ("one",),
            "granule": tuple(f"granule {place}" for place in range(count)),
        }
        self.ranges = {"west": ValueRange("number", 5.8, 10.3), "cover": ValueRange("integer", 0, 23)}
        self.ranges |= {
            "acquired": ValueRange("time", "2024-01-01T00:00:00+00:00", "2024-12-01T00:00:00+00:00")
        }
        self.batches: list[int] = []
        self.entered = threading.Event()  # a search has begun
        self.asked: list[tuple[Sequence[Query], int, int, Filters]] = []
        self.broken: Exception | None = None
        self.next_version: str | None = None
        self.fingerprint = "a1"
        self.closed = False
        self.gate = threading.Event()
        self.gate.set()
        first = world.table.first_rows
        self.captions = [world.table.captions[int(row)] for row in first]
        self.captions[0] = f"a plane {SCRIPT}"
        self.images = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in world.images]
        self.ids = [f"scene/{place:03d}" for place in range(count)]
        self.metadata = [self._metadata(place, located) for place in range(count)]

    @staticmethod
    def _metadata(place: int, located: bool) -> dict[str, object]:
        values: dict[str, object] = {
            "class": "odd" if place % 2 else "even",
            "eo:sensor": "AB"[place % 3 == 0],
            "only": "one",
            "note": f"={SCRIPT}" if place == 0 else "",
            "cover": place,
            "granule": f"granule {place}",
            "acquired": f"2024-{1 + place % 12:02d}-01",
        }
        if located:
            west, south = 5.8 + 0.9 * (place % 6), 45.9 + 0.55 * (place // 6)
            values |= {"west": west, "south": south, "east": west + 0.5, "north": south + 0.34}
            values["time"] = f"2024-{1 + place % 12:02d}-01T10:00:00Z"
        return values

    def search_many(
        self, queries: Sequence[Query], k: int = 20, shortlist: int = 100, filters: Filters = NO_FILTERS
    ) -> list[list[SearchHit]]:
        self.entered.set()
        self.gate.wait(10)
        if self.broken is not None:
            raise self.broken
        self.batches.append(len(queries))
        self.asked.append((queries, k, shortlist, filters))
        return [self._search(query, k, filters) for query in queries]

    def _search(self, query: Query, k: int, filters: Filters) -> list[SearchHit]:
        if query.text == "!!!":
            raise QueryError("the text has no words: '!!!'", fix="say what to look for")
        checked_query(query, filters)
        if unknown := set(filters.columns) - set(self.columns):
            raise ConfigError(f"no metadata column {min(unknown)!r}", fix="columns here: class")
        words = set((query.text or "").lower().split())
        colour = None if query.image is None else torch.tensor(query.image.resize((1, 1)).getpixel((0, 0)))
        hits = []
        for place in range(self.count):
            values = self.metadata[place]
            if any(values[name] not in allowed for name, allowed in filters.columns.items()):
                continue
            if not all(self._compared(values, condition) for condition in filters.conditions):
                continue
            if filters.box is not None and not self._inside(values, filters.box):
                continue
            if filters.start is not None and str(values["time"]) < filters.start:
                continue
            if filters.stop is not None and str(values["time"]) > filters.stop + "~":
                continue
            away = None if filters.near is None else self._distance(values, filters.near)
            if away is not None and filters.radius is not None and away > filters.radius:
                continue
            score = len(words & set(self.captions[place].lower().split())) / max(1, len(words))
            if colour is not None:
                own = torch.tensor(self.images[place].resize((1, 1)).getpixel((0, 0)))
                score += 1 - float((own - colour).abs().float().mean()) / 128
            if away is not None and not query.has_content:
                score = -away
            hit = self._hit(place, score - place / 10_000, query)
            hits.append(hit if away is None else replace(hit, metadata={**hit.metadata, DISTANCE: away}))
        return sorted(hits, key=lambda hit: -hit.score)[:k]

    @staticmethod
    def _compared(values: Mapping[str, object], condition: Condition) -> bool:
        if condition.column == "acquired":
            moment = microseconds(parse_time(str(values["acquired"])))
            return any(first <= moment <= last for first, last in allowed_spans(condition))
        number, limit = float(str(values[condition.column])), float(condition.values[0])
        if condition.comparison in ("<=", ">"):
            return (number > limit) == (condition.comparison == ">")
        return number < limit if condition.comparison == "<" else number >= limit

    @staticmethod
    def _distance(values: Mapping[str, object], place: Box) -> float:
        sides = [[float(str(values[name]))] for name in ("west", "south", "east", "north")]
        return float(distances(place, *sides)[0])

    @staticmethod
    def _inside(values: Mapping[str, object], box: tuple[float, float, float, float]) -> bool:
        west, south, east, north = (float(str(values[name])) for name in ("west", "south", "east", "north"))
        return west <= box[2] and east >= box[0] and south <= box[3] and north >= box[1]

    def _hit(self, place: int, score: float, query: Query) -> SearchHit:
        probability = max(0.001, min(0.999, score))
        name = f"{place:03d}.png"
        id, metadata = self.ids[place], self.metadata[place]
        if query.kind == "caption":
            id, metadata = f"{id}#0", {**metadata, "image_id": id}
        return SearchHit(id, score, probability, query.kind, self.captions[place], name, metadata)

    def _place(self, id: str) -> int:
        if self.broken is not None:
            raise self.broken
        if id not in self.ids:
            raise UnknownIdError(f"id {id!r} is not in the index", fix="search again")
        return self.ids.index(id)

    def explain(self, id: str, text: str) -> Explanation:
        """The n-th word lights up the n-th region."""
        place = self._place(id)
        words = []
        for number, word in enumerate(text.split()):
            regions = torch.full((4, 4), 0.05)
            regions.view(-1)[(5 * number + place) % 16] = 0.9
            words.append(WordEvidence(word, 0.3 / (number + 1), -0.05, regions))
        return Explanation(0.5, 0.2, tuple(words))

    def image(self, id: str) -> Image.Image:
        return self.images[self._place(id)].copy()

    def refresh(self) -> bool:
        if self.broken is not None:
            raise self.broken
        if self.next_version is None:
            return False
        self.version, self.next_version = self.next_version, None
        self.fingerprint = f"of {self.version}"
        return True

    def close(self) -> None:
        self.closed = True


def gone() -> PmpguardError:
    return PmpguardError("/somewhere/index: file not found", fix="build the index")
