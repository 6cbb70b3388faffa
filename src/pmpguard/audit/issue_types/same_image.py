"""`near_duplicate_image`: an image shown more than once. `leak`: an image that more than one split shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from pmpguard.audit.issue_types.found import Found, Numbers

SAME, NEARLY = 0.0, 0.25  # scores: the very image, and one that looks the same


def near_duplicate_images(image_of: Numbers, names: Sequence[str], sets: Iterable[Sequence[int]]) -> Found:
    """By sets of image codes that show the same; `names` (I,) of the images by code."""
    score = np.ones(len(names))
    same: dict[int, str] = {}
    for members in sets:
        for member in members:
            others = [names[other] for other in members if other != member]
            score[member] = NEARLY
            same[member] = f"looks like {others[0]}" + (f" and {len(others) - 1} more" if others[1:] else "")
    notes = {row: same[code] for row, code in enumerate(image_of.tolist()) if code in same}
    return Found.of(score[image_of], notes)


def leaks(
    image_of: Numbers, splits: Sequence[str], names: Sequence[str], sets: Iterable[Sequence[int]]
) -> Found:
    """`splits` (N,) of the pairs; sets of image codes that show the same, as far as that was looked at."""
    splits_of: list[dict[str, None]] = [{} for _ in names]  # in order
    for code, split in zip(image_of.tolist(), splits, strict=True):
        splits_of[code][split] = None
    score = np.ones(len(names))
    where: dict[int, str] = {}
    for members in sets:
        together = dict.fromkeys(split for member in members for split in splits_of[member])
        if len(together) > 1:
            for member in members:
                score[member], where[member] = NEARLY, f"nearly the same image in {', '.join(together)}"
    for code, own in enumerate(splits_of):
        if len(own) > 1:
            score[code], where[code] = SAME, f"the image is in {', '.join(own)}"
    notes = {row: where[code] for row, code in enumerate(image_of.tolist()) if code in where}
    return Found.of(score[image_of], notes)
