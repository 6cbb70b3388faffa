"""How well does a quick audit, which trains nothing, find wrong captions?

The images and wrong captions of `audit_detection.py`, and image-level noise besides.

    python benchmarks/audit_quick.py [--dataset DIR] [--images 3000]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from audit_data import RESULTS, load_dataset, record, usual_dataset
from audit_detection import at_true_rate

from pmpguard.audit.crossfit import CrossfitConfig
from pmpguard.audit.judging import judge_together
from pmpguard.audit.quick import judged_quickly
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
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data = load_dataset(
        options.dataset, options.images, options.image_size, options.seed, device=options.device
    )
    config = CrossfitConfig(image_size=options.image_size, seed=options.seed, device=options.device)
    cases = []
    for level, rate in CASES:
        corruption = corrupt_pairs(data.table, rate, options.seed, level)
        begun = time.perf_counter()
        part, _ = judged_quickly(corruption.table, config, images=data.images)
        found = judge_together([part], seed=options.seed)
        seconds = time.perf_counter() - begun
        verdicts, truth = found.verdicts, corruption.is_noisy
        measured = measure_detection(
            verdicts.p_match, truth, estimated_rate=verdicts.mismatch_rate, evidence=found.combined
        ).as_dict()
        if rate:
            measured["precision_at_true_rate"] = at_true_rate(found.combined, truth)
        cases.append({"level": level, "rate": rate, **measured, "seconds": round(seconds, 1)})
        print(cases[-1], flush=True)
    row = {
        "dataset": data.name, "images": len(data.images), "pairs": len(data.table),
        "image_size": options.image_size, "seed": options.seed, "cases": cases,
    }  # fmt: skip
    record(options.out or RESULTS / f"audit_quick_{data.name}.json", row, options.device, started)


if __name__ == "__main__":
    main()
