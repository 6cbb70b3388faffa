"""Images a second from tar shards into a training step, ours beside webdataset's own loader, in one run.

Shards are RS5M's stand-in with JPEGs of 256 pixels. Both decode by Pillow, resize to the model's size and
hand over batches of bytes; the step is that of `light` encoders trained whole: encode, InfoNCE,
differentiate, AdamW, in bfloat16 on a GPU. Of every step the time it waits for its batch is told apart. Ours
reads images in random order over all shards, by threads; webdataset reads shards from front to back, by
processes, with a buffer that is shuffled. Rounds alternate, and the first batches of each are not counted.

`--tiny` tries the benchmark out.

    python benchmarks/feed.py [--samples 12000] [--batch 256] [--batches 40] [--rounds 3]
"""

from __future__ import annotations

import argparse
import io
import itertools
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from PIL import Image
from torch import Tensor
from torch.nn.functional import cross_entropy

from pmpguard.data.formats import read_pairs
from pmpguard.data.images.sources import StreamedImages
from pmpguard.data.pairs import PairTable
from pmpguard.data.splits import with_captions
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever
from pmpguard.stable_random import StableRandom
from pmpguard.synthetic.rs5m_layout import write_rs5m
from pmpguard.training.tracking import current_commit, describe_hardware

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STORED = 256  # pixels of a stored image
AIM = 0.1  # share of the time that a step may wait
NOT_COUNTED = 4  # batches at the beginning
Batches = Iterator[tuple[Tensor, list[str]]]


def ours(table: PairTable, size: int, batch: int, seed: int) -> Batches:
    order = StableRandom("feed", seed).order(len(table))
    parts = [order[start : start + batch] for start in range(0, len(order) - batch + 1, batch)]
    captions = table.captions
    images = StreamedImages(table, size, DEVICE).batches([table.image_codes[part] for part in parts])
    for part, pixels in zip(parts, images, strict=True):
        yield pixels, [captions[row] for row in part]


def decoded(sample: dict[str, Any], size: int) -> tuple[np.ndarray, str]:
    with Image.open(io.BytesIO(sample["img_content"])) as image:
        square = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    return np.asarray(square).transpose(2, 0, 1), sample["caption"].decode()


def theirs(shards: list[str], size: int, batch: int, seed: int) -> Batches:
    dataset = (
        webdataset.WebDataset(shards, shardshuffle=len(shards), seed=seed, empty_check=False)
        .select(lambda sample: bool(sample["caption"]))
        .shuffle(1000)
        .map(partial(decoded, size=size))
        .batched(batch, partial=False)
    )
    workers = min(os.cpu_count() or 1, len(shards))
    cuda = DEVICE.type == "cuda"
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=workers, pin_memory=cuda)
    for pixels, captions in loader:
        yield torch.as_tensor(pixels).to(DEVICE, non_blocking=True), list(captions)


def training_step(size: int, captions: list[str]) -> Callable[[Tensor, list[str]], None]:
    model = Retriever.create(preset("light", image_size=size), captions).to(DEVICE).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step(pixels: Tensor, texts: list[str]) -> None:
        ids, mask = (part.to(DEVICE) for part in model.tokenize(texts))
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
            images, words = model.forward_images(pixels), model.forward_texts(ids, mask)
        scores = words.pooled.float() @ images.pooled.float().T / 0.05
        cross_entropy(scores, torch.arange(len(texts), device=DEVICE)).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()

    return step


def measured(
    batches: Batches, step: Callable[[Tensor, list[str]], None] | None, most: int
) -> dict[str, float]:
    waited, worked, images = [], [], []
    before = time.perf_counter()
    for pixels, captions in itertools.islice(batches, most):
        came = time.perf_counter()
        if step is not None:
            step(pixels, captions)
        waited.append(came - before)
        images.append(len(pixels))
        before = time.perf_counter()
        worked.append(before - came)
    seconds = sum(waited[NOT_COUNTED:]) + sum(worked[NOT_COUNTED:])
    found = {"images_a_second": round(sum(images[NOT_COUNTED:]) / seconds, 1)}
    waiting = {"share_waiting": round(sum(waited[NOT_COUNTED:]) / seconds, 4)}
    return found if step is None else found | waiting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=12_000)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--batches", type=int, default=40, help="of each feed in each round, at most")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="few images of 64 pixels in small batches")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "feed.json")
    options = parser.parse_args()
    size, stored = (64, 64) if options.tiny else (224, STORED)
    samples, batch = (300, 16) if options.tiny else (options.samples, options.batch)
    with tempfile.TemporaryDirectory() as name:
        os.environ["PMPGUARD_CACHE"] = str(Path(name) / "cache")
        write_rs5m(Path(name) / "rs5m", samples, size=stored)
        table = with_captions(read_pairs(Path(name) / "rs5m").split("train"))
        shards = sorted(map(str, (Path(name) / "rs5m" / "train").glob("*.tar")))
        next(ours(table, size, batch, 0))  # finds where members lie
        step = training_step(size, table.captions)
        runs: list[dict[str, Any]] = []
        for number in range(options.rounds):
            feeds = {"ours": ours, "webdataset": theirs}
            for name, feed in feeds.items():
                given = table if name == "ours" else shards
                for how, work in (("alone", None), ("training", step)):
                    found = measured(feed(given, size, batch, number), work, options.batches)  # type: ignore[operator]
                    runs.append({"round": number, "feed": name, "how": how, **found})
                    print(json.dumps(runs[-1]), flush=True)
    mine = [run["share_waiting"] for run in runs if run["feed"] == "ours" and run["how"] == "training"]
    result = {
        "aim": AIM, "met": max(mine) <= AIM, "device": DEVICE.type, "pixels": size, "batch": batch,
        "samples": samples, "shards": len(shards), "cores": os.cpu_count(), "runs": runs,
        "commit": current_commit(), "hardware": describe_hardware(DEVICE),
    }  # fmt: skip
    options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
