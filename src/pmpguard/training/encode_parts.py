"""The pooled features of a split by several workers: each encodes some batches and leaves them in a file.

Batches are those of one process, and captions are padded as there, so every number is the same.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from pmpguard.data.arrays import save_array
from pmpguard.data.images.sources import StreamedImages
from pmpguard.data.row_files import open_rows, write_rows
from pmpguard.device import encoder_precision
from pmpguard.engine.parts import Engine, Part, ranges, run_parts
from pmpguard.files import atomic_output
from pmpguard.models.checkpoints import weights_fingerprint
from pmpguard.models.retriever import Retriever
from pmpguard.training.encode import Split
from pmpguard.training.feature_cache import image_features, text_features
from pmpguard.training.packing import Words

BATCHES_A_PART = 8
Kind = Literal["images", "captions"]


def pooled_features_in_parts(
    split: Split, retriever: Retriever, engine: Engine, *, title: str = ""
) -> tuple[Tensor, Tensor]:
    """What `split.pooled_features` gives, (C, c) and (I, e), by the engine's workers.

    Images are read from the table, not from the split's own source.
    """
    device = retriever.device
    weights = weights_fingerprint(retriever)[:16]
    with engine.files(f"features-{split.table.fingerprint[:16]}-{weights}-{split.batch}") as folder:
        retriever.save(folder / "model")
        write_rows(split.table.take(split.table.first_rows), folder / "images.arrow")
        for name, values in (("ids", split.tokens.ids), ("mask", split.tokens.mask)):
            with atomic_output(folder / f"{name}.npy") as stream:
                save_array(stream, values.cpu().numpy())
        settings = {"folder": str(folder), "batch": split.batch, "precision": split.precision}
        counts: dict[Kind, int] = {"images": len(split.images), "captions": len(split.tokens)}
        parts: dict[Kind, list[Part]] = {
            kind: [_part(folder, kind, *span, {**settings, "device": str(device)}) for span in spans]
            for kind, count in counts.items()
            for spans in [ranges(count, BATCHES_A_PART * split.batch)]
        }
        everything = [*parts["images"], *parts["captions"]]
        on_gpu = device.type == "cuda"
        run_parts(engine, f"{__name__}:encode_part", everything, title=title, unit=" items", gpu=on_gpu)
        captions, images = (
            np.concatenate([np.load(part.output) for part in parts[kind] if part.output is not None])
            for kind in ("captions", "images")
        )
    return torch.from_numpy(captions).to(device), torch.from_numpy(images).to(device)


def _part(folder: Path, kind: Kind, start: int, stop: int, settings: dict[str, Any]) -> Part:
    out = folder / f"{kind}-{start:09d}.npy"
    return Part({**settings, "kind": kind, "start": start, "stop": stop, "out": str(out)}, out, stop - start)


@torch.no_grad()
def encode_part(
    folder: str, kind: Kind, start: int, stop: int, out: str, batch: int, precision: str, device: str
) -> None:
    """Encode some images or captions from the files in `folder`, batch by batch."""
    files = Path(folder)
    retriever = _model(files / "model", device)
    spans = ranges(stop - start, batch)
    with encoder_precision(retriever.device, precision):
        if kind == "images":
            rows = open_rows(files / "images.arrow", start, stop)
            size, framing = retriever.config.input_size, retriever.framing
            source = StreamedImages(rows, size, retriever.device, framing=framing)
            read = source.batches([np.arange(*span) for span in spans])
            found = [image_features(retriever, pixels).pooled.float().cpu() for pixels in read]
        else:
            ids, mask = (
                np.load(files / f"{name}.npy", mmap_mode="r")[start:stop] for name in ("ids", "mask")
            )
            tokens = [
                Words(
                    torch.from_numpy(ids[slice(*span)].astype(np.int64)).to(device),
                    torch.from_numpy(mask[slice(*span)].copy()).to(device),
                )
                for span in spans
            ]
            found = [text_features(retriever, words).pooled.float().cpu() for words in tokens]
    with atomic_output(Path(out)) as stream:
        save_array(stream, torch.cat(found).numpy())


@lru_cache(maxsize=1)
def _model(folder: Path, device: str) -> Retriever:
    return Retriever.load(folder).to(device).eval()
