"""Where wrong captions come from: which source is allowed for which target, and how sources are drawn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from pmpguard.data.pairs import PairTable, label_codes
from pmpguard.data.ranges import expand_ranges
from pmpguard.errors import DataError
from pmpguard.noise.similarity import SimilarityFilter
from pmpguard.stable_random import StableRandom


@dataclass(frozen=True)
class Units:
    """What gets captions as one: single pairs, or all pairs of an image."""

    name: str
    rows: np.ndarray  # (pairs,) int64, rows of the table, unit by unit
    starts: np.ndarray  # (U,) int64, first place in `rows`
    sizes: np.ndarray  # (U,) int64, number of pairs
    image: np.ndarray  # (U,) int64, image code
    label: np.ndarray  # (U,) int64, scene class, -1 where unknown or not to be looked at
    text: np.ndarray  # (N,) int64, caption code of every row of the table
    own: np.ndarray  # sorted keys image * len(text) + text of all (image, caption) pairs of the table

    @classmethod
    def of_split(cls, table: PairTable, split: str, *, by_image: bool, other_class: bool) -> Units:
        table.split(split)  # names the known splits when there is no such split
        rows = np.flatnonzero(pc.equal(table.arrow["split"], split).to_numpy())
        images, text = table.image_codes, table.caption_codes
        if by_image:
            rows = rows[np.argsort(images[rows], kind="stable")]
            starts = np.flatnonzero(np.r_[True, images[rows[1:]] != images[rows[:-1]]])
        else:
            starts = np.arange(len(rows))
        first = rows[starts]
        label = label_codes(table)[first] if other_class else np.full(len(first), -1)
        return cls(
            name=table.name,
            rows=rows,
            starts=starts,
            sizes=np.diff(np.r_[starts, len(rows)]),
            image=images[first],
            label=label,
            text=text,
            own=np.sort(images * len(text) + text),
        )

    def __len__(self) -> int:
        return len(self.starts)

    def allowed(self, targets: np.ndarray, sources: np.ndarray) -> np.ndarray:
        """(M,) bool: source unit m may give its captions to target unit m.

        Not if one of them equals any caption of the target's image (so never the image's own), nor if
        both are known to show the same scene class.
        """
        if not len(targets):
            return np.zeros(0, dtype=bool)
        sizes = self.sizes[sources]
        texts = self.text[self.rows[expand_ranges(self.starts[sources], sizes)]]
        keys = np.repeat(self.image[targets], sizes) * len(self.text) + texts
        place = np.minimum(np.searchsorted(self.own, keys), len(self.own) - 1)
        clash = np.logical_or.reduceat(self.own[place] == keys, np.cumsum(sizes) - sizes)
        same_class = (self.label[targets] == self.label[sources]) & (self.label[targets] >= 0)
        return np.asarray(~clash & ~same_class)

    def captions_from(self, targets: np.ndarray, sources: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the target units, and for each the row its caption comes from.

        Captions are handed over in order; a source with fewer than the target needs starts again.
        """
        sizes = self.sizes[targets]
        places = expand_ranges(self.starts[targets], sizes)
        within = places - np.repeat(self.starts[targets], sizes)
        source = np.repeat(sources, sizes)
        return self.rows[places], self.rows[self.starts[source] + within % self.sizes[source]]


def draw_sources(units: Units, targets: np.ndarray, draws: StableRandom) -> np.ndarray:
    """For each target a source drawn evenly from all that are allowed.

    Draws again where the source is not allowed. A round in which nothing fits settles one target by looking
    at every source: slow, but it ends, and says so when there is none.
    """
    sources = np.empty(len(targets), dtype=np.int64)
    pending = np.arange(len(targets))
    while len(pending):
        candidates = draws.below(len(units), len(pending))
        fits = units.allowed(targets[pending], candidates)
        if not fits.any():
            target = targets[pending[0]]
            choices = np.flatnonzero(units.allowed(np.full(len(units), target), np.arange(len(units))))
            if not len(choices):
                raise _no_source(units, target)
            candidates[0], fits[0] = choices[draws.below(len(choices), 1)[0]], True
        sources[pending[fits]] = candidates[fits]
        pending = pending[~fits]
    return sources


def _no_source(units: Units, target: int) -> DataError:
    row = units.rows[units.starts[target]]
    if (units.text[units.rows] == units.text[row]).all():
        reason = "all captions of the split are equal"
    elif (units.label == units.label[target]).all() and units.label[target] >= 0:
        reason = "all images have the same scene class"
    else:
        reason = "each equals a caption of its own image or shows the same scene class"
    return DataError(
        f"{units.name} row {row}: no other caption can stand in as a wrong one: {reason}",
        fix="use a dataset with more different captions, or allow captions of the same scene class",
    )


def permuted_sources(units: Units, chosen: np.ndarray, draws: StableRandom) -> np.ndarray | None:
    """Sources that are a permutation of the chosen units, each allowed; None when swapping finds none.

    Starts from a random permutation and swaps what is not allowed with random partners, then with any
    partner, where both are allowed afterwards: the number of wrong places only falls.
    """
    count = len(chosen)
    sources: np.ndarray = chosen[draws.order(count)]
    wrong = np.flatnonzero(~units.allowed(chosen, sources))

    def swappable(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        there = units.allowed(chosen[left], sources[right])
        return np.asarray(there & units.allowed(chosen[right], sources[left]))

    while len(wrong):
        left, right = _disjoint(wrong, draws.below(count, len(wrong)))
        fits = swappable(left, right)
        if not fits.any():
            left, right = np.full(count, wrong[0]), np.arange(count)
            choices = np.flatnonzero(swappable(left, right))
            if not len(choices):
                return None
            fits = choices[draws.below(len(choices), 1)]
        left, right = left[fits], right[fits]
        sources[left], sources[right] = sources[right], sources[left]
        wrong = wrong[~units.allowed(chosen[wrong], sources[wrong])]
    return sources


def _disjoint(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The swaps whose two places no earlier swap of the list uses."""
    places = np.stack([left, right], axis=1).ravel()
    first = np.zeros(len(places), dtype=bool)
    first[np.unique(places, return_index=True)[1]] = True
    free = first.reshape(-1, 2).all(axis=1)
    return left[free], right[free]


def filtered_sources(
    units: Units, targets: np.ndarray, similarity: SimilarityFilter, draws: StableRandom
) -> tuple[np.ndarray, np.ndarray]:
    """Sources unlike their targets: the first draw under the threshold, else the least similar one seen.

    Returns the sources and, for each, whether it stayed over the threshold. An image's captions are as
    similar to it as the most similar of them.
    """
    threshold = similarity.threshold(units.rows)
    best = np.full(len(targets), np.inf)
    sources = np.zeros(len(targets), dtype=np.int64)
    pending = np.arange(len(targets))
    for _ in range(similarity.draws):
        if not len(pending):
            break
        candidates = draw_sources(units, targets[pending], draws)
        sizes = units.sizes[targets[pending]]
        scores = similarity.scores(*units.captions_from(targets[pending], candidates))
        highest = np.maximum.reduceat(scores, np.cumsum(sizes) - sizes)
        better = highest < best[pending]
        best[pending[better]], sources[pending[better]] = highest[better], candidates[better]
        pending = pending[best[pending] >= threshold]
    return sources, best >= threshold
