"""Fitting codecs to stored vectors, and writing embeddings over again with them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from pmpguard.data.formats.embeddings import read_metadata
from pmpguard.engine.hashing import hashing_by
from pmpguard.engine.parts import Engine
from pmpguard.errors import DataError
from pmpguard.files import MANIFEST, read_json, sha256_files
from pmpguard.models.encoded import Encoded
from pmpguard.search.codec import CodecSpec, Floats, fit_codec
from pmpguard.search.index.coded_files import Codecs, save_codecs
from pmpguard.search.index.embedding_files import (
    FOLDERS,
    SETTINGS,
    file_name,
    read_partitions,
    write_partition,
)
from pmpguard.search.index.model_identity import link_or_copy
from pmpguard.search.index.stored_vectors import StoredVectors, open_vectors
from pmpguard.search.query import Kind

FITTED_ITEMS = 1000  # of which all fragments are read


def fit_codecs(spec: CodecSpec, samples: Mapping[Kind, Floats], seed: int = 0) -> Codecs:
    """One for the images and one for captions, which an index without them may get later.

    Where there are too few words to say which directions matter, those of captions are kept whole.
    """
    words = samples["caption"]  # (F, d)
    for_captions = spec.for_captions if len(words) >= words.shape[1] else CodecSpec(spec.bits)
    return {
        "image": fit_codec(spec, samples["image"], seed),
        "caption": fit_codec(for_captions, words, seed),
    }


def sample_fragments(vectors: StoredVectors) -> Floats:
    """(F, d) all fragments of items that are spread evenly over the rows."""
    count = min(len(vectors), FITTED_ITEMS)
    if not count:
        return np.zeros((0, vectors.dim), np.float32)
    items = vectors.take(np.linspace(0, len(vectors) - 1, count).astype(np.int64))
    found: Floats = items.fragments[items.mask].numpy()
    return found


def write_coded(embeddings: Path, folder: Path, codecs: Codecs, engine: Engine) -> None:
    """Write an embedding again, its vectors coded, into an existing folder; what is read is checked first."""
    recorded: dict[str, str] = read_json(embeddings / MANIFEST)["sha256"]
    missing = [file for file in recorded if not (embeddings / file).is_file()]
    if missing:
        raise DataError(f"{embeddings / missing[0]}: missing", fix="embed again into a new folder")
    there = (hashing_by(engine) or sha256_files)(embeddings, list(recorded))
    changed = [file for file, digest in recorded.items() if there[file] != digest]
    if changed:
        raise DataError(
            f"{embeddings / changed[0]}: changed since it was written", fix="embed again into a new folder"
        )
    link_or_copy(embeddings / SETTINGS, folder / SETTINGS)
    kinds = {kind: open_vectors(embeddings, kind) for kind in codecs}
    first: dict[Kind, int] = dict.fromkeys(kinds, 0)
    for partition in read_partitions(embeddings):
        counts: dict[Kind, int] = {"image": partition.images, "caption": partition.captions}
        items: dict[Kind, tuple[Encoded, pa.Table]] = {}
        for kind, count in counts.items():
            if count:
                rows = np.arange(first[kind], first[kind] + count)
                table = file_name(FOLDERS[kind][3], partition.number, "parquet")
                metadata = read_metadata([embeddings / table])
                items[kind] = (kinds[kind].take(rows), metadata)
                first[kind] += count
        write_partition(folder, partition.number, items, partition.problems, codecs)
    save_codecs(codecs, folder)
