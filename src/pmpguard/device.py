"""Which device computes, how precisely, and how values get there without waiting for it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from pmpguard.errors import ConfigError, TrainingError


def pick_device(name: str | torch.device) -> torch.device:
    """ "auto" takes the first CUDA device where there is one.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if name == "auto":
        name = f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device: {name!r} is unknown", fix="auto, cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"device: {name} is asked for, but there is no CUDA device", fix="auto or cpu")
    return device


def encoder_precision(device: torch.device, precision: str) -> torch.autocast:
    """The context encoders run in: bfloat16 on CUDA where asked for; other devices always use float32."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16" and device.type == "cuda")


def to_device(values: np.ndarray | Tensor, device: torch.device) -> Tensor:
    """A copy on the device (or the values themselves, where they are there already).

    CUDA copies ordinary memory only after all work given to the device before is done, so a loop that sends
    a batch at every step would never run ahead of it. Page-locked memory is copied in its turn.
    """
    tensor = torch.from_numpy(np.ascontiguousarray(values)) if isinstance(values, np.ndarray) else values
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def on_host(values: Tensor | None) -> np.ndarray | None:
    return None if values is None else values.cpu().numpy()


# What torch, NCCL and Gloo say when it is not the code that has failed.
_DEVICE_WORDS = ("CUDA error", "CUDA driver error", "cuDNN error", "CUBLAS_STATUS")
_PROCESS_WORDS = ("NCCL", "gloo", "Connection closed by peer", "Connection reset by peer", "Broken pipe")


@contextlib.contextmanager
def device_failures() -> Iterator[None]:
    """Say in one sentence that a device has failed, is full, or that another process of the run has died."""
    again = "run the same command again: it continues from the last checkpoint"
    try:
        yield
    except torch.OutOfMemoryError as error:
        fix = "lower batch_size and raise optimiser.grad_accumulation, or use precision bf16"
        raise TrainingError(f"the memory of the device is full ({_first_line(error)})", fix=fix) from error
    except RuntimeError as error:
        said = str(error)
        if any(word in said for word in _DEVICE_WORDS):
            raise TrainingError(f"the device has failed ({_first_line(error)})", fix=again) from error
        if any(word in said for word in _PROCESS_WORDS):
            raise TrainingError(f"another process has ended ({_first_line(error)})", fix=again) from error
        raise


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
