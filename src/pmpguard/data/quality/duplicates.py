"""The same image twice: within a split, across splits, across datasets."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pmpguard.data.images.decode import MAX_PIXELS, ImageProblem, map_images
from pmpguard.data.pairs import PairTable, codes
from pmpguard.data.quality.perceptual_hash import (
    groups,
    orientations,
    perceptual_hash,
    similar_pairs,
    thumbnail,
)
from pmpguard.data.quality.report import Finding, Item
from pmpguard.data.row_files import open_rows, write_rows
from pmpguard.engine.parts import ALONE, Engine, Part, ranges, run_parts
from pmpguard.files import atomic_output

TRAINING = "train"
IMAGES_A_PART = 2000  # of a job on several processes
_BLANK = 8  # grey levels: an image that varies less shows nothing


@dataclass(frozen=True)
class Place:
    """Where an image lies."""

    dataset: str
    split: str


@dataclass(frozen=True)
class Images:
    """What one look at each image of each split left; all parts are of one length N."""

    images: list[str]
    places: list[Place]
    digests: np.ndarray  # (N,2) uint64, of the pixels
    hashes: np.ndarray  # (N,K,2) uint64, perceptual, of K orientations
    blank: np.ndarray  # (N,) bool, of one colour

    def __add__(self, other: Images) -> Images:
        return Images(
            self.images + other.images,
            self.places + other.places,
            np.concatenate([self.digests, other.digests]),
            np.concatenate([self.hashes, other.hashes]),
            np.concatenate([self.blank, other.blank]),
        )


def image_rows(table: PairTable) -> np.ndarray:
    """The first row of every image in every split."""
    keys = np.stack([table.image_codes, codes(table.arrow["split"])], axis=1)  # (N,2)
    return np.sort(np.unique(keys, axis=0, return_index=True)[1])


@dataclass(frozen=True)
class Look:
    """What was seen of R images, one after the other; where one cannot be read there are zeros."""

    digests: np.ndarray  # (R,2) uint64
    hashes: np.ndarray  # (R,K,2) uint64
    blank: np.ndarray  # (R,) bool
    readable: np.ndarray  # (R,) bool
    problems: tuple[ImageProblem, ...]

    @classmethod
    def at(cls, table: PairTable, turned: bool, max_pixels: int, threads: int, progress: str = "") -> Look:
        """Read the image of every row."""
        count = len(table)
        digests, hashes = np.zeros((count, 2), np.uint64), np.zeros((count, 8 if turned else 1, 2), np.uint64)
        blank, readable = np.zeros(count, bool), np.ones(count, bool)
        problems = []
        looks = map_images(
            table, range(count), lambda image: _look(image, turned),
            policy="skip", workers=threads, progress=progress, max_pixels=max_pixels,
        )  # fmt: skip
        for position, look in enumerate(looks):
            if isinstance(look, ImageProblem):
                readable[position] = False
                problems.append(look)
            else:
                digests[position], hashes[position], blank[position] = look
        return cls(digests, hashes, blank, readable, tuple(problems))

    @classmethod
    def join(cls, parts: Sequence[Look]) -> Look:
        digests, hashes, blank, readable = (
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("digests", "hashes", "blank", "readable")
        )
        problems = tuple(problem for part in parts for problem in part.problems)
        return cls(digests, hashes, blank, readable, problems)

    def write(self, path: Path) -> None:
        told = json.dumps([vars(problem) for problem in self.problems]).encode()
        with atomic_output(path) as stream:
            np.savez(
                stream, digests=self.digests, hashes=self.hashes, blank=self.blank, readable=self.readable,
                problems=np.frombuffer(told, np.uint8),
            )  # fmt: skip

    @classmethod
    def read(cls, path: Path) -> Look:
        with np.load(path, allow_pickle=False) as stored:
            problems = json.loads(stored["problems"].tobytes())
            return cls(
                stored["digests"], stored["hashes"], stored["blank"], stored["readable"],
                tuple(ImageProblem(**problem) for problem in problems),
            )  # fmt: skip


def look_at_part(
    rows: str, start: int, stop: int, out: str, turned: bool, max_pixels: int, threads: int
) -> None:
    """Look at some rows of a table in a file; what was seen goes to another file."""
    Look.at(open_rows(Path(rows), start, stop), turned, max_pixels, threads).write(Path(out))


def look_at_images(
    table: PairTable,
    name: str,
    *,
    turned: bool = False,
    max_pixels: int = MAX_PIXELS,
    threads: int = 0,
    engine: Engine = ALONE,
    progress: bool = False,
) -> tuple[Images, list[ImageProblem]]:
    """Read every image once; `name` is what the dataset is called in findings."""
    images = table.take(image_rows(table))
    title = f"checking {name}" if progress else ""
    if engine.alone:
        look = Look.at(images, turned, max_pixels, threads, title)
    else:
        look = _look_in_parts(images, engine, title, turned=turned, max_pixels=max_pixels, threads=threads)
    splits = {split: Place(name, split) for split in table.splits()}
    kept = images.filter(look.readable)
    return (
        Images(
            kept.column("image"),
            [splits[split] for split in kept.column("split")],
            look.digests[look.readable],
            look.hashes[look.readable],
            look.blank[look.readable],
        ),
        list(look.problems),
    )


def _look_in_parts(images: PairTable, engine: Engine, title: str, **settings: Any) -> Look:
    mark = f"{images.fingerprint[:16]}-{int(settings['turned'])}-{settings['max_pixels']}"
    with engine.files(f"look-{mark}") as folder:
        rows = folder / "images.arrow"
        write_rows(images, rows)
        parts = [
            Part(
                {"rows": str(rows), "start": start, "stop": stop, "out": str(out), **settings},
                out,
                stop - start,
            )
            for start, stop in ranges(len(images), IMAGES_A_PART)
            for out in [folder / f"{start:09d}.npz"]
        ]
        run_parts(engine, f"{__name__}:look_at_part", parts, title=title, unit=" images")
        return Look.join([Look.read(part.output) for part in parts if part.output is not None])


def _look(image: Image.Image, turned: bool) -> tuple[np.ndarray, np.ndarray, bool]:
    """Digest of the pixels (2,), perceptual hashes (K,2), and whether it is of one colour."""
    digest = hashlib.blake2b(image.tobytes(), digest_size=16, key=repr(image.size).encode()).digest()
    grey = thumbnail(image)
    hashes = perceptual_hash(orientations(grey) if turned else grey[None])
    low, high = np.asarray(image.getextrema()).T  # (3,) each
    return np.frombuffer(digest, np.uint64), hashes, bool((high - low).max() < _BLANK)


def duplicate_findings(images: Images, dataset: str) -> Iterator[Finding]:
    """Copies within `dataset` and between it and any other; images of one colour do not count."""
    sets = [
        members
        for members in duplicate_sets(images)
        if any(images.places[member].dataset == dataset for member in members)
    ]
    exact: list[Item] = []
    near: list[Item] = []
    for members in sets:
        is_exact = len(np.unique(images.digests[members], axis=0)) == 1
        (exact if is_exact else near).append(_item(images, members))
    if exact:
        summary = f"sets of images with the same pixels: {len(exact):,}"
        yield Finding("duplicate_images", "note", summary, tuple(exact))
    if near:
        summary = f"sets of nearly the same image: {len(near):,}"
        yield Finding("near_duplicate_images", "note", summary, tuple(near))
    yield from _leak_findings(images, sets)


def duplicate_sets(images: Images) -> list[list[int]]:
    """Sets of positions that show the same or nearly the same image."""
    seen = np.flatnonzero(~images.blank)
    _, first, exact = np.unique(images.digests[seen], axis=0, return_index=True, return_inverse=True)
    same = np.stack([first[exact.ravel()], np.arange(len(seen))], axis=1)  # each with the first of its pixels
    near = first[similar_pairs(images.hashes[seen[first]])]  # copies are compared once
    members = defaultdict(list)
    for place, leader in zip(seen.tolist(), groups(len(seen), np.concatenate([same, near])), strict=True):
        members[int(leader)].append(place)
    return [places for places in members.values() if len(places) > 1]


def _leak_findings(images: Images, sets: list[list[int]]) -> Iterator[Finding]:
    """A finding for every two places that share images.

    Two splits of a dataset must not; of two datasets, the training split of one and another of the other.
    """
    shared: dict[tuple[Place, Place], list[list[int]]] = defaultdict(list)
    order = {place: number for number, place in enumerate(dict.fromkeys(images.places))}
    for members in sets:
        places = sorted({images.places[member] for member in members}, key=order.__getitem__)
        for number, one in enumerate(places):
            for other in places[number + 1 :]:
                shared[one, other].append(members)
    for (one, other), leaking in shared.items():
        is_leak = one.dataset == other.dataset or (one.split == TRAINING) != (other.split == TRAINING)
        held_out = one if other.split == TRAINING else other
        lost = sum(images.places[member] == held_out for members in leaking for member in members)
        size = sum(place == held_out for place in images.places)
        summary = (
            f"{one.dataset} {one.split!r} and {other.dataset} {other.split!r} share images: "
            f"{lost:,} of the {size:,} of {held_out.dataset} {held_out.split!r}"
        )
        items = tuple(
            _item(images, [member for member in members if images.places[member] in (one, other)])
            for members in leaking
        )
        kind = "leaking_images" if is_leak else "shared_images"
        yield Finding(kind, "problem" if is_leak else "note", summary, items)


def _item(images: Images, members: list[int]) -> Item:
    places = dict.fromkeys(
        f"{images.places[member].dataset} {images.places[member].split}" for member in members
    )
    return Item(tuple(images.images[member] for member in members), ", ".join(places))
