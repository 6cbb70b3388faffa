"""Ridge regressions between texts and images against plain least squares; half-whitened features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.planted_embeddings import clusters
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.detection.evidence import regression
from pmpguard.detection.evidence.regression import (
    RIDGE,
    RegressionSums,
    regression_measures,
    regression_sums,
    whiten,
)
from pmpguard.evaluation.detection import auroc


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Unit texts and images, pairs of them, and weights."""
    generator = torch.Generator().manual_seed(seed)
    texts = normalize(torch.randn(30, 5, generator=generator, dtype=torch.float64), dim=1)
    images = normalize(torch.randn(20, 4, generator=generator, dtype=torch.float64), dim=1)
    text_of, image_of = (torch.randint(count, (60,), generator=generator) for count in (30, 20))
    return texts, images, text_of, image_of, torch.rand(60, generator=generator, dtype=torch.float64)


def naive_ridge(inputs: np.ndarray, outputs: np.ndarray, weights: np.ndarray) -> np.ndarray:
    squares = sum(w * np.outer(x, x) for x, w in zip(inputs, weights, strict=True))
    crossed = sum(w * np.outer(x, y) for x, y, w in zip(inputs, outputs, weights, strict=True))
    penalty = RIDGE * np.trace(squares) / len(squares)
    solved: np.ndarray = np.linalg.inv(squares + penalty * np.eye(len(squares))) @ crossed
    return solved


@pytest.mark.parametrize("block", [7, 65_536])
def test_both_regressions_equal_plain_ridge_regressions(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression, "BLOCK_ROWS", block)
    texts, images, text_of, image_of, weights = drawn()
    sums = regression_sums(texts, images, text_of, image_of, weights)
    x, y, w = texts[text_of].numpy(), images[image_of].numpy(), weights.numpy()
    np.testing.assert_allclose(sums.to_images().numpy(), naive_ridge(x, y, w), atol=1e-10)
    np.testing.assert_allclose(sums.to_texts().numpy(), naive_ridge(y, x, w), atol=1e-10)


def test_sums_of_parts_add_up_and_can_be_taken_away() -> None:
    texts, images, *pairs = drawn()
    whole = regression_sums(texts, images, *pairs)
    first = regression_sums(texts, images, *(each[:25] for each in pairs))
    second = regression_sums(texts, images, *(each[25:] for each in pairs))
    for made in (first + second, (whole - first) + first):
        for name in RegressionSums.__dataclass_fields__:
            torch.testing.assert_close(getattr(made, name), getattr(whole, name))
    assert not torch.allclose(whole.crossed, first.crossed)


def test_measures_are_standardised_cosines_with_what_is_predicted() -> None:
    texts, images, *pairs = drawn()
    measures = regression_measures(texts, images, regression_sums(texts, images, *pairs))
    x, y, w = texts[pairs[0]].numpy(), images[pairs[1]].numpy(), pairs[2].numpy()
    t, i = texts.numpy(), images.numpy()
    to_images, to_texts = t @ naive_ridge(x, y, w), i @ naive_ridge(y, x, w)
    tables = {
        "regression": (to_images / np.linalg.norm(to_images, axis=1, keepdims=True)) @ i.T,
        "reverse_regression": t @ (to_texts / np.linalg.norm(to_texts, axis=1, keepdims=True)).T,
    }
    asked = torch.tensor([0, 7, 29, 7]), torch.tensor([19, 3, 0, 4])
    for name, table in tables.items():
        by_text = (table - table.mean(1, keepdims=True)) / table.std(1, keepdims=True)
        by_image = (table - table.mean(0)) / table.std(0)
        expected = ((by_text + by_image) / 2**0.5)[asked[0], asked[1]]
        np.testing.assert_allclose(measures[name](*asked, asked[0]), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("level", ["caption", "image"])
def test_mismatched_pairs_are_told_even_where_most_are(level: str) -> None:
    """Pairs of the first half are judged by regressions fitted to the second."""
    given = clusters(800, 0.7, per_image=2, level=level)
    vectors = whiten(given.texts), whiten(given.images)
    rows, judged = torch.arange(1600), given.image_of < 400
    found = []
    for weights in (torch.ones(1600), torch.from_numpy(~given.is_mismatched).float()):
        sums = regression_sums(*vectors, rows[~judged], given.image_of[~judged], weights[~judged])
        told = regression_measures(*vectors, sums)["regression"](
            rows[judged], given.image_of[judged], rows[judged]
        )
        found.append(auroc(-told.double().numpy(), given.is_mismatched[judged.numpy()]))
    assert 0.9 < found[0] < found[1]  # knowing which pairs to believe helps


def test_where_no_pair_is_believed_nothing_is_said() -> None:
    texts, images, text_of, image_of, weights = drawn()
    measures = regression_measures(
        texts, images, regression_sums(texts, images, text_of, image_of, 0 * weights)
    )
    assert not any(measure(text_of, image_of, text_of).any() for measure in measures.values())


def test_features_are_unit_and_half_whitened() -> None:
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(5000, 6, generator=generator) * torch.tensor([8.0, 4.0, 2.0, 1.0, 0.5, 0.0])
    raw[:, 0] += 3
    assert whiten(raw).shape == (5000, 5)  # one direction has no deviation at all
    unit = normalize(raw, dim=1).double().numpy()
    left, sizes, _ = np.linalg.svd(unit - unit.mean(0), full_matrices=False)
    for components, few in ((256, 5), (2, 2)):
        naive = (left * sizes**0.5)[:, :few]
        naive /= np.linalg.norm(naive, axis=1, keepdims=True)
        some = whiten(raw, components)[:60].double().numpy()
        np.testing.assert_allclose(some @ some.T, naive[:60] @ naive[:60].T, atol=1e-3)
    assert not whiten(torch.eye(4)[:1].repeat(3, 1)).any()  # all the same: nothing to tell
