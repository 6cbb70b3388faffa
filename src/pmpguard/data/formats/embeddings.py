"""Embeddings as clip-retrieval writes them: `img_emb/*.npy`, `text_emb/*.npy`, `metadata/*.parquet`.

Row i of the three is one pair. `pmpguard embed` writes every image and every caption once, and lists the
captions in `text_metadata/*.parquet`. Arrays are mapped, never unpickled, and may be float16.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pmpguard.data.arrays import load_array
from pmpguard.data.column_names import CAPTION_NAMES, IMAGE_NAMES
from pmpguard.data.pairs import PairTable
from pmpguard.data.parquet_bounds import read_bounded
from pmpguard.errors import DataError
from pmpguard.files import read_json
from pmpguard.remote import exists, is_remote, local_folder_of

NamedPair = tuple[str, str]  # name of the image, caption
SEVERAL = -1
BLOCK_ROWS = 16_384  # converted at once


@dataclass(frozen=True)
class ClipEmbeddings:
    """Pairs with the embedding of each distinct image and of each distinct caption, by code."""

    table: PairTable
    images: npt.NDArray[np.floating]  # (I, d)
    captions: npt.NDArray[np.floating]  # (C, d)


def is_clip_folder(folder: Path) -> bool:
    """Whether a path is a folder of embeddings."""
    if is_remote(folder):
        return exists(folder / "img_emb") and exists(folder / "text_emb")
    return (folder / "img_emb").is_dir() and (folder / "text_emb").is_dir()


def read_clip_embeddings(folder: Path) -> ClipEmbeddings:
    """Read a folder of embeddings together with its metadata, which names image and caption."""
    folder = local_folder_of(folder)
    images, captions = _read_arrays(folder / "img_emb"), _read_arrays(folder / "text_emb")
    if (folder / "text_metadata").is_dir():
        return _with_captions_apart(folder, images, captions)
    metadata = _read_metadata(folder / "metadata")
    counts = {"img_emb": _count(images), "text_emb": _count(captions), "metadata": metadata.num_rows}
    _check_counts(folder, counts)
    table = _named_pairs(metadata, folder)
    first_captions = np.unique(table.caption_codes, return_index=True)[1]
    return ClipEmbeddings(table, _chosen(images, table.first_rows), _chosen(captions, first_captions))


def _with_captions_apart(
    folder: Path, images: list[npt.NDArray[np.floating]], captions: list[npt.NDArray[np.floating]]
) -> ClipEmbeddings:
    """What `pmpguard embed` wrote."""
    pixels, texts = _read_metadata(folder / "metadata"), _read_metadata(folder / "text_metadata")
    _check_counts(folder, {"img_emb": _count(images), "metadata": pixels.num_rows})
    _check_counts(folder, {"text_emb": _count(captions), "text_metadata": texts.num_rows})
    for name, part, wanted in (("metadata", pixels, "id"), ("text_metadata", texts, "image_id")):
        if wanted not in part.column_names:
            raise DataError(f"{folder / name}: no column {wanted!r}", fix=f"found {part.column_names}")
    settings = folder / "embedding.json"
    root = Path(read_json(settings)["root"]) if settings.is_file() else folder
    pairs = texts.rename_columns([name if name != "id" else "pair_id" for name in texts.column_names])
    table = PairTable.from_columns(pairs, root, folder.name, str(folder / "text_metadata"))
    row_of = {id: row for row, id in enumerate(pixels["id"].to_pylist())}
    ids = table.column("image_id")
    of_images = np.array([row_of.get(ids[row], -1) for row in table.first_rows], np.int64)
    if (of_images < 0).any():
        missing = ids[table.first_rows[of_images.argmin()]]
        raise DataError(f"{folder}: captions of {missing!r}, but no such image", fix="embed it again")
    first_captions = np.unique(table.caption_codes, return_index=True)[1]
    return ClipEmbeddings(table, _chosen(images, of_images), _chosen(captions, first_captions))


def unit_rows_of(vectors: npt.NDArray[np.floating], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """(K, d) the rows (K,) of stored vectors in float32, of length 1; one of zeros stays as it is."""
    found = np.empty((len(rows), vectors.shape[1]), np.float32)
    for start in range(0, len(rows), BLOCK_ROWS):
        part = np.asarray(vectors[rows[start : start + BLOCK_ROWS]], np.float32)
        lengths = np.linalg.norm(part, axis=1, keepdims=True)
        found[start : start + len(part)] = part / np.where(lengths > 0, lengths, 1)
    return found


def _count(parts: list[npt.NDArray[np.floating]]) -> int:
    return sum(map(len, parts))


def _chosen(parts: list[npt.NDArray[np.floating]], rows: npt.NDArray[np.int64]) -> npt.NDArray[np.floating]:
    """The rows (K,) of files that follow one another: still mapped where they are all of one, else a copy."""
    if len(parts) == 1 and np.array_equal(rows, np.arange(len(parts[0]))):
        return parts[0]
    found = np.empty((len(rows), parts[0].shape[1]), np.result_type(*parts))
    start = 0
    for part in parts:
        here = np.flatnonzero((rows >= start) & (rows < start + len(part)))
        found[here] = part[rows[here] - start]
        start += len(part)
    return found


def _check_counts(folder: Path, counts: dict[str, int]) -> None:
    if len(set(counts.values())) > 1:
        rows = ", ".join(f"{name} {count:,}" for name, count in counts.items())
        raise DataError(f"{folder}: rows do not pair up: {rows}", fix="embed once more, all together")


def match_pairs(table: PairTable, embedded: PairTable) -> npt.NDArray[np.int64]:
    """(N,) the row of `embedded` that is each pair of `table`; -1 where none is, or more than one may be.

    Captions must be equal. An image may lie elsewhere: where its name is not known, the one that agrees in
    the longest ending (`a/1.png` of `/data/a/1.png`) is taken, if it is alone in that and no other image of
    the table agrees with it as well or better.
    """
    row_of: dict[NamedPair, int] = {}
    for row, pair in enumerate(_named(embedded)):
        row_of.setdefault(pair, row)
    found = np.array([row_of.get(pair, -1) for pair in _named(table)], dtype=np.int64)
    missing = np.flatnonzero(found < 0)
    if not len(missing):
        return found
    row_ending: dict[NamedPair, int] = {}  # by the ends of names; SEVERAL where images share one
    for (name, caption), row in row_of.items():
        for ending in _endings(name):
            if row_ending.setdefault((ending, caption), row) != row:
                row_ending[ending, caption] = SEVERAL
    taken = set(found.tolist())
    claims: dict[int, list[tuple[int, NamedPair]]] = {}  # of a row: how much of a name agrees, and whose
    unknown = list(_named(table.take(missing)))
    for name, caption in dict.fromkeys(unknown):
        common = next((end for end in _endings(name) if (end, caption) in row_ending), "")
        row = row_ending.get((common, caption), SEVERAL)
        if row != SEVERAL and row not in taken:
            claims.setdefault(row, []).append((common.count("/"), (name, caption)))
    matched: dict[NamedPair, int] = {}
    for row, claimants in claims.items():
        best = max(claimants)
        if sum(length == best[0] for length, _ in claimants) == 1:
            matched[best[1]] = row
    found[missing] = [matched.get(pair, -1) for pair in unknown]
    return found


def _named(table: PairTable) -> Iterator[NamedPair]:
    """Image and caption of every pair, a few thousand in memory at a time."""
    for batch in table.arrow.select(["image", "caption"]).to_batches(max_chunksize=10_000):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def match_names(names: Sequence[str], known: Sequence[str]) -> npt.NDArray[np.int64]:
    """(N,) where each image of `names` is among the `known` ones, all different; -1 where it is not.

    An image may lie elsewhere, as for `match_pairs`.

    >>> match_names(["/data/a/1.png", "b/1.png", "2.png"], ["a/1.png", "2.png"]).tolist()
    [0, -1, 1]
    """
    place_of = {name: place for place, name in enumerate(known)}
    by_ending: dict[str, int] = {}
    for place, name in enumerate(known):
        for ending in _endings(name):
            if by_ending.setdefault(ending, place) != place:
                by_ending[ending] = SEVERAL
    found = [place_of.get(name, -1) for name in names]
    taken = set(found)
    claims: dict[int, list[tuple[int, int]]] = {}  # of a known one: how much of a name agrees, and whose
    for number, name in enumerate(names):
        common = next((end for end in _endings(name) if end in by_ending), "") if found[number] < 0 else ""
        place = by_ending.get(common, SEVERAL)
        if place != SEVERAL and place not in taken:
            claims.setdefault(place, []).append((common.count("/"), number))
    for place, claimants in claims.items():
        best = max(claimants)
        if sum(length == best[0] for length, _ in claimants) == 1:
            found[best[1]] = place
    return np.array(found, dtype=np.int64)


def _endings(name: str) -> list[str]:
    """The ends a name has, the longest first; the last is the sample's key, by which img2dataset names it.

    >>> _endings("/data/0.tar#1.png")
    ['data/0.tar/1.png', '0.tar/1.png', '1.png', '1']
    """
    parts = [part for part in name.replace("#", "/").split("/") if part]
    key = parts[-1].partition(".")[0] if parts else ""
    ends = ["/".join(parts[start:]) for start in range(len(parts))]
    return [*ends, key] if key and key != ends[-1] else ends


def _numbered(files: list[Path]) -> list[Path]:
    """By the numbers in their names: img_emb_2 before img_emb_10."""
    return sorted(files, key=lambda file: [int(number) for number in re.findall(r"\d+", file.name)])


def _read_arrays(folder: Path) -> list[npt.NDArray[np.floating]]:
    files = _numbered(list(folder.glob("*.npy"))) if folder.is_dir() else []
    if not files:
        raise DataError(f"{folder}: no .npy files", fix="give a folder with img_emb, text_emb and metadata")
    parts: list[npt.NDArray[np.floating]] = []
    for file in files:
        array = mapped_array(file)
        if array.ndim != 2 or not np.issubdtype(array.dtype, np.floating):
            raise DataError(f"{file}: holds {array.dtype} of shape {array.shape}, expected rows of numbers")
        if parts and array.shape[1] != parts[0].shape[1]:
            raise DataError(
                f"{file}: {array.shape[1]} dimensions, but {files[0].name} has {parts[0].shape[1]}",
                fix="all parts must come from one model",
            )
        parts.append(array)
    return parts


def mapped_array(file: Path) -> npt.NDArray[Any]:
    """An array that stays on disk, without the cost numpy's own class of such arrays has for every row."""
    return load_array(file, "restore it, or embed again", mapped=True)


def read_metadata(files: Sequence[Path]) -> pa.Table:
    """Parquet files one below the other; no files are a table without rows."""
    return join_tables([read_bounded(file, fix="restore it, or embed again") for file in files])


def join_tables(tables: Sequence[pa.Table]) -> pa.Table:
    """One below the other; columns that some lack are empty there, and types that differ become text."""
    if not tables:
        return pa.table({"id": pa.array([], pa.string())})
    try:
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.concat_tables(_as_text(tables), promote_options="permissive").combine_chunks()


def _as_text(tables: Sequence[pa.Table]) -> list[pa.Table]:
    kinds: dict[str, set[str]] = {}
    for table in tables:
        for column in table.schema:
            kinds.setdefault(column.name, set()).add(str(column.type))
    fields = [
        [
            pa.field(column.name, pa.string()) if len(kinds[column.name] - {"null"}) > 1 else column
            for column in table.schema
        ]
        for table in tables
    ]
    return [table.cast(pa.schema(wanted)) for table, wanted in zip(tables, fields, strict=True)]


def _read_metadata(folder: Path) -> pa.Table:
    files = _numbered(list(folder.glob("*.parquet"))) if folder.is_dir() else []
    if not files:
        raise DataError(
            f"{folder}: no .parquet files", fix="embed with metadata, or call audit_embeddings from Python"
        )
    return read_metadata(files)


def _named_pairs(metadata: pa.Table, folder: Path) -> PairTable:
    """Pairs from the columns that clip-retrieval, img2dataset and others use."""
    names = {}
    for wanted, known in (("image", ("image_path", *IMAGE_NAMES)), ("caption", CAPTION_NAMES)):
        found = next((name for name in known if name in metadata.column_names), None)
        if found is None:
            where = folder / "metadata"
            raise DataError(f"{where}: no column for the {wanted}", fix=f"found {metadata.column_names}")
        names[wanted] = metadata[found]
    return PairTable.from_columns(pa.table(names), folder, folder.name, str(folder / "metadata"))
