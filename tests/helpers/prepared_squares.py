"""The coloured squares as a prepared dataset, for experiments and grids."""

from __future__ import annotations

import numpy as np
import torch
from helpers.small_runs import coloured_squares

from pmpguard.data.images.sources import ImagesInMemory
from pmpguard.experiments.run import PreparedDataset


def prepared_squares() -> PreparedDataset:
    table, images = coloured_squares(copies=3)
    pixels = {}
    for split in ("train", "val", "test"):
        rows = np.flatnonzero(np.array(table.column("split")) == split)
        codes = table.image_codes[rows][table.split(split).first_rows]
        pixels[split] = ImagesInMemory(images[torch.from_numpy(codes)], torch.device("cpu"))
    return PreparedDataset(table, pixels)
