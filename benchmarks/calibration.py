"""Do p(match), the estimated noise rate and its interval, and proposals' probabilities mean what they say?

Two simulations with known truth. `scores` draws evidence from densities of many shapes and fits the mixture
alone; `embeddings` judges structured synthetic pairs (clusters, shared factors, noise) by the whole detector.

    python benchmarks/calibration.py [--draws 4] [--sizes 500 2000 8000 20000] [--embedding-draws 2]
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from audit_data import RESULTS, record
from torch.nn.functional import normalize

from pmpguard.audit.proposals import propose_for_rows
from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.mixture import fit_match_mixture

Array = npt.NDArray[np.float64]
Draw = Callable[[int, np.random.Generator], Array]
RATES = (0.0, 0.15, 0.4, 0.6, 0.8)
NULL_PAIRS, BINS = 20_000, 10


def gaussian(mean: float, deviation: float = 1.0) -> Draw:
    return lambda count, draw: draw.normal(mean, deviation, count)


def mostly(usual: Draw, other: Draw, share: float) -> Draw:
    return lambda count, draw: np.where(draw.random(count) < share, other(count, draw), usual(count, draw))


TAILED = mostly(gaussian(2.6, 0.5), gaussian(1.2), 0.2)
# densities of matched, of mismatched and of null pairs
FAMILIES: dict[str, tuple[Draw, Draw, Draw]] = {
    "strong": (gaussian(2.7), gaussian(0), gaussian(0)),
    "weaker": (gaussian(2.0), gaussian(0), gaussian(0)),
    "weak": (gaussian(1.5), gaussian(0), gaussian(0)),
    "wide": (gaussian(4, 1.6), gaussian(0), gaussian(0)),
    "narrow": (gaussian(2.3, 0.6), gaussian(0), gaussian(0)),
    "skewed": (
        lambda count, draw: 4.5 - draw.gamma(2, 0.6, count),
        lambda count, draw: draw.gamma(3, 0.6, count) - 1.8,
        lambda count, draw: draw.gamma(3, 0.6, count) - 1.8,
    ),
    "heavy tails": (
        lambda count, draw: 4.2 + 0.8 * draw.standard_t(3, count),
        lambda count, draw: 0.8 * draw.standard_t(3, count),
        lambda count, draw: 0.8 * draw.standard_t(3, count),
    ),
    "two kinds": (mostly(gaussian(4.2, 0.8), gaussian(2, 0.7), 0.25), gaussian(0), gaussian(0)),
    "reaching into the null": (TAILED, gaussian(0), gaussian(0)),
    "accidental matches in the null": (TAILED, gaussian(0), mostly(gaussian(0), TAILED, 0.02)),
}


def calibration_error(probability: Array, truth: npt.NDArray[np.bool_]) -> float:
    """Expected calibration error over bins of equal width."""
    place = np.minimum((probability * BINS).astype(int), BINS - 1)
    gap = np.bincount(place, probability - truth, minlength=BINS)
    return float(np.abs(gap).sum() / max(len(truth), 1))


def measures(p_match: Array, matched: npt.NDArray[np.bool_], rate: float, estimated: float,
             interval: tuple[float, float]) -> dict[str, float | bool]:  # fmt: skip
    flagged = p_match < 0.5
    found = {
        "error": estimated - rate,
        "calibration_error": calibration_error(p_match, matched),
        "covered": interval[0] <= rate <= interval[1],
        "width": interval[1] - interval[0],
    }
    if rate:
        caught = float((flagged & ~matched).sum())
        found |= {"precision": caught / max(flagged.sum(), 1), "recall": caught / (~matched).sum()}
    return found


def from_scores(family: str, pairs: int, rate: float, seed: int, bootstrap: int) -> dict[str, Any]:
    matched, mismatched, null = FAMILIES[family]
    draw = np.random.default_rng([seed, pairs, round(100 * rate), list(FAMILIES).index(family)])
    wrong = round(rate * pairs)
    scores = np.concatenate([matched(pairs - wrong, draw), mismatched(wrong, draw)])
    fit = fit_match_mixture(scores, null(NULL_PAIRS, draw), bootstrap=bootstrap, seed=seed)
    assert fit.mismatch_interval is not None
    truth = np.arange(pairs) < pairs - wrong
    return measures(fit.p_match, truth, wrong / pairs, fit.mismatch_rate, fit.mismatch_interval)


def from_embeddings(
    pairs: int, per_image: int, rate: float, noise: float, seed: int, bootstrap: int
) -> dict[str, Any]:
    """Images of 40 clusters; texts and images show 12 shared factors through noise of their own.

    Proposals are measured twice: as a ranking, and calibrated by the clusters as scene classes. Detection
    knows nothing of them.
    """
    draw = torch.Generator().manual_seed(seed)
    count = pairs // per_image
    cluster = torch.randint(40, (count,), generator=draw)
    centres = torch.randn(40, 12, generator=draw)
    factors = centres[cluster] + 0.5 * torch.randn(count, 12, generator=draw)
    owner = torch.arange(pairs) % count  # (N,) the image each text was written for
    to_text, to_image = torch.randn(12, 48, generator=draw), torch.randn(12, 64, generator=draw)
    texts = factors[owner] @ to_text + 12**0.5 * noise * torch.randn(pairs, 48, generator=draw)
    images = factors @ to_image + 12**0.5 * noise * torch.randn(count, 64, generator=draw)
    wrong = torch.randperm(pairs, generator=draw)[: round(rate * pairs)]
    text_of = torch.arange(pairs)
    text_of[wrong] = wrong.roll(1)
    matched = (cluster[owner[text_of]] == cluster[owner]).numpy()  # one of the same cluster fits
    truth_rate = float((~matched).mean())
    found = NoiseDetector(bootstrap=bootstrap, seed=seed).fit(
        texts, images, text_of, owner, common_space=False
    )
    result = measures(found.p_match, matched, truth_rate, found.noise_rate, found.noise_rate_interval)
    rows = np.flatnonzero(found.verdicts.flag)
    if len(rows):
        # a common space for the shortlist: least squares from texts to images over believed pairs
        weight = found.clean_probability[:, None].sqrt()
        solved = torch.linalg.lstsq(texts[text_of] * weight, images[owner] * weight, driver="gelsd").solution
        spaces = normalize(texts @ solved, dim=1), normalize(images, dim=1)
        for known, labels in (("", None), ("_with_classes", cluster.numpy())):
            offered = propose_for_rows(
                *spaces, text_of, owner, found.collected, found.verdicts, rows, 1,
                p_match=found.p_match, image_labels=labels,
            )  # fmt: skip
            fits = (cluster[owner[offered.captions[:, 0]]] == cluster[owner[rows]]).numpy()
            if labels is None or offered.calibrated:
                error = calibration_error(offered.p_match[:, 0], fits)
                result[f"proposals_calibration_error{known}"] = error
            result[f"proposals_right{known}"] = float(fits.mean())
    return result


def summary(cases: list[dict[str, Any]]) -> dict[str, float]:
    """Means over cases; of the rate also the mean and the 90 % quantile of the absolute error."""
    errors = np.abs([case["error"] for case in cases])
    means = {
        name: float(np.mean([case[name] for case in cases if name in case]))
        for name in (
            "calibration_error", "covered", "width", "precision", "recall",
            "proposals_calibration_error", "proposals_right",
            "proposals_calibration_error_with_classes", "proposals_right_with_classes",
        )
        if any(name in case for case in cases)
    }  # fmt: skip
    found = {
        "cases": len(cases),
        "bias": float(np.mean([case["error"] for case in cases])),
        "rate_error": float(errors.mean()),
        "rate_error_90": float(np.quantile(errors, 0.9)),
        **means,
    }
    return {name: round(value, 4) for name, value in found.items()}


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 2000, 8000, 20_000])
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--embedding-draws", type=int, default=2)
    parser.add_argument("--embedding-sizes", type=int, nargs="+", default=[500, 2000])
    parser.add_argument("--bootstrap", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "calibration.json")
    options = parser.parse_args()
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {
        "scores": defaultdict(list), "embeddings": defaultdict(list)
    }  # fmt: skip
    for family in FAMILIES:
        for pairs in options.sizes:
            for rate in RATES:
                for seed in range(options.seed, options.seed + options.draws):
                    case = from_scores(family, pairs, rate, seed, options.bootstrap)
                    for key in ("all", f"{pairs} pairs", f"rate {rate}", family):
                        groups["scores"][key].append(case)
    for pairs in options.embedding_sizes:
        for per_image in (1, 5):
            for rate in (0.0, 0.15, 0.4, 0.8):
                for strength, noise in (("strong", 0.7), ("weak", 1.2)):
                    for seed in range(options.seed, options.seed + options.embedding_draws):
                        case = from_embeddings(pairs, per_image, rate, noise, seed, options.bootstrap)
                        print(pairs, per_image, rate, strength, case, flush=True)
                        for key in (
                            "all",
                            f"{pairs} pairs",
                            f"rate {rate}",
                            f"{per_image} a image",
                            strength,
                        ):
                            groups["embeddings"][key].append(case)
    row = {
        "seed": options.seed, "draws": options.draws, "embedding_draws": options.embedding_draws,
        "bootstrap": options.bootstrap, "sizes": options.sizes, "embedding_sizes": options.embedding_sizes,
        **{level: {key: summary(cases) for key, cases in found.items()} for level, found in groups.items()},
    }  # fmt: skip
    record(options.out, row, "cpu", started)


if __name__ == "__main__":
    main()
