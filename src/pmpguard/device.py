"""From the host to the device without waiting for it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def to_device(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """A copy on the device (or the values themselves, where they are there already).

    CUDA copies ordinary memory only after all work given to the device before is done, so a loop that sends
    a batch at every step would never run ahead of it. Page-locked memory is copied in its turn.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(values)) if isinstance(values, np.ndarray) else values
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
