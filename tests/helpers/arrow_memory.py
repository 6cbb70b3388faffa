"""What Arrow allocates."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import pyarrow as pa


@contextlib.contextmanager
def counted_memory() -> Iterator[pa.MemoryPool]:
    """A pool that counts what a block allocates; it is never freed, for threads of Arrow may use it later."""
    usual, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.default_memory_pool())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(pool))
    pa.set_memory_pool(pool)
    try:
        yield pool
    finally:
        pa.set_memory_pool(usual)
