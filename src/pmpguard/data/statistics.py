"""What a dataset looks like in numbers, and the best retrieval its ids allow."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from pmpguard.data.pairs import PairTable
from pmpguard.data.text import names_direction

_PUNCTUATION = ".,;:!?\"'()[]"
_PERCENTILES = (0, 5, 25, 50, 75, 95, 100)


@dataclass(frozen=True)
class SplitStatistics:
    """One split. Shares are of images, from 0 to 1.

    pairs, images: their numbers.
    captions_per_image: least, mean and most.
    distinct_captions: different strings.
    words: percentile to words per caption.
    vocabulary: different words, in lower case.
    with_repeats: images that carry a sentence more than once.
    one_sentence: images that carry several captions, all equal.
    sharing: images with a sentence that another image also carries.
    with_direction: captions that name a direction.
    labels: images per scene class, largest first; unlabelled ones are left out.
    best_t2i: K to the highest text-to-image R@K that ids allow.
    """

    split: str
    pairs: int
    images: int
    captions_per_image: tuple[int, float, int]
    distinct_captions: int
    words: dict[int, float]
    vocabulary: int
    with_repeats: float
    one_sentence: float
    sharing: float
    with_direction: float
    labels: dict[str, int]
    best_t2i: dict[int, float]


@dataclass(frozen=True)
class DatasetStatistics:
    """Statistics of every split of a dataset."""

    name: str
    fingerprint: str
    splits: tuple[SplitStatistics, ...]

    def as_text(self) -> str:
        rows = [_column(split) for split in self.splits]
        width = max(len(name) for name in rows[0])
        lines = [f"{self.name}  (fingerprint {self.fingerprint[:16]})", ""]
        for name in rows[0]:
            lines.append(f"{name:<{width}}" + "".join(f"{row[name]:>16}" for row in rows))
        for split in self.splits:
            if split.labels:
                largest = ", ".join(f"{label} {count:,}" for label, count in list(split.labels.items())[:5])
                lines.append(f"{split.split}: largest classes {largest}")
        return "\n".join(lines)


def _column(split: SplitStatistics) -> dict[str, str]:
    least, mean, most = split.captions_per_image
    return {
        "split": split.split,
        "pairs": f"{split.pairs:,}",
        "images": f"{split.images:,}",
        "captions per image": f"{mean:.2f}" + (f" ({least}-{most})" if least != most else ""),
        "distinct captions": f"{split.distinct_captions:,}",
        "words per caption": f"{split.words[50]:g} ({split.words[5]:g}-{split.words[95]:g})",
        "vocabulary": f"{split.vocabulary:,}",
        "scene classes": f"{len(split.labels):,}",
        "images repeating a sentence": f"{split.with_repeats:.1%}",
        "images with one sentence only": f"{split.one_sentence:.1%}",
        "images sharing a sentence": f"{split.sharing:.1%}",
        "captions naming a direction": f"{split.with_direction:.1%}",
        **{f"best t2i R@{rank} by ids": f"{share:.1%}" for rank, share in split.best_t2i.items()},
    }


def dataset_statistics(table: PairTable) -> DatasetStatistics:
    """Count every split of a table."""
    splits = tuple(split_statistics(table.split(name), name) for name in table.splits())
    return DatasetStatistics(table.name, table.fingerprint, splits)


def split_statistics(table: PairTable, name: str) -> SplitStatistics:
    captions = table.captions
    images, sentences = table.image_codes, table.caption_codes  # (N,) each
    per_image = np.bincount(images)  # (images,)
    carried, times = np.unique(
        np.stack([sentences, images], axis=1), axis=0, return_counts=True
    )  # (carried,2)
    different = np.bincount(carried[:, 1])  # (images,) distinct sentences
    carriers = np.bincount(carried[:, 0])  # (sentences,) images of each
    sharing = np.unique(carried[carriers[carried[:, 0]] > 1, 1])
    vocabulary: set[str] = set()
    lengths = np.zeros(len(captions), np.int64)
    for row, caption in enumerate(captions):
        words = _words(caption)
        lengths[row] = len(words)
        vocabulary.update(words)
    labels = [label for label in table.take(table.first_rows).column("label") if label]
    percentiles = np.percentile(lengths, _PERCENTILES)
    return SplitStatistics(
        split=name,
        pairs=len(table),
        images=len(per_image),
        captions_per_image=(int(per_image.min()), float(per_image.mean()), int(per_image.max())),
        distinct_captions=len(carriers),
        words=dict(zip(_PERCENTILES, percentiles.tolist(), strict=True)),
        vocabulary=len(vocabulary),
        with_repeats=float((different < per_image).mean()),
        one_sentence=float(((different == 1) & (per_image > 1)).mean()),
        sharing=len(sharing) / len(per_image),
        with_direction=float(np.mean([names_direction(caption) for caption in captions])),
        labels=dict(Counter(labels).most_common()),
        best_t2i={rank: best_text_to_image(carried[:, 0], times, rank) for rank in (1, 5, 10)},
    )


def _words(caption: str) -> list[str]:
    """Lower case, without the punctuation around them."""
    return [word for part in caption.lower().split() if (word := part.strip(_PUNCTUATION))]


def best_text_to_image(sentences: np.ndarray, times: np.ndarray, rank: int) -> float:
    """The highest text-to-image R@rank any retriever can reach when only the own image counts as a hit.

    A retriever sees the sentence alone, so equal captions get one ranking. The best one starts with the
    images that carry the sentence most often; captions of the others miss. Given are the sentence (n,) of
    each (sentence, image) that occurs, and how often (n,) it does.
    """
    order = np.lexsort((-times, sentences))  # by sentence, its most frequent image first
    ordered = sentences[order]
    starts = np.searchsorted(ordered, ordered, "left")  # (n,) where each sentence begins
    hits = times[order][np.arange(len(ordered)) - starts < rank]
    return float(hits.sum() / times.sum())
