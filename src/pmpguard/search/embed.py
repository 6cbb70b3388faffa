"""Embedding a corpus: reader, encoder, writer. Partitions are written one by one, so a killed run goes on."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from pmpguard.data.images.decode import ImageProblem, image_tensor, map_images
from pmpguard.data.pairs import PairTable
from pmpguard.data.row_files import open_rows, write_rows
from pmpguard.engine.parts import ALONE, Engine, Part, ranges, run_parts
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import MANIFEST, read_json, remove_leftovers, write_atomic, write_json, writer_lock
from pmpguard.models.encoded import Encoded
from pmpguard.models.hub import local_folder
from pmpguard.models.retriever import Retriever
from pmpguard.remote import full_path, shown
from pmpguard.safe_text import one_line
from pmpguard.search.index.embedding_files import (
    PROBLEMS,
    SETTINGS,
    EmbeddingSettings,
    embedded_ids,
    read_partitions,
    remaining_problems,
    write_embedding_manifest,
    write_partition,
)
from pmpguard.search.index.model_identity import identify_model
from pmpguard.search.query import Kind
from pmpguard.search.sources import Source

IMAGES_AT_ONCE, CAPTIONS_AT_ONCE = 64, 256
SOME_PROBLEMS = 3  # the exit code when images could not be read
SHOWN_PROBLEMS = 10
PARTS = ".parts"  # in the embedding, while several processes work on it


@dataclass(frozen=True)
class EmbeddingReport:
    """What an embedding holds now."""

    folder: Path
    images: int
    captions: int
    embedded: int  # images of this run; the others were there
    problems: tuple[ImageProblem, ...]

    @property
    def exit_code(self) -> int:
        return SOME_PROBLEMS if self.problems else 0

    def as_text(self) -> str:
        lines = [
            f"{shown(self.folder)}: {self.images:,} images and {self.captions:,} captions, "
            f"{self.embedded:,} images embedded now"
        ]
        if self.problems:
            count = len(self.problems)
            lines.append(f"{count:,} could not be read, see {shown(self.folder / PROBLEMS)}:")
        return "\n".join([*lines, *problem_lines(self.problems)])


def problem_lines(problems: Sequence[ImageProblem]) -> list[str]:
    """The first images that could not be read, a line each, and how many more there are."""
    lines = [f"  {one_line(problem.image)}: {problem.reason}" for problem in problems[:SHOWN_PROBLEMS]]
    more = len(problems) - len(lines)
    return [*lines, f"  and {more:,} more"] if more else lines


def embed_source(
    source: Source,
    model: Path,
    out: Path,
    *,
    partition_size: int = 1000,
    device: str = "cpu",
    threads: int = 2,
    engine: Engine = ALONE,
    progress: bool = True,
    skip: frozenset[str] = frozenset(),
) -> EmbeddingReport:
    """Embed all images and captions that `out` does not hold yet; `skip` names images to leave out.

    Finished partitions are kept as they are, so the same call continues a killed run, and embeds only what
    is new when images have been added. An image whose content changed under its old name is not noticed.
    Images are decoded by `threads`, or by those of each of the engine's workers, which write into `out`.
    """
    if partition_size < 1:
        raise ConfigError(f"partition size is {partition_size}", fix="give at least 1")
    settings = EmbeddingSettings(
        identify_model(model), str(local_folder(model).resolve()), str(full_path(source.images.root))
    )
    with writer_lock(out):
        _prepare(out, settings)
        partitions = read_partitions(out)
        failed = {problem.id for problem in remaining_problems(out)}
        again = failed if (out / MANIFEST).is_file() else set()  # after a whole run bad ones are tried again
        before = (embedded_ids(out) | failed | skip) - again
        rows = [row for row, id in enumerate(source.ids) if id not in before]
        embedded = sum(partition.images for partition in partitions)
        if rows:
            (out / MANIFEST).unlink(missing_ok=True)  # not complete until the end
            parts = ranges(len(rows), partition_size)
            numbers = _free_numbers({partition.number for partition in partitions}, len(parts))
            if engine.alone:
                encoder = CorpusEncoder(Retriever.load(model).to(device), source)
                reading = encoder.images(rows, threads, progress)
                for number, (start, stop) in zip(numbers, parts, strict=True):
                    encoder.write(out, number, rows[start:stop], reading, again)
            else:
                numbered = dict(zip(numbers, parts, strict=True))
                settings_of_parts = {"model": str(model), "device": device, "threads": threads}
                _embed_in_parts(source, rows, numbered, out, again, engine, progress, settings_of_parts)
        embedded = sum(partition.images for partition in read_partitions(out)) - embedded
        left = remaining_problems(out)
        write_json(out / PROBLEMS, [vars(problem) for problem in left])
        manifest = write_embedding_manifest(out)
    return EmbeddingReport(out, manifest["images"], manifest["captions"], embedded, tuple(left))


def _free_numbers(taken: set[int], count: int) -> list[int]:
    """The lowest numbers for new partitions: gaps are those that a killed run had not finished.

    >>> _free_numbers({0, 2}, 3)
    [1, 3, 4]
    """
    return list(itertools.islice((number for number in itertools.count() if number not in taken), count))


def _embed_in_parts(
    source: Source,
    rows: Sequence[int],
    numbered: dict[int, tuple[int, int]],
    out: Path,
    again: set[str],
    engine: Engine,
    progress: bool,
    settings: dict[str, Any],
) -> None:
    """Have the engine's workers write the partitions: each maps the rows it needs from files in `out`."""
    images = source.images.take(list(rows))
    captions_of = _captions_of(source)
    places = [captions_of.get(id, []) for id in images.column("image_id")]
    ends = [0, *itertools.accumulate(map(len, places))]
    with _parts_folder(out) as folder:
        write_rows(images, folder / "images.arrow")
        if source.captions is not None:
            write_rows(source.captions.take(list(itertools.chain(*places))), folder / "captions.arrow")
        write_json(folder / "again.json", sorted(again))
        parts = []
        for number, (start, stop) in numbered.items():
            span = {"images": [start, stop], "captions": [ends[start], ends[stop]]}
            done = folder / f"{number:04d}.done"
            arguments = {**settings, **span, "folder": str(folder), "out": str(out), "number": number}
            parts.append(Part({**arguments, "done": str(done)}, done, stop - start))
        on_gpu = settings["device"].startswith("cuda")
        title = "embedding" if progress else ""
        run_parts(engine, f"{__name__}:embed_part", parts, title=title, unit=" images", gpu=on_gpu)


@contextmanager
def _parts_folder(out: Path) -> Iterator[Path]:
    """A folder inside the embedding for what its workers read, gone at the end."""
    folder = out / PARTS
    shutil.rmtree(folder, ignore_errors=True)  # of a killed run
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def embed_part(
    model: str,
    device: str,
    threads: int,
    folder: str,
    images: list[int],
    captions: list[int],
    out: str,
    number: int,
    done: str,
) -> None:
    """Write one partition from the rows that `_embed_in_parts` left in `folder`."""
    files = Path(folder)
    has_captions = captions[0] < captions[1]
    source = Source(
        open_rows(files / "images.arrow", *images),
        open_rows(files / "captions.arrow", *captions) if has_captions else None,
    )
    encoder = CorpusEncoder(_model(model, device), source)
    rows = range(len(source))
    again = set(read_json(files / "again.json"))
    encoder.write(Path(out), number, rows, encoder.images(rows, threads, progress=False), again)
    write_atomic(Path(done), b"")


@lru_cache(maxsize=1)
def _model(folder: str, device: str) -> Retriever:
    return Retriever.load(Path(folder)).to(device)


def _captions_of(source: Source) -> dict[str, list[int]]:
    """The rows of the captions of each image id."""
    found: dict[str, list[int]] = {}
    if source.captions is not None:
        for row, id in enumerate(source.captions.column("image_id")):
            found.setdefault(id, []).append(row)
    return found


def _prepare(out: Path, settings: EmbeddingSettings) -> None:
    """Make the folder, or check that what is there was made by the same model from the same place."""
    for folder in (out, *(path for path in out.iterdir() if path.is_dir())):
        remove_leftovers(folder)
    if not (out / SETTINGS).is_file():
        settings.write(out)
        return
    known = EmbeddingSettings.read(out)
    known.model.require(settings.model, f"{out}: the model in {settings.model_path}")
    if known.root != settings.root:
        raise DataError(
            f"{out}: holds images of {known.root}, not of {settings.root}", fix="choose another folder"
        )


class CorpusEncoder:
    """A model and the source it reads; images are decoded ahead by threads."""

    def __init__(self, model: Retriever, source: Source) -> None:
        self.model = model
        self.source = source
        self.captions_of = _captions_of(source)

    def write(
        self,
        out: Path,
        number: int,
        rows: Sequence[int],
        reading: Iterator[Tensor | ImageProblem],
        again: set[str],
    ) -> None:
        """Encode the next images and write their partition, unless it holds but problems tried `again`."""
        items, problems = self.partition(rows, reading)
        if items or {problem.id for problem in problems} - again:
            write_partition(out, number, items, problems)

    def images(self, rows: Sequence[int], threads: int, progress: bool) -> Iterator[Tensor | ImageProblem]:
        """Decoded images (3, s, s) of many rows in order, a problem in place of each that is bad."""
        size, framing = self.model.config.input_size, self.model.framing
        return map_images(
            self.source.images,
            rows,
            lambda image: image_tensor(image, size, framing),
            policy="skip",
            workers=threads,
            progress="embedding" if progress else "",
        )

    def partition(
        self, rows: Sequence[int], reading: Iterator[Tensor | ImageProblem]
    ) -> tuple[dict[Kind, tuple[Encoded, pa.Table]], list[ImageProblem]]:
        """Encode the next images of `reading` and the captions of those that could be read."""
        ids = self.source.ids
        good: list[int] = []
        problems: list[ImageProblem] = []
        parts: list[Encoded] = []
        waiting: list[Tensor] = []
        for row, image in zip(rows, reading, strict=False):
            if isinstance(image, ImageProblem):
                problems.append(image)
                continue
            good.append(row)
            waiting.append(image)
            if len(waiting) == IMAGES_AT_ONCE:
                parts.append(self._encode(waiting))
                waiting = []
        if waiting:
            parts.append(self._encode(waiting))
        if not good:
            return {}, problems
        items: dict[Kind, tuple[Encoded, pa.Table]] = {
            "image": (Encoded.cat(parts), self._image_metadata(good))
        }
        caption_rows = [row for image in good for row in self.captions_of.get(ids[image], ())]
        if caption_rows and self.source.captions is not None and self.model.reads_texts:
            captions = self.source.captions.take(caption_rows)
            encoded = self._encode_captions(captions.captions)
            items["caption"] = (encoded, metadata_of(captions, "pair_id"))
        return items, problems

    def _encode(self, images: Sequence[Tensor]) -> Encoded:
        encoded = self.model.encode_images(torch.stack(list(images)), batch_size=IMAGES_AT_ONCE).to("cpu")
        if self.model.reads_texts:
            return encoded
        whole = encoded.pooled[:, None]  # words that would be looked for in regions there will be none
        return Encoded(encoded.pooled, whole, encoded.mask[:, :1])

    def _encode_captions(self, captions: Sequence[str]) -> Encoded:
        """Equal captions are encoded once."""
        places = {caption: place for place, caption in enumerate(dict.fromkeys(captions))}
        encoded = self.model.encode_texts(list(places), batch_size=CAPTIONS_AT_ONCE).to("cpu")
        return encoded[[places[caption] for caption in captions]]

    def _image_metadata(self, rows: Sequence[int]) -> pa.Table:
        return metadata_of(self.source.images.take(list(rows)), "image_id")


def metadata_of(table: PairTable, id_column: str) -> pa.Table:
    """The table as it is stored: `id` first; columns that say nothing are left out."""
    arrow = table.arrow
    dropped = {"pair_id", "image_id"} if id_column == "image_id" else {"pair_id"}
    columns: dict[str, Any] = {"id": arrow[id_column]}
    for name in arrow.column_names:
        if name not in dropped | {"id"}:
            columns[name] = _without_blanks(arrow[name]) if name in ("caption", "split") else arrow[name]
    empty = [
        name for name, column in columns.items() if column.null_count == len(column) and name != "caption"
    ]
    return pa.table({name: column for name, column in columns.items() if name not in empty})


def _without_blanks(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([value or None for value in column.to_pylist()], pa.string())
