"""The device that is picked, its precision, and values that arrive as they are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pmpguard.device import device_failures, encoder_precision, pick_device, to_device
from pmpguard.errors import ConfigError, TrainingError

CPU = torch.device("cpu")


def test_a_device_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto") == pick_device("cpu") == CPU
    with pytest.raises(ConfigError, match="there is no CUDA device"):
        pick_device("cuda")
    with pytest.raises(ConfigError, match="'gpu' is unknown"):
        pick_device("gpu")


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried ..."), "the memory of the device is full"),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nmore"), "the device has failed"),
        (RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer"), "another process has"),
        (RuntimeError("NCCL communicator was aborted on rank 0"), "another process has ended"),
    ],
)
def test_failures_of_devices_and_processes_are_said_in_a_sentence(raised: RuntimeError, said: str) -> None:
    with pytest.raises(TrainingError, match=said) as caught, device_failures():
        raise raised
    assert caught.value.fix and "\n" not in caught.value.message
    with pytest.raises(RuntimeError, match="shapes differ"), device_failures():
        raise RuntimeError("shapes differ")


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_only_cuda_computes_in_bfloat16(precision: str) -> None:
    with encoder_precision(CPU, precision):
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    assert product.dtype == torch.float32


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
