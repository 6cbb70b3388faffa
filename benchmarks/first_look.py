"""How well mismatched captions are told before any training, by every kind of evidence.

The verdicts `pmpguard` starts its first epoch with, from pretrained encoders that saw none of the pairs:
after one round of judging and after five. Nothing is trained; the injected labels are read by the metric
alone.

    python benchmarks/first_look.py --dataset FOLDER-OF-RSICD
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from audit_data import RESULTS, record

from pmpguard.data.pairs import image_label_codes
from pmpguard.device import pick_device
from pmpguard.evaluation.detection import measure_detection
from pmpguard.experiments.grid import cell_config, read_grid
from pmpguard.experiments.recipe_names import find_recipe
from pmpguard.experiments.run import prepare_dataset
from pmpguard.methods.method import TrainingView
from pmpguard.noise.inject import Level, corrupt_pairs
from pmpguard.training.encode import Split
from pmpguard.training.loop import build_method

RECIPE = find_recipe("rsicd-light")
CASES: list[tuple[Level, float]] = [
    *(("caption", rate) for rate in (0.0, 0.2, 0.4, 0.6, 0.8)),
    *(("image", rate) for rate in (0.4, 0.8)),
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--out", type=Path, default=RESULTS / "first_look.json")
    options = parser.parse_args()
    started = time.perf_counter()
    grid = read_grid(RECIPE, {"dataset": options.dataset})
    line = next(each for each in grid.methods if each.name == "pmpguard")
    experiment = cell_config(grid, line, "caption", 0.0, 0)
    config, device = experiment.train, pick_device(experiment.train.device)
    data = prepare_dataset(experiment, ("train",))
    clean = data.table.split("train")
    method = build_method(config, len(clean), clean.captions).to(device).eval()
    split = Split.open(
        clean, data.images["train"], method.retriever, batch=config.batch_size, precision=config.precision
    )
    tokens = split.pooled_features(method.retriever)
    number_of = dict(zip(clean.captions, split.tokens.row_of.tolist(), strict=True))
    labels = torch.from_numpy(image_label_codes(clean)).to(device)
    in_train = np.array(data.table.column("split")) == "train"
    found = []
    for level, rate in CASES:
        corruption = corrupt_pairs(data.table, rate, 0, level)
        captions = corruption.table.split("train").captions
        caption_of = torch.tensor([number_of[caption] for caption in captions], device=device)
        image_of = torch.from_numpy(clean.image_codes).to(device)
        for rounds in (1, 5):
            settings = replace(method.settings, detection_rounds=rounds)
            judge = type(method)(method.retriever, settings, len(clean)).to(device)
            judge.begin_epoch(
                TrainingView(
                    lambda: split.encode(method.retriever),
                    caption_of, image_of, 0, 0, image_labels=labels, read_tokens=lambda: tokens,
                )
            )  # fmt: skip
            assert judge.p_match is not None and judge.estimated_rate is not None
            measured = measure_detection(
                judge.p_match.cpu().numpy(),
                corruption.is_noisy[in_train],
                estimated_rate=float(judge.estimated_rate),
            ).as_dict()
            found.append({"level": level, "rate": rate, "rounds": rounds, **measured})
            print(json.dumps(found[-1]), flush=True)
    row = {"dataset": clean.name, "encoder": f"{config.model.vision}+{config.model.text}", "cases": found}
    record(options.out, row, config.device, started)


if __name__ == "__main__":
    main()
