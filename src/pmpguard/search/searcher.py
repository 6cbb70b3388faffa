"""Searching an index: a pooled shortlist, then the model's fine score on the stored fragments."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from pmpguard.data.images.decode import load_pair_image
from pmpguard.data.pairs import PairTable
from pmpguard.detection.mixture import MatchMixture
from pmpguard.errors import ConfigError
from pmpguard.geo.distance import distances
from pmpguard.models.encoded import Encoded
from pmpguard.models.explain import Explanation
from pmpguard.models.retriever import Retriever
from pmpguard.search.calibration import load_calibration, match_probabilities
from pmpguard.search.filters import ValueRange
from pmpguard.search.index.model_identity import identify_model
from pmpguard.search.index.version import IndexedKind, IndexVersion, current_fingerprint
from pmpguard.search.query import NO_FILTERS, Filters, Kind, Query, SearchHit
from pmpguard.search.query_checks import QueryError, UnknownIdError, checked_query
from pmpguard.search.rerank import EncodedQuery, fine_scores
from pmpguard.search.sources import FILE_STAMP
from pmpguard.search.stores import DECIMALS

USUAL_FOLDERS = ("index", ".pmpguard")  # which say nothing of an index
DISTANCE = "distance_km"  # in a hit's metadata, from the place that was searched near
NOT_METADATA = ("id", "image", "caption", FILE_STAMP)  # columns with a field of their own, or only for us


@dataclass(frozen=True)
class OpenIndex:
    """A version together with its model: one search uses one of these from beginning to end."""

    version: IndexVersion
    model: Retriever
    mixture: MatchMixture | None


class Searcher:
    """An index and its model, ready to answer from any number of threads.

    `refresh` switches to a newer version; searches that are running finish on the old one.
    """

    def __init__(self, index: Path, model: Path | None = None, device: str = "cpu") -> None:
        self.index = index
        self.device = device
        self._model_path = model
        self._refreshing = threading.Lock()
        self._open: OpenIndex | None = self._read(None)

    @classmethod
    def open(cls, index: Path, *, model: Path | None = None, device: str = "cpu") -> Searcher:
        """Open the current version, with the model inside the index or the same one at `model`."""
        return cls(index, model, device)

    def _read(self, before: OpenIndex | None) -> OpenIndex:
        version = IndexVersion.open_current(self.index)
        identity = version.description.model
        if before is not None and before.version.description.model == identity:
            model = before.model
        else:
            folder = self._model_path or version.model_folder
            identity.require(identify_model(folder), f"the model in {folder}")
            model = Retriever.load(folder).to(self.device)
        if len(version.images):
            version.vector_index("image")  # so that the first query does not wait for it
        return OpenIndex(version, model, load_calibration(version.folder))

    @property
    def opened(self) -> OpenIndex:
        opened = self._open
        if opened is None:
            raise ConfigError("this searcher is closed", fix="open another one")
        return opened

    @property
    def name(self) -> str:
        """The folder of the index, or that of the images it lies in."""
        named = (part for part in reversed(self.index.resolve().parts) if part not in USUAL_FOLDERS)
        return next(named, "index")

    @property
    def version(self) -> str:
        return self.opened.version.name

    @property
    def fingerprint(self) -> str:
        """Of the version's content: another index may be built under the same version."""
        return self.opened.version.fingerprint

    @property
    def count(self) -> int:
        """How many images can be found."""
        return len(self.opened.version.images)

    @property
    def caption_count(self) -> int:
        """How many captions can be found."""
        return len(self.opened.version.captions)

    @property
    def backend(self) -> str:
        return self.opened.version.description.backend

    @property
    def model_name(self) -> str:
        return self.opened.version.description.model.name

    @property
    def reads_texts(self) -> bool:
        """Whether the model of the index can read a text; else images are searched by images."""
        return self.opened.model.reads_texts

    @property
    def columns(self) -> Mapping[str, tuple[str, ...]]:
        """Metadata columns to filter by, with their values where they are few."""
        return self.opened.version.images.filters.values

    @property
    def ranges(self) -> Mapping[str, ValueRange]:
        """Metadata columns to filter by a range of numbers or times."""
        return self.opened.version.images.filters.ranges

    @property
    def has_places(self) -> bool:
        """Whether any image can be found by an area."""
        return self.opened.version.images.filters.has_places

    @property
    def has_times(self) -> bool:
        """Whether any image can be found by a time."""
        return self.opened.version.images.filters.has_times

    # ---------------------------------------------------------------------------------------------- searching

    def search(
        self, query: Query, k: int = 20, shortlist: int = 100, filters: Filters = NO_FILTERS
    ) -> list[SearchHit]:
        """The k best items of the kind the query asks for, best first."""
        return self.search_many([query], k, shortlist, filters)[0]

    def search_many(
        self, queries: Sequence[Query], k: int = 20, shortlist: int = 100, filters: Filters = NO_FILTERS
    ) -> list[list[SearchHit]]:
        """Answers to several queries, encoded together and looked up in one pass over the index."""
        if k < 1:
            raise QueryError(f"k is {k}", fix="ask for at least one hit")
        if shortlist < 1:
            raise QueryError(f"shortlist is {shortlist}", fix="let at least one candidate be ranked")
        opened = self.opened
        checked = [checked_query(query, filters) for query in queries]
        if not opened.model.reads_texts and any(query.text is not None for query in checked):
            raise reads_no_texts(opened)
        described = [place for place, query in enumerate(checked) if query.has_content]
        encoded = dict(
            zip(described, self._encode(opened, [checked[place] for place in described]), strict=True)
        )
        answers: list[list[SearchHit]] = [
            [] if query.has_content else self._nearest(opened.version, query.kind, k, filters)
            for query in checked
        ]
        for kind in ("image", "caption"):
            places = [place for place, query in encoded.items() if query.kind == kind]
            items = opened.version.kinds[kind]
            if not places or not len(items):
                continue
            depth = min(max(k, shortlist), len(items))
            index = opened.version.vector_index(kind)
            vectors = np.stack([encoded[place].vector for place in places])  # (Q, d)
            wanted = items.filters.checked(filters)
            mask = None if index.filters_itself else items.filters.mask(wanted)
            near = index.search(vectors, depth, mask, wanted if index.filters_itself else NO_FILTERS)
            for place, query in enumerate(places):
                answers[query] = self._ranked(opened, encoded[query], items, *near.of(place), k, filters)
        return answers

    def _ranked(
        self,
        opened: OpenIndex,
        query: EncodedQuery,
        items: IndexedKind,
        rows: npt.NDArray[np.int64],
        cosines: npt.NDArray[np.float32],
        k: int,
        filters: Filters,
    ) -> list[SearchHit]:
        """The second stage: score the shortlist finely and describe the best of it."""
        if query.is_fine(opened.model):
            scores = fine_scores(opened.model, query, items.vectors, rows)
        else:
            scores = cosines.astype(np.float64).round(DECIMALS)  # again: now in double precision
        ids = np.array([items.ids[row] for row in rows], dtype=str)
        best = np.lexsort((ids, -scores))[:k]
        probabilities: list[float | None] = [None] * len(best)
        if opened.mixture is not None and query.is_one_pair:
            probabilities = match_probabilities(opened.mixture, scores[best]).tolist()
        return _hits(items, query.kind, rows[best], scores[best].tolist(), probabilities, filters)

    @staticmethod
    def _nearest(version: IndexVersion, kind: Kind, k: int, filters: Filters) -> list[SearchHit]:
        """The k items nearest to the filters' place of those that pass them; scored by minus kilometres."""
        assert filters.near is not None
        items = version.kinds[kind]
        wanted = items.filters.checked(filters)
        away = items.filters.distances(filters.near)  # (N,)
        mask = items.filters.mask(wanted)
        rows = np.flatnonzero(~items.removed & ~np.isnan(away) & (True if mask is None else mask))
        if len(rows) > k:
            rows = rows[away[rows] <= np.partition(away[rows], k - 1)[k - 1]]
        ids = np.array([items.ids[row] for row in rows], dtype=str)
        best = rows[np.lexsort((ids, away[rows]))[:k]]
        return _hits(items, kind, best, (-away[best]).tolist(), [None] * len(best), filters)

    def encode_query(self, query: Query) -> EncodedQuery:
        """The query as vectors."""
        return self._encode(self.opened, [checked_query(query)])[0]

    @staticmethod
    def _encode(opened: OpenIndex, queries: Sequence[Query]) -> list[EncodedQuery]:
        """All texts in one batch and all images in another."""
        texts = [query.text for query in queries if query.text is not None]
        images = [query.image for query in queries if query.image is not None]
        encoded_texts = iter(_one_by_one(_encode_texts(opened.model, texts)) if texts else ())
        encoded_images = iter(_one_by_one(opened.model.encode_images(images)) if images else ())
        return [
            EncodedQuery(
                None if query.text is None else next(encoded_texts),
                None if query.image is None else next(encoded_images),
                query.text_weight,
                query.kind,
            )
            for query in queries
        ]

    # ------------------------------------------------------------------------------------------- single items

    def explain(self, id: str, text: str) -> Explanation:
        """Which words of a text speak for an indexed image and where; from its stored fragments."""
        opened = self.opened
        if not opened.model.reads_texts:
            raise reads_no_texts(opened)
        checked = checked_query(Query(text))
        regions = opened.version.images.vectors.take([self._row(opened, id)])
        return opened.model.explain_encoded(checked.text or "", regions)

    def image(self, id: str) -> Image.Image:
        """An image of the index, decoded as safely as any file of a stranger."""
        opened = self.opened
        row = self._row(opened, id)
        name = opened.version.images.metadata["image"][row].as_py()
        table = PairTable.from_columns({"image": [name], "caption": [""]}, opened.version.root_of(row))
        return load_pair_image(replace(table, allow_outside=True), 0)  # that was decided when it was embedded

    def image_path(self, id: str) -> Path:
        """Where an image of the index lies; `shard.tar#member` inside a shard."""
        opened = self.opened
        return opened.version.image_path(self._row(opened, id))

    @staticmethod
    def _row(opened: OpenIndex, id: str) -> int:
        row = opened.version.images.row_of.get(id)
        if row is None:
            raise UnknownIdError(f"no image {id[:200]!r} in this index", fix="use an id of a hit")
        return row

    # ----------------------------------------------------------------------------------------------- versions

    def refresh(self) -> bool:
        """Switch to the current version if it is another than the open one; whether it was.

        Versions are told apart by their content: one that was deleted and built again is another. One whose
        files were found changed is opened again in any case: they may have been restored.

        An index that is gone or damaged is an error, and the version that is open stays open.
        """
        with self._refreshing:
            opened = self.opened
            same = current_fingerprint(self.index) == opened.version.fingerprint
            if same and not opened.version.is_lost:
                return False
            self._open = self._read(opened)
            return True

    def close(self) -> None:
        """Let go of the index; running searches still finish."""
        with self._refreshing:
            self._open = None


def reads_no_texts(opened: OpenIndex) -> QueryError:
    """The refusal of a text by an index of images alone."""
    name = opened.version.description.model.name
    fix = "search by an image, or index the folder with a model that reads texts, such as `default`"
    return QueryError(f"the model of this index ({name}) reads no texts", fix=fix)


@torch.no_grad()
def _encode_texts(model: Retriever, texts: Sequence[str]) -> Encoded:
    """`Retriever.encode_texts` of one batch, without its switching of modes: the model is only evaluated."""
    ids, mask = model.tokenize(texts)
    return model.forward_texts(ids.to(model.device), mask.to(model.device))


def _hits(
    items: IndexedKind,
    kind: Kind,
    rows: npt.NDArray[np.int64],
    scores: Sequence[float],
    probabilities: Sequence[float | None],
    filters: Filters,
) -> list[SearchHit]:
    """Rows of an index as hits; those near a place say how far they are from it."""
    found = items.metadata.take(rows).to_pylist()
    metadata = [_plain(row) for row in found]
    if filters.near is not None:
        bounds = [side[rows] for side in items.filters.bounds]
        for plain, away in zip(metadata, distances(filters.near, *bounds), strict=True):
            plain[DISTANCE] = float(away)
    return [
        SearchHit(row["id"], score, probability, kind, row.get("caption"), row.get("image"), plain)
        for row, score, probability, plain in zip(found, scores, probabilities, metadata, strict=True)
    ]


def _one_by_one(items: Encoded) -> list[Encoded]:
    return [items[place : place + 1] for place in range(len(items))]


def _plain(row: Mapping[str, Any]) -> dict[str, object]:
    """A hit's metadata: columns that hold something, times as ISO 8601."""
    return {
        name: value.isoformat() if isinstance(value, datetime.date) else value
        for name, value in row.items()
        if value is not None and name not in NOT_METADATA
    }
