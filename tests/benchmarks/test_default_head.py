"""The recipe of the default head: its maps against other ways to compute them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pmpguard.data.pairs import PairTable
from pmpguard.errors import DataError
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.projection import Projection

given_setting = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@pytest.fixture
def recipe(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("default_head")


@pytest.fixture
def fit(script: Callable[[str], ModuleType]) -> ModuleType:
    """The module that fits the maps."""
    return script("default_head_fit")


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_the_ridge_is_that_of_another_library(fit):
    linear = pytest.importorskip("sklearn.linear_model")
    inputs, targets = 3 * drawn(60, 7) + 2, drawn(60, 4, seed=1)
    standard = (inputs - inputs.mean(0)) / inputs.std(0, correction=0)
    expected = linear.Ridge(alpha=0.5 * 60).fit(standard, targets).predict(standard)
    assert np.allclose(fit.ridge_map(inputs, targets, 0.5)(inputs), expected)


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_whitening_shrinks_spread_to_a_power(fit, power):
    rows = drawn(500, 3) * torch.tensor([5.0, 1.0, 0.2], dtype=torch.float64) + 1
    out = fit.whitener(rows, power, 0.0)(rows)
    before = np.linalg.eigvalsh(np.cov(rows.T, bias=True))
    assert np.allclose(np.cov(out.T, bias=True), np.diag(before ** (1 - power)), atol=1e-9)
    assert out.mean(0).abs().max() < 1e-9


def test_a_map_of_standardised_rows_is_the_same_map(fit):
    rows, given = 3 * drawn(20, 4) + 2, fit.LinearMap(drawn(4, 3, seed=1), drawn(3, seed=2))
    standard = fit.Standard.of(rows)
    inside = standard.inside(given)
    assert torch.allclose(inside(standard(rows)), given(rows))
    assert torch.allclose(standard.outside(inside)(rows), given(rows))


def made(recipe: ModuleType, count: int = 40, noise: float = 0.1) -> tuple[Any, dict[str, torch.Tensor]]:
    """Images of four classes with two captions each, whose features agree but for a turn and some noise."""
    label = np.arange(count) % 4
    centres, turn = drawn(4, 6, seed=2), torch.linalg.qr(drawn(9, 6, seed=3))[0]
    captions = centres[label.repeat(2)] + noise * drawn(2 * count, 6, seed=4)
    images = (centres[label] + noise * drawn(count, 6, seed=5)) @ turn.T
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
    for epochs in (0, 3):
        maps = recipe.fitted(train, queries, recipe.Choice(0.1, 0.5, 0.1, epochs))
        found = recipe.measured(maps, val, queries, k=5)
        assert found["class_precision_at_5"] == 1.0 and found["mr"] > 50


def test_the_best_of_the_grid_is_chosen_and_again_the_same(recipe):
    whole, queries = made(recipe)
    train, val = whole.split("train"), whole.split("val")
    rows = recipe.choose(train, val, queries)
    closed = [row for row in rows if row["epochs"] == 0]
    assert len(closed) == len(recipe.RIDGES) * len(recipe.WHITENINGS) * len(recipe.NAMES)
    assert rows[0]["criterion"] == max(row["criterion"] for row in rows)
    best = recipe.choice_of(max(closed, key=lambda row: row["criterion"]))
    further = {recipe.choice_of(row) for row in rows if row["epochs"]}
    assert further == {replace(best, epochs=epochs) for epochs in recipe.EPOCHS}
    assert recipe.choose(train, val, queries) == rows
    assert recipe.choice_of(rows[0]).epochs == rows[0]["epochs"]


def test_a_row_is_what_a_fit_of_its_choice_gives(recipe):
    whole, queries = made(recipe, noise=1.0)
    train, val = whole.split("train"), whole.split("val")
    rows = recipe.judged(train, val, queries, recipe.Choice(1.0, 0.5, 0.2), (0, 2))
    for row in rows:
        choice = recipe.choice_of(row)
        assert row["mr"] == recipe.measured(recipe.fitted(train, queries, choice), val, queries)["mr"]
        unseen = []
        for held in (["c0", "c3"], ["c1"], ["c2"]):
            kept = np.array([label not in held for label in train.table.column("label")])
            maps = recipe.fitted(train.filter(kept), queries, choice)
            asked = {name: queries[name] for name in held}
            unseen += len(held) * [recipe.precision(maps, val, asked)["class_precision_at_10"]]
        assert row["unseen_class_precision_at_10"] == pytest.approx(np.mean(unseen))


def test_an_image_is_fitted_to_its_captions_and_its_classs_name(recipe, fit):
    whole, queries = made(recipe)
    del queries["c3"]  # images of this class have captions alone
    lessons, choice = fit.Lessons.of(whole, queries), fit.Choice(0.5, 0.5, 0.3)
    texts, images = fit.closed_form(lessons, choice, captions=len(whole.captions))
    targets = []
    for number, label in enumerate(whole.labels):
        target = texts(whole.captions[2 * number : 2 * number + 2].double()).mean(0)
        if label in queries:
            target = 0.7 * target + 0.3 * texts(queries[label].double())
        targets.append(target)
    expected = fit.ridge_map(whole.images.double(), torch.stack(targets), 0.5)
    assert torch.allclose(images.weight, expected.weight) and torch.allclose(images.bias, expected.bias)


def test_each_image_draws_a_caption_of_its_own_or_its_classs_name(recipe, fit):
    whole, queries = made(recipe)
    del queries["c3"]
    lessons, chance = fit.Lessons.of(whole, queries), torch.Generator().manual_seed(0)
    own = torch.arange(40)
    for share in (0.0, 0.5, 1.0):
        draws = torch.stack([lessons.draw(share, chance) for _ in range(100)])
        by_name = draws >= len(whole.captions)
        assert torch.equal(by_name, by_name & (draws == lessons.named))
        assert torch.equal((draws // 2)[~by_name], own.expand(100, -1)[~by_name])
        assert not by_name[:, lessons.named < 0].any()
        assert by_name[:, lessons.named >= 0].double().mean().item() == pytest.approx(share, abs=0.05)
        if share == 0.0:
            assert (draws % 2).double().mean().item() == pytest.approx(0.5, abs=0.05)


@given_setting
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 3), st.booleans()), min_size=1, max_size=9))
def test_what_fits_is_told_one_by_one(fit, rows):
    """Texts below 10 are captions, 10 and up are names; images of no class draw captions."""
    named = [10 + label if label >= 0 else -1 for _, label, _ in rows]
    texts = [
        name if by_name and name >= 0 else caption
        for (caption, _, by_name), name in zip(rows, named, strict=True)
    ]
    found = fit.positives(torch.tensor(texts), torch.tensor(named))
    for row, text in enumerate(texts):
        for column, own in enumerate(texts):
            assert found[row, column] == float(text == own or text == named[column])


def test_tuning_tells_images_apart_that_the_closed_form_confuses(recipe, fit, monkeypatch):
    """What tells them apart is small beside what they share, and a strong ridge leaves it out."""
    monkeypatch.setattr(fit, "RATE", 0.05)
    whole, queries = made(recipe, count=200)
    told = drawn(200, 6) * torch.tensor([5.0, 1.0, 0.5, 0.5, 0.3, 0.3], dtype=torch.float64)
    turn = torch.linalg.qr(drawn(9, 6, seed=3))[0] * drawn(6, seed=6)
    whole = replace(whole, captions=told.repeat_interleave(2, 0).float(), images=(told @ turn.T).float())
    train, val = whole.split("train"), whole.split("val")
    after = fit.fitted_after(train, queries, fit.Choice(3.0, 0.0, 0.0), (0, 40))
    found = {epochs: recipe.measured(maps, val, queries)["mr"] for epochs, maps in after.items()}
    assert found[40] > found[0] + 5, found


def test_tuning_draws_the_same_each_time(recipe, fit):
    whole, queries = made(recipe)
    first, second = (fit.fitted(whole, queries, fit.Choice(1.0, 0.5, 0.2, 3)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.weight, other.weight) and torch.equal(one.bias, other.bias)
    steps = fit.fitted_after(whole, queries, fit.Choice(1.0, 0.5, 0.2), (1, 3))
    assert torch.equal(steps[3][1].weight, first[1].weight)
    assert not torch.equal(steps[1][1].weight, first[1].weight)


def test_the_projections_give_the_maps_directions(recipe, fit):
    given = fit.ridge_map(drawn(30, 5), drawn(30, 4, seed=1), 1.0)
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


@given_setting
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
