"""What does a judge from outside add to training-free detection, and can a useless or a hostile one harm it?

The training split with one caption of each image, most of them mismatched. The judge is a ridge regression
from frozen text to frozen image features, fitted to the clean pairs of the validation split. Beside it stand
random vectors, the same judge turned round (it prefers what does not match), and one that has learned the
mismatched labels by heart: the caption of each mismatched pair has its labelled image's own vector.

    python benchmarks/outside_judge.py --dataset DIR [--rate 0.8] [--features FOLDER]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from audit_data import RESULTS, record
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.audit.crossfit import judge_model
from pmpguard.data.formats import read_pairs
from pmpguard.data.images.sources import open_images
from pmpguard.data.pairs import PairTable
from pmpguard.data.splits import keep_one_caption
from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.evidence.regression import regression_sums, whiten
from pmpguard.detection.evidence.similarity import similarity_measure
from pmpguard.detection.outside_judge import JUDGE
from pmpguard.device import pick_device
from pmpguard.models.retriever import Retriever
from pmpguard.noise.inject import corrupt_pairs
from pmpguard.training.encode import Split

Pair = tuple[Tensor, Tensor]  # vectors of texts and of images


def frozen_features(table: PairTable, folder: Path | None, device: torch.device) -> Pair:
    """Pooled features by caption code and by image code, kept in `folder` as texts.npy and images.npy."""
    files = [] if folder is None else [folder / "texts.npy", folder / "images.npy"]
    if files and all(file.is_file() for file in files):
        texts, images = (torch.from_numpy(np.load(file)).float().to(device) for file in files)
        return texts, images
    model = judge_model(True, None)
    retriever = Retriever.create(model, table.captions).to(device).eval()
    texts, images = Split.open(
        table, open_images(table, model.input_size, device), retriever, batch=256
    ).pooled_features(retriever)
    for file, vectors in zip(files, (texts, images), strict=False):
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, vectors.half().cpu().numpy())
    return texts, images


def ridge_judge(vectors: Pair, table: PairTable) -> Pair:
    """(C, l), (I, l): where a regression on clean validation pairs expects the image of each text."""
    texts, images = whiten(vectors[0]), whiten(vectors[1])
    rows = np.flatnonzero(np.array(table.column("split")) == "val")
    text_of, image_of = (
        torch.from_numpy(codes[rows]).to(texts.device) for codes in (table.caption_codes, table.image_codes)
    )
    sums = regression_sums(texts, images, text_of, image_of, torch.ones(len(rows), device=texts.device))
    return normalize(texts @ sums.to_images(), dim=1), images


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--dataset", type=Path, required=True, help="with splits train and val, such as RSICD"
    )
    parser.add_argument("--rate", type=float, default=0.8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--images", type=int, default=0, help="of the training split; 0 for all")
    parser.add_argument("--features", type=Path, help="folder that keeps the features of the frozen encoders")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=RESULTS / "outside_judge_rsicd.json")
    options = parser.parse_args()
    device = pick_device(options.device)
    whole = read_pairs(options.dataset)
    vectors = frozen_features(whole, options.features, device)
    judge = ridge_judge(vectors, whole)
    caption_code = dict(zip(whole.captions, whole.caption_codes.tolist(), strict=True))
    image_code = dict(zip(whole.column("image"), whole.image_codes.tolist(), strict=True))
    train = keep_one_caption(whole).split("train")
    if options.images:
        train = train.take(np.arange(len(train))[: options.images])
    started, rows = time.perf_counter(), []
    for seed in options.seeds:
        corruption = corrupt_pairs(train, options.rate, seed)
        table, noisy = corruption.table, corruption.is_noisy
        firsts = np.unique(table.caption_codes, return_index=True)[1]
        captions, images = (
            torch.tensor(codes, device=device)
            for codes in (
                [caption_code[table.captions[row]] for row in firsts],
                [image_code[table.column("image")[row]] for row in table.first_rows],
            )
        )
        texts, pixels = judge[0][captions], judge[1][images]
        draw = torch.Generator().manual_seed(seed)
        by_heart = torch.randn(texts.shape, generator=draw).to(device)
        wrong = torch.from_numpy(noisy).to(device)
        text_of, image_of = (torch.from_numpy(x).to(device) for x in (table.caption_codes, table.image_codes))
        by_heart[text_of[wrong]] = pixels[image_of[wrong]]
        judges: dict[str, Pair | None] = {
            "none": None,
            "clean pairs": (texts, pixels),
            "random": (torch.randn(texts.shape, generator=draw).to(device), pixels),
            "turned round": (-texts, pixels),
            "mismatched by heart": (by_heart, pixels),
        }
        for name, given in judges.items():
            more = {}
            if given is not None:
                more[JUDGE] = similarity_measure(normalize(given[0], dim=1), normalize(given[1], dim=1))
            detector = NoiseDetector(bootstrap=0, seed=seed).fit(
                vectors[0][captions], vectors[1][images], text_of, image_of, more=more, common_space=False
            )
            row = {
                "judge": name, "seed": seed, "pairs": len(table),
                "auroc": round(float(roc_auc_score(~noisy, detector.verdicts.combined)), 4),
                "estimated_rate": round(detector.noise_rate, 4),
                "counted": JUDGE in detector.verdicts.names,
            }  # fmt: skip
            if given is not None:
                alone = more[JUDGE](text_of, image_of, image_of).cpu().numpy()
                row["auroc_alone"] = round(float(roc_auc_score(~noisy, alone)), 4)
            print(row, flush=True)
            rows.append(row)
    shared = {"dataset": whole.name, "rate": options.rate}
    record(options.out, {**shared, "rows": rows}, options.device, started)


if __name__ == "__main__":
    main()
