"""Is a model trained on the cleaned dataset better than one trained on the dirty one?

A share of the training captions is made wrong, the dirty training split is audited as a user would (no
labels, judges trained on it), cleaned by every policy, and the same plain InfoNCE model is trained on each
version and measured on the clean test split. Training on the true captions is the ceiling.

    python benchmarks/audit_cleaned_training.py [--dataset DIR --folder IMAGES] [--rates 0.4] [--device cuda]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from audit_data import RESULTS, Dataset, judged_parts, load_dataset, record, usual_dataset

from pmpguard.audit.cleaning import Policy, clean_pairs
from pmpguard.audit.crossfit import CrossfitConfig, training_settings
from pmpguard.audit.judging import judge_parts
from pmpguard.data.images.sources import ImageSource, ImageSubset
from pmpguard.data.pairs import PairTable
from pmpguard.device import pick_device
from pmpguard.evaluation.evaluate import Gallery, evaluate_retriever
from pmpguard.noise.inject import corrupt_pairs
from pmpguard.training.loop import TrainingData, train


def chosen(data: Dataset, codes: np.ndarray) -> tuple[PairTable, ImageSubset]:
    """The pairs of some images with their images, in the order of the part's own codes."""
    rows = np.flatnonzero(np.isin(data.table.image_codes, codes))
    part = data.table.take(rows)
    return part, ImageSubset(data.images, data.table.image_codes[rows][part.first_rows])


def test_mr(
    train_table: PairTable, images: ImageSource, validation: Gallery, test: Gallery, config: CrossfitConfig
) -> float:
    """mR on the test split of a plain InfoNCE model trained on the given pairs."""
    device = pick_device(config.device)
    settings = replace(training_settings(train_table, replace(config, method="infonce")), checkpoint_every=-1)
    with tempfile.TemporaryDirectory() as folder:
        data = TrainingData(train_table, images, validation, train_table.fingerprint)
        model = train(settings, data, Path(folder)).retriever
    return evaluate_retriever(model, test, split="test", bootstrap=0, device=device).recall.mr


def measure(data: Dataset, rate: float, config: CrossfitConfig) -> dict[str, float]:
    order = np.random.default_rng(config.seed).permutation(len(data.images))
    held = max(len(order) // 10, 2)
    test_codes, validation_codes, train_codes = np.split(order, [held, 2 * held])
    true_table, pixels = chosen(data, train_codes)
    validation, test = (Gallery(*chosen(data, codes)) for codes in (validation_codes, test_codes))
    dirty = corrupt_pairs(true_table, rate, config.seed).table
    parts = [part for _, part in judged_parts(Dataset(dirty, pixels, data.name), dirty, config, config.seed)]
    rows, verdicts = judge_parts(dirty, parts, proposals=3, heat_maps=0, bootstrap=0, seed=config.seed)
    versions = {"dirty": dirty, "true": true_table}
    policies: tuple[Policy, ...] = ("drop", "rematch")
    for policy in policies:
        versions[f"cleaned, {policy}"] = clean_pairs(dirty, rows, policy).table
    found = {"estimated_rate": verdicts.noise_rate}
    code_of = {image: code for code, image in enumerate(dict.fromkeys(dirty.column("image_id")))}
    for name, table in versions.items():
        images = table.column("image_id")
        codes = np.array([code_of[images[row]] for row in table.first_rows])
        found[name] = test_mr(table, ImageSubset(pixels, codes), validation, test, config)
        print(f"{rate:.0%} {name}: mR {found[name]:.2f} ({len(table):,} pairs)", flush=True)
    return found


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default=usual_dataset())
    parser.add_argument("--folder", type=Path, help="of the images, where they are not beside the dataset")
    parser.add_argument("--images", type=int, default=1000, help="images used; 0 for all")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.4])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--encoders", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data = load_dataset(
        options.dataset, options.images, options.image_size, options.seed, options.folder, options.device
    )
    config = CrossfitConfig(
        encoders=options.encoders, image_size=options.image_size, epochs=options.epochs,
        seed=options.seed, device=options.device,
    )  # fmt: skip
    rows = {str(rate): measure(data, rate, config) for rate in options.rates}
    out = options.out or RESULTS / f"audit_cleaned_training_{data.name}.json"
    described = {
        "dataset": data.name,
        "images": len(data.images),
        "pairs": len(data.table),
        "seed": options.seed,
    }
    record(out, {**described, "test_mr": rows}, options.device, started)


if __name__ == "__main__":
    main()
