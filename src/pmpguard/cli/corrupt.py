"""`pmpguard corrupt`: mismatch a known share of the captions; `import`, `export`: others' noise files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from pmpguard.data.formats import read_pairs
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import atomic_output, sha256_file
from pmpguard.models.retriever import Retriever
from pmpguard.noise.exported import save_index, save_rrsitr, to_image_index, to_permutation
from pmpguard.noise.imported import from_image_index, from_permutation, read_captions, read_index
from pmpguard.noise.inject import Corruption, Level, Mode, corrupt_pairs, partial_corruption
from pmpguard.noise.manifest import apply_manifest, manifest_text
from pmpguard.noise.similarity import filter_by_encoder, filter_by_scores

EXAMPLES = 3
Kind = Literal["image_of_caption", "permutation"]  # what an index of another project holds


@dataclass(frozen=True)
class Example:
    """One caption before and after."""

    pair_id: str
    was: str
    now: str


@dataclass(frozen=True)
class CorruptReport:
    """What was mismatched, and where it was written."""

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

    def as_text(self) -> str:
        lines = [
            f"{self.dataset}, split {self.split}: {self.wrong:,} of {self.pairs:,} captions are now "
            "mismatched",
            f"requested rate {self.requested_rate:.4f}, effective rate {self.effective_rate:.4f}, "
            f"level {self.level}, mode {self.mode}, seed {self.seed}",
        ]
        if self.over_threshold:
            lines.append(f"{self.over_threshold:,} of them stay over the similarity threshold")
        lines += [f"  {one.pair_id}: {one.was!r} -> {one.now!r}" for one in self.examples]
        lines += [f"wrote {path}" for path in (self.out, self.pairs_file) if path is not None]
        return "\n".join(lines)


@dataclass(frozen=True)
class ExportReport:
    """A noise file in another form."""

    out: Path
    form: str
    wrong: int
    sha256: str

    def as_text(self) -> str:
        return f"wrote {self.out} ({self.form}): {self.wrong:,} mismatched pairs, sha256 {self.sha256}"


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
    columns: str | None = None,
) -> CorruptReport:
    """Mismatch a known share of a dataset's captions and write which ones as a noise file.

    Args:
        dataset: a dataset in any known format.
        out: the noise file to write, JSON.
        rate: share of mismatched captions, 0 to 1.
        seed: the same seed gives the same file.
        level: 'caption' (a share of the pairs) or 'image' (all captions of a share of the images).
        mode: 'replace' (captions drawn from the split), 'permute' (shuffled among the chosen), 'partial'
            (from --wrong-captions); by default replace for captions, permute for images.
        split: the split to corrupt; the others stay as they are.
        similarity: a model folder, or a .npy of scores (captions, images); replacements must score low.
        wrong_captions: JSON lines with pair_id and caption, partly wrong captions for mode 'partial'.
        other_class: take mismatched captions from another scene class where classes are known.
        write_pairs: also write the corrupted pairs, as parquet.
        format: the dataset's format, when it cannot be told from the path.
        images: the folder that holds the images, when it is not beside the dataset.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
    """
    _check_targets(out, write_pairs)
    if (mode == "partial") != (wrong_captions is not None):
        raise ConfigError("mode 'partial' and --wrong-captions go together", fix="give both, or neither")
    if mode == "partial" and (level != "caption" or similarity is not None):
        raise ConfigError("mode 'partial' takes neither level 'image' nor a similarity", fix="leave them out")
    table = read_pairs(dataset, columns, format=format, images=images)
    if wrong_captions is not None:
        corruption = partial_corruption(table, read_captions(wrong_captions, table), rate, seed, split)
    else:
        moving: Mode | None = None if mode == "partial" else mode
        if similarity is None:
            chosen = None
        elif similarity.suffix == ".npy":
            chosen = filter_by_scores(similarity, table)
        else:
            chosen = filter_by_encoder(Retriever.load(similarity), table)
        corruption = corrupt_pairs(table, rate, seed, level, moving, split, chosen, other_class)
    return _write(table, corruption, out, write_pairs)


def import_noise(
    dataset: Path,
    index: Path,
    out: Path,
    kind: Kind = "image_of_caption",
    split: str = "train",
    write_pairs: Path | None = None,
    format: str | None = None,
    images: Path | None = None,
    columns: str | None = None,
) -> CorruptReport:
    """Turn the .npy index file of another project into a noise file.

    Such files may leave pairs as they are by chance: what is mismatched is found by comparing captions.

    Args:
        dataset: the dataset the index was made for, in any known format.
        index: a .npy array of whole numbers; pickled arrays are refused.
        out: the noise file to write, JSON.
        kind: 'image_of_caption' (NCR's: the image each caption was put to) or 'permutation' (whose caption
            each pair takes, or whose captions each image takes).
        split: the split the index is about.
        write_pairs: also write the corrupted pairs, as parquet.
        format: the dataset's format, when it cannot be told from the path.
        images: the folder that holds the images, when it is not beside the dataset.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
    """
    _check_targets(out, write_pairs)
    values = read_index(index)
    table = read_pairs(dataset, columns, format=format, images=images)
    make = from_permutation if kind == "permutation" else from_image_index
    try:
        made = make(table, values, split)
    except DataError as error:
        other = "permutation" if kind == "image_of_caption" else "image_of_caption"
        fix = error.fix or "use the file made for this dataset and split"
        raise DataError(f"{index}: {error.message}", fix=f"{fix}, or try --kind {other}") from error
    return _write(table, made, out, write_pairs)


def export_noise(
    dataset: Path,
    noise: Path,
    out: Path,
    kind: Kind = "image_of_caption",
    format: str | None = None,
    images: Path | None = None,
    columns: str | None = None,
) -> ExportReport:
    """Write a noise file in the form of another project, for its code to train on.

    A name ending in .npy gets NCR's index, one in .csv RRSITR's list of training pairs.

    Args:
        dataset: the dataset the noise file was made for, in any known format.
        noise: the noise file that `pmpguard corrupt` wrote.
        out: the file to write, .npy or .csv.
        kind: what an index holds: 'image_of_caption' (NCR's: the image each caption was put to) or
            'permutation' (whose caption each pair takes).
        format: the dataset's format, when it cannot be told from the path.
        images: the folder that holds the images, when it is not beside the dataset.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
    """
    if out.suffix not in (".npy", ".csv"):
        raise ConfigError(f"{out}: neither .npy nor .csv", fix="end its name in one of them")
    corruption = apply_manifest(read_pairs(dataset, columns, format=format, images=images), noise)
    if out.suffix == ".csv":
        save_rrsitr(corruption, out)
    else:
        chosen = to_image_index if kind == "image_of_caption" else to_permutation
        save_index(chosen(corruption), out)
    return ExportReport(
        out, "RRSITR" if out.suffix == ".csv" else kind, int(corruption.is_noisy.sum()), sha256_file(out)
    )


def _check_targets(out: Path, write_pairs: Path | None) -> None:
    """Refuse targets that could not be written before any work is done."""
    if out.is_dir():
        raise ConfigError(f"{out}: is a folder", fix="add a file name such as noise.json")
    if write_pairs is not None and (write_pairs.suffix != ".parquet" or write_pairs.is_dir()):
        raise ConfigError(f"{write_pairs}: pairs are written as parquet", fix="use a name ending in .parquet")


def _write(table: PairTable, corruption: Corruption, out: Path, pairs_file: Path | None) -> CorruptReport:
    with atomic_output(out) as stream:  # the noise file, ready to be named, goes right behind the pairs
        stream.write(manifest_text(corruption).encode())
        if pairs_file is not None:
            corruption.table.write_parquet(pairs_file)
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
