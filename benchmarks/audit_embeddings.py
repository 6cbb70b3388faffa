"""Does an audit of given embeddings find mismatched captions better than the embeddings' own cosines do?

Vectors of the default model, one caption an image, captions of other classes in place of some: UCM-Captions,
and the splits of RSICD that the model's head was not fitted on. On the very same vectors stand the cosine and
self-confidence (the log-softmax of the pair among all captions and among all images, Northcutt et al., 2021).
Differences of AUROC have a 95 % interval by a paired bootstrap of the pairs of every draw.

    python benchmarks/audit_embeddings.py --rsicd DIR --ucm DIR [--draws 3]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from audit_data import RESULTS, record

import pmpguard
from pmpguard.audit.audit import AuditConfig, judged_by_embeddings
from pmpguard.audit.crossfit import CrossfitConfig
from pmpguard.audit.judging import distinct_captions, judge_together
from pmpguard.data.formats import read_pairs
from pmpguard.data.formats.embeddings import ClipEmbeddings
from pmpguard.data.images.sources import open_images
from pmpguard.data.pairs import PairTable
from pmpguard.data.splits import keep_one_caption
from pmpguard.device import pick_device
from pmpguard.evaluation.detection import auroc
from pmpguard.models.retriever import Retriever
from pmpguard.noise.inject import corrupt_pairs
from pmpguard.training.encode import Split

Scores = npt.NDArray[np.float64]
BASELINES = ("cosine", "self_confidence")
RESAMPLES = 500


def unseen_pairs(folder: Path, splits: list[str] | None) -> PairTable:
    table = read_pairs(folder)
    kept = np.ones(len(table), bool) if splits is None else np.isin(table.column("split"), splits)
    table = table.filter(kept)
    return table.with_column("split", ["train"] * len(table))


def embedded(table: PairTable, retriever: Retriever) -> ClipEmbeddings:
    images = open_images(table, retriever.config.input_size, retriever.device, framing=retriever.framing)
    captions, pixels = Split.open(table, images, retriever).encode(retriever)
    return ClipEmbeddings(table, images=pixels.pooled.cpu().numpy(), captions=captions.pooled.cpu().numpy())


def scores_of(table: PairTable, stored: ClipEmbeddings, temperature: float, seed: int) -> dict[str, Scores]:
    """(N,) each; more of it speaks for a match."""
    place = dict(zip(distinct_captions(stored.table), range(len(stored.captions)), strict=True))
    captions = np.array([place[caption] for caption in distinct_captions(table)])
    names = [stored.table.column("image")[row] for row in stored.table.first_rows]
    place = dict(zip(names, range(len(names)), strict=True))
    images = np.array([place[table.column("image")[row]] for row in table.first_rows])
    given = ClipEmbeddings(table, images=stored.images[images], captions=stored.captions[captions])
    config = AuditConfig(crossfit=CrossfitConfig(seed=seed))
    part = judged_by_embeddings(table, given, np.arange(len(table)), config)
    texts, pixels = torch.tensor(given.captions).float(), torch.tensor(given.images).float()
    cosines = texts @ pixels.T  # (C, I)
    logits, pairs = cosines / temperature, (table.caption_codes, table.image_codes)
    sure = (logits.log_softmax(1) + logits.log_softmax(0))[pairs]
    verdicts = judge_together([part], bootstrap=0, seed=seed)
    return {
        "audit": verdicts.combined,
        "cosine": cosines[pairs].double().numpy(),
        "self_confidence": sure.double().numpy(),
    }


def differences(draws: list[tuple[dict[str, Scores], npt.NDArray[np.bool_]]], seed: int) -> dict[str, Any]:
    """Mean AUROC of all, and by how much the audit's is above each other's, with a 95 % interval."""
    generator = np.random.default_rng(seed)
    found: dict[str, list[dict[str, float]]] = {"": [], "resampled": []}
    for number in range(RESAMPLES + 1):
        told = []
        for scores, wrong in draws:
            rows = np.arange(len(wrong)) if not number else generator.integers(len(wrong), size=len(wrong))
            told.append({name: auroc(-values[rows], wrong[rows]) for name, values in scores.items()})
        means = {name: float(np.mean([one[name] for one in told])) for name in told[0]}
        found["resampled" if number else ""].append(means)
    result: dict[str, Any] = {"auroc": found[""][0]}
    for name in BASELINES:
        gains = [one["audit"] - one[name] for one in found["resampled"]]
        low, high = np.quantile(gains, [0.025, 0.975])
        result[f"above_{name}"] = {
            "mean": found[""][0]["audit"] - found[""][0][name], "low": float(low), "high": float(high)
        }  # fmt: skip
    return result


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rsicd", type=Path)
    parser.add_argument("--ucm", type=Path)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.15, 0.4, 0.8])
    parser.add_argument("--draws", type=int, default=3, help="of the captions and of the noise")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS / "audit_embeddings.json")
    options = parser.parse_args()
    retriever = pmpguard.load("default").to(pick_device(options.device)).eval()
    rows = []
    for name, folder, splits in (("ucm", options.ucm, None), ("rsicd", options.rsicd, ["val", "test"])):
        if folder is None:
            continue
        stored = embedded(unseen_pairs(folder, splits), retriever)
        for rate in options.rates:
            draws = []
            for seed in range(options.draws):
                corruption = corrupt_pairs(keep_one_caption(stored.table, seed=seed), rate, seed)
                scores = scores_of(corruption.table, stored, retriever.temperature.item(), seed)
                draws.append((scores, corruption.is_noisy))
            told = {"dataset": name, "rate": rate, "pairs": len(draws[0][1]), "draws": options.draws}
            rows.append({**told, **differences(draws, 0)})
            record(options.out, {"model": "default", "rows": rows}, options.device, started)


if __name__ == "__main__":
    main()
