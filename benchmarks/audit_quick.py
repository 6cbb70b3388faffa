"""How well does a quick audit, which trains nothing, find mismatched captions?

The images and captions of `audit_detection.py`, and image-level noise besides; or one caption of each image,
as archives have them, with several draws of the images and of the noise.

    python benchmarks/audit_quick.py [--dataset DIR] [--images 3000]
    python benchmarks/audit_quick.py --one-caption --images 2000 --rates 0.15 --draws 5
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from audit_data import RESULTS, Dataset, load_dataset, record, usual_dataset
from audit_detection import at_true_rate

from pmpguard.audit.crossfit import CrossfitConfig
from pmpguard.audit.judging import judge_together
from pmpguard.audit.quick import judged_quickly
from pmpguard.data.pairs import PairTable
from pmpguard.data.splits import keep_one_caption
from pmpguard.evaluation.detection import measure_detection
from pmpguard.noise.inject import corrupt_pairs

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
    parser.add_argument("--rates", type=float, nargs="+", help="caption-level noise alone, at these rates")
    parser.add_argument("--draws", type=int, default=1, help="of the images and of the noise")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    chosen = CASES if options.rates is None else [("caption", rate) for rate in options.rates]
    cases = []
    for seed in range(options.seed, options.seed + options.draws):
        data = load_dataset(options.dataset, options.images, options.image_size, seed, device=options.device)
        table = keep_one_caption(data.table) if options.one_caption else data.table
        config = CrossfitConfig(image_size=options.image_size, seed=seed, device=options.device)
        for level, rate in chosen:
            cases.append(
                {"level": level, "rate": rate, "seed": seed, **measured(data, table, config, level, rate)}
            )
            print(cases[-1], flush=True)
    row = {
        "dataset": data.name, "images": len(data.images), "pairs": len(table),
        "one_caption": options.one_caption, "image_size": options.image_size, "seed": options.seed,
        "cases": cases,
    }  # fmt: skip
    captions = "_one_caption" if options.one_caption else ""
    out = options.out or RESULTS / f"audit_quick_{data.name}{captions}.json"
    record(out, row, options.device, started)


def measured(
    data: Dataset, table: PairTable, config: CrossfitConfig, level: str, rate: float
) -> dict[str, float]:
    """One audit of one corruption."""
    corruption = corrupt_pairs(table, rate, config.seed, level)  # type: ignore[arg-type]
    begun = time.perf_counter()
    part, _ = judged_quickly(corruption.table, config, images=data.images)
    verdicts = judge_together([part], seed=config.seed)
    seconds = time.perf_counter() - begun
    truth, flag = corruption.is_noisy, verdicts.flag
    found = measure_detection(
        verdicts.p_match, truth, estimated_rate=verdicts.noise_rate, evidence=verdicts.combined
    ).as_dict()
    low, high = verdicts.noise_rate_interval or (0.0, 1.0)
    found |= {"interval_low": low, "interval_high": high, "seconds": round(seconds, 1)}
    if rate:
        found["precision_at_true_rate"] = at_true_rate(verdicts.combined, truth)
        found["flags_precision"] = float(truth[flag].mean()) if flag.any() else 0.0
        found["flags_recall"] = float(flag[truth].mean())
    return found


if __name__ == "__main__":
    main()
