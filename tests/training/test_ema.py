"""Averaged weights against a plain loop, and the swap that evaluation relies on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pmpguard.training.ema import AveragedWeights


def module() -> nn.Sequential:
    torch.manual_seed(0)
    built = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    built[1].bias.requires_grad_(False)
    return built


def move(built: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    with torch.no_grad():
        for value in built.parameters():
            value.add_(torch.randn(value.shape, generator=generator))


@pytest.mark.parametrize("decay", [0.5, 0.99])
def test_it_is_the_average_a_loop_computes(decay: float) -> None:
    built = module()
    averaged = AveragedWeights(built, decay)
    expected = {name: value.detach().double() for name, value in built.named_parameters()}
    for step in range(30):
        move(built, step)
        averaged.update(step)
        for name, value in built.named_parameters():
            share = min(decay, (1 + step) / (10 + step))
            expected[name] = share * expected[name] + (1 - share) * value.detach().double()
    assert set(averaged.tensors) == {"0.weight", "0.bias", "1.weight"}  # what is not trained is not averaged
    for name, value in averaged.tensors.items():
        torch.testing.assert_close(value.double(), expected[name], rtol=1e-5, atol=1e-6)


def test_within_the_block_the_module_computes_with_the_average_and_afterwards_exactly_as_before() -> None:
    built = module()
    averaged = AveragedWeights(built, 0.9)
    for step in range(5):
        move(built, step)
        averaged.update(step)
    live = {name: value.clone() for name, value in built.state_dict().items()}
    kept = {name: value.clone() for name, value in averaged.tensors.items()}
    with pytest.raises(RuntimeError, match="inside"), averaged.in_place(built):
        for name, value in kept.items():
            assert torch.equal(built.state_dict()[name], value)
        raise RuntimeError("inside")
    assert all(torch.equal(value, live[name]) for name, value in built.state_dict().items())
    assert all(torch.equal(value, kept[name]) for name, value in averaged.tensors.items())


def test_decay_zero_is_the_module_itself() -> None:
    built = module()
    averaged = AveragedWeights(built, 0.0)
    move(built, 0)
    averaged.update(0)
    before = built[0].weight.clone()
    with averaged.in_place(built):
        assert torch.equal(built[0].weight, before)
    assert averaged.tensors == {}


def test_saved_averages_come_back() -> None:
    built = module()
    averaged, other = AveragedWeights(built, 0.9), AveragedWeights(built, 0.9)
    move(built, 0)
    averaged.update(3)
    other.load(averaged.tensors)
    assert all(torch.equal(value, averaged.tensors[name]) for name, value in other.tensors.items())
