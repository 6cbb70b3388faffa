"""`pmpguard corrupt`: make a known share of the captions wrong. `import_noise`: read others' noise files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from pmpguard.config import to_dict
from pmpguard.data.formats import read_pairs
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_lines
from pmpguard.errors import ConfigError, DataError
from pmpguard.noise.imported import from_image_index, from_permutation, read_index
from pmpguard.noise.inject import Corruption, Level, Mode, corrupt_pairs, partial_corruption
from pmpguard.noise.manifest import save_manifest
from pmpguard.noise.similarity import SimilarityFilter

EXAMPLES = 3
ENCODED_AT_ONCE = 64


@dataclass(frozen=True)
class Example:
    """One caption before and after."""

    pair_id: str
    was: str
    now: str


@dataclass(frozen=True)
class CorruptReport:
    """What was made wrong, and where it was written."""

    out: Path
    pairs_file: Path | None
    dataset: str
    fingerprint: str
    split: str
    level: str
    mode: str
    seed: int
    pairs: int
    wrong: int
    requested_rate: float
    effective_rate: float
    over_threshold: int
    examples: tuple[Example, ...]

    def as_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = to_dict(self)
        return plain

    def as_text(self) -> str:
        lines = [
            f"{self.dataset}, split {self.split}: {self.wrong:,} of {self.pairs:,} captions are now wrong",
            f"requested rate {self.requested_rate:.4f}, effective rate {self.effective_rate:.4f}, "
            f"level {self.level}, mode {self.mode}, seed {self.seed}",
        ]
        if self.over_threshold:
            lines.append(f"{self.over_threshold:,} of them stay over the similarity threshold")
        lines += [f"  {one.pair_id}: {one.was!r} -> {one.now!r}" for one in self.examples]
        lines += [f"wrote {path}" for path in (self.out, self.pairs_file) if path is not None]
        return "\n".join(lines)


def corrupt(
    dataset: Path,
    out: Path,
    rate: float,
    seed: int = 0,
    level: Level = "caption",
    mode: Literal["replace", "permute", "partial"] | None = None,
    split: str = "train",
    similarity: Path | None = None,
    wrong_captions: Path | None = None,
    other_class: bool = True,
    write_pairs: Path | None = None,
    format: str | None = None,
    images: Path | None = None,
) -> CorruptReport:
    """Make a known share of a dataset's captions wrong and write which ones as a noise file.

    Args:
        dataset: a dataset in any known format
        out: the noise file to write, JSON
        rate: share of wrong captions, 0 to 1
        seed: the same seed gives the same file
        level: 'caption' (a share of the pairs) or 'image' (all captions of a share of the images)
        mode: 'replace' (captions drawn from the split), 'permute' (shuffled among the chosen), 'partial'
            (from --wrong-captions); by default replace for captions, permute for images
        split: the split to corrupt; the others stay as they are
        similarity: a model folder, or a .npy of scores (captions, images); wrong captions must score low
        wrong_captions: JSON lines with pair_id and caption, partly wrong captions for mode 'partial'
        other_class: take wrong captions from another scene class where classes are known
        write_pairs: also write the corrupted pairs, as parquet
        format: the dataset's format, when it cannot be told from the path
        images: the folder that holds the images, when it is not beside the dataset
    """
    _check_targets(out, write_pairs)
    if (mode == "partial") != (wrong_captions is not None):
        raise ConfigError("mode 'partial' and --wrong-captions go together", fix="give both, or neither")
    if mode == "partial" and (level != "caption" or similarity is not None):
        raise ConfigError("mode 'partial' takes neither level 'image' nor a similarity", fix="leave them out")
    table = read_pairs(dataset, format=format, images=images)
    if wrong_captions is not None:
        corruption = partial_corruption(table, list(_read_wrong(wrong_captions, table)), rate, seed, split)
    else:
        moving: Mode | None = None if mode == "partial" else mode
        chosen = None if similarity is None else similarity_filter(similarity, table)
        corruption = corrupt_pairs(table, rate, seed, level, moving, split, chosen, other_class)
    return _write(table, corruption, out, write_pairs)


def import_noise(
    dataset: Path,
    index: Path,
    out: Path,
    kind: Literal["permutation", "image_of_caption"] = "permutation",
    split: str = "train",
    write_pairs: Path | None = None,
    format: str | None = None,
    images: Path | None = None,
) -> CorruptReport:
    """Turn the .npy index file of another project into a noise file.

    Args:
        dataset: the dataset the index was made for, in any known format
        index: a .npy array of whole numbers; pickled arrays are refused
        out: the noise file to write, JSON
        kind: 'permutation' (whose caption each pair takes, or whose captions each image takes) or
            'image_of_caption' (the image each caption was put to)
        split: the split the index is about
        write_pairs: also write the corrupted pairs, as parquet
        format: the dataset's format, when it cannot be told from the path
        images: the folder that holds the images, when it is not beside the dataset
    """
    _check_targets(out, write_pairs)
    values = read_index(index)
    table = read_pairs(dataset, format=format, images=images)
    make = from_permutation if kind == "permutation" else from_image_index
    return _write(table, make(table, values, split), out, write_pairs)


def similarity_filter(path: Path, table: PairTable) -> SimilarityFilter:
    """From a .npy file of scores (captions, images), or from a model folder by its embeddings' cosines."""
    if path.suffix == ".npy":
        try:
            scores = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: not a plain .npy array ({error})") from error
        return SimilarityFilter.from_matrix(scores, table.image_codes)
    from pmpguard.data.images.decode import load_pair_image
    from pmpguard.models.retriever import Retriever

    retriever = Retriever.load(path)
    image_rows = [int(row) for row in table.first_rows]
    images = [
        retriever.encode_images([load_pair_image(table, row) for row in part]).pooled.cpu().numpy()
        for part in _parts(image_rows, "images")
    ]
    texts, caption_of = np.unique(np.array(table.captions, dtype=object), return_inverse=True)
    captions = [
        retriever.encode_texts(part).pooled.cpu().numpy() for part in _parts(texts.tolist(), "captions")
    ]
    return SimilarityFilter.from_embeddings(
        np.concatenate(images), np.concatenate(captions)[caption_of], table.image_codes
    )


def _parts(items: list[Any], name: str) -> Iterator[list[Any]]:
    """Short lists of items, with a progress bar on stderr."""
    for start in tqdm(range(0, len(items), ENCODED_AT_ONCE), desc=f"encoding {name}", unit="batch"):
        yield items[start : start + ENCODED_AT_ONCE]


def _check_targets(out: Path, write_pairs: Path | None) -> None:
    """Refuse targets that could not be written before any work is done."""
    if out.is_dir():
        raise ConfigError(f"{out}: is a folder", fix="add a file name such as noise.json")
    if write_pairs is not None and (write_pairs.suffix != ".parquet" or write_pairs.is_dir()):
        raise ConfigError(f"{write_pairs}: pairs are written as parquet", fix="use a name ending in .parquet")


def _read_wrong(path: Path, table: PairTable) -> Iterator[tuple[int, str]]:
    """(row, caption) of each line of a JSON-lines file."""
    row_of = {pair_id: row for row, pair_id in enumerate(table.column("pair_id"))}
    for number, line in read_lines(path):
        try:
            record = json.loads(line)
            pair_id, caption = record["pair_id"], record["caption"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise DataError(
                f"{path} line {number}: no JSON object with pair_id and caption",
                fix='write {"pair_id": "...", "caption": "..."} on each line',
            ) from error
        if not isinstance(caption, str) or not isinstance(pair_id, str) or pair_id not in row_of:
            raise DataError(
                f"{path} line {number}: pair_id {pair_id!r} or its caption does not fit {table.name}"
            )
        yield row_of[pair_id], caption


def _write(table: PairTable, corruption: Corruption, out: Path, pairs_file: Path | None) -> CorruptReport:
    if pairs_file is not None:
        pairs_file.parent.mkdir(parents=True, exist_ok=True)
        corruption.table.write_parquet(pairs_file)
    save_manifest(corruption, out)
    noisy_rows = np.flatnonzero(corruption.is_noisy)
    examples = tuple(
        Example(table.row(row).pair_id, table.row(row).caption, corruption.table.row(row).caption)
        for row in noisy_rows[:EXAMPLES].tolist()
    )
    return CorruptReport(
        out=out,
        pairs_file=pairs_file,
        dataset=table.name,
        fingerprint=corruption.fingerprint,
        split=corruption.split,
        level=corruption.level,
        mode=corruption.mode,
        seed=corruption.seed,
        pairs=len(table.split(corruption.split)),
        wrong=len(noisy_rows),
        requested_rate=corruption.requested_rate,
        effective_rate=corruption.effective_rate,
        over_threshold=corruption.over_threshold,
        examples=examples,
    )
