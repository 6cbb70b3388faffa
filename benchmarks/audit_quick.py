"""How well does a quick audit, which trains nothing, find mismatched captions?

The images and captions of `audit_detection.py`, and image-level noise besides; or one caption of each image,
as archives have them, beside all captions of the same images (`--both`), with several draws of the images and
of the noise. Images and captions are encoded once for each draw: `seconds` are those of judging.

    python benchmarks/audit_quick.py [--dataset DIR] [--images 3000]
    python benchmarks/audit_quick.py --both --images 2000 --rates 0.15 --draws 3
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from audit_data import RESULTS, Dataset, load_dataset, record, usual_dataset
from audit_detection import at_true_rate
from torch import Tensor

from pmpguard.audit.crossfit import CrossfitConfig, judge_training_free, training_settings
from pmpguard.audit.judging import distinct_captions, judge_together, judged_part
from pmpguard.data.pairs import PairTable
from pmpguard.data.splits import keep_one_caption
from pmpguard.device import pick_device
from pmpguard.evaluation.detection import measure_detection
from pmpguard.models.retriever import Retriever
from pmpguard.noise.inject import corrupt_pairs
from pmpguard.training.encode import Split

Features = tuple[dict[str, Tensor], dict[str, Tensor]]
CASES = [("caption", rate) for rate in (0.0, 0.2, 0.4, 0.6, 0.8)] + [("image", rate) for rate in (0.4, 0.8)]


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default=usual_dataset())
    parser.add_argument("--images", type=int, default=3000)
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--one-caption", action="store_true")
    parser.add_argument("--both", action="store_true", help="one caption, and all of the same images")
    parser.add_argument("--rates", type=float, nargs="+", help="caption-level noise alone, at these rates")
    parser.add_argument("--draws", type=int, default=1, help="of the images and of the noise")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = CASES if options.rates is None else [("caption", rate) for rate in options.rates]
    kinds = ("_one_caption", "_all_captions") if options.both else ("_one_caption" * options.one_caption,)
    cases: dict[str, list[dict[str, Any]]] = {kind: [] for kind in kinds}
    for seed in range(options.seed, options.seed + options.draws):
        data = load_dataset(options.dataset, options.images, options.image_size, seed, device=options.device)
        config = CrossfitConfig(image_size=options.image_size, seed=seed, device=options.device)
        features = encoded(data, config)
        for kind in kinds:
            table = keep_one_caption(data.table) if kind == "_one_caption" else data.table
            for level, rate in chosen:
                told = {"level": level, "rate": rate, "seed": seed, "pairs": len(table)}
                cases[kind].append({**told, **measured(table, features, config, level, rate)})
                print(cases[kind][-1], flush=True)
            row = {
                "dataset": data.name, "images": len(data.images), "pairs": len(table),
                "one_caption": kind == "_one_caption", "image_size": options.image_size, "seed": options.seed,
                "cases": cases[kind],
            }  # fmt: skip
            out = options.out or RESULTS / f"audit_quick_{data.name}{kind}.json"
            record(out, row, options.device, started)  # after each draw: a slow run may be stopped


def encoded(data: Dataset, config: CrossfitConfig) -> Features:
    """What the encoders of a quick audit make of each caption and of each image, by name."""
    settings, table = training_settings(data.table, config), data.table
    device = pick_device(settings.device)
    retriever = Retriever.create(settings.model, table.captions).to(device).eval()
    whole = Split.open(table, data.images, retriever, batch=settings.batch_size, precision=settings.precision)
    texts, images = whole.pooled_features(retriever)
    names = table.column("image")
    of_images = {names[row]: vector for row, vector in zip(table.first_rows, images, strict=True)}
    return dict(zip(distinct_captions(table), texts, strict=True)), of_images


def measured(
    table: PairTable, features: Features, config: CrossfitConfig, level: str, rate: float
) -> dict[str, Any]:
    """One audit of one corruption."""
    corruption = corrupt_pairs(table, rate, config.seed, level)  # type: ignore[arg-type]
    begun = time.perf_counter()
    dirty = corruption.table
    names = dirty.column("image")
    texts = torch.stack([features[0][caption] for caption in distinct_captions(dirty)])
    images = torch.stack([features[1][names[row]] for row in dirty.first_rows])
    part = judged_part(dirty, judge_training_free(dirty, (texts, images), config.seed))
    verdicts = judge_together([part], seed=config.seed)
    seconds = time.perf_counter() - begun
    truth, flag = corruption.is_noisy, verdicts.flag
    found: dict[str, Any] = measure_detection(
        verdicts.p_match, truth, estimated_rate=verdicts.noise_rate, evidence=verdicts.combined
    ).as_dict()
    low, high = verdicts.noise_rate_interval or (0.0, 1.0)
    found |= {"interval_low": low, "interval_high": high, "seconds": round(seconds, 1)}
    if rate:
        found["precision_at_true_rate"] = at_true_rate(verdicts.combined, truth)
        found["flags_precision"], found["flags_recall"] = precision_and_recall(flag, truth)
        for least in (0.5, 0.3, 0.2):
            both = precision_and_recall(verdicts.p_match < least, truth)
            found[f"under_{least}"] = dict(zip(("precision", "recall"), both, strict=True))
    return found


def precision_and_recall(flag: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    return float(truth[flag].mean()) if flag.any() else 0.0, float(flag[truth].mean())


if __name__ == "__main__":
    main()
