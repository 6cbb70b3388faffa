"""Embedding a corpus: reader, encoder, writer. Partitions are written one by one, so a killed run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch
from torch import Tensor

from pmpguard.data.images.decode import ImageProblem, image_tensor, map_images
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import MANIFEST, remove_leftovers, write_json, writer_lock
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
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

    def as_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder), "images": self.images, "captions": self.captions,
            "embedded": self.embedded, "problems": [vars(problem) for problem in self.problems],
        }  # fmt: skip

    def as_text(self) -> str:
        lines = [
            f"{self.folder}: {self.images:,} images and {self.captions:,} captions, "
            f"{self.embedded:,} images embedded now"
        ]
        if self.problems:
            count = len(self.problems)
            lines.append(f"{count:,} could not be read, see {self.folder / PROBLEMS}:")
        return "\n".join([*lines, *problem_lines(self.problems)])


def problem_lines(problems: Sequence[ImageProblem]) -> list[str]:
    """The first images that could not be read, a line each, and how many more there are."""
    lines = [f"  {problem.image}: {problem.reason}" for problem in problems[:SHOWN_PROBLEMS]]
    more = len(problems) - len(lines)
    return [*lines, f"  and {more:,} more"] if more else lines


def embed_source(
    source: Source,
    model: Path,
    out: Path,
    *,
    partition_size: int = 1000,
    device: str = "cpu",
    workers: int = 2,
    progress: bool = True,
    skip: frozenset[str] = frozenset(),
) -> EmbeddingReport:
    """Embed all images and captions that `out` does not hold yet; `skip` names images to leave out.

    Finished partitions are kept as they are, so the same call continues a killed run, and embeds only what
    is new when images have been added. An image whose content changed under its old name is not noticed.
    """
    if partition_size < 1:
        raise ConfigError(f"partition size is {partition_size}", fix="give at least 1")
    settings = EmbeddingSettings(
        identify_model(model), str(model.resolve()), str(source.images.root.resolve())
    )
    with writer_lock(out):
        _prepare(out, settings)
        partitions = read_partitions(out)
        failed = {problem.id for problem in remaining_problems(out)}
        again = failed if (out / MANIFEST).is_file() else set()  # after a whole run bad ones are tried again
        before = (embedded_ids(out) | failed | skip) - again
        rows = [row for row, id in enumerate(source.ids) if id not in before]
        embedded = 0
        if rows:
            (out / MANIFEST).unlink(missing_ok=True)  # not complete until the end
            encoder = CorpusEncoder(Retriever.load(model).to(device), source)
            first = partitions[-1].number + 1 if partitions else 0
            reading = encoder.images(rows, workers, progress)
            for number, start in enumerate(range(0, len(rows), partition_size), first):
                some = rows[start : start + partition_size]
                items, problems = encoder.partition(some, reading)
                if items or {problem.id for problem in problems} - again:
                    embedded += write_partition(out, number, items, problems).images
        left = remaining_problems(out)
        write_json(out / PROBLEMS, [vars(problem) for problem in left])
        manifest = write_embedding_manifest(out)
    return EmbeddingReport(out, manifest["images"], manifest["captions"], embedded, tuple(left))


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
        self.captions_of: dict[str, list[int]] = {}
        if source.captions is not None:
            for row, id in enumerate(source.captions.column("image_id")):
                self.captions_of.setdefault(id, []).append(row)

    def images(self, rows: Sequence[int], workers: int, progress: bool) -> Iterator[Tensor | ImageProblem]:
        """Decoded images (3, s, s) of many rows in order, a problem in place of each that is bad."""
        size = self.model.config.image_size
        return map_images(
            self.source.images,
            rows,
            lambda image: image_tensor(image, size),
            policy="skip",
            workers=workers,
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
        if caption_rows and self.source.captions is not None:
            captions = self.source.captions.take(caption_rows)
            encoded = self._encode_captions(captions.captions)
            items["caption"] = (encoded, metadata_of(captions, "pair_id"))
        return items, problems

    def _encode(self, images: Sequence[Tensor]) -> Encoded:
        return self.model.encode_images(torch.stack(list(images)), batch_size=IMAGES_AT_ONCE).to("cpu")

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
