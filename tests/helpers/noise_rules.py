"""A made-up dataset full of repeated sentences, and the rules of pseudo-matched sets one row at a time."""

from __future__ import annotations

import random

from pmpguard.data.pairs import PairTable
from pmpguard.noise.inject import Corruption


def make_table(
    images: int = 40, captions: int = 5, classes: int = 6, sentences: int = 60, seed: int = 0
) -> PairTable:
    """Images with sentences that repeat inside an image and between images; some without a class."""
    chance = random.Random(seed)
    rows: dict[str, list[str | None]] = {name: [] for name in ("image", "caption", "split", "label")}
    for image in range(images):
        kind = chance.randrange(classes)
        repeated = chance.random() < 0.5
        for caption in range(captions):
            number = 0 if repeated else caption
            rows["image"].append(f"{image}.png")
            rows["caption"].append(f"class {kind} sentence {(image * captions + number) % sentences}")
            rows["split"].append("test" if image % 5 == 4 else "train")
            rows["label"].append(None if image % 7 == 0 else f"class {kind}")
    return PairTable.from_columns(rows, name="made up")


def broken_rules(clean: PairTable, result: Corruption, *, other_class: bool = True) -> list[str]:
    """Every broken rule, by comparing the two tables row by row."""
    broken = []
    old, new = list(clean), list(result.table)
    captions_of: dict[str, set[str]] = {}
    for pair in old:
        captions_of.setdefault(pair.image_id, set()).add(pair.caption)
    for row, (before, after) in enumerate(zip(old, new, strict=True)):
        source = old[result.source_rows[row]]
        if (before.pair_id, before.image, before.split, before.label) != (
            after.pair_id,
            after.image,
            after.split,
            after.label,
        ):
            broken.append(f"row {row}: something else than the caption changed")
        if not result.is_noisy[row]:
            if before != after or result.source_rows[row] != row:
                broken.append(f"row {row}: a clean row was touched")
            continue
        if before.split != result.split or source.split != result.split:
            broken.append(f"row {row}: another split was touched")
        if after.caption in captions_of[before.image_id]:
            broken.append(f"row {row}: a caption of its own image")
        if after.caption != source.caption or source.image_id == before.image_id:
            broken.append(f"row {row}: the source row is not where the caption comes from")
        if other_class and before.label and before.label == source.label:
            broken.append(f"row {row}: the same scene class")
    return broken
