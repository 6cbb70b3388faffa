"""The natural-noise track: every judge ranks a dataset's pairs as published, scored by pairs that were read.

Nothing is injected. `benchmarks/protocol/natural_noise.csv` lists the pairs whose truth is known, wrong or
right, each with where that is known from: a reading of the pair, or the block of farmland captions in
UCM-Captions. Pairs that say something doubtful are listed as such and count as neither. `unread` draws the
pairs still to be read, in random order and without their judges; who read them is in
`results/natural_noise_{ucm,rsicd}_reading.csv` (`pair_id,caption,verdict,note,reader`).

    python benchmarks/natural_noise.py list --ucm DIR                 # write the list from the readings
    python benchmarks/natural_noise.py score --ucm DIR --rsicd DIR --cache DIR
    python benchmarks/natural_noise.py unread --ucm DIR --rsicd DIR --cache DIR --sheets DIR  # to be read

All judges see the same frozen encoders (the extra `weights`), pooled. Heads of the usual judges are linear,
trained with InfoNCE on the other folds' images; loss-GMM reads the losses of the pairs it was trained on, as
in DivideMix and NCR. Precision at 50 is given with unread pairs counted as right and as wrong.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from audit_data import RESULTS, record
from audit_natural import draw_sheet
from default_head import encoders, read_features
from default_head_fit import Features
from torch import Tensor, nn
from torch.nn.functional import normalize

from pmpguard.audit.folds import split_images
from pmpguard.audit.rows import AuditRow
from pmpguard.data.formats import read_pairs
from pmpguard.data.pairs import PairTable, image_label_codes
from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.gaussian_mixture import fit_gaussian_mixture
from pmpguard.evaluation.detection import auroc
from pmpguard.losses.infonce import infonce_terms
from pmpguard.losses.positives import positive_targets

LISTED = Path(__file__).parent / "protocol" / "natural_noise.csv"
COLUMNS = ("dataset", "pair_id", "caption", "verdict", "source")
BLOCK = {"farmland", "cropland"}  # words of UCM's block of captions that belong to other images
FIELDS_AROUND = "sparseresidential"  # four of the block's images have fields around the houses: doubtful
FOLDS, EPOCHS, WARM_UP, BATCH, DIM, TEMPERATURE, AT = 3, 12, 5, 256, 256, 0.07, 50
Array = np.ndarray[Any, np.dtype[np.float64]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]


def known_pairs(ucm: PairTable) -> list[dict[str, str]]:
    """The list: pairs that were read, and UCM's block of captions with its counterpart."""
    rows = {}
    for dataset in ("ucm", "rsicd"):
        for pair in json.loads((RESULTS / f"audit_natural_{dataset}.json").read_text())["most_suspicious"]:
            source = f"read; rank {pair['rank']} of the audit with trained judges"
            rows[dataset, pair["pair_id"]] = (pair["caption"], pair["verdict"], source)
        further = RESULTS / f"natural_noise_{dataset}_reading.csv"
        if further.is_file():
            with further.open(newline="") as stream:
                for pair in csv.DictReader(stream):
                    source = f"read by {pair['reader']}; among the first 50 of another judge"
                    rows[dataset, pair["pair_id"]] = (pair["caption"], pair["verdict"], source)
    names = ("pair_id", "caption", "label")
    for pair_id, caption, label in zip(*(ucm.column(name) for name in names), strict=True):
        if BLOCK & set(caption.lower().split()) and ("ucm", pair_id) not in rows:
            verdict = {"agricultural": "right", FIELDS_AROUND: "doubtful"}.get(label, "wrong")
            where = "of" if label == "agricultural" else "outside"
            rows["ucm", pair_id] = (caption, verdict, f"farmland caption {where} the class agricultural")
    return [dict(zip(COLUMNS, (*key, *rest), strict=True)) for key, rest in sorted(rows.items())]


def read_known(dataset: str) -> dict[str, str]:
    """The verdict on each listed pair of a dataset."""
    with LISTED.open(newline="") as stream:
        return {row["pair_id"]: row["verdict"] for row in csv.DictReader(stream) if row["dataset"] == dataset}


def scored(suspicion: Array, pair_ids: list[str], known: dict[str, str], at: int = AT) -> dict[str, Any]:
    """How a ranking (N,), high is suspicious, fares by the pairs whose truth is known."""
    first = [known.get(pair_ids[row], "unread") for row in np.argsort(-suspicion, kind="stable")[:at]]
    count = {verdict: first.count(verdict) for verdict in ("wrong", "doubtful", "right", "unread")}
    rows = [row for row, pair in enumerate(pair_ids) if known.get(pair) in ("wrong", "right")]
    truth = np.array([known[pair_ids[row]] == "wrong" for row in rows])
    return {
        f"first_{at}": count,
        f"precision_at_{at}": [count["wrong"] / at, (count["wrong"] + count["unread"]) / at],
        "auroc_of_known": auroc(suspicion[rows], truth),
    }


class Heads(nn.Module):
    """Two linear maps into one space."""

    def __init__(self, texts: int, images: int) -> None:
        super().__init__()
        self.texts, self.images = nn.Linear(texts, DIM), nn.Linear(images, DIM)

    def forward(self, texts: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        return normalize(self.texts(texts), dim=1), normalize(self.images(images), dim=1)


def trained_heads(data: Features, rows: Numbers, epochs: int, seed: int) -> Heads:
    """InfoNCE over the pairs `rows`, a batch at a time."""
    torch.manual_seed(seed)
    draw = np.random.default_rng([seed, 1])
    heads = Heads(data.captions.shape[1], data.images.shape[1])
    steps = epochs * -(-len(rows) // BATCH)
    optimiser = torch.optim.AdamW(heads.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    for _ in range(epochs):
        for part in np.array_split(draw.permutation(rows), -(-len(rows) // BATCH)):
            logits, targets, own = batch_logits(heads, data, part)
            optimiser.zero_grad()
            torch.autograd.backward(infonce_terms(logits, targets, own).mean())
            optimiser.step()
            schedule.step()
    return heads.eval()


def batch_logits(heads: Heads, data: Features, part: Numbers) -> tuple[Tensor, Tensor, Tensor]:
    """(T, I) logits of some pairs among themselves, what belongs together, and each caption's image."""
    captions, images = data.table.caption_codes[part], data.table.image_codes[part]
    keys, own = np.unique(images, return_inverse=True)
    texts, seen = heads(data.captions[captions], data.images[keys])
    image_of = torch.from_numpy(own)
    targets = positive_targets(image_of, torch.from_numpy(keys), torch.from_numpy(captions))
    return texts @ seen.T / TEMPERATURE, targets, image_of


@torch.no_grad()
def usual_judges(data: Features, seed: int) -> dict[str, Array]:
    """(N,) suspicion by cosine, by self-confidence and by a mixture over losses."""
    pairs = len(data.table)
    cosine, confidence, losses = np.zeros(pairs), np.zeros(pairs), np.zeros(pairs)
    fold = split_images(len(data.images), FOLDS, seed)[data.table.image_codes]
    for judged in range(FOLDS):
        with torch.enable_grad():
            heads = trained_heads(data, np.flatnonzero(fold != judged), EPOCHS, seed)
        rows = np.flatnonzero(fold == judged)
        texts, images = heads(data.captions, data.images)
        codes, own = np.unique(data.table.image_codes[rows], return_inverse=True)
        captions = data.table.caption_codes[rows]
        for part in np.array_split(np.arange(len(rows)), -(-len(rows) // 2048)):
            scores = texts[captions[part]] @ images[codes].T  # (t, I of the fold)
            place = torch.arange(len(part)), torch.from_numpy(own[part])
            cosine[rows[part]] = scores[place].double().numpy()
            confidence[rows[part]] = (scores / TEMPERATURE).log_softmax(1)[place].double().numpy()
    with torch.enable_grad():
        heads = trained_heads(data, np.arange(pairs), WARM_UP, seed)
    for part in np.array_split(np.random.default_rng(seed).permutation(pairs), -(-pairs // BATCH)):
        losses[part] = infonce_terms(*batch_logits(heads, data, part)).double().numpy()
    clean = fit_gaussian_mixture(losses).p_low
    tie = 1e-9 * losses  # equal probabilities are ranked by their losses
    return {"cosine percentile": -cosine, "self-confidence": -confidence, "loss-GMM": tie - clean}


def ours(data: Features, seed: int) -> Array:
    """(N,) suspicion by training-free detection."""
    table = data.table
    detector = NoiseDetector(bootstrap=0, seed=seed).fit(
        data.captions, data.images, table.caption_codes, table.image_codes, common_space=False,
        image_labels=image_label_codes(table),
    )  # fmt: skip
    return -detector.verdicts.rank.astype(np.float64)


def with_words(data: Features) -> Features:
    """Without captions that have no words, which nobody judges."""
    return data.filter(np.array([any(map(str.isalnum, text)) for text in data.table.captions]))


def judged(data: Features, seed: int = 0) -> dict[str, Array]:
    return {**usual_judges(data, seed), "ours, nothing trained": ours(data, seed)}


def recorded(dataset: str, known: dict[str, str]) -> dict[str, Any]:
    """The first fifty of the recorded audit with trained judges; the rest of its ranking is not kept."""
    pairs = json.loads((RESULTS / f"audit_natural_{dataset}.json").read_text())["most_suspicious"][:AT]
    found = [known.get(pair["pair_id"], "unread") for pair in pairs]
    count = {verdict: found.count(verdict) for verdict in ("wrong", "doubtful", "right", "unread")}
    bounds = [count["wrong"] / AT, (count["wrong"] + count["unread"]) / AT]
    return {f"first_{AT}": count, f"precision_at_{AT}": bounds}


def draw_unread(data: Features, found: dict[str, Array], known: dict[str, str], out: Path) -> None:
    """Contact sheets and a list of unread pairs among some judge's first fifty, shuffled."""
    ids, first = data.table.column("pair_id"), set()
    for suspicion in found.values():
        first |= set(np.argsort(-suspicion, kind="stable")[:AT].tolist())
    rows = np.random.default_rng(0).permutation([row for row in sorted(first) if ids[row] not in known])
    shown = [
        AuditRow(ids[row], data.table.column("image")[row], data.table.captions[row], "", "", 0.0, False,
                 number + 1, {}, (), (0, 0), ())
        for number, row in enumerate(rows)
    ]  # fmt: skip
    for start in range(0, len(shown), AT):
        draw_sheet(data.table, shown[start : start + AT], out / f"{data.table.name}-{start // AT}.jpg")
    with (out / f"{data.table.name}.csv").open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerows([("number", "pair_id", "image", "caption", "verdict")])
        writer.writerows((row.rank, row.pair_id, row.image, row.caption, "") for row in shown)


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("list", "score", "unread"))
    parser.add_argument("--ucm", type=Path)
    parser.add_argument("--rsicd", type=Path)
    parser.add_argument("--cache", type=Path, help="keeps what the encoders made of images and captions")
    parser.add_argument("--sheets", type=Path, help="of pairs that nobody has read")
    options = parser.parse_args()
    if options.what == "list":
        with LISTED.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(known_pairs(read_pairs(options.ucm)))
        return
    datasets: dict[str, Any] = {}
    for name in ("ucm", "rsicd"):
        if (folder := getattr(options, name)) is None:
            continue
        data = with_words(read_features(folder, encoders(DIM), options.cache))
        known, found = read_known(name), judged(data)
        if options.what == "unread":
            options.sheets.mkdir(parents=True, exist_ok=True)
            draw_unread(data, found, known, options.sheets)
            continue
        ids = data.table.column("pair_id")
        judges = {judge: scored(suspicion, ids, known) for judge, suspicion in found.items()}
        judges["ours, trained judges (recorded audit)"] = recorded(name, known)
        counts = {verdict: list(known.values()).count(verdict) for verdict in ("wrong", "right", "doubtful")}
        datasets[name] = {"pairs": len(ids), "images": len(data.images), "known": counts, "judges": judges}
    if options.what == "score":
        row = {"encoders": "efficientnet-lite0+minilm-l6", "seed": 0, "datasets": datasets}
        record(RESULTS / "natural_noise.json", row, "cpu", started)


if __name__ == "__main__":
    main()
