from __future__ import annotations

import pytest
import torch
from helpers.kernel_marks import DEVICE
from torch import Tensor

from pmpguard.kernels.dispatch import kernels_run_on, wide_product


def drawn(*shape: int, seed: int, dtype: torch.dtype) -> Tensor:
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (numbers / shape[-1] ** 0.5).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_products_are_not_rounded_to_half_precision(dtype: torch.dtype) -> None:
    left, right = drawn(40, 64, seed=1, dtype=dtype), drawn(24, 64, seed=2, dtype=dtype)
    several = drawn(3, 20, 64, seed=3, dtype=dtype)
    for one, other in ((left, right.T), (right, left.T), (several, several.transpose(1, 2))):
        found = wide_product(one, other)
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), one.double() @ other.double(), atol=1e-6, rtol=0)


def test_one_variable_switches_the_kernels_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMPGUARD_KERNELS", "off")
    assert not kernels_run_on(torch.device("cuda"))
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert not kernels_run_on(torch.device("cpu"))
