"""Pseudo-matched training sets: a known share of the pairs gets a caption that describes another image.

Every corruption is a pure function of the dataset, the settings and the seed. The rules:

* exactly the requested number of mismatched pairs, in one split only; all other rows stay as they are;
* no pair gets a caption of its own image, nor a string equal to any of them (equal strings are common:
  half of RSICD's training images carry one sentence five times);
* a caption comes from an image of another scene class where both classes are known, because "many planes
  at an airport" is right for most airports. With a `SimilarityFilter` the filter decides instead.

Levels: `caption` makes x % of the pairs wrong. `image` makes all pairs of x % of the images wrong, and the
captions of an image move together. At 80 % an image with five captions keeps a right one with probability
0.67 under `caption` but 0.20 under `image`: results are comparable only within a level.

Modes: `replace` draws the wrong captions from the whole split, so one may occur several times and another
vanish. `permute` shuffles the captions among the chosen pairs or images. Without a mode, `caption` replaces
and `image` permutes, or replaces where no permutation obeys the rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.noise.similarity import SimilarityFilter
from pmpguard.noise.sources import Units, draw_sources, filtered_sources, permuted_sources
from pmpguard.stable_random import StableRandom

Level = Literal["caption", "image"]
Mode = Literal["replace", "permute"]
# Choices of pairs tried before a permutation is given up.
ATTEMPTS = 8


@dataclass(frozen=True)
class Corruption:
    """A table with wrong captions, and the truth about it (for metrics only: training must not read it)."""

    table: PairTable  # all rows of the clean table, some with another caption
    is_noisy: np.ndarray  # (N,) bool
    source_rows: np.ndarray  # (N,) int64, the row each caption comes from, -1 where it was newly written
    requested_rate: float
    effective_rate: float  # mismatched pairs / pairs of the split
    seed: int
    level: str
    mode: str  # "replace", "permute", "partial" or "imported"
    split: str
    fingerprint: str  # of the clean table
    over_threshold: int = 0  # mismatched pairs that no draw brought under the similarity filter's threshold


def corrupt_pairs(
    table: PairTable,
    rate: float,
    seed: int,
    level: Level = "caption",
    mode: Mode | None = None,
    split: str = "train",
    similarity: SimilarityFilter | None = None,
    other_class: bool = True,
) -> Corruption:
    """Give `rate` of the pairs (or of the images) of one split captions of other images.

    Args:
        table: the clean dataset; its other splits are kept as they are.
        rate: share of mismatched pairs, or of images whose pairs are all wrong, 0 to 1.
        mode: see the module; None lets the level choose.
        similarity: keeps a replacement only when it is unlike the image; replaces the rule about classes.
        other_class: False drops the rule about scene classes.

    >>> clean = PairTable.from_columns({"image": ["a", "b", "c", "d"], "caption": ["w", "x", "y", "z"]})
    >>> noisy = corrupt_pairs(clean, 0.5, seed=0)
    >>> int(noisy.is_noisy.sum()), noisy.effective_rate
    (2, 0.5)
    """
    check_rate(rate)
    _check_choice("level", level, get_args(Level))
    if mode is not None:
        _check_choice("mode", mode, get_args(Mode))
    if similarity is not None and mode == "permute":
        raise ConfigError("a similarity filter draws captions and cannot permute", fix="use mode 'replace'")
    units = Units.of_split(
        table, split, by_image=level == "image", other_class=other_class and not similarity
    )
    count = round(rate * len(units))
    draws = StableRandom("noise", seed)

    def finish(chosen: np.ndarray, sources: np.ndarray, mode: str, over: int = 0) -> Corruption:
        source_rows = np.arange(len(table))
        rows, source_rows_of = units.captions_from(chosen, sources)
        source_rows[rows] = source_rows_of
        return move_captions(
            table, source_rows, rate=rate, seed=seed, level=level, mode=mode, split=split, over_threshold=over
        )

    if mode == "permute" or (mode is None and level == "image" and similarity is None):
        for _ in range(ATTEMPTS):
            chosen = np.sort(draws.order(len(units))[:count])
            permuted = permuted_sources(units, chosen, draws)
            if permuted is not None:
                return finish(chosen, permuted, "permute")
        if mode == "permute":
            raise DataError(
                f"{table.name}: found no shuffle of {count} {level}s that makes every caption wrong",
                fix="use mode 'replace', another rate, or allow captions of the same scene class",
            )
    chosen = np.sort(draws.order(len(units))[:count])
    if similarity is None:
        return finish(chosen, draw_sources(units, chosen, draws), "replace")
    sources, over = filtered_sources(units, chosen, similarity, draws)
    return finish(chosen, sources, "replace", int(units.sizes[chosen[over]].sum()))


def partial_corruption(
    table: PairTable, wrong: Sequence[tuple[int, str]], rate: float, seed: int, split: str = "train"
) -> Corruption:
    """Replace captions by partly wrong ones: a right scene with a wrong count, colour, object or relation.

    `wrong` offers such captions as (row of the table, caption); a row may have several. An offer equal to a
    caption of the row's own image is not wrong and is passed over.
    """
    check_rate(rate)
    inside = in_split(table, split)
    count = round(rate * int(inside.sum()))
    captions_of: dict[int, set[str]] = {}
    for image, caption in zip(table.image_codes.tolist(), table.captions, strict=True):
        captions_of.setdefault(image, set()).add(caption)
    for row, _ in wrong:
        if not 0 <= row < len(table) or not inside[row]:
            raise DataError(
                f"{table.name}: a wrong caption is offered for row {row}, which is not in split {split!r}",
                fix="number the rows as in the whole table",
            )
    usable = [(row, text) for row, text in wrong if text not in captions_of[int(table.image_codes[row])]]
    draws = StableRandom("noise", seed)
    shuffled = draws.order(len(usable))
    offered_rows = np.array([usable[offer][0] for offer in shuffled], dtype=np.int64)
    rows, first = np.unique(offered_rows, return_index=True)  # one random offer for each row
    if len(rows) < count:
        raise DataError(
            f"{table.name}: a rate of {rate:g} needs wrong captions for {count} pairs; {len(rows)} have one",
            fix="offer more, or lower the rate",
        )
    chosen = np.sort(draws.order(len(rows))[:count])
    texts = [usable[shuffled[offer]][1] for offer in first[chosen]]
    return write_captions(table, rows[chosen], texts, rate=rate, seed=seed, split=split)


def move_captions(
    table: PairTable,
    source_rows: np.ndarray,
    *,
    rate: float,
    seed: int,
    level: str,
    mode: str,
    split: str,
    is_noisy: np.ndarray | None = None,
    over_threshold: int = 0,
) -> Corruption:
    """Give every row the caption of its source row; `is_noisy` where the source is another, unless given."""
    moved = source_rows != np.arange(len(table))
    noisy = moved if is_noisy is None else is_noisy
    captions = table.arrow["caption"].take(pa.array(source_rows[moved]))
    return Corruption(
        table=_with_captions(table, moved, captions),
        is_noisy=noisy,
        source_rows=source_rows,
        requested_rate=rate,
        effective_rate=int(noisy.sum()) / int(in_split(table, split).sum()),
        seed=seed,
        level=level,
        mode=mode,
        split=split,
        fingerprint=table.fingerprint,
        over_threshold=over_threshold,
    )


def write_captions(
    table: PairTable, rows: np.ndarray, captions: Sequence[str], *, rate: float, seed: int, split: str
) -> Corruption:
    """Give the sorted `rows` newly written wrong captions."""
    is_noisy = np.zeros(len(table), dtype=bool)
    is_noisy[rows] = True
    return Corruption(
        table=_with_captions(table, is_noisy, pa.chunked_array([pa.array(captions, pa.string())])),
        is_noisy=is_noisy,
        source_rows=np.where(is_noisy, -1, np.arange(len(table))),
        requested_rate=rate,
        effective_rate=len(rows) / int(in_split(table, split).sum()),
        seed=seed,
        level="caption",
        mode="partial",
        split=split,
        fingerprint=table.fingerprint,
    )


def in_split(table: PairTable, split: str) -> np.ndarray:
    """(N,) bool: the rows of a split that must exist."""
    table.split(split)
    return np.asarray(pc.equal(table.arrow["split"], split).to_numpy())


def check_rate(rate: float) -> None:
    if not 0.0 <= rate <= 1.0:
        raise ConfigError(f"rate is {rate}", fix="use a share from 0 to 1, such as 0.4 for 40 %")


def _check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(f"{name} {value!r} is unknown", fix=f"use {' or '.join(known)}")


def _with_captions(table: PairTable, mask: np.ndarray, captions: pa.ChunkedArray) -> PairTable:
    """The table with the captions where `mask` is true replaced, in order."""
    old = table.arrow["caption"]
    new = pc.replace_with_mask(old, pa.array(mask), captions.combine_chunks())
    return table.with_column("caption", new)
