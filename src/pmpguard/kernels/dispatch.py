"""Where the Triton kernels run; everywhere else plain torch does their work."""

from __future__ import annotations

import importlib.util
import os

import torch


def kernels_run_on(device: torch.device) -> bool:
    """CUDA with Triton, or any device when Triton interprets its kernels; PMPGUARD_KERNELS=off says no."""
    if os.environ.get("PMPGUARD_KERNELS") == "off" or importlib.util.find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"
