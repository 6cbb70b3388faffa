"""BiCro: soft labels and margins against loops, the contract, and what it learns from mismatched pairs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.feature_world import TRAIN, build_method, learn, learn_infonce, make_world
from helpers.look_alikes import mean_cosine_after
from helpers.robust_examples import CHANCE, example_batch, keeps_the_contract, learn_squares

from pmpguard.losses.hinge import HardNegatives, hinge_terms
from pmpguard.methods.baselines.bicro import BiCro, consistency, lowest, soft_margins
from pmpguard.methods.method import TrainingView
from pmpguard.models.encoded import Encoded


def unit(count: int, seed: int) -> torch.Tensor:
    vectors = torch.randn(count, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.nn.functional.normalize(vectors, dim=1)


def test_consistency_against_a_loop() -> None:
    captions, images = unit(9, 0), unit(7, 1)
    caption_of, image_of = (
        torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 0]),
        torch.tensor([0, 1, 2, 3, 4, 5, 6, 0, 1, 2]),
    )
    anchors = [1, 4, 5]

    def agreement(first: float, second: float) -> float:
        return min(first, second) / max(first, second) if min(first, second) > 0 else 0.0

    expected = []
    for caption, image in zip(caption_of.tolist(), image_of.tolist(), strict=True):
        by_image = [float(images[image] @ images[image_of[a]]) for a in anchors]
        by_caption = [float(captions[caption] @ captions[caption_of[a]]) for a in anchors]
        near_image, near_caption = by_image.index(max(by_image)), by_caption.index(max(by_caption))
        forward = agreement(by_image[near_image], by_caption[near_image])
        backward = agreement(by_caption[near_caption], by_image[near_caption])
        expected.append((forward + backward) / 2)
    found = consistency(captions, images, caption_of, image_of, torch.tensor(anchors))
    assert found.tolist() == pytest.approx(expected, rel=1e-9)
    assert found[anchors].tolist() == pytest.approx([1, 1, 1])


def test_soft_margins_and_the_lowest_losses() -> None:
    assert soft_margins(torch.tensor([0.0, 0.5, 1.0]), 0.2, 10.0).tolist() == pytest.approx(
        [0, 0.2 * (10**0.5 - 1) / 9, 0.2]
    )
    losses = torch.tensor([5.0, 1, 4, 2, 3, 6, 7, 8, 9, 10])
    assert lowest(losses, 0.3).tolist() == [0, 1, 0, 1, 1, 0, 0, 0, 0, 0]
    assert lowest(losses[:2], 0.3).tolist() == [0, 1]


def test_warm_up_trains_on_the_lowest_losses_alone() -> None:
    terms = build_method("bicro").losses(example_batch(epoch=0))["warmup_epochs"]
    assert int((terms > 0).sum()) == 2  # 30 % of 7


@pytest.mark.parametrize("negatives", ["semi-hard", "hardest"])
def test_wrong_pairs_join_later_with_their_soft_margin(negatives: HardNegatives) -> None:
    method, batch = build_method("bicro", negatives=negatives), example_batch(epoch=10)
    assert isinstance(method, BiCro)
    wrong = torch.tensor([1, 4])
    method.p_match[batch.rows[wrong]] = 0.3
    method.soft_labels[batch.rows] = torch.linspace(0, 1, 7)
    scores = batch.texts.pooled @ batch.images.pooled.T
    margins = soft_margins(torch.linspace(0, 1, 7), 0.2, 10.0)
    expected = hinge_terms(scores, batch.image_of, batch.targets > 0, margins, negatives=negatives)
    torch.testing.assert_close(method.losses(example_batch(epoch=30))["triplet"], expected)
    expected[wrong] = 0
    torch.testing.assert_close(method.losses(batch)["triplet"], expected)
    assert [method.phase(epoch) for epoch in (0, 9, 10, 29, 30)] == [0, 0, 1, 1, 2]


def test_right_pairs_get_higher_labels_than_wrong_ones() -> None:
    """With embeddings that are right for most items, the labels of an epoch tell the pairs apart."""
    world, method = make_world(0.4, seed=0), build_method("bicro", mixture_iterations=200)
    assert isinstance(method, BiCro)
    vectors = torch.nn.functional.normalize(
        torch.randn(TRAIN, 16, generator=torch.Generator().manual_seed(0)), dim=1
    )
    encoded = Encoded(vectors, vectors[:, None], torch.ones(TRAIN, 1, dtype=torch.bool))
    view = TrainingView(lambda: (encoded, encoded), world.owner, torch.arange(TRAIN), 10, 0)
    values = method.begin_epoch(view).log
    wrong = torch.from_numpy(world.is_mismatched)
    assert values["mean_p_match"] == pytest.approx(0.6, abs=0.1)
    assert float(method.soft_labels[~wrong].mean()) > 0.85 > 0.5 > float(method.soft_labels[wrong].mean())
    assert {"p_match", "soft_labels"} <= method.state_dict().keys()
    assert (
        method.begin_epoch(TrainingView(lambda: (encoded, encoded), world.owner, world.owner, 9, 0)).log == {}
    )


@pytest.mark.parametrize("epoch", [0, 15, 50])
def test_contract(epoch: int) -> None:
    keeps_the_contract(build_method("bicro"), epoch)


def test_look_alikes_do_not_collapse_it() -> None:
    """With the original's hardest negatives all captions move towards all images."""
    assert abs(mean_cosine_after("bicro", epochs=10, warmup_epochs=2)) < 0.1
    assert mean_cosine_after("bicro", epochs=10, warmup_epochs=2, negatives="hardest") > 0.3


@pytest.mark.slow
def test_it_learns_more_than_infonce_from_60_percent_wrong_pairs() -> None:
    robust, plain = learn("bicro", 0.6, 0, epochs=15), learn_infonce(0.6)
    assert robust.mr > plain.mr + 20
    assert robust.auroc is not None and robust.auroc > 0.9


@pytest.mark.slow
def test_it_learns_squares(tmp_path: Path) -> None:
    assert learn_squares(tmp_path, "bicro", warmup_epochs=11, warmup_share=0.5).best_mr > 7 * CHANCE
