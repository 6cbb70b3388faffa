"""SWAN: its loss against a loop, the model it asks for, and that it learns."""

from __future__ import annotations

import pytest
import torch
from helpers.method_examples import batch, build
from helpers.peer_runs import CHANCE, short_run

import pmpguard


def test_the_loss_sums_over_all_negatives():
    given = batch()
    scores = (given.texts.pooled @ given.images.pooled.T).double()
    expected = []
    for t, v in enumerate(given.image_of.tolist()):
        negatives = [scores[t, k] for k in range(5) if k != v]
        negatives += [scores[k, v] for k in range(6) if given.image_of[k] != v]
        expected.append(sum(max(0.0, 0.2 - float(scores[t, v]) + float(negative)) for negative in negatives))
    found = build("swan").losses(given)["triplet"]
    assert found.tolist() == pytest.approx(expected, rel=1e-4)


def test_it_asks_for_multi_scale_regions_and_its_head():
    method = build("swan")
    config = method.retriever.config
    assert config.multi_scale and config.head.name == "swan" and config.ranking == "pooled"
    assert method.retriever.image_encoder.width == 128 + 64 + 128
    assert build("swan", multi_scale=False).retriever.image_encoder.width == 128
    assert method.phase(0) == method.phase(9)


@pytest.mark.slow
def test_it_learns_and_what_it_learned_is_saved(tmp_path):
    result = short_run("swan", tmp_path / "run")
    assert result.best_mr > 5 * CHANCE
    loaded, images = pmpguard.load(tmp_path / "run" / "model"), torch.zeros(1, 3, 32, 32)
    expected = result.retriever.encode_images(images).pooled
    assert torch.equal(loaded.encode_images(images).pooled, expected)
    loaded.head = None
    assert not torch.allclose(loaded.encode_images(images).pooled, expected)
