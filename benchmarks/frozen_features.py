"""Features of frozen encoders, read once for a whole dataset, so that every draw of noise costs seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pmpguard.audit.crossfit import CrossfitConfig, training_settings
from pmpguard.audit.judging import distinct_captions
from pmpguard.data.images.sources import StreamedImages
from pmpguard.data.pairs import PairTable
from pmpguard.device import pick_device
from pmpguard.models.retriever import Retriever
from pmpguard.training.encode import Split


@dataclass(frozen=True)
class FrozenFeatures:
    """What a quick audit reads, by caption and by name of image."""

    captions: Tensor  # (C, c)
    images: Tensor  # (I, e)
    caption_row: dict[str, int]
    image_row: dict[str, int]

    def of(self, table: PairTable) -> tuple[Tensor, Tensor]:
        """Those of a table's distinct captions and images, whatever captions its rows were given."""
        names = table.column("image")
        images = [self.image_row[names[row]] for row in table.first_rows]
        return self.captions[[self.caption_row[text] for text in distinct_captions(table)]], self.images[
            images
        ]


@torch.no_grad()
def frozen_features(table: PairTable, config: CrossfitConfig, kept: Path | None = None) -> FrozenFeatures:
    """Encode a table as a quick audit does, or read the file `kept` where one is of this table."""
    settings = training_settings(table, config)
    mark = f"{table.fingerprint} {settings.model.vision} {settings.model.text} {settings.model.input_size}"
    names, found = table.column("image"), None
    if kept is not None and kept.is_file():
        found = load_file(kept)
        if bytes(found["mark"].tolist()).decode() != mark:
            raise SystemExit(f"{kept} holds features of another table or of other encoders; remove it")
    if found is None:
        device = pick_device(settings.device)
        retriever = Retriever.create(settings.model, table.captions).to(device).eval()
        pixels = StreamedImages(table, settings.model.input_size, device, framing=settings.model.framing)
        whole = Split.open(table, pixels, retriever, batch=settings.batch_size, precision=settings.precision)
        captions, images = whole.pooled_features(retriever)
        marked = torch.tensor(list(mark.encode()), dtype=torch.uint8)
        found = {"captions": captions.cpu(), "images": images.cpu(), "mark": marked}
        if kept is not None:
            save_file(found, kept)
    return FrozenFeatures(
        found["captions"],
        found["images"],
        {text: row for row, text in enumerate(distinct_captions(table))},
        {names[first]: row for row, first in enumerate(table.first_rows)},
    )
