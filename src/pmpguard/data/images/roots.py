"""Where a dataset's images lie: the folder is given, or found next to the annotations.

Annotations name images in many ways: `a.jpg`, `train/a.jpg`, `/home/someone/images/a.jpg`. The folder is
looked for in the usual places, and leading folders of the names are dropped until the images are there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pmpguard.data.pairs import PairTable
from pmpguard.data.shards import split_reference
from pmpguard.errors import DataError

SAMPLE = 16
MAX_OTHER_FOLDERS = 100


def locate_images(
    names: Sequence[str], folder: Path, images: Path | None, recorded: Path | None = None
) -> tuple[Path, list[str]]:
    """The folder that holds the images and the names relative to it.

    `folder` is where the annotations lie and `recorded` the first guess; `images` overrides the search. When
    no image is found, the names stay as they are below one of them: captions can be used without images,
    and `missing_images` says what was tried.
    """
    if images is not None and not images.is_dir():
        raise DataError(f"{images}: no such image folder", fix="pass the folder that holds the images")
    guesses = [recorded] if recorded is not None and recorded.is_dir() else []
    roots = [images] if images is not None else [*guesses, *candidate_roots(folder)]
    sample = spread(names)
    for dropped in range(max((len(PurePosixPath(name).parts) for name in sample), default=0)):
        shortened = [drop_folders(name, dropped) for name in sample]
        there = [sum(is_image_file(root / split_reference(name)[0]) for name in shortened) for root in roots]
        if any(there):
            return roots[there.index(max(there))], [drop_folders(name, dropped) for name in names]
    return images or (guesses[0] if guesses else folder / "images"), list(names)


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


def missing_images(table: PairTable) -> str | None:
    """A sentence saying that none of the table's images is there, where was looked and what to do."""
    names = spread(table.arrow["image"].slice(0, 100_000).to_pylist())
    if not names or any(is_image_file(table.root / split_reference(name)[0]) for name in names):
        return None
    folder = table.root.parent if table.root.name == "images" else table.root
    message = f"{table.name}: no image found below {table.root} (looked for {names[0]})"
    archives = sorted(folder.glob("*image*.tar*")) if folder.is_dir() else []
    if archives:
        named = ", ".join(file.name for file in archives[:4])
        return f"{message}; extract {named} in {folder}: tar -xf {archives[0].name}"
    return f"{message}; pass the folder that holds the images with --images"
