"""The benchmark that says what a shortlist loses, on twelve images counted by hand."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

UPWARDS = torch.arange(12.0)
DOWNWARDS = -UPWARDS
# Three captions: the shortlists of three are {0, 1, 2}, {9, 10, 11} and {0, 1, 2}; the ten best of all are
# {2 ... 11}, {2 ... 11} and {0 ... 9}, of which they hold one, three and three.
POOLED = torch.stack([DOWNWARDS, UPWARDS, DOWNWARDS])
FINE = torch.stack([UPWARDS, UPWARDS, DOWNWARDS])
OWN = torch.tensor([1, 11, 5])  # second of its shortlist, first of its, and not in its


@pytest.fixture
def benchmark(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("search_shortlist")


def test_a_shortlist_of_three(benchmark):
    assert benchmark.shortlist_row(POOLED, FINE, OWN, 3) == {
        "holds_own_image": 66.67,
        "holds_exhaustive_best": 66.67,
        "share_of_exhaustive_ten_best": 23.33,
        "t2i_r1": 33.33,
        "t2i_r5": 66.67,
        "t2i_r10": 66.67,
    }


def test_a_shortlist_of_everything_is_the_exhaustive_answer(benchmark):
    """Where ten, no and five images score higher than the own one."""
    for size in (12, 500):
        assert benchmark.shortlist_row(POOLED, FINE, OWN, size) == {
            "holds_own_image": 100.0,
            "holds_exhaustive_best": 100.0,
            "share_of_exhaustive_ten_best": 100.0,
            "t2i_r1": 33.33,
            "t2i_r5": 33.33,
            "t2i_r10": 66.67,
        }
