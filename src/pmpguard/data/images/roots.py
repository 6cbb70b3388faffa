"""Where a dataset's images lie: the folder is given, or found next to the annotations.

Annotations name images in many ways: `a.jpg`, `train/a.jpg`, `/home/someone/images/a.jpg`, `D:\\data\\a.jpg`
or `a`. The folder is looked for in the usual places, and leading folders of the names are dropped until the
images are there; names without an ending get that of the files.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from pmpguard.data.pairs import PairTable
from pmpguard.data.shards import split_reference
from pmpguard.data.text_files import IMAGE_SUFFIXES, looks_like_image
from pmpguard.errors import DataError
from pmpguard.remote import is_remote

SAMPLE = 16
MAX_OTHER_FOLDERS = 100
OUTSIDE = "an image outside the dataset's folder"
OUTSIDE_FIX = "pass the folder that holds it with --images, or --allow-outside if you trust the dataset"
_allowed = False  # for tables that do not say


def locate_images(
    names: Sequence[str], folder: Path, images: Path | None, recorded: Path | None = None
) -> tuple[Path, list[str]]:
    """The folder that holds the images and the names relative to it.

    `folder` is where the annotations lie and `recorded` the first guess; `images` overrides the search. When
    no image is found, the names stay as they are below one of them: captions can be used without images,
    and `missing_images` says what was tried.
    """
    at_address = next((place for place in (images, recorded) if place and is_remote(place)), None)
    if at_address is not None:
        return at_address, list(names)
    if images is not None and not images.is_dir():
        raise DataError(f"{images}: no such image folder", fix="pass the folder that holds the images")
    guesses = [recorded] if recorded is not None and recorded.is_dir() else []
    roots = [images] if images is not None else [*guesses, *candidate_roots(folder)]
    found = _named_below(roots, names)
    if found is None and any("\\" in name for name in spread(names)):
        found = _named_below(roots, [name.replace("\\", "/") for name in names])
    return found or (images or (guesses[0] if guesses else folder / "images"), list(names))


def _named_below(roots: Sequence[Path], names: Sequence[str]) -> tuple[Path, list[str]] | None:
    """The folder with most of the images, and their names in it: with fewer folders, or with an ending."""
    sample = spread(names)
    endings = ("",) if any(map(looks_like_image, sample)) else ("", *IMAGE_SUFFIXES)
    for dropped in range(max((len(PurePosixPath(name).parts) for name in sample), default=0)):
        shortened = [drop_folders(name, dropped) for name in sample]
        for ending in endings:
            files = [split_reference(name)[0] + ending for name in shortened]
            there = [sum(_lies_in(root, file) for file in files) for root in roots]
            if any(there):
                return roots[there.index(max(there))], [
                    drop_folders(name, dropped) + ending for name in names
                ]
    return None


def candidate_roots(folder: Path) -> list[Path]:
    """The places where images usually lie.

    `images` or `<name>_images` in the folder, the folder itself, the same above it, its other folders
    (`pictures`), and above it, for `annotations/` beside `train2017/`.
    """

    def folders(parent: Path) -> list[Path]:
        places = sorted(parent.iterdir()) if parent.is_dir() else []
        return [place for place in places if place.is_dir() and not place.name.startswith(".")]

    def named_images(parent: Path) -> list[Path]:
        return [place for place in folders(parent) if place.name.lower().endswith("images")]

    others = [place for place in folders(folder)[:MAX_OTHER_FOLDERS] if place not in named_images(folder)]
    return [*named_images(folder), folder, *named_images(folder.parent), *others, folder.parent]


def _lies_in(root: Path, name: str) -> bool:
    """Whether an image is there, by a name that does not lead out of the folder."""
    inside = not leads_outside(name) or is_inside(root, root / name)
    return inside and is_image_file(root / name)


def leads_outside(name: str) -> bool:
    """
    >>> leads_outside("/a/b.png"), leads_outside("x/../../b.png"), leads_outside("x..y/b.png")
    (True, True, False)
    """
    return name.startswith("/") or ".." in PurePosixPath(name).parts


def is_inside(root: Path, path: Path) -> bool:
    """Whether a file lies below a folder, once all links have been followed."""
    try:
        return os.path.realpath(path).startswith(os.path.join(os.path.realpath(root), ""))  # noqa: PTH118
    except (OSError, ValueError):
        return False


def is_confined(table: PairTable, file: Path) -> bool:
    """Whether a table may open a file: one below its root, or any where that is allowed."""
    return (_allowed if table.allow_outside is None else table.allow_outside) or is_inside(table.root, file)


@contextlib.contextmanager
def outside_allowed(allowed: bool) -> Iterator[None]:
    """Whether tables that do not say may open files outside their root, in all threads."""
    global _allowed
    before, _allowed = _allowed, allowed
    try:
        yield
    finally:
        _allowed = before


def is_image_file(path: Path) -> bool:
    """Whether a file is there; a name that no file system takes is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def drop_folders(name: str, count: int) -> str:
    """The name without its first `count` parts, always keeping the file's own name.

    >>> drop_folders("/data/train/a.jpg", 2), drop_folders("a.jpg", 3), drop_folders("x/a.jpg", 0)
    ('train/a.jpg', 'a.jpg', 'x/a.jpg')
    """
    if not count:
        return name
    parts = PurePosixPath(name).parts
    return str(PurePosixPath(*parts[min(count, len(parts) - 1) :]))


def spread(names: Sequence[str]) -> list[str]:
    """A few names from all over the list."""
    return list(names[:: max(1, len(names) // SAMPLE)])


def _address(name: str) -> str | None:
    return name if re.match(r"(https?|s3|gs)://", name) else None


def missing_images(table: PairTable) -> str | None:
    """A sentence saying that none of the table's images is there, where was looked and what to do."""
    if is_remote(table.root):
        return None
    names = spread(table.arrow["image"].slice(0, 100_000).to_pylist())
    if not names or any(is_image_file(table.root / split_reference(name)[0]) for name in names):
        return None
    folder = table.root.parent if table.root.name == "images" else table.root
    if (address := _address(names[0])) is not None:
        return (
            f"{table.name}: images are addresses ({address}), which are not fetched here; fetch them, for "
            "example with img2dataset, and read its folder"
        )
    message = f"{table.name}: no image found below {table.root} (looked for {names[0]})"
    archives = sorted(folder.glob("*image*.tar*")) if folder.is_dir() else []
    if archives:
        named = ", ".join(file.name for file in archives[:4])
        return f"{message}; extract {named} in {folder}: tar -xf {archives[0].name}"
    return f"{message}; pass the folder that holds the images with --images"
