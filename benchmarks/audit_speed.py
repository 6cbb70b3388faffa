"""How many pairs are judged in a minute once they are embedded?

Planted embeddings of the size an audit with frozen light encoders has: five captions an image, 49 regions,
256 dimensions. Timed is everything from embeddings to finished rows: all evidence, verdicts with their
interval, words, heat maps, proposals.

    python benchmarks/audit_speed.py [--images 4000] [--threads 2]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from audit_data import RESULTS, record
from torch.nn.functional import normalize

from pmpguard.audit.judging import JudgedPart, judge_parts, word_region_measure
from pmpguard.audit.word_evidence import ImageWords, WordList, WordSpan
from pmpguard.data.pairs import PairTable
from pmpguard.detection.detector import NoiseDetector
from pmpguard.models.encoded import Encoded

DIM, REGIONS, WORDS, PER_IMAGE, VOCABULARY = 256, 49, 12, 5, 3000


def planted(images: int, wrong: float, seed: int) -> tuple[PairTable, Encoded, Encoded]:
    """Pairs whose captions lie near their image, a share of them near another."""
    generator = np.random.default_rng(seed)
    torch.manual_seed(seed)
    numbers = generator.integers(VOCABULARY, size=(images * PER_IMAGE, WORDS))
    captions = [" ".join(f"w{number}" for number in row) for row in numbers]
    table = PairTable.from_columns(
        {"image": [f"{row // PER_IMAGE}.png" for row in range(len(captions))], "caption": captions}
    )
    centres = torch.randn(images, DIM)
    own = np.repeat(np.arange(images), PER_IMAGE)
    moved = generator.random(len(own)) < wrong
    own[moved] = generator.permutation(own[moved])
    pooled = normalize(centres[own] + torch.randn(len(own), DIM), dim=1)
    fragments = normalize(pooled[:, None] + torch.randn(len(own), WORDS, DIM), dim=-1)
    texts = Encoded(pooled, fragments, torch.ones(len(own), WORDS, dtype=torch.bool))
    regions = normalize(centres[:, None] + 2 * torch.randn(images, REGIONS, DIM), dim=-1)
    pixels = Encoded(normalize(centres, dim=1), regions, torch.ones(images, REGIONS, dtype=torch.bool))
    return table, texts, pixels


def word_places(caption: str) -> tuple[WordSpan, ...]:
    ends = np.cumsum([len(word) + 1 for word in caption.split()])
    return tuple(
        WordSpan(int(end) - len(w) - 1, int(end) - 1) for end, w in zip(ends, caption.split(), strict=True)
    )


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--wrong", type=float, default=0.2)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "audit_speed.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    table, texts, images = planted(options.images, options.wrong, options.seed)
    took: dict[str, float] = {}
    clock = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal clock
        now = time.perf_counter()
        took[name], clock = now - clock, now

    caption_of, image_of = torch.from_numpy(table.caption_codes), torch.from_numpy(table.image_codes)
    measure = word_region_measure(texts, images, options.seed)
    lap("standardise words on regions")
    detector = NoiseDetector(bootstrap=0, seed=options.seed).fit(
        texts.pooled, images.pooled, caption_of, image_of, more={"words": measure}
    )
    lap("evidence")
    captions = table.captions
    spans = [word_places(caption) for caption in captions]
    words = WordList.of(captions, spans)
    vectors = normalize(torch.randn(len(words.spellings), DIM), dim=1)
    seen = ImageWords.of(vectors, images.fragments.half())
    part = JudgedPart(
        np.arange(len(table)), texts.pooled, images.pooled, caption_of, image_of, captions,
        np.arange(len(captions)), np.arange(len(images)), detector.collected, detector.null,
        detector.similar_texts, spans, words, seen, (7, 7),
    )  # fmt: skip
    lap("words of captions")
    rows, _ = judge_parts(table, [part], proposals=3, heat_maps=2000, bootstrap=100, seed=options.seed)
    lap("verdicts, words, proposals")
    seconds = sum(took.values())
    row = {
        "pairs": len(rows),
        "images": options.images,
        "flagged": sum(one.flag for one in rows),
        "judging_seconds": round(seconds, 2),
        "pairs_per_minute": round(60 * len(rows) / seconds),
        "steps": {name: round(value, 2) for name, value in took.items()},
        "seed": options.seed,
    }
    record(options.out, row, "cpu", started)


if __name__ == "__main__":
    main()
