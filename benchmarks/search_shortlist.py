"""How much the first stage loses: what a pooled shortlist holds of the exhaustive answer.

    python benchmarks/search_shortlist.py --model RUN/model --dataset DATA [--split test] [--out FILE.json]

For every caption all images of the split are ranked by the model's fine score and by the cosine of pooled
vectors. Of the K nearest by cosine it counts how often they hold the caption's own image, the exhaustive
best image, and which share of the exhaustive ten best; and it gives the recalls of the two stages beside
the exhaustive ones. It also says how far half precision, on disk, moves the answers.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

import torch
from pair_table_scale import commit, hardware
from torch import Tensor

from pmpguard.data.formats import read_pairs
from pmpguard.data.images.sources import open_images
from pmpguard.evaluation.evaluate import Gallery, encode_gallery
from pmpguard.experiments.run import SCENES, ExperimentConfig, prepare_dataset
from pmpguard.models.retriever import Retriever
from pmpguard.training.config import TrainConfig

SIZES = (50, 100, 200)
BEST = 10


def shortlist_row(pooled: Tensor, fine: Tensor, own: Tensor, size: int) -> dict[str, float]:
    """Shares of captions (or of their ten best) that a shortlist of `size` holds; recalls of both stages."""
    size = min(size, pooled.shape[1])
    chosen = torch.zeros_like(pooled, dtype=torch.bool)
    chosen.scatter_(1, pooled.topk(size, dim=1).indices, True)  # (T, I)
    best = fine.topk(min(BEST, fine.shape[1]), dim=1).indices  # (T, 10)
    staged = fine.masked_fill(~chosen, -torch.inf)
    row = {
        "holds_own_image": percent(chosen.gather(1, own[:, None])[:, 0]),
        "holds_exhaustive_best": percent(chosen.gather(1, best[:, :1])[:, 0]),
        "share_of_exhaustive_ten_best": percent(chosen.gather(1, best)),
    }
    return {**row, **{f"t2i_r{k}": percent(rank_of(staged, own) < k) for k in (1, 5, 10)}}


def rank_of(scores: Tensor, own: Tensor) -> Tensor:
    """(T,) how many images score higher than the caption's own; past the end when it is not in the list."""
    score = scores.gather(1, own[:, None])
    ranks = (scores > score).sum(1)
    return torch.where(torch.isneginf(score[:, 0]), scores.shape[1], ranks)


def percent(found: Tensor) -> float:
    return round(100 * found.double().mean().item(), 2)


def half_precision(
    retriever: Retriever, texts: Any, images: Any, pooled: Tensor, fine: Tensor
) -> dict[str, float]:
    """What storing vectors in half precision changes: top ten lists and the largest move of a score."""
    halved = images.to(dtype=torch.float16).to(dtype=torch.float32)
    again = retriever.score(texts, type(images)(images.pooled, halved.fragments, images.mask))
    near = texts.pooled @ halved.pooled.T

    def same_top(first: Tensor, second: Tensor, k: int) -> float:
        k = min(k, first.shape[1])
        return percent((first.topk(k, 1).indices == second.topk(k, 1).indices).all(1))

    return {
        "fragments_largest_move_of_a_score": (again - fine).abs().max().item(),
        "fragments_same_ten_best_in_order": same_top(fine, again, BEST),
        "pooled_same_hundred_best_in_order": same_top(pooled, near, 100),
        "pooled_largest_move_of_a_cosine": (near - pooled).abs().max().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dataset", default=SCENES, help="a dataset, or the synthetic scenes")
    parser.add_argument("--images", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--scenes", type=int, default=2000, help="of the synthetic scenes")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "search_shortlist.json"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    retriever = Retriever.load(options.model)
    if options.dataset == SCENES:
        settings = ExperimentConfig(
            scenes=options.scenes, train=TrainConfig(model=retriever.config, device="cpu")
        )
        gallery = prepare_dataset(settings, (options.split,)).gallery(options.split)
    else:
        table = read_pairs(Path(options.dataset), images=options.images).split(options.split)
        gallery = Gallery(table, open_images(table, retriever.config.input_size, torch.device("cpu")))
    texts, images = encode_gallery(retriever, gallery, 64)
    pooled = texts.pooled @ images.pooled.T  # (T, I)
    fine = retriever.score(texts, images)  # (T, I)
    own = torch.from_numpy(gallery.table.image_codes)
    row = {
        "dataset": gallery.table.name,
        "split": options.split,
        "images": len(images),
        "captions": len(texts),
        "ranking": retriever.config.ranking,
        "vision": retriever.config.vision,
        "text": retriever.config.text,
        "shortlists": {str(size): shortlist_row(pooled, fine, own, size) for size in SIZES},
        "exhaustive": {f"t2i_r{k}": percent(rank_of(fine, own) < k) for k in (1, 5, 10)},
        "pooled_alone": {f"t2i_r{k}": percent(rank_of(pooled, own) < k) for k in (1, 5, 10)},
        "half_precision": half_precision(retriever, texts, images, pooled, fine),
        "threads": options.threads,
        "torch": torch.__version__,
        "load_at_end": list(os.getloadavg()),
        "commit": commit(),
        "hardware": hardware(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(row, indent=2) + "\n")
    print(json.dumps(row, indent=2))


if __name__ == "__main__":
    main()
