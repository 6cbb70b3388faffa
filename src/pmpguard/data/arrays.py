"""Arrays in files: nothing is unpickled, damage is an error that names the file, a full disk is noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from pmpguard.errors import DataError


class _Written:
    """A stream's `write` and no more, so that NumPy does not see a file behind it."""

    def __init__(self, stream: BinaryIO) -> None:
        self.write = stream.write


def save_array(stream: BinaryIO, array: npt.NDArray[Any]) -> None:
    """Write an `.npy` file through its stream.

    `np.save` finds the file behind a stream and writes there by itself, and of a full disk it says nothing.
    """
    np.save(_Written(stream), array, allow_pickle=False)


def load_array(path: Path, fix: str, *, mapped: bool = False) -> npt.NDArray[Any]:
    """A `.npy` file, read or mapped; `fix` is what to do about one that is none."""
    try:
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
    except FileNotFoundError as error:
        raise DataError(f"{path}: file not found", fix=fix) from error
    except Exception as error:  # numpy parses the header as Python, which fails in many ways
        raise DataError(f"{path}: not a plain .npy array ({error!s:.200})", fix=fix) from error
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path}: not one plain .npy array", fix=fix)
    return np.asarray(array)
