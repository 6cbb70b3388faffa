"""What a quick audit costs and tells as collections grow: time, memory and AUROC up to a million pairs.

Embeddings are synthetic but structured: every image shows one of some hundred kinds of scene, which both
encoders place anywhere, and varies in a few directions that both see in part. So the regression tells much
of a pair and neighbours tell more. Each image has one caption; the captions of four in ten are exchanged.
Vectors are drawn in blocks, the same for every number of pairs.

Every size runs in a fresh process. Given are the pairs and the vectors; measured is what a quick audit does
with them, from training-free detection up to the verdicts with their interval. Memory beyond what is given is
the highest resident size meanwhile, less that before. Afterwards, and not counted there, captions are
proposed to flagged images, and the neighbours that the inverted lists find are compared with the exact ones.
Processor time is given beside the clock's: on a busy machine only the former says anything. Sizes that are
not named keep what an earlier run has written of them.

    python benchmarks/detection_scale.py [--pairs 20000 100000 1000000] [--threads 2] [--out FILE.json]
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from pmpguard.audit.crossfit import judge_training_free
from pmpguard.audit.judging import JudgedPart, judge_together, judged_part
from pmpguard.audit.proposals import propose_for_rows
from pmpguard.data.pairs import PairTable
from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.evidence import nearest
from pmpguard.detection.evidence.canonical import canonical_vectors, weighted_mean
from pmpguard.detection.evidence.regression import regression_sums
from pmpguard.detection.judge import Verdicts
from pmpguard.evaluation.detection import measure_detection
from pmpguard.training.tracking import current_commit, describe_hardware

Result = TypeVar("Result")
TEXT_DIM, IMAGE_DIM, LATENT = 384, 512, 24
KINDS = 300  # of scenes
MISMATCHED = 0.4
BLOCK = 10_000  # pairs drawn at once
ASKED = 500  # vectors whose neighbours are compared with the exact ones
PROPOSED = 20_000  # images that captions are proposed to


def planted(pairs: int, seed: int = 0) -> tuple[Tensor, Tensor, np.ndarray]:
    """Texts (N, 384), images (N, 512), and whose text each row has (N,); rows are the labelled pairs."""
    world = torch.Generator().manual_seed(seed)

    def fixed(rows: int, columns: int, scale: float) -> Tensor:
        return torch.randn(rows, columns, generator=world) * scale / math.sqrt(columns)

    kinds = fixed(KINDS, TEXT_DIM, 1.0), fixed(KINDS, IMAGE_DIM, 1.0)
    maps = fixed(LATENT, TEXT_DIM, 1.0), fixed(LATENT, IMAGE_DIM, 1.0)
    own = np.arange(pairs)
    generator = np.random.default_rng(seed)
    moved = generator.permutation(pairs)[: round(MISMATCHED * pairs)]
    own[moved] = np.roll(own[moved], 1)  # row -> whose text it got
    texts, images = torch.empty(pairs, TEXT_DIM), torch.empty(pairs, IMAGE_DIM)
    row_of = np.argsort(own)  # whose text -> the row that has it
    for start in range(0, pairs, BLOCK):
        draws = torch.Generator().manual_seed(seed * 1_000_003 + start + 1)
        count = min(BLOCK, pairs - start)
        kind = torch.randint(KINDS, (BLOCK,), generator=draws)
        latent = torch.randn(BLOCK, LATENT, generator=draws)
        for vectors, place, rows, noise in (
            (texts, 0, torch.from_numpy(row_of[start : start + count]), 4.5),
            (images, 1, torch.arange(start, start + count), 3.6),
        ):
            dim = vectors.shape[1]
            drawn = kinds[place][kind] + 0.35 * latent @ maps[place]
            drawn += noise / math.sqrt(dim) * torch.randn(BLOCK, dim, generator=draws)
            vectors[rows] = drawn[:count]
    return texts, images, own


def timed(work: Callable[[], Result]) -> tuple[dict[str, float], Result]:
    clock, processor = time.perf_counter(), time.process_time()
    result = work()
    taken = {"seconds": time.perf_counter() - clock, "processor_seconds": time.process_time() - processor}
    return {name: round(value, 1) for name, value in taken.items()}, result


def one_size(pairs: int) -> dict[str, Any]:
    texts, images, own = planted(pairs)
    names = np.arange(pairs).astype(str)
    table = PairTable.from_columns({"image": names, "caption": names[own]})
    before = resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the highest resident size starts anew
    taken, (detector, part, verdicts) = timed(partial(judged, table, texts, images))
    extra = resident_bytes("VmHWM") - before
    del texts, images
    mismatched = own != np.arange(pairs)
    told = measure_detection(verdicts.p_match, mismatched, estimated_rate=verdicts.noise_rate).as_dict()
    return {
        "pairs": pairs,
        **taken,
        "extra_bytes_per_pair": round(extra / pairs),
        "auroc": told["auroc"],
        "mismatched": float(mismatched.mean()),
        "noise_rate": verdicts.noise_rate,
        "noise_rate_interval": list(verdicts.noise_rate_interval or ()),
        "left_out": detector.left_out,
        "neighbour_recall": neighbour_recall(nearest.centred(detector.vectors[1])),
        "neighbour_recall_canonical": neighbour_recall(canonical_images(detector)),
        **proposals(part, verdicts, own),
    }


def judged(table: PairTable, texts: Tensor, images: Tensor) -> tuple[NoiseDetector, JudgedPart, Verdicts]:
    """What a quick audit does once images and captions are encoded, up to the verdicts."""
    detector = judge_training_free(table, (texts, images))
    part = judged_part(table, detector)
    return detector, part, judge_together([part])


def neighbour_recall(vectors: Tensor) -> float:
    """The share of the exact neighbours of some unit vectors (n, d) that are found."""
    found = nearest.nearest_others(vectors, 60)[1].long()
    asked = torch.from_numpy(np.random.default_rng(0).permutation(len(vectors))[:ASKED])
    hits = []
    for part in torch.split(asked, 50):
        cosines = torch.cat(
            [part_of.float() @ vectors[part].float().T for part_of in torch.split(vectors, 65_536)]
        ).T
        cosines[torch.arange(len(part)), part] = -2.0
        exact = cosines.topk(found.shape[1], dim=1).indices
        hits.append((exact[:, :, None] == found[part][:, None, :]).any(2).float())
    return float(torch.cat(hits).mean())


def canonical_images(detector: NoiseDetector) -> Tensor:
    """The vectors of images that the last rounds found neighbours among."""
    rows, weight = torch.arange(len(detector.p_match)), detector.clean_probability
    sums = regression_sums(*detector.vectors, rows, rows, weight)
    text_mean, image_mean = (weighted_mean(vectors, rows, weight) for vectors in detector.vectors)
    return canonical_vectors(*detector.vectors, sums, text_mean, image_mean, float(weight.sum()))[1]


def proposals(part: JudgedPart, verdicts: Verdicts, own: np.ndarray) -> dict[str, Any]:
    """The ten best captions for flagged images, as an audit proposes them, and how often theirs is among."""
    flagged = np.flatnonzero(verdicts.flag & (own != np.arange(len(own))))
    asked = np.random.default_rng(0).permutation(flagged)[:PROPOSED]
    propose = partial(propose_for_rows, part.captions, part.images, part.text_of, part.image_of)
    taken, found = timed(lambda: propose(part.evidence, verdicts, asked, 10))
    truth = np.argsort(own)[asked]  # the row that holds an image's own caption
    among = float((found.captions == truth[:, None]).any(1).mean())
    return {"proposals": {"images": len(asked), **taken, "own_caption_among_ten": among}}


def resident_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in status if line.startswith(name))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, nargs="+", default=[20_000, 100_000, 1_000_000])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "detection_scale.json"
    )
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.one:
        print(json.dumps(one_size(options.pairs[0])))
        return
    recorded = json.loads(options.out.read_text()).get("sizes", []) if options.out.is_file() else []
    sizes = [size for size in recorded if size["pairs"] not in options.pairs]
    for pairs in options.pairs:
        command = [
            sys.executable,
            __file__,
            "--one",
            "--pairs",
            str(pairs),
            "--threads",
            str(options.threads),
        ]
        told = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        sizes.append({**json.loads(told.stdout.splitlines()[-1]), "commit": current_commit()})
        print(json.dumps(sizes[-1]), flush=True)
        row = {
            "dim": [TEXT_DIM, IMAGE_DIM],
            "kinds": KINDS,
            "sizes": sorted(sizes, key=lambda size: size["pairs"]),
            "threads": options.threads,
            "hardware": describe_hardware(),
            "commit": current_commit(),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        options.out.write_text(json.dumps(row, indent=2) + "\n")  # after each: a large one may be stopped


if __name__ == "__main__":
    main()
