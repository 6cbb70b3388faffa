"""Partial transport: against a linear programme, against plain loops, its marginals, and empty input."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pmpguard.errors import ConfigError
from pmpguard.losses.optimal_transport import partial_plan

linprog = pytest.importorskip("scipy.optimize").linprog


def problem(rows: int, columns: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    cost = torch.rand(rows, columns, generator=generator, dtype=torch.float64)
    masses = [torch.rand(count, generator=generator, dtype=torch.float64) + 0.2 for count in (rows, columns)]
    return cost, masses[0] / masses[0].sum(), masses[1] / masses[1].sum()


def cheapest(cost: Tensor, row_mass: Tensor, column_mass: Tensor, mass: float) -> float:
    """Least cost of moving `mass`, without entropy, as a linear programme."""
    rows, columns = cost.shape
    limits = [np.kron(np.eye(rows), np.ones(columns)), np.kron(np.ones(rows), np.eye(columns))]
    bounds = np.concatenate([row_mass, column_mass])
    found = linprog(
        cost.flatten().numpy(), A_ub=np.vstack(limits), b_ub=bounds,
        A_eq=np.ones((1, rows * columns)), b_eq=[mass],
    )  # fmt: skip
    return float(found.fun)


def naive_plan(cost: Tensor, row_mass: Tensor, column_mass: Tensor, mass: float, strength: float) -> Tensor:
    """Scale rows and columns of the larger table in turn, with loops and without logarithms."""
    rows, columns = cost.shape
    plan = [[math.exp(-float(cost[i, j]) / strength) for j in range(columns)] + [1.0] for i in range(rows)]
    plan.append([1.0] * columns + [0.0])
    row_goal, column_goal = [*row_mass.tolist(), 1 - mass], [*column_mass.tolist(), 1 - mass]
    for _ in range(3000):
        for i, goal in enumerate(row_goal):
            total = sum(plan[i])
            plan[i] = [cell * goal / total for cell in plan[i]]
        for j, goal in enumerate(column_goal):
            total = sum(row[j] for row in plan)
            for row in plan:
                row[j] *= goal / total
    return torch.tensor([row[:columns] for row in plan[:rows]], dtype=torch.float64)


@pytest.mark.parametrize("mass", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(3, 3), (2, 4), (5, 3)])
def test_with_little_entropy_it_is_the_linear_programme(shape: tuple[int, int], mass: float) -> None:
    cost, row_mass, column_mass = problem(*shape, seed=sum(shape))
    plan = partial_plan(cost, row_mass, column_mass, mass, 0.005, iterations=4000)
    assert float(plan.sum()) == pytest.approx(mass, abs=1e-3)
    assert float((plan * cost).sum()) == pytest.approx(
        cheapest(cost, row_mass, column_mass, mass), abs=0.02 * mass
    )


def test_it_equals_plain_scaling() -> None:
    cost, row_mass, column_mass = problem(4, 3, seed=5)
    plan = partial_plan(cost, row_mass, column_mass, 0.3, 0.2, iterations=3000)
    torch.testing.assert_close(plan, naive_plan(cost, row_mass, column_mass, 0.3, 0.2), rtol=1e-6, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 6), st.integers(1, 6), st.floats(0.05, 0.95), st.floats(0.05, 0.5), st.integers(0, 1000)
)
def test_marginals(rows: int, columns: int, mass: float, strength: float, seed: int) -> None:
    cost, row_mass, column_mass = problem(rows, columns, seed)
    plan = partial_plan(cost, row_mass, column_mass, mass, strength, iterations=800)
    assert (plan >= 0).all()
    assert float(plan.sum()) == pytest.approx(mass, abs=1e-4)
    assert (plan.sum(1) <= row_mass + 1e-6).all() and (plan.sum(0) <= column_mass + 1e-6).all()


def test_a_hundred_updates_in_float32_are_enough_for_a_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.nn.functional.normalize(torch.randn(2, 128, 64, generator=generator), dim=-1)
    cost = (1 - vectors[0] @ vectors[1].T).clamp(min=0)
    even = torch.full((128,), 1 / 128)
    plan = partial_plan(cost, even, even, 0.1, 0.07)
    exact = partial_plan(cost.double(), even.double(), even.double(), 0.1, 0.07, iterations=5000)
    assert float((plan.double() - exact).abs().sum()) < 0.01 * float(exact.sum())


def test_moving_everything_is_ordinary_transport() -> None:
    cost, row_mass, column_mass = problem(3, 4, seed=1)
    plan = partial_plan(cost, row_mass, column_mass, 1.0, 0.1, iterations=2000)
    torch.testing.assert_close(plan.sum(1), row_mass, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(plan.sum(0), column_mass, rtol=1e-5, atol=1e-7)


def test_items_without_mass_and_forbidden_cells_are_left_out() -> None:
    cost = torch.zeros(3, 3)
    row_mass, column_mass = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 0.5, 0.5])
    allowed = torch.ones(3, 3, dtype=torch.bool)
    allowed[0, 1] = False
    plan = partial_plan(cost, row_mass, column_mass, 0.4, 0.1, allowed=allowed, iterations=500)
    assert float(plan[2].sum()) < 1e-6 and float(plan[:, 0].sum()) < 1e-6 and float(plan[0, 1]) < 1e-6
    assert float(plan.sum()) == pytest.approx(0.4, abs=1e-4)


def test_nothing_to_transport_gives_finite_numbers() -> None:
    plan = partial_plan(torch.rand(3, 2), torch.zeros(3), torch.zeros(2), 0.1, 0.07)
    assert torch.isfinite(plan).all()


@pytest.mark.parametrize("mass,strength", [(0.0, 0.1), (1.5, 0.1), (0.5, 0.0)])
def test_impossible_settings_are_refused(mass: float, strength: float) -> None:
    with pytest.raises(ConfigError, match="transport"):
        partial_plan(torch.ones(2, 2), torch.ones(2) / 2, torch.ones(2) / 2, mass, strength)
