"""The recipe of the default head: its maps against other ways to compute them."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pmpguard.data.pairs import PairTable
from pmpguard.errors import DataError
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.projection import Projection

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def recipe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if not BENCHMARKS.is_dir():
        pytest.skip("the benchmarks are not here")
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("default_head")


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_ridge_is_that_of_another_library(recipe):
    linear = pytest.importorskip("sklearn.linear_model")
    inputs, targets = 3 * drawn(60, 7) + 2, drawn(60, 4, seed=1)
    standard = (inputs - inputs.mean(0)) / inputs.std(0, correction=0)
    expected = linear.Ridge(alpha=0.5 * 60).fit(standard, targets).predict(standard)
    assert np.allclose(recipe.ridge_map(inputs, targets, 0.5)(inputs), expected)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_whitening_shrinks_spread_to_a_power(recipe, power):
    rows = drawn(500, 3) * torch.tensor([5.0, 1.0, 0.2], dtype=torch.float64) + 1
    out = recipe.whitener(rows, power, 0.0)(rows)
    before = np.linalg.eigvalsh(np.cov(rows.T, bias=True))
    assert np.allclose(np.cov(out.T, bias=True), np.diag(before ** (1 - power)), atol=1e-9)
    assert out.mean(0).abs().max() < 1e-9


def made(recipe: ModuleType, count: int = 40) -> object:
    """Images of four classes with two captions each, whose features agree but for a turn and some noise."""
    label = np.arange(count) % 4
    centres, turn = drawn(4, 6, seed=2), torch.linalg.qr(drawn(9, 6, seed=3))[0]
    captions = centres[label.repeat(2)] + 0.1 * drawn(2 * count, 6, seed=4)
    images = (centres[label] + 0.1 * drawn(count, 6, seed=5)) @ turn.T
    table = PairTable.from_columns(
        {
            "image": [f"{row // 2}.png" for row in range(2 * count)],
            "caption": [f"caption {row}" for row in range(2 * count)],
            "label": [f"c{label[row // 2]}" for row in range(2 * count)],
            "split": ["train" if row < count else "val" for row in range(2 * count)],
        },
        Path(),
    )
    queries = {f"c{number}": centres[number].float() for number in range(4)}
    return recipe.Features(table, captions.float(), images.float()), queries


def test_what_is_fitted_on_one_half_finds_the_classes_of_the_other(recipe):
    whole, queries = made(recipe)
    train, val = whole.split("train"), whole.split("val")
    assert len(train.images) == len(val.images) == 20 and len(val.captions) == 40
    assert torch.equal(val.images[0], whole.images[20]) and torch.equal(val.captions[3], whole.captions[43])
    found = recipe.measured(recipe.fitted(train, recipe.Choice(0.1, 0.5)), val, queries, k=5)
    assert found["class_precision_at_5"] == 1.0 and found["mr"] > 50
    rows = recipe.choose(train, val, queries)
    assert len(rows) == len(recipe.RIDGES) * len(recipe.WHITENINGS)
    assert rows[0]["criterion"] == max(row["criterion"] for row in rows)
    again = recipe.choose(train, val, queries)
    assert rows == again  # nothing is drawn


def test_a_class_left_out_is_not_trained_on(recipe):
    whole, queries = made(recipe)
    train, val = whole.split("train"), whole.split("val")
    wrong = {name: -query for name, query in queries.items()}
    choice = recipe.Choice(0.1, 0.0)
    assert recipe.unseen_precision(train, val, queries, choice) > recipe.unseen_precision(
        train, val, wrong, choice
    )


def test_the_projections_give_the_maps_directions(recipe):
    given = recipe.ridge_map(drawn(30, 5), drawn(30, 4, seed=1), 1.0)
    layer = Projection(5, 4)
    recipe.fill(layer, given)
    rows = drawn(6, 5, seed=2)
    out = layer(Encoded(rows.float(), rows.float()[:, None], torch.ones(6, 1, dtype=torch.bool)))
    expected = torch.nn.functional.normalize(given(rows), dim=1).float()
    assert torch.allclose(out.pooled, expected, atol=1e-5)
    assert torch.allclose(out.fragments[:, 0], expected, atol=1e-5)


def test_what_was_read_is_not_read_again(recipe, tmp_path):
    asked: list[list[str]] = []

    def read(names: list[str]) -> torch.Tensor:
        asked.append(names)
        return torch.tensor([[float(len(name))] for name in names])

    assert recipe.remembered(["bb", "a", "bb"], read, tmp_path, "words").tolist() == [[2.0], [1.0], [2.0]]
    assert recipe.remembered(["ccc", "a"], read, tmp_path, "words").tolist() == [[3.0], [1.0]]
    assert asked == [["a", "bb"], ["ccc"]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 15), st.integers(0, 99))
def test_precision_is_counted_one_by_one(recipe, classes, images, k, seed):
    drawn = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, 5, (classes, images), generator=drawn).float()
    labels = [f"c{number}" for number in torch.randint(0, classes + 1, (images,), generator=drawn).tolist()]
    names = [f"c{number}" for number in range(classes)]
    found = recipe.class_precision(scores, labels, names, k).tolist()
    for row, name in enumerate(names):
        order = sorted(range(images), key=lambda place: (-scores[row, place].item(), place))[:k]
        assert found[row] == pytest.approx(sum(labels[place] == name for place in order) / len(order))


def test_scores_of_another_shape_are_refused(recipe):
    with pytest.raises(DataError, match=r"\(1, 2\)"):
        recipe.class_precision(torch.zeros(1, 2), ["a"], ["a"])
