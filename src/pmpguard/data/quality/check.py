"""What is wrong with a dataset: images that cannot be used, blank captions, copies and leaks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pmpguard.data.images.decode import MAX_PIXELS, ImageProblem
from pmpguard.data.known_datasets import differences
from pmpguard.data.pairs import PairTable
from pmpguard.data.quality.duplicates import Images, duplicate_findings, image_rows, look_at_images
from pmpguard.data.quality.report import CheckReport, Finding, Item
from pmpguard.data.text import normalise_caption
from pmpguard.engine.parts import ALONE, Engine


def check_dataset(
    table: PairTable,
    against: PairTable | None = None,
    *,
    turned: bool = False,
    max_pixels: int = MAX_PIXELS,
    threads: int = 0,
    engine: Engine = ALONE,
    progress: bool = False,
) -> CheckReport:
    """Read every image once and report on images, captions and copies.

    `against` is a second dataset to compare images with; `turned` also finds turned and mirrored copies.
    Images are decoded by `threads`, or by those of each of the engine's workers.
    """
    images, problems = look_at_images(
        table,
        table.name,
        turned=turned,
        max_pixels=max_pixels,
        threads=threads,
        engine=engine,
        progress=progress,
    )
    findings = [
        *_image_findings(problems),
        *_caption_findings(table),
        *_blank_image_findings(images),
        *(Finding("published_counts", "note", difference, ()) for difference in differences(table)),
    ]
    if against is not None:
        name = against.name if against.name != table.name else f"{against.name} (other)"
        others, _ = look_at_images(
            against,
            name,
            turned=turned,
            max_pixels=max_pixels,
            threads=threads,
            engine=engine,
            progress=progress,
        )
        images = images + others
    findings += duplicate_findings(images, table.name)
    findings.sort(key=lambda finding: finding.severity != "problem")
    return CheckReport(table.name, table.splits(), table.take(image_rows(table)).splits(), tuple(findings))


def _image_findings(problems: list[ImageProblem]) -> Iterator[Finding]:
    for kind in ("missing", "outside", "unreadable", "oversized"):
        items = tuple(Item((problem.image,), problem.reason) for problem in problems if problem.kind == kind)
        if items:
            yield Finding(f"{kind}_images", "problem", f"{kind} images: {len(items):,}", items)


def _blank_image_findings(images: Images) -> Iterator[Finding]:
    items = tuple(Item((images.images[position],)) for position in np.flatnonzero(images.blank))
    if items:
        yield Finding("blank_images", "note", f"images of one colour: {len(items):,}", items)


def _caption_findings(table: PairTable) -> Iterator[Finding]:
    captions, images = table.captions, table.column("image")
    blank = [row for row, caption in enumerate(captions) if not normalise_caption(caption)]
    if blank:
        items = tuple(Item((table.row(row).pair_id,), f"image {images[row]}") for row in blank)
        yield Finding("blank_captions", "problem", f"blank captions: {len(blank):,}", items)

    keys = np.stack([table.caption_codes, table.image_codes], axis=1)  # (N,2)
    carried, row_of, times = np.unique(keys, axis=0, return_index=True, return_counts=True)  # (carried,2)
    again = np.flatnonzero(times > 1)
    if len(again):
        items = tuple(
            Item((images[row_of[place]],), f"{times[place]} times {captions[row_of[place]]!r}")
            for place in again
        )
        carriers = len(np.unique(carried[again, 1]))
        summary = f"images that carry a caption more than once: {carriers:,}"
        yield Finding("repeated_captions", "note", summary, items)

    _, first, counts = np.unique(carried[:, 0], return_index=True, return_counts=True)  # per distinct caption
    shared = [place for place in np.argsort(-counts, kind="stable") if counts[place] > 1]
    if shared:
        items = tuple(Item((captions[row_of[first[place]]],), f"{counts[place]} images") for place in shared)
        summary = f"captions shared by several images: {len(shared):,}"
        yield Finding("shared_captions", "note", summary, items)
