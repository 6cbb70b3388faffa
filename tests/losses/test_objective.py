from __future__ import annotations

import pytest
import torch

from pmpguard.errors import ConfigError
from pmpguard.losses.objective import reduce_terms


def test_weights_then_mean_then_coefficients() -> None:
    a, b = torch.tensor([1.0, 2.0, 6.0]), torch.tensor([3.0, 0.0, 1.0])
    weights = torch.tensor([1.0, 0.5, 0.0])
    total, log = reduce_terms(
        {"aggregation": a, "awareness": b}, weights, {"aggregation": 1.0, "awareness": 4.0}
    )
    assert log["aggregation"].item() == pytest.approx((1 + 1 + 0) / 3)
    assert log["awareness"].item() == pytest.approx((3 + 0 + 0) / 3)
    assert total.item() == log["total"].item() == pytest.approx(2 / 3 + 4 * 1.0)


def test_without_weights_every_pair_counts() -> None:
    total, log = reduce_terms({"a": torch.tensor([1.0, 3.0])}, None, {"a": 2.0, "unused": 5.0})
    assert total.item() == 4 and log["a"].item() == 2 and set(log) == {"a", "total"}


def test_gradient_reaches_terms_in_proportion_and_never_the_weights() -> None:
    term = torch.tensor([1.0, 3.0], requires_grad=True)
    weights = torch.tensor([0.5, 0.0], requires_grad=True)
    total, log = reduce_terms({"a": term}, weights, {"a": 2.0})
    total.backward()
    assert term.grad is not None and term.grad.tolist() == [0.5, 0.0]
    assert weights.grad is None
    assert not log["a"].requires_grad and not log["total"].requires_grad


def test_missing_coefficients_and_terms_are_refused() -> None:
    with pytest.raises(ConfigError, match="awareness"):
        reduce_terms({"awareness": torch.ones(2)}, None, {"aggregation": 1.0})
    with pytest.raises(ConfigError, match="no loss term"):
        reduce_terms({}, None, {})
