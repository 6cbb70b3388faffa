"""The same image twice: within a split, across splits, across datasets."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

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

TRAINING = "train"
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


def look_at_images(
    table: PairTable,
    name: str,
    *,
    turned: bool = False,
    max_pixels: int = MAX_PIXELS,
    workers: int = 0,
    progress: bool = False,
) -> tuple[Images, list[ImageProblem]]:
    """Read every image once; `name` is what the dataset is called in findings."""
    rows = image_rows(table)
    digests = np.zeros((len(rows), 2), np.uint64)
    hashes = np.zeros((len(rows), 8 if turned else 1, 2), np.uint64)
    blank = np.zeros(len(rows), bool)
    readable = np.ones(len(rows), bool)
    problems = []
    looks = map_images(
        table,
        rows,
        lambda image: _look(image, turned),
        policy="skip",
        workers=workers,
        progress=f"checking {name}" if progress else "",
        max_pixels=max_pixels,
    )
    for position, look in enumerate(looks):
        if isinstance(look, ImageProblem):
            readable[position] = False
            problems.append(look)
        else:
            digests[position], hashes[position], blank[position] = look
    splits = {split: Place(name, split) for split in table.splits()}
    return (
        Images(
            table.arrow["image"].take(rows[readable]).to_pylist(),
            [splits[split] for split in table.arrow["split"].take(rows[readable]).to_pylist()],
            digests[readable],
            hashes[readable],
            blank[readable],
        ),
        problems,
    )


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
