"""Embeddings as one GeoParquet file with a STAC collection beside it, for geographic tools."""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pmpguard.data.shards import split_reference
from pmpguard.errors import DataError
from pmpguard.files import atomic_directory, file_name_of
from pmpguard.geo.footprints import box_around
from pmpguard.geo.geoparquet import write_geoparquet
from pmpguard.geo.hit_rows import parquet_place
from pmpguard.geo.stac_embeddings import COLLECTION, EmbeddingFacts, write_embedding_collection
from pmpguard.search.filters import UNKNOWN_TIME, FilterColumns
from pmpguard.search.index.embedding_files import SETTINGS, EmbeddingSettings, open_metadata
from pmpguard.search.index.stored_vectors import open_vectors
from pmpguard.search.index.version import IndexVersion
from pmpguard.search.sources import FILE_STAMP

FILE = "embeddings.parquet"
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True)
class ExportReport:
    """What was written."""

    folder: Path
    images: int
    placed: int  # of them with a place
    dim: int

    def as_text(self) -> str:
        return (
            f"{self.folder / FILE}: {self.images:,} vectors of {self.dim} numbers, "
            f"{self.placed:,} with a place\n"
            f"{self.folder / COLLECTION}: what they are, as STAC"
        )


def export_embeddings(source: Path, out: Path) -> ExportReport:
    """Write the images' vectors of an index or of a folder `embed` wrote; an earlier export is replaced.

    All pooled vectors are in memory meanwhile, as an exact search has them.
    """
    if out.exists() and not (out.is_dir() and ((out / FILE).is_file() or not any(out.iterdir()))):
        raise DataError(f"{out}: exists and is no export", fix="choose a new folder")
    if (source / SETTINGS).is_file():
        settings = EmbeddingSettings.read(source)
        metadata, stored = open_metadata(source, "image"), open_vectors(source, "image")
        model, name, roots = Path(settings.model_path), settings.model.name, [settings.root]
        rows = np.arange(len(stored))
    else:
        version = IndexVersion.open_current(source)
        metadata, stored = version.images.metadata, version.images.vectors
        model, name = version.model_folder, version.description.model.name
        roots = [segment.root for segment in version.description.segments]
        rows = np.array(version.images.live_rows(), np.int64)
    vectors = stored.all_pooled()
    columns = FilterColumns(metadata.take(pa.array(rows)))
    bounds = np.stack(columns.bounds, 1)  # (N, 4)
    known = ~np.isnan(bounds).any(1)
    dim = int(vectors.shape[1])
    facts = EmbeddingFacts(
        id=file_name_of(source.resolve().name),
        dim=dim,
        model=_address(model / "config.json", out),
        model_name=name,
        source=_address(Path(os.path.commonpath(roots)) if roots else source, out),
        chip=_chip(columns),
        box=box_around((float(w), float(s), float(e), float(n)) for w, s, e, n in bounds[known]),
        times=_times(columns.times),
        is_coded=stored.codec is not None,
    )
    with atomic_directory(out) as folder:
        write_geoparquet(
            folder / FILE,
            _described(columns),
            bounds,
            vectors=lambda some: vectors[rows[some]],
            dim=dim,
            emb=facts.footer(),
        )
        write_embedding_collection(folder, FILE, facts)
    return ExportReport(out, len(rows), int(known.sum()), dim)


def _address(target: Path, out: Path) -> str:
    return os.path.relpath(target.resolve(), out.resolve())


def _chip(columns: FilterColumns) -> tuple[int, int] | None:
    """(height, width) of all images, where the metadata say that all are alike."""
    sides = [np.unique(columns.any_numbers(name)) for name in ("height", "width")]
    if any(len(side) != 1 or not np.isfinite(side[0]) for side in sides):
        return None
    return int(sides[0][0]), int(sides[1][0])


def _times(
    times: npt.NDArray[np.int64],
) -> tuple[datetime.datetime, datetime.datetime] | None:
    known = times[times != UNKNOWN_TIME]
    if not len(known):
        return None
    first, last = (_EPOCH + datetime.timedelta(microseconds=int(end)) for end in (known.min(), known.max()))
    return first, last


def _described(columns: FilterColumns) -> pa.Table:
    """The metadata under the names Major TOM and Earth Index use, and all the rest as it is."""
    table = columns.metadata
    ids = table["id"]
    kept = table.drop_columns([name for name in (FILE_STAMP,) if name in table.column_names])
    named: dict[str, Any] = {"unique_id": ids}
    if "scene" in table.column_names:
        named["product_id"] = table["scene"]
    if (columns.times != UNKNOWN_TIME).any():
        unknown = columns.times == UNKNOWN_TIME
        named["timestamp"] = pa.array(columns.times, pa.timestamp("us", "UTC"), mask=unknown)
    images = table["image"].to_pylist()
    if any(split_reference(image or "")[1] for image in images):
        places = [parquet_place(image) for image in images]
        named["parquet_url"] = pa.array([place.get("parquet_url") for place in places], pa.string())
        named["parquet_row"] = pa.array([place.get("parquet_row") for place in places], pa.int64())
    for name, column in named.items():
        if name not in kept.column_names and pc.is_valid(column).to_numpy(zero_copy_only=False).any():
            kept = kept.append_column(name, column)
    return kept
