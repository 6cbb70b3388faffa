"""Measures asked of any pairs: in parts, by fold, and on the scale of null pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pmpguard.detection import measures
from pmpguard.detection.measures import asked, by_fold, measured, measured_evidence
from pmpguard.detection.null_pairs import sample_null_pairs


def sums(texts: Tensor, images: Tensor, rows: Tensor) -> Tensor:
    return texts + 10 * images + 100 * rows


def test_many_pairs_are_asked_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def measure(texts: Tensor, images: Tensor, rows: Tensor) -> Tensor:
        sizes.append(len(texts))
        return sums(texts, images, rows)

    monkeypatch.setattr(measures, "QUERIES_AT_ONCE", 4)
    numbers = torch.arange(10)
    found = asked(measure, numbers, numbers, numbers)
    assert found.dtype == torch.float32 and found.tolist() == [111.0 * n for n in range(10)]
    assert sizes == [4, 4, 2]
    assert asked(measure, *[numbers[:0]] * 3).shape == (0,)


def test_every_fold_answers_for_its_own_images() -> None:
    folds = torch.tensor([1, 0, 1])
    measure = by_fold(folds, [lambda t, i, r: t.double(), lambda t, i, r: -r.double()])
    found = measure(torch.tensor([5, 6, 7, 8]), torch.tensor([0, 1, 2, 1]), torch.tensor([1, 2, 3, 4]))
    assert found.tolist() == [-1.0, 6.0, -3.0, 8.0] and found.dtype == torch.float32


def test_evidence_of_any_pair_is_on_the_scale_of_null_pairs() -> None:
    text_of, image_of = torch.arange(12), torch.arange(12) // 2
    null = sample_null_pairs(text_of, image_of, count=60)
    found = measured_evidence(
        {"sums": sums, "one": lambda t, i, r: torch.ones(len(t))}, text_of, image_of, null
    )
    assert found.evidence["sums"].observed.tolist() == sums(text_of, image_of, torch.arange(12)).tolist()
    assert found.evidence["sums"].null.tolist() == sums(null.texts, null.images, null.rows).tolist()
    some = torch.tensor([3, 4]), torch.tensor([0, 5]), torch.tensor([1, 10])
    scaled = found.measure(*some)
    values = found.evidence["sums"].arrays()[1]
    np.testing.assert_allclose(scaled[:, 0], (sums(*some).numpy() - values.mean()) / values.std())
    assert (scaled[:, 1] == 0).all()  # a constant says nothing and divides nothing
    assert measured({}, *some).shape == (2, 0)
