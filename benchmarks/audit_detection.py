"""How well are wrong captions found, against what is usual?

A known share of the captions is made wrong; every system sees the same frozen encoders, pairs, folds and
number of epochs, and judges pairs of images it was not trained on (but for loss-GMM, which by its nature
reads the losses of the pairs it trains on; its held-out variant is reported, too):

* ours: robust judges, score + awareness + agreement + neighbours, mixture with known mismatched half;
* cosine: plain InfoNCE, raw cosine of the pair, cut at a percentile (SkyScript, LAION);
* loss_gmm: two Gaussians on the InfoNCE losses after a warm-up (DivideMix, NCR);
* self_confidence: softmax probability of the labelled partner among all of the fold (cleanlab's score).

Systems that estimate no mismatch rate get the true one for "precision at the estimated rate";
`precision_at_true_rate` gives it to all of them.

    python benchmarks/audit_detection.py [--dataset DIR --folder IMAGES] [--images 2000] [--device cuda]

Rates that the result file holds already, of the same settings, are not measured again. Needs scikit-learn for
the Gaussians.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from audit_data import RESULTS, Dataset, judged_parts, load_dataset, record, usual_dataset
from sklearn.mixture import GaussianMixture

from pmpguard.audit.crossfit import CrossfitConfig, of_images, training_settings
from pmpguard.audit.judging import JudgedPart, distinct_captions, judge_together
from pmpguard.data.images.sources import ImageSubset
from pmpguard.data.pairs import PairTable
from pmpguard.data.splits import keep_one_caption
from pmpguard.device import pick_device
from pmpguard.evaluation.detection import measure_detection, precision_at
from pmpguard.evaluation.evaluate import Gallery
from pmpguard.models.retriever import Retriever
from pmpguard.noise.inject import corrupt_pairs
from pmpguard.training.config import TrainConfig
from pmpguard.training.feature_cache import cache_images, can_cache, encode_images
from pmpguard.training.loader import ImageInputs
from pmpguard.training.loop import TrainingData, train

WARM_UP = 5  # epochs before losses are read, as in NCR
LOSS_BATCH = 160


def pair_losses(captions: torch.Tensor, images: torch.Tensor, temperature: float, seed: int) -> np.ndarray:
    """(N,) InfoNCE losses of aligned pairs, both ways, in random batches as during training."""
    losses = np.zeros(len(captions))
    order = np.random.default_rng(seed).permutation(len(captions))
    for rows in np.array_split(order, max(1, len(order) // LOSS_BATCH)):
        logits = captions[rows] @ images[rows].T / temperature
        both = -(logits.log_softmax(1).diagonal() + logits.log_softmax(0).diagonal()) / 2
        losses[rows] = both.double().cpu().numpy()
    return losses


def clean_probability(losses: np.ndarray) -> np.ndarray:
    """(N,) probability of the component with the smaller mean, losses scaled to [0, 1]."""
    scaled = ((losses - losses.min()) / max(np.ptp(losses), 1e-9)).reshape(-1, 1)
    mixture = GaussianMixture(2, max_iter=100, tol=1e-3, reg_covar=5e-4, random_state=0).fit(scaled)
    found: np.ndarray = mixture.predict_proba(scaled)[:, mixture.means_.argmin()]
    return found


def in_sample_losses(data: Dataset, table: PairTable, config: CrossfitConfig) -> np.ndarray:
    """(N,) losses of pairs under a plain InfoNCE model that was trained on all of them for a few epochs."""
    settings = replace(
        training_settings(table, config), epochs=WARM_UP, evaluate_every=WARM_UP, checkpoint_every=-1
    )
    few = np.arange(min(100, len(data.images)))
    gallery = Gallery(of_images(table, few), ImageSubset(data.images, few))
    with tempfile.TemporaryDirectory() as folder:
        training = TrainingData(table, data.images, gallery, table.fingerprint, "loss")
        model = train(settings, training, Path(folder)).retriever.eval()
    pixels = seen_by(model, data, settings)
    cuts = np.array_split(np.arange(len(pixels)), max(1, len(pixels) // 256))
    with torch.no_grad():
        images = torch.cat([encode_images(model, some).pooled for some in pixels.batches(cuts)])  # (I, d)
    captions = model.encode_texts(distinct_captions(table)).pooled  # (C, d)
    own, labelled = captions[table.caption_codes], images[table.image_codes]  # (N, d)
    return pair_losses(own, labelled, model.temperature.item(), config.seed)


def seen_by(model: Retriever, data: Dataset, settings: TrainConfig) -> ImageInputs:
    """Tokens kept of the images where the model is frozen, else the images."""
    if not can_cache(model, settings.augmentation):
        return data.images
    return cache_images(model, data.images, settings.batch_size, pick_device(settings.device))


def baseline_scores(parts: list[tuple[Any, JudgedPart]], pairs: int, seed: int) -> dict[str, np.ndarray]:
    """Cosine, self-confidence and loss of each pair under the plain model of its fold."""
    cosine, confidence, losses = np.zeros(pairs), np.zeros(pairs), np.zeros(pairs)
    for judge, part in parts:
        temperature = judge.retriever.temperature.item()
        own, labelled = part.captions[part.text_of], part.images[part.image_of]  # (n, d)
        cosine[part.rows] = (own * labelled).sum(1).double().cpu().numpy()
        losses[part.rows] = pair_losses(own, labelled, temperature, seed)
        logits = part.captions @ part.images.T / temperature  # (C, I)
        by_caption, by_image = logits.log_softmax(1), logits.log_softmax(0)
        sure = (by_caption + by_image)[part.text_of, part.image_of] / 2
        confidence[part.rows] = sure.double().cpu().numpy()
    return {"cosine": cosine, "self_confidence": confidence, "loss": losses}


def at_true_rate(evidence: np.ndarray, truth: np.ndarray) -> float:
    """Precision when as many pairs are flagged as are wrong."""
    return precision_at(-evidence, truth, float(truth.mean())) or 0.0


def measure_rate(data: Dataset, rate: float, config: CrossfitConfig) -> dict[str, dict[str, float]]:
    corruption = corrupt_pairs(data.table, rate, config.seed)
    table, truth = corruption.table, corruption.is_noisy
    results: dict[str, dict[str, float]] = {}
    ours = [part for _, part in judged_parts(data, table, config, config.seed)]
    order = np.concatenate([part.rows for part in ours])
    verdicts = judge_together(ours, seed=config.seed)
    results["ours"] = measure_detection(
        verdicts.p_match, truth[order], estimated_rate=verdicts.noise_rate, evidence=verdicts.combined
    ).as_dict()
    results["ours"]["precision_at_true_rate"] = at_true_rate(verdicts.combined, truth[order])
    for column, name in enumerate(verdicts.names):
        alone = measure_detection(
            verdicts.p_match, truth[order], estimated_rate=rate, evidence=verdicts.evidence[:, column]
        )
        results[f"ours, {name} alone"] = {
            "auroc": alone.auroc or 0.0,
            "average_precision": alone.average_precision or 0.0,
        }
    plain = replace(config, method="infonce")
    scores = baseline_scores(judged_parts(data, table, plain, config.seed), len(table), config.seed)

    def measured(values: np.ndarray, estimated: float) -> dict[str, float]:
        ranks = values.argsort().argsort() / len(values)  # stands in for a probability
        found = measure_detection(ranks, truth, estimated_rate=estimated, evidence=values).as_dict()
        kept = {name: value for name, value in found.items() if name not in ("f1", "flagged_rate")}
        return {**kept, "precision_at_true_rate": at_true_rate(values, truth)}

    results["cosine"] = measured(scores["cosine"], rate)
    results["self_confidence"] = measured(scores["self_confidence"], rate)
    for name, losses in (
        ("loss_gmm", in_sample_losses(data, table, plain)),
        ("loss_gmm_held_out", scores["loss"]),
    ):
        clean = clean_probability(losses)
        # equal probabilities are ranked by their losses
        results[name] = measured(clean - 1e-6 * losses, float((clean < 0.5).mean()))
    return results


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default=usual_dataset())
    parser.add_argument("--folder", type=Path, help="of the images, where they are not beside the dataset")
    parser.add_argument("--images", type=int, default=1000, help="images used; 0 for all")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--one-caption", action="store_true")
    parser.add_argument("--rates", type=float, nargs="+", default=[0.2, 0.4, 0.6, 0.8])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--encoders", default="auto")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data = load_dataset(
        options.dataset, options.images, options.image_size, options.seed, options.folder, options.device
    )
    if options.one_caption:
        data = replace(data, table=keep_one_caption(data.table, seed=options.seed))
    config = CrossfitConfig(
        encoders=options.encoders, image_size=options.image_size, epochs=options.epochs,
        seed=options.seed, device=options.device,
    )  # fmt: skip
    captions = "_one_caption" if options.one_caption else ""
    out = options.out or RESULTS / f"audit_detection_{data.name}{captions}.json"
    settings = {
        "dataset": data.name, "images": len(data.images), "pairs": len(data.table),
        "image_size": options.image_size, "encoders": options.encoders, "epochs": options.epochs,
        "seed": options.seed,
    }  # fmt: skip
    rows: dict[str, Any] = {}
    if out.is_file():
        before = json.loads(out.read_text())
        if all(before.get(name) == value for name, value in settings.items()):
            rows = before["rates"]
    for rate in options.rates:
        if str(rate) in rows:
            continue
        rows[str(rate)] = measure_rate(data, rate, config)
        record(out, {**settings, "rates": rows}, options.device, started)


if __name__ == "__main__":
    main()
