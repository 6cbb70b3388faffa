"""Where tests of kernels run: on CUDA, or anywhere with Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pmpguard.kernels.dispatch import kernels_run_on

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_kernels = pytest.mark.skipif(
    not kernels_run_on(DEVICE), reason="needs Triton, and CUDA or TRITON_INTERPRET=1"
)
needs_cuda = pytest.mark.skipif(
    DEVICE.type != "cuda" or not kernels_run_on(DEVICE), reason="needs CUDA and Triton"
)


def captured(step: Callable[[], list[Tensor]]) -> tuple[torch.cuda.CUDAGraph, list[Tensor]]:
    """A step as a CUDA graph, after one outside of it that warms up, and the tensors it writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results
