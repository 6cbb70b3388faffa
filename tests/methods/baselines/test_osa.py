"""OSA: weights by a judge against a loop, what is refused without one, and what a good one is worth."""

from __future__ import annotations

import pytest
import torch
from helpers.feature_world import TRAIN, build_method, learn, learn_infonce, make_world
from helpers.robust_examples import example_batch, keeps_the_contract
from torch import Tensor

from pmpguard.errors import ConfigError
from pmpguard.losses.infonce import infonce_terms
from pmpguard.methods.baselines.osa import Osa, pair_weight, share_above
from pmpguard.methods.method import TrainingView
from pmpguard.models.encoded import Encoded


def view(owner: Tensor, epoch: int = 0) -> TrainingView:
    vectors = torch.nn.functional.normalize(
        torch.randn(TRAIN, 16, generator=torch.Generator().manual_seed(0)), dim=1
    )
    encoded = Encoded(vectors, vectors[:, None], torch.ones(TRAIN, 1, dtype=torch.bool))
    return TrainingView(lambda: (encoded, encoded), owner, torch.arange(TRAIN), epoch, 0)


def true_judge(texts: Tensor, images: Tensor, _: Tensor) -> Tensor:
    """1 to 2 where the text is the image's own, else about 0."""
    return (1.5 + 0.5 * torch.sin(3.0 * texts)) * (texts == images) + 0.1 * torch.sin(37.0 * texts)


def test_weights_against_a_loop() -> None:
    scores, boundary = [0.3, -1.0, 2.3, 1.3, 0.31], 0.3
    largest = max(scores) - boundary
    expected = []
    for score in scores:
        x = max(score - boundary, 0.0) / largest
        expected.append(-(x**2) * (x - 1) * (x + 1))
    found = pair_weight(share_above(torch.tensor(scores), torch.tensor(boundary)))
    assert found.tolist() == pytest.approx(expected, abs=1e-6)


def test_wrong_pairs_count_little_and_are_told() -> None:
    world, method = make_world(0.4, 0), build_method("osa")
    assert isinstance(method, Osa)
    method.set_judge(true_judge)
    plan = method.begin_epoch(view(world.owner))
    wrong = torch.from_numpy(world.is_mismatched)
    assert plan.weights is not None
    assert float(plan.weights[wrong].max()) < 0.02 < 0.1 < float(plan.weights[~wrong].mean())
    assert float(method.p_match[wrong].max()) < 0.2 < 0.4 < float(method.p_match[~wrong].min())
    assert (
        method.begin_epoch(view(world.owner, 1)).weights is method.weight
    )  # remembered, also by checkpoints


@pytest.mark.slow
def test_it_learns_more_than_infonce_from_60_percent_wrong_pairs() -> None:
    """By a judge that errs: its scores of right and wrong pairs overlap."""

    def erring(texts: Tensor, images: Tensor, _: Tensor) -> Tensor:
        return (texts == images).float() + 0.9 * torch.sin(37.0 * texts + 11.0 * images)

    robust = learn("osa", 0.6, 0, epochs=15, judge=erring)
    plain = learn_infonce(0.6)
    assert robust.auroc is not None and 0.7 < robust.auroc < 0.99
    assert robust.mr > plain.mr + 5


def test_losses_are_weighed_infonce() -> None:
    method, batch = build_method("osa"), example_batch()
    logits = batch.texts.pooled @ batch.images.pooled.T / method.temperature
    torch.testing.assert_close(
        method.losses(batch)["weighed"], infonce_terms(logits, batch.targets, batch.image_of)
    )


def test_without_a_judge_it_says_how_to_give_one() -> None:
    with pytest.raises(ConfigError, match="model from outside") as caught:
        build_method("osa").begin_epoch(view(torch.arange(TRAIN)))
    assert "--judge" in str(caught.value.fix)


def test_contract() -> None:
    keeps_the_contract(build_method("osa"), 3)
