"""Values arrive as they are, whatever their memory looks like."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pmpguard.device import to_device

CPU = torch.device("cpu")


def test_arrays_and_tensors_arrive_as_they_are() -> None:
    block = np.arange(12).reshape(3, 4)
    assert to_device(block.T, CPU).tolist() == block.T.tolist()
    assert to_device(np.array([True, False]), CPU).dtype == torch.bool
    there = torch.arange(3.0)
    assert to_device(there, CPU) is there


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_sending_does_not_wait_for_the_device() -> None:
    device = torch.device("cuda")
    busy = torch.rand(4096, 4096, device=device)
    values = np.random.default_rng(0).random((512, 512))
    to_device(values, device)
    torch.cuda.synchronize()
    for _ in range(50):
        busy = busy @ busy / 4096
    done = torch.cuda.Event()
    done.record()
    arrived = [to_device(values + number, device) for number in range(8)]
    assert not done.query()  # all eight are under way while the products still run
    for number, tensor in enumerate(arrived):
        assert np.array_equal(tensor.cpu().numpy(), values + number)
