"""The files of an embedding: vectors others can read, fragments that stay on disk, metadata as parquet.

::

    img_emb/img_emb_0000.npy              (n, d) float32, unit vectors of the images
    img_fragments/img_fragments_0000.npy  (n, regions, d) float16, read row by row
    img_mask/img_mask_0000.npy            (n, regions) bool
    metadata/metadata_0000.parquet        id, image, caption and every further column
    text_emb/ text_fragments/ text_mask/ text_metadata/     the same of the captions, where there are any
    partitions/0000.json                  written last: this partition is whole; problems and hashes
    embedding.json                        model, folder of the images
    manifest.json                         written when everything is done

Pooled vectors are float32, as they are searched; of fragments there are dozens to each image, and they are
float16. `coded_files` says what a coded embedding holds in their place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from pmpguard.config import from_dict
from pmpguard.data.arrays import save_array
from pmpguard.data.formats.embeddings import read_metadata
from pmpguard.data.images.decode import ImageProblem
from pmpguard.errors import DataError, ModelError
from pmpguard.files import MANIFEST, atomic_output, read_json, sha256_file, sha256_files, write_json
from pmpguard.models.encoded import Encoded
from pmpguard.search.index.coded_files import CODE_FOLDERS, NO_CODECS, Codecs, code_pooled
from pmpguard.search.index.model_identity import ModelIdentity
from pmpguard.search.query import Kind

FORMAT = 1
SETTINGS = "embedding.json"
PARTITIONS = "partitions"
PROBLEMS = "problems.json"
FOLDERS: dict[Kind, tuple[str, str, str, str]] = {
    "image": ("img_emb", "img_fragments", "img_mask", "metadata"),
    "caption": ("text_emb", "text_fragments", "text_mask", "text_metadata"),
}


@dataclass(frozen=True)
class EmbeddingSettings:
    """What all partitions of an embedding share."""

    model: ModelIdentity
    model_path: str
    root: str  # folder the images' names are relative to

    def write(self, folder: Path) -> None:
        write_json(folder / SETTINGS, {"format": FORMAT, **asdict(self)})

    @classmethod
    def read(cls, folder: Path) -> EmbeddingSettings:
        stored = read_format(folder / SETTINGS, (FORMAT,), "embed again with this version of pmpguard")
        del stored["format"]
        return from_dict(cls, stored, str(folder / SETTINGS))


def read_format(path: Path, formats: Sequence[int], fix: str) -> dict[str, Any]:
    """A JSON object that says which format it is written in, if that is one we read."""
    stored = read_json(path)
    if not isinstance(stored, dict) or stored.get("format") not in formats:
        raise DataError(f"{path}: not of format {' or '.join(map(str, formats))}", fix=fix)
    return stored


@dataclass(frozen=True)
class Partition:
    """The receipt of a finished partition."""

    number: int
    images: int
    captions: int
    problems: tuple[ImageProblem, ...] = ()
    sha256: dict[str, str] = field(default_factory=dict)


def file_name(folder: str, number: int, ending: str = "npy") -> str:
    """
    >>> file_name("img_emb", 7)
    'img_emb/img_emb_0007.npy'
    """
    return f"{folder}/{folder}_{number:04d}.{ending}"


def write_partition(
    folder: Path,
    number: int,
    items: dict[Kind, tuple[Encoded, pa.Table]],
    problems: Sequence[ImageProblem],
    codecs: Codecs = NO_CODECS,
) -> Partition:
    """Write every file, each in one step, and the receipt last; an interrupted partition has no receipt.

    The vectors of a kind that has a codec are coded.
    """
    hashes: dict[str, str] = {}
    for kind, (encoded, metadata) in items.items():
        emb, fragments, mask, table = FOLDERS[kind]
        whole = encoded.fragments.isfinite().all(2) | ~encoded.mask  # (n, f)
        damaged = (~(encoded.pooled.isfinite().all(1) & whole.all(1))).nonzero()  # (bad, 1)
        if len(damaged):
            raise ModelError(
                f"the vector of {kind} {metadata['id'][int(damaged[0])].as_py()} is not finite",
                fix="the model is damaged, or it was trained until it overflowed",
            )
        arrays: dict[str, npt.NDArray[Any]]
        if kind in codecs:
            arrays = {emb: code_pooled(encoded.pooled), CODE_FOLDERS[kind]: codecs[kind].encode(encoded)}
        else:
            arrays = {
                emb: encoded.pooled.float().cpu().numpy(),  # (n, d)
                fragments: encoded.fragments.half().cpu().numpy(),  # (n, f, d)
                mask: encoded.mask.cpu().numpy(),  # (n, f)
            }
        for name, array in arrays.items():
            with atomic_output(folder / file_name(name, number)) as stream:
                save_array(stream, array)
            hashes[file_name(name, number)] = sha256_file(folder / file_name(name, number))
        path = file_name(table, number, "parquet")
        with atomic_output(folder / path) as stream:
            pq.write_table(metadata, stream, compression="zstd")
        hashes[path] = sha256_file(folder / path)
    counts = {kind: len(encoded) for kind, (encoded, _) in items.items()}
    partition = Partition(
        number,
        counts.get("image", 0),
        counts.get("caption", 0),
        tuple(problems),
        dict(sorted(hashes.items())),
    )
    (folder / PARTITIONS).mkdir(exist_ok=True)
    write_json(folder / PARTITIONS / f"{number:04d}.json", asdict(partition))
    return partition


def read_partitions(folder: Path) -> list[Partition]:
    """The receipts of the finished partitions, in order."""
    partitions = []
    for path in sorted((folder / PARTITIONS).glob("[0-9]*.json")):
        partitions.append(from_dict(Partition, read_json(path), str(path)))
    return sorted(partitions, key=lambda partition: partition.number)


def embedded_ids(folder: Path) -> set[str]:
    """Of the images."""
    return set(image_column(folder, "id"))


def image_column(folder: Path, name: str) -> dict[str, Any]:
    """One column of the images' metadata by their ids; empty where there is no such column."""
    table = open_metadata(folder, "image")
    values = table[name].to_pylist() if name in table.column_names else []
    return dict(zip(table["id"].to_pylist(), values, strict=False))


def remaining_problems(folder: Path) -> list[ImageProblem]:
    """Images that could not be read, also when they were tried again."""
    found = {problem.id: problem for part in read_partitions(folder) for problem in part.problems}
    embedded = embedded_ids(folder)
    return [problem for id, problem in found.items() if id not in embedded]


def write_embedding_manifest(folder: Path) -> dict[str, Any]:
    """Say that the embedding is complete: hashes of all files, model and counts."""
    partitions = read_partitions(folder)
    settings = EmbeddingSettings.read(folder)
    own = [SETTINGS, *(path.name for path in sorted(folder.glob("codec*")))]
    hashes = sha256_files(folder, own)
    for partition in partitions:
        receipt = f"{PARTITIONS}/{partition.number:04d}.json"
        hashes |= {**partition.sha256, receipt: sha256_file(folder / receipt)}
    manifest = {
        "sha256": hashes,
        "model": asdict(settings.model),
        "images": sum(partition.images for partition in partitions),
        "captions": sum(partition.captions for partition in partitions),
        "problems": len(remaining_problems(folder)),
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def open_metadata(folder: Path, kind: Kind) -> pa.Table:
    """All rows' metadata of one kind; partitions may have different columns."""
    paths = [
        folder / file_name(FOLDERS[kind][3], part.number, "parquet") for part in with_items(folder, kind)
    ]
    return read_metadata(paths)


def with_items(folder: Path, kind: Kind) -> list[Partition]:
    partitions = read_partitions(folder)
    return [part for part in partitions if (part.images if kind == "image" else part.captions)]
