"""What a look at the images of a dataset tells: which pairs can be judged, which images are the same."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pmpguard.audit.issue_types.find import unreadable_rows
from pmpguard.audit.rows import AuditRow
from pmpguard.data.pairs import PairTable
from pmpguard.data.quality.duplicates import duplicate_sets, look_at_images
from pmpguard.data.text import has_words
from pmpguard.engine.parts import ALONE, Engine
from pmpguard.progress import progress_wanted

log = logging.getLogger("pmpguard")


@dataclass(frozen=True)
class ScannedImages:
    """The images of a table at a glance."""

    unreadable: tuple[str, ...]  # images
    duplicates: tuple[tuple[str, ...], ...]  # sets of images that show the same

    @property
    def further(self) -> int:
        """Images that are copies of another one."""
        return sum(len(members) - 1 for members in self.duplicates)


def look(table: PairTable, tell: Callable[[str], None] = log.info, engine: Engine = ALONE) -> ScannedImages:
    """Read every image once: which cannot be read, which show the same."""
    tell(f"looking at {len(table.first_rows):,} images")
    pixels, problems = look_at_images(table, table.name, threads=2, engine=engine, progress=progress_wanted())
    id_of = dict(zip(table.column("image"), table.column("image_id"), strict=True))
    duplicates = []
    for members in duplicate_sets(pixels):
        images = tuple(dict.fromkeys(id_of[pixels.images[member]] for member in members))
        if len(images) > 1:
            duplicates.append(images)
    return ScannedImages(tuple(dict.fromkeys(problem.image for problem in problems)), tuple(duplicates))


def usable_rows(table: PairTable, unreadable: Sequence[str]) -> tuple[npt.NDArray[np.bool_], dict[str, int]]:
    """(N,) bool: pairs with a image and words; and how many are left out, by reason."""
    worded = np.array([has_words(caption) for caption in table.captions], dtype=bool)
    missing = set(unreadable)
    readable = np.array([image not in missing for image in table.column("image")], dtype=bool)
    left_out = {
        "with an image that cannot be read": int((~readable).sum()),
        "with a caption without words": int((readable & ~worded).sum()),
    }
    return worded & readable, left_out


def unread_pairs(table: PairTable, unreadable: Sequence[str], ranked: int) -> list[AuditRow]:
    """Pairs whose image or caption could not be read, after the `ranked` judged ones."""
    missing = set(unreadable)
    said = {
        row: "the image cannot be read" if image in missing else "the caption has no words"
        for row, (image, caption) in enumerate(zip(table.column("image"), table.captions, strict=True))
        if image in missing or not has_words(caption)
    }
    return unreadable_rows(table, np.array(list(said), np.int64), list(said.values()), ranked)


def image_sets(table: PairTable, duplicates: Sequence[Sequence[str]]) -> list[list[int]]:
    """Sets of image codes that show the same, from sets of image ids, of which the table may lack some."""
    code_of = dict(zip(table.column("image_id"), table.image_codes.tolist(), strict=True))
    sets = [[code_of[image] for image in members if image in code_of] for members in duplicates]
    return [members for members in sets if len(members) > 1]
