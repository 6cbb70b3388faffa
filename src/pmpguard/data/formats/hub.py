"""Parquet with the images inside, as datasets lie on the Hugging Face Hub; read as any parquet.

A row is an image: `image` with its bytes, `captions`, and each other column once, or as a list with a value
for each caption where it belongs to the pair.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pmpguard.data.dataset_card import CARD, dataset_card
from pmpguard.data.formats.format import Format
from pmpguard.data.formats.parquet import read_parquet
from pmpguard.data.formats.shards import check_split_name, image_bytes, image_ending
from pmpguard.data.formats.stored_table import HUGGING_FACE, PER_CAPTION, SPLIT
from pmpguard.data.pair_rows import images_in_order
from pmpguard.data.pairs import NAME, PairTable
from pmpguard.data.parquet_images import BYTES, PATH
from pmpguard.data.shards import split_reference
from pmpguard.files import new_directory, write_atomic

IMAGES_PER_GROUP, IMAGES_PER_FILE = 100, 20_000
IMAGE = pa.struct([(BYTES, pa.binary()), (PATH, pa.string())])
OF_PAIRS = ("pair_id", "provenance", "original_caption", "p_match", "weight")
OF_IMAGES = ("image_id", "label")


def write_hub(table: PairTable, target: Path, about: Sequence[str] = ()) -> None:
    """`data/<split>-00000-of-00001.parquet` and a card."""
    further = [name for name in table.arrow.column_names if name not in ("image", "caption", "split")]
    per_caption = [name for name in further if name in OF_PAIRS or _differs(table, name)]
    schema = _schema(table, further, per_caption)
    with new_directory(target) as folder:
        (folder / "data").mkdir()
        for split in table.splits():
            check_split_name(table, split)
            schema = schema.with_metadata({**schema.metadata, SPLIT: split.encode()})
            part = table.split(split)
            images = images_in_order(part)
            files = -(-len(part.first_rows) // IMAGES_PER_FILE)
            for number in range(files):
                path = folder / "data" / f"{split}-{number:05d}-of-{files:05d}.parquet"
                with pq.ParquetWriter(path, schema, compression="zstd") as writer:
                    for rows in _groups(islice(images, IMAGES_PER_FILE)):
                        writer.write_table(_as_table(table, rows, schema, per_caption))
        paths = {split: f"data/{split}-*.parquet" for split in table.splits()}
        write_atomic(folder / CARD, dataset_card(table, paths, about))


def _differs(table: PairTable, name: str) -> bool:
    """Whether captions of one image have different values."""
    if name in OF_IMAGES:
        return False
    column = table.arrow[name]
    first = column.take(table.first_rows[table.image_codes])
    return bool(column != first) and column.to_pylist() != first.to_pylist()


def _schema(table: PairTable, further: Sequence[str], per_caption: Sequence[str]) -> pa.Schema:
    """Columns with what Hugging Face wants to know of them."""
    kinds = {name: table.arrow.schema.field(name).type for name in further}
    kinds = {name: pa.list_(kind) if name in per_caption else kind for name, kind in kinds.items()}
    features: dict[str, Any] = {"image": {"_type": "Image"}}
    fields = [("image", IMAGE), ("captions", pa.list_(pa.string())), *kinds.items()]
    metadata = {
        NAME: table.name.encode(),
        PER_CAPTION: json.dumps(list(per_caption)).encode(),
        HUGGING_FACE: json.dumps({"info": {"features": features}}).encode(),
    }
    return pa.schema(fields, metadata=metadata)


def _groups(images: Iterator[list[dict[str, Any]]]) -> Iterator[list[list[dict[str, Any]]]]:
    while group := list(islice(images, IMAGES_PER_GROUP)):
        yield group


def _as_table(
    table: PairTable, images: list[list[dict[str, Any]]], schema: pa.Schema, per_caption: Sequence[str]
) -> pa.Table:
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    for rows in images:
        data = image_bytes(table, rows[0]["image"])
        columns["image"].append({BYTES: data, PATH: _file_name(rows[0]["image"], data)})
        columns["captions"].append([row["caption"] for row in rows])
        for name in schema.names[2:]:
            columns[name].append([row[name] for row in rows] if name in per_caption else rows[0][name])
    return pa.table(columns, schema=schema)


def _file_name(image: str, data: bytes) -> str:
    file, member = split_reference(image)
    name = Path(file if member is None else member)
    return name.name if name.suffix else f"{name.name}.{image_ending(data)}"


HUB = Format(
    "a folder of the Hugging Face Hub: parquet with the images inside, and a card",
    lambda _: False,  # it is recognised as parquet
    read_parquet,
    write_hub,
    several_files=True,
    names_columns=True,
    keeps_columns=True,
    copies_images=True,
    has_card=True,
)
