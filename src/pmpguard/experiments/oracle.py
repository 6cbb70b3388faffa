"""What the oracle trains on: the pairs that are truly clean, a yardstick for detection."""

from __future__ import annotations

import numpy as np
import torch

from pmpguard.data.images.sources import ImagesInMemory, ImageSource, StreamedImages
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.methods.registry import find_method


def oracle_data(
    method: str, table: PairTable, images: ImageSource, is_noisy: np.ndarray, device: torch.device
) -> tuple[PairTable, ImageSource, np.ndarray | None]:
    """What the oracle trains on, and which of its pairs are right if the method can be told."""
    if is_noisy.all():
        raise DataError("oracle: no clean pair is left to train on", fix="lower the mismatch rate")
    if find_method(method).weights_pairs:
        return table, images, ~is_noisy
    return *clean_pairs(table, images, is_noisy, device), None


def clean_pairs(
    table: PairTable, images: ImageSource, is_noisy: np.ndarray, device: torch.device
) -> tuple[PairTable, ImageSource]:
    """The truly clean pairs and their images, for the oracle alone."""
    kept = table.filter(~is_noisy)
    if isinstance(images, StreamedImages):
        return kept, StreamedImages(kept, images.size, device, images.ahead)
    if not isinstance(images, ImagesInMemory):
        raise ConfigError(f"oracle: cannot choose among {type(images).__name__}")
    codes = table.image_codes[~is_noisy][kept.first_rows]
    return kept, ImagesInMemory(images.pixels[torch.from_numpy(codes).to(device)], device)
