r"""RSICD and UCM-Captions through the real mteb package, beside this project's own evaluator.

    python benchmarks/mteb_retrieval.py default rsicd=FOLDER ucm=FOLDER \
        --trained_on "RSICD's training split" --out benchmarks/results/mteb.json

It needs the extra `mteb` and the datasets on this machine; nothing is downloaded. MTEB's `hit_rate_at_k` is
the field's R@K. Captions that occur under several images have equal scores. MTEB orders those somehow, our
evaluator counts what random order would give; `lost` and `won` are the recalls if every such tie is lost or
won, between which both must lie.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import datasets
import mteb
import torch
from pair_table_scale import hardware

import pmpguard
from pmpguard.data.formats import read_pairs
from pmpguard.data.images.sources import open_images
from pmpguard.evaluation.evaluate import Gallery, encode_gallery, evaluate_scores
from pmpguard.files import write_json
from pmpguard.interop.mteb_tasks import TASKS, MtebModel
from pmpguard.search.index.model_identity import identify_model
from pmpguard.training.tracking import current_commit

KS = (1, 5, 10)
TIE = 1e-5  # more than two computations of one score differ, less than scores of two texts do


def our_recalls(model: MtebModel, folder: Path) -> dict[str, dict[str, float]]:
    """Recalls of pooled vectors by our evaluator, and with ties of equal scores lost and won."""
    table = read_pairs(folder).split("test")
    retriever = model.model
    images = open_images(table, retriever.config.input_size, retriever.device, framing=retriever.framing)
    texts, seen = encode_gallery(retriever, Gallery(table, images))
    scores = texts.pooled @ seen.pooled.T  # (T, I)
    own = torch.zeros_like(scores)
    own[torch.arange(len(table)), torch.as_tensor(table.image_codes)] = TIE
    names = {"ours": scores, "lost": scores - own, "won": scores + own}
    return {name: evaluate_scores(each, table).as_dict() for name, each in names.items()}


def compare(model: MtebModel, name: str, folder: Path, batch_size: int) -> dict[str, Any]:
    """Both evaluators on one dataset: percent, one entry per direction and K, and their mean."""
    found: dict[str, float] = {}
    begun = time.process_time()
    for task, direction in zip(TASKS[name], ("i2t", "t2i"), strict=True):
        result = mteb.evaluate(
            model,
            task(folder),
            cache=None,
            co2_tracker=False,
            encode_kwargs={"batch_size": batch_size},
            show_progress_bar=False,
        )
        scores = result.task_results[0].scores["test"][0]
        found |= {f"{direction}_r{k}": 100 * scores[f"hit_rate_at_{k}"] for k in KS}
    found["mr"] = sum(found.values()) / len(found)
    recalls = our_recalls(model, folder)
    rows = {key: {"mteb": found[key], **{name: recalls[name][key] for name in recalls}} for key in found}
    far = [key for key, row in rows.items() if not row["lost"] - 0.01 <= row["mteb"] <= row["won"] + 0.01]
    far += [key for key, row in rows.items() if not row["lost"] <= row["ours"] <= row["won"]]
    return {
        "recalls": {key: {each: round(value, 3) for each, value in row.items()} for key, row in rows.items()},
        "outside": far,
        "tasks": [task.metadata.name for task in TASKS[name]],
        "cpu_seconds": round(time.process_time() - begun, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("data", nargs="+", help="rsicd=FOLDER, ucm=FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--name", help="what to call the model, org/name")
    parser.add_argument("--trained_on", required=True, help="how the model was made, for the record")
    parser.add_argument("--batch_size", type=int, default=64)
    options = parser.parse_args()
    datasets.disable_progress_bars()
    model = MtebModel(options.model, options.name)
    folders = dict(word.split("=", 1) for word in options.data)
    results = {
        name: compare(model, name, Path(folder), options.batch_size) for name, folder in folders.items()
    }
    write_json(
        options.out,
        {
            "model": model.mteb_model_meta.name,
            "fingerprint": identify_model(options.model).fingerprint,
            "trained_on": options.trained_on,
            "versions": {
                "mteb": mteb.__version__,
                "torch": torch.__version__,
                "pmpguard": pmpguard.__version__,
            },
            "settings": {"ks": KS, "batch_size": options.batch_size, "tie": TIE, "ranking": "pooled"},
            "commit": current_commit(),
            "hardware": hardware(),
            "datasets": results,
        },
    )
    print(json.dumps({name: result["recalls"] for name, result in results.items()}, indent=1))
    outside = {name: result["outside"] for name, result in results.items() if result["outside"]}
    if outside:
        sys.exit(f"the evaluators disagree by more than their ties: {outside}")


if __name__ == "__main__":
    main()
