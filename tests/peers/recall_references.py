"""Recalls that CLIP_benchmark's and open_clip's own evaluation give for random unit vectors.

    python tests/peers/recall_references.py OUT.npz

It needs clip_benchmark and open_clip_torch, whose wheel brings open_clip_train. OUT holds the vectors of
images and texts, which image each text belongs to, and the recalls: CLIP_benchmark's with all texts,
open_clip's, which knows one text an image, with the first text of each.
"""

import sys

import numpy as np
import torch
from clip_benchmark.metrics.zeroshot_retrieval import evaluate
from open_clip_train.train import get_clip_metrics

KS = [1, 5, 10]


class Vectors:
    """A model whose inputs are its vectors already."""

    def encode_image(self, images: torch.Tensor) -> torch.Tensor:
        return images

    def encode_text(self, texts: torch.Tensor) -> torch.Tensor:
        return texts


def main() -> None:
    draw = np.random.default_rng(0)
    images = draw.normal(size=(90, 12))
    counts = draw.integers(1, 6, len(images))
    image_of = np.repeat(np.arange(len(images)), counts)
    texts = images[image_of] + draw.normal(size=(len(image_of), 12)) * 1.4
    images, texts = (
        (each / np.linalg.norm(each, axis=1, keepdims=True)).astype(np.float32) for each in (images, texts)
    )
    seen, read = torch.from_numpy(images), torch.from_numpy(texts)
    rows = [np.flatnonzero(image_of == image).tolist() for image in range(len(images))]
    batches = [(seen[at : at + 16], rows[at : at + 16]) for at in range(0, len(images), 16)]
    found = evaluate(Vectors(), batches, lambda each: read[each], "cpu", amp=False, recall_k_list=KS)
    benchmark = [100 * found[f"{side}_retrieval_recall@{k}"] for side in ("text", "image") for k in KS]
    first = read[[row[0] for row in rows]]
    metrics = get_clip_metrics(seen, first, 100.0)
    sides = ("image_to_text", "text_to_image")
    trained = [100 * float(metrics[f"{side}_R@{k}"]) for side in sides for k in KS]
    np.savez(
        sys.argv[1],
        images=images,
        texts=texts,
        image_of=image_of,
        clip_benchmark=benchmark,
        open_clip=trained,
    )


if __name__ == "__main__":
    main()
