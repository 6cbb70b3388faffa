"""What can be embedded: a folder of images, any dataset of pairs, tar shards, one image.

Ids are stable: the path relative to the folder, the shard and member, or the dataset's own image ids. They
do not depend on order, and an image that cannot be read changes no other's id.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pmpguard.data.byte_ranges import file_version
from pmpguard.data.column_names import CAPTION_NAMES, Columns
from pmpguard.data.formats import group_by_format, read_pairs, search_folder
from pmpguard.data.pairs import PairTable
from pmpguard.data.parquet_bounds import column_names, read_bounded
from pmpguard.data.shards import IMAGE_ENDINGS, expand_pattern, open_shard, split_reference
from pmpguard.data.typed_columns import with_types
from pmpguard.errors import DataError
from pmpguard.remote import is_remote
from pmpguard.search.listings import describe_images, find_listing, read_listing

LISTING = "metadata.parquet"
FILE_STAMP = "file_stamp"  # column of images: size and time of their files, to notice that one has changed
IMAGE_SUFFIXES = frozenset(f".{ending}" for ending in (*IMAGE_ENDINGS, "gif"))


@dataclass(frozen=True)
class Source:
    """Images to embed, one row each, and their captions, one row each; `image_id` is an image's id."""

    images: PairTable
    captions: PairTable | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def ids(self) -> list[str]:
        return self.images.column("image_id")

    def by_id(self, column: str) -> dict[str, Any]:
        """One column of the images by their ids."""
        return dict(zip(self.ids, self.images.column(column), strict=True))


def open_source(
    path: Path,
    *,
    format: str | None = None,
    images: Path | None = None,
    prefix: str = "",
    columns: str | Columns | None = None,
) -> Source:
    """Find out what `path` is and list what it holds; no image is decoded.

    `prefix` is put before every id, to tell two folders with the same file names apart.
    """
    listing = _image_listing(path) if format is None and not columns else None
    text_listing = find_listing(path) if format is None and listing is None else None
    if listing is not None:
        source = source_of_table(read_bounded(listing), images or listing.parent, listing.parent.name)
    elif text_listing is not None:
        source = _listed_source(path, text_listing, images, columns)
    elif format is None and path.is_file() and path.suffix.lower() in IMAGE_SUFFIXES:
        source = image_source(path.parent, [path.name])
    elif format is None and not columns and path.is_dir() and not _annotated(path):
        source = _folder_or_shards(path)
    elif format is None and _only_images(shards := _shards(path)):
        source = _shard_source(shards)
    else:
        table = read_pairs(path, columns, format=format, images=images)
        source = source_of_pairs(replace(table, arrow=with_types(table.arrow)))
    return _stamped(_prefixed(source, prefix) if prefix else source)


def source_of_pairs(table: PairTable) -> Source:
    """A dataset: its distinct images, and its captions where there are any."""
    first = table.take(table.first_rows)
    has_text = pc.not_equal(pc.utf8_trim_whitespace(table.arrow["caption"]), "")
    captions = table.filter(has_text.combine_chunks())
    return Source(first, captions if len(captions) else None)


def source_of_table(table: pa.Table, root: Path, name: str = "images") -> Source:
    """Images listed in a table with a column `image`, and further columns that are kept as metadata.

    A column `id` names the images; otherwise the name of the file does. A column `caption` is optional.
    """
    if "caption" not in table.column_names:
        table = table.append_column("caption", pa.repeat(pa.scalar(""), len(table)))
    if "id" in table.column_names:
        names = {"id": "image_id"}
        table = table.rename_columns([names.get(column, column) for column in table.column_names])
    return source_of_pairs(PairTable.from_columns(table, root, name, str(root)))


def _listed_source(path: Path, listing: Path, images: Path | None, columns: str | Columns | None) -> Source:
    """The images that a CSV file describes, or all images of the folder it lies in, described or not."""
    table = read_listing(listing, images, columns)
    if path != listing and table.root.resolve().is_relative_to(path.resolve()):
        found = image_source(path, _image_names(path)).images
        table = describe_images(found, table)
    return Source(table)


def image_source(root: Path, names: list[str]) -> Source:
    """Images without captions, below one folder; `folder` says in which of several they lie.

    Folders are often classes, and then this is what to filter by.
    """
    columns = {"image": names, "caption": [""] * len(names), "split": [""] * len(names)}
    folders = [Path(split_reference(name)[1] or name).parent.as_posix() for name in names]
    if len(set(folders)) > 1:
        columns["folder"] = ["" if folder == "." else folder for folder in folders]
    return Source(PairTable.from_columns({**columns, "pair_id": names}, root, root.name, str(root)))


def _image_listing(path: Path) -> Path | None:
    """A parquet file that lists images without captions, as `pmpguard tile` writes it."""
    listing = path / LISTING if path.is_dir() else path
    if listing.suffix != ".parquet" or not listing.is_file():
        return None
    columns = set(column_names(listing))
    return listing if "image" in columns and not columns & set(CAPTION_NAMES) else None


def _annotated(folder: Path) -> bool:
    """Whether a folder holds annotations, itself or in its folders named after splits.

    Texts beside images are none: images without one are searched, too.
    """
    return bool(set(search_folder(folder)[1]) - {"captions"})


def _folder_or_shards(folder: Path) -> Source:
    """What lies in a folder and below; what is hidden is not meant, and may be our index."""
    images = _image_names(folder)
    if images:
        return image_source(folder, images)
    shards = sorted(path for path in folder.rglob("*.tar") if not _is_hidden(path, folder))
    if not shards:
        usual = sorted(ending for ending in IMAGE_SUFFIXES if ending[1:].isalnum())
        raise DataError(f"{folder}: no images here", fix=f"looked for {', '.join(usual)} and .tar")
    return _shard_source(shards, folder)


def _image_names(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES and not _is_hidden(path, folder) and path.is_file()
    )


def _is_hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _shards(path: Path) -> list[Path]:
    """The tar shards that a path or a pattern means; none when it means something else."""
    if path.suffix != ".tar":
        return []
    return [path] if path.is_file() or is_remote(path) else expand_pattern(str(path))


def _only_images(shards: list[Path]) -> bool:
    return bool(shards) and not group_by_format(shards)


def _shard_source(shards: list[Path], root: Path | None = None) -> Source:
    root = root or shards[0].parent
    names = []
    for shard in shards:
        with open_shard(shard) as (_, members):
            names += [
                f"{shard.relative_to(root).as_posix()}#{member.name}"
                for member in members
                if Path(member.name).suffix.lower() in IMAGE_SUFFIXES
            ]
    if not names:
        raise DataError(f"{shards[0]}: no images in this shard", fix="name their members .jpg, .png or .tif")
    return image_source(root, names)


def _prefixed(source: Source, prefix: str) -> Source:
    def renamed(table: PairTable) -> PairTable:
        for column in ("image_id", "pair_id"):
            table = table.with_column(
                column, pc.binary_join_element_wise(pa.scalar(prefix), table.arrow[column], "")
            )
        return table

    return Source(renamed(source.images), None if source.captions is None else renamed(source.captions))


def _stamped(source: Source) -> Source:
    """The source with size and time of every image's file, or of its shard; none of one that is missing."""
    files = [split_reference(image)[0] for image in source.images.arrow["image"].to_pylist()]
    stamps = {file: _file_stamp(source.images.root / file) for file in set(files)}
    column = pa.array([stamps[file] for file in files], pa.string())
    return Source(source.images.with_column(FILE_STAMP, column), source.captions)


def _file_stamp(file: Path) -> str | None:
    size, changed = file_version(file)
    return f"{size}-{changed}" if changed else None
