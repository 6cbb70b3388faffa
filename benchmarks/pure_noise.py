"""How often does detection take pure noise for evidence, and does it still see a signal in as few pairs?

Texts and images that have nothing to do with each other, in fewer and in more dimensions than pairs; and the
factors of `calibration.py` with two fifths of the captions moved. `separation` is in standard errors.

    python benchmarks/pure_noise.py [--draws 20] [--sizes 100 200 400 800]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from audit_data import RESULTS, record

from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.judge import LEAST_SEPARATION, separation

Array = npt.NDArray[np.float64]
DIMS = {"few dimensions": (32, 48), "many dimensions": (384, 640)}


def noise(pairs: int, dims: tuple[int, int], seed: int) -> tuple[Array, Array]:
    draw = np.random.default_rng(seed)
    return draw.normal(size=(pairs, dims[0])), draw.normal(size=(pairs, dims[1]))


def signal(pairs: int, dims: tuple[int, int], seed: int) -> tuple[Array, Array]:
    draw = np.random.default_rng(seed)
    factors = draw.normal(size=(10, 12))[draw.integers(10, size=pairs)] + 0.5 * draw.normal(size=(pairs, 12))
    own = np.arange(pairs)
    moved = draw.permutation(pairs)[: 2 * pairs // 5]
    own[moved] = np.roll(own[moved], 1)
    sides = []
    for dim, shown in zip(dims, (factors[own], factors), strict=True):
        sides.append(shown @ draw.normal(size=(12, dim)) + 3.0 * draw.normal(size=(pairs, dim)))
    return sides[0], sides[1]


def measured(pairs: int, draws: int) -> dict[str, Any]:
    row: dict[str, Any] = {"pairs": pairs}
    for kind, make in (("noise", noise), ("signal", signal)):
        for name, dims in DIMS.items():
            verdicts = [
                NoiseDetector(bootstrap=0, seed=seed).fit(*make(pairs, dims, seed)).verdicts
                for seed in range(draws)
            ]
            told = [separation(each.support, each.null_support) for each in verdicts]
            row[f"{kind}, {name}"] = {
                "informative": float(np.mean([each.informative for each in verdicts])),
                "separation_mean": round(float(np.mean(told)), 2),
                "separation_least": round(min(told), 2),
                "separation_most": round(max(told), 2),
            }
    return row


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 200, 400, 800])
    parser.add_argument("--out", type=Path, default=RESULTS / "pure_noise.json")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for pairs in options.sizes:
        rows.append(measured(pairs, options.draws))
        print(rows[-1], flush=True)
        row = {"draws": options.draws, "least_separation": LEAST_SEPARATION, "rows": rows}
        record(options.out, row, "cpu", started)


if __name__ == "__main__":
    main()
