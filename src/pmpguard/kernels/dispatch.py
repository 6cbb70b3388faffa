"""Where the Triton kernels run, and the products torch makes for them. Elsewhere plain torch does all."""

from __future__ import annotations

import importlib.util
import os

import torch
from torch import Tensor


def kernels_run_on(device: torch.device) -> bool:
    """CUDA with Triton, or any device when Triton interprets its kernels; PMPGUARD_KERNELS=off says no."""
    if os.environ.get("PMPGUARD_KERNELS") == "off" or importlib.util.find_spec("triton") is None:
        return False
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"


def wide_product(left: Tensor, right: Tensor) -> Tensor:
    """Matrix product(s) in float32, also of half precision: rounding would add as much error again."""
    if left.is_cuda and left.dtype != torch.float32 and hasattr(torch.ops.aten.mm, "dtype"):  # PyTorch 2.8
        product = torch.mm if left.ndim == 2 else torch.bmm
        return product(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()
