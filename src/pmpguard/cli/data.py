"""`pmpguard data check | stats | sheet | scenes | convert`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pmpguard.cli.convert_data import convert
from pmpguard.data.contact_sheet import random_rows, write_sheet
from pmpguard.data.formats import read_pairs
from pmpguard.data.images.decode import MAX_PIXELS, load_pair_image
from pmpguard.data.quality.check import check_dataset
from pmpguard.data.quality.report import CheckReport
from pmpguard.data.statistics import DatasetStatistics, dataset_statistics
from pmpguard.engine.parts import Engine, EngineName
from pmpguard.errors import DataError

__all__ = ["check", "convert", "scenes", "sheet", "stats"]


@dataclass(frozen=True)
class Written:
    """A file or folder a command wrote."""

    path: Path
    what: str

    def as_text(self) -> str:
        return f"{self.path}: {self.what}"


def check(
    dataset: Path,
    against: Path | None = None,
    images: Path | None = None,
    against_images: Path | None = None,
    format: str | None = None,
    columns: str | None = None,
    against_format: str | None = None,
    against_columns: str | None = None,
    turned: bool = False,
    max_pixels: int = MAX_PIXELS,
    threads: int = 2,
    workers: int = 1,
    engine: EngineName = "local",
    address: str | None = None,
    scratch: Path | None = None,
    progress: bool = True,
) -> CheckReport:
    """Find missing, unreadable, oversized and copied images, blank and repeated captions, leaks.

    The exit code is 1 when there is a problem: an image that cannot be used, a blank caption, or an image
    that lies in two splits (or in the training part of one dataset and the test part of the other).

    Args:
        dataset: a dataset in any known format.
        against: a second dataset to look for the same images in.
        images: the folder of the images, where the dataset does not say.
        against_images: the folder of the second dataset's images, where it does not say.
        format: the dataset's format, where it cannot be told from the path.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
        against_format: the second dataset's format.
        against_columns: names of its unusual columns.
        turned: also find turned and mirrored copies.
        max_pixels: images with more count as oversized.
        threads: threads of each worker that decode images; 0 for none.
        workers: processes of this machine that share the work.
        engine: local, or ray: the tasks of a Ray cluster share the work.
        address: HOST:PORT of the Ray cluster; without one a cluster of --workers is started here.
        scratch: a folder that all workers see, for what each has found; a stopped check goes on from there.
        progress: draw a progress bar on stderr.
    """
    table = read_pairs(dataset, columns, format=format, images=images)
    if against is None:
        other = None
    else:
        other = read_pairs(against, against_columns, format=against_format, images=against_images)
    shared = Engine(workers, engine, address, scratch)
    return check_dataset(
        table, other, turned=turned, max_pixels=max_pixels, threads=threads, engine=shared, progress=progress
    )


def stats(
    dataset: Path, images: Path | None = None, format: str | None = None, columns: str | None = None
) -> DatasetStatistics:
    """Count pairs, images, captions, words and classes of every split; images are not opened.

    Args:
        dataset: a dataset in any known format.
        images: the folder of the images, where the dataset does not say.
        format: the dataset's format, where it cannot be told from the path.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
    """
    return dataset_statistics(read_pairs(dataset, columns, format=format, images=images))


def sheet(
    dataset: Path,
    out: Path = Path("sheet.png"),
    images: Path | None = None,
    format: str | None = None,
    split: str | None = None,
    count: int = 20,
    across: int = 5,
    seed: int = 0,
    columns: str | None = None,
) -> Written:
    """Draw a contact sheet: randomly chosen images, each with one of its captions.

    Args:
        dataset: a dataset in any known format.
        out: the PNG to write.
        images: the folder of the images, where the dataset does not say.
        format: the dataset's format, where it cannot be told from the path.
        split: take images of this split only.
        count: how many images to draw.
        across: how many images stand side by side.
        seed: another number chooses other images.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
    """
    table = read_pairs(dataset, columns, format=format, images=images)
    table = table if split is None else table.split(split)
    rows = random_rows(table, count, seed)
    if not rows:
        raise DataError(
            f"{dataset}: no images to draw", fix="ask for at least one of a dataset that has some"
        )
    captions = [table.row(row).caption for row in rows]
    width, height = write_sheet(out, [load_pair_image(table, row) for row in rows], captions, across)
    return Written(out, f"{len(rows)} images of {table.name}, {width}x{height} pixels")


def scenes(
    out: Path, count: int = 2000, seed: int = 0, size: int = 64, layout: Literal["table", "rs5m"] = "table"
) -> Written:
    """Write the synthetic scenes as a dataset: drawn overhead scenes with five captions each.

    Args:
        out: the folder to write.
        count: how many scenes to write.
        seed: another number gives other scenes.
        size: height and width of a scene in pixels.
        layout: table, or rs5m: tar shards as those of RS5M in train/ and val/, one caption an image, with its
            faults: missing captions, images that were not taken from above. Of any size.
    """
    if layout == "rs5m":
        from pmpguard.synthetic.rs5m_layout import write_rs5m

        written = write_rs5m(out, count, size=size, seed=seed)
        return Written(out, ", ".join(f"{number:,} {name}" for name, number in written.items()))
    from pmpguard.synthetic.scenes import synthetic_scenes, write_world

    world = synthetic_scenes(count, seed, size=size)
    write_world(world, out)
    return Written(out, f"{count:,} scenes, {len(world.table):,} pairs, {size}x{size} pixels")
