"""A step that is replayed as a CUDA graph may not bring numbers from the host, nor ask the device for any."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from helpers.method_examples import batch, build
from torch.overrides import TorchFunctionMode

from pmpguard.kernels.awareness import fused as awareness_fused
from pmpguard.methods.registry import BUILT_IN, find_method

FORBIDDEN = {
    "tensor", "as_tensor", "from_numpy", "item", "tolist", "numpy", "cpu", "nonzero", "unique",
    "__float__", "__int__", "__bool__",
}  # fmt: skip
CASES = [(name, preset) for name in BUILT_IN for preset in find_method(name).PRESETS]


class NoNumbersFromTheHost(TorchFunctionMode):
    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        assert function.__name__ not in FORBIDDEN, f"{function.__name__} during a step"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("epoch", [0, 9])
@pytest.mark.parametrize(("name", "preset"), CASES)
def test_losses_neither_bring_nor_fetch_numbers(
    name: str, preset: str, epoch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(awareness_fused, "fits_packing", lambda *_: False)  # how a CPU alone computes S
    method = build(name, preset).train()
    with NoNumbersFromTheHost():
        terms = method.losses(batch(epoch=epoch))
    assert terms


def test_nor_does_learning_from_a_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awareness_fused, "fits_packing", lambda *_: False)
    method, given, seen = build("pmpguard").train(), batch(), batch(seed=1)
    teacher = build("pmpguard").retriever
    with NoNumbersFromTheHost():
        terms = method.losses(replace(given, teacher_scores=method.teacher_scores(teacher, seen)))
    assert {"taught pooled", "taught awareness"} < terms.keys()
