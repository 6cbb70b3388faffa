"""What one round of detection costs: p(match) of all labelled pairs, for growing numbers of pairs.

Pooled embeddings are random with planted matches, five captions an image, two in five of them copies from
other images. Timed are the evidence (score of every labelled pair and of as many null pairs, agreement of
captions), what competition adds and the mixture, and, apart from them, the regression that one round of the
training-free detection learns, and the five best captions for some images out of all captions. The aim is a
cost that grows with the number of pairs, and memory for rematching that does not grow with the number of
captions.

    python benchmarks/detection_scale.py [--pairs 100000 300000 1000000] [--device cpu]
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.detection.combine import refined_discriminant
from pmpguard.detection.evidence.competition import competition_evidence
from pmpguard.detection.evidence.regression import regression_evidence, whiten
from pmpguard.detection.mixture import fit_match_mixture, fit_with_known_rate
from pmpguard.detection.null_pairs import (
    NullPairs,
    caption_agreement_evidence,
    sample_null_pairs,
    similarity_evidence,
)
from pmpguard.detection.rematch import propose_captions, standardised_cosines
from pmpguard.training.tracking import current_commit, describe_hardware

Result = TypeVar("Result")
CAPTIONS, DIM, WRONG, ASKED = 5, 256, 0.4, 1000


def planted(pairs: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor, np.ndarray]:
    """Captions (N, d), images (N / 5, d), caption and image numbers (N,), and which pairs are wrong (N,)."""
    generator = torch.Generator().manual_seed(0)
    images = normalize(torch.randn(pairs // CAPTIONS, DIM, generator=generator), dim=1)
    caption_of = torch.arange(len(images) * CAPTIONS)
    truth = caption_of // CAPTIONS
    captions = torch.randn(len(caption_of), DIM, generator=generator).mul_(2 / DIM**0.5)
    captions = normalize(captions.add_(images[truth]), dim=1)
    wrong = torch.rand(len(caption_of), generator=generator) < WRONG
    image_of = truth.clone()
    caption_of[wrong] = torch.randint(len(captions), (int(wrong.sum()),), generator=generator)
    copied = (truth[caption_of] != image_of).numpy()
    return captions.to(device), images.to(device), caption_of.to(device), image_of.to(device), copied


def timed(work: Callable[[], Result], device: torch.device) -> tuple[float, Result]:
    started = time.perf_counter()
    result = work()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, result


def look(pairs: int, device: torch.device) -> dict[str, Any]:
    captions, images, caption_of, image_of, copied = planted(pairs, device)

    def gather() -> tuple[list[np.ndarray], Any, NullPairs]:
        wrong = sample_null_pairs(caption_of, image_of, seed=0)
        agreed = caption_agreement_evidence(captions, caption_of, image_of, wrong)
        score, statistics = similarity_evidence(captions, images, caption_of, image_of, wrong)
        sides = [
            np.stack([part.double().cpu().numpy() for part in parts], axis=1)
            for parts in ((score.labelled, agreed.labelled), (score.wrong, agreed.wrong))
        ]
        return sides, statistics, wrong

    evidence_seconds, ((labelled, wrong), statistics, null_pairs) = timed(gather, device)

    def judge() -> np.ndarray:
        first = refined_discriminant(labelled, wrong)
        measured = fit_match_mixture(first(labelled), first(wrong), bootstrap=0)
        competitors = competition_evidence(
            *(torch.from_numpy(each).to(device) for each in (first(labelled), measured.p_match)),
            caption_of, image_of, (null_pairs.captions, null_pairs.images), None, 0,
        )  # fmt: skip
        assert competitors is not None
        one, other = (
            np.column_stack([given, part.double().cpu().numpy()])
            for given, part in ((labelled, competitors.labelled), (wrong, competitors.wrong))
        )
        combine = refined_discriminant(one, other)
        return fit_with_known_rate(combine(one), combine(other), measured.mismatch_rate)[0].p_match

    judging_seconds, p_match = timed(judge, device)

    def learn_maps() -> Tensor:
        features, clean_probability = (whiten(captions), whiten(images)), torch.from_numpy(p_match).to(device)
        return regression_evidence(*features, caption_of, image_of, null_pairs, clean_probability, 0).labelled

    mapping_seconds, regression = timed(learn_maps, device)
    asked = torch.arange(min(ASKED, len(images)), device=device)
    everything = torch.arange(len(captions), device=device)
    before = peak_gigabytes(device)
    scores = standardised_cosines(captions, images, statistics)
    rematch_seconds, found = timed(lambda: propose_captions(scores, asked, everything, k=5), device)
    return {
        "pairs": len(caption_of),
        "evidence_seconds": round(evidence_seconds, 3),
        "judging_seconds": round(judging_seconds, 3),
        "seconds_per_million_pairs": round((evidence_seconds + judging_seconds) / len(caption_of) * 1e6, 2),
        "mapping_seconds": round(mapping_seconds, 3),
        "mapped_evidence_of_right_over_wrong": float(
            regression.cpu()[~copied].mean() - regression.cpu()[copied].mean()
        ),
        "mean_p_match_of_wrong": float(p_match[copied].mean()),
        "mean_p_match_of_right": float(p_match[~copied].mean()),
        "rematched_images": len(asked),
        "rematch_seconds": round(rematch_seconds, 3),
        "rematch_extra_peak_gigabytes": round(peak_gigabytes(device) - before, 3),
        "rematched_with_own_caption": float((found.partners[:, 0] // CAPTIONS == asked).float().mean()),
        "embedding_gigabytes": round((captions.numel() + images.numel()) * 4 / 2**30, 2),
    }


def peak_gigabytes(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[100_000, 300_000, 1_000_000])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "detection_scale.json"
    )
    options = parser.parse_args()
    device = torch.device(options.device)
    row = {
        "dim": DIM,
        "looks": [look(pairs, device) for pairs in options.pairs],
        "hardware": describe_hardware(device),
        "commit": current_commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    options.out.write_text(json.dumps(row, indent=2) + "\n")
    print(json.dumps(row, indent=2))


if __name__ == "__main__":
    main()
