"""Is the wrong word of a partly wrong caption found?

The synthetic scenes knows which words it made wrong: a count, a colour, an object or a relation that is false
of an otherwise right caption. A share of the captions is replaced by such ones, judges are trained on the
result as an audit does, and every word gets its support.

    python benchmarks/audit_words.py [--scenes 1000] [--rate 0.3] [--device cuda]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from audit_data import RESULTS, Dataset, judged_parts, record

from pmpguard.audit.crossfit import CrossfitConfig
from pmpguard.audit.judging import judge_together
from pmpguard.audit.word_evidence import WRONG_UNDER, image_evidence, sibling_evidence, visibility
from pmpguard.audit.word_verdicts import judge_words
from pmpguard.data.images.sources import ImagesInMemory
from pmpguard.device import pick_device
from pmpguard.evaluation.detection import auroc, average_precision
from pmpguard.noise.inject import partial_corruption
from pmpguard.synthetic.scenes import SyntheticScenes, WrongCaption, synthetic_scenes, wrong_description


def wrong_characters(caption: str, wrong: WrongCaption) -> list[tuple[int, int]]:
    """The places of the false words in the caption."""
    places, start = [], 0
    for number, word in enumerate(caption.split()):
        start = caption.index(word, start)
        if number in wrong.wrong_words:
            places.append((start, start + len(word)))
        start += len(word)
    return places


def quality(support: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    flagged = support < WRONG_UNDER
    return {
        "words": len(truth),
        "base_rate": float(truth.mean()),
        "average_precision": average_precision(-support, truth),
        "auroc": auroc(-support, truth),
        "precision_of_red": float(truth[flagged].mean()) if flagged.any() else 0.0,
        "recall_of_red": float(flagged[truth].mean()),
    }


def measure_words(
    world: SyntheticScenes, rate: float, config: CrossfitConfig, captions: int = 5
) -> dict[str, Any]:
    wrong = {
        row * captions + which: wrong_description(scene, which)
        for row, scene in enumerate(world.scenes)
        for which in range(captions)
    }
    images = ImagesInMemory(world.images, pick_device(config.device))
    offers = [(row, one.text) for row, one in wrong.items()]
    corruption = partial_corruption(world.table, offers, rate, config.seed)
    table = corruption.table
    parts = [part for _, part in judged_parts(Dataset(table, images, "scenes"), table, config, config.seed)]
    verdicts = judge_together(parts, bootstrap=0, seed=config.seed)
    texts = table.captions
    columns: dict[str, list[np.ndarray]] = {
        name: [] for name in ("all", "image", "siblings", "truth", "partly", "kind")
    }
    start = 0
    for part in parts:
        p_match = verdicts.p_match[start : start + len(part.rows)]
        start += len(part.rows)
        judged = judge_words(part, p_match)
        assert judged is not None
        words, image_of = judged.words, judged.image_of
        rows = part.rows[words.pair]
        false = {
            row: wrong_characters(texts[row], wrong[row]) for row in part.rows[corruption.is_noisy[part.rows]]
        }
        hit = [any(a <= s < b for a, b in false.get(r, ())) for r, s in zip(rows, words.start, strict=True)]
        rises = judged.image_words.rises(words.spelling, image_of[words.pair])
        seen = visibility(words.spelling, rises, p_match[words.pair], len(words.spellings))
        columns["all"].append(judged.support)
        columns["image"].append(image_evidence(words.spelling, rises, seen))
        columns["siblings"].append(sibling_evidence(words, image_of, p_match))
        columns["truth"].append(np.array(hit))
        columns["partly"].append(corruption.is_noisy[rows])
        columns["kind"].append(np.array([wrong[row].kind for row in rows]))
    joined = {name: np.concatenate(values) for name, values in columns.items()}
    truth, partly = joined["truth"], joined["partly"]
    result: dict[str, Any] = {
        "all_captions": quality(joined["all"], truth),
        "partly_wrong_captions": quality(joined["all"][partly], truth[partly]),
    }
    for part_name in ("image", "siblings"):
        values = joined[part_name][partly]
        result[f"partly_wrong_captions, {part_name} alone"] = {
            "average_precision": average_precision(-values, truth[partly]),
            "auroc": auroc(-values, truth[partly]),
        }
    for kind in np.unique(joined["kind"]):
        chosen = partly & (joined["kind"] == kind)
        result[f"partly_wrong_captions, {kind}"] = quality(joined["all"][chosen], truth[chosen])
    return result


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scenes", type=int, default=1000)
    parser.add_argument("--image-size", type=int, default=128)
    parser.add_argument("--rate", type=float, default=0.3)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--encoders", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "audit_words.json")
    options = parser.parse_args()
    world = synthetic_scenes(
        options.scenes, seed=options.seed, size=options.image_size, val=0.0, test=0.0, progress=False
    )
    config = CrossfitConfig(
        encoders=options.encoders, image_size=options.image_size, epochs=options.epochs,
        seed=options.seed, device=options.device,
    )  # fmt: skip
    found = measure_words(world, options.rate, config)
    settings = {
        "scenes": options.scenes,
        "rate": options.rate,
        "seed": options.seed,
        "image_size": options.image_size,
    }
    record(options.out, {**settings, **found}, options.device, started)


if __name__ == "__main__":
    main()
