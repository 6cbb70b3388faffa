"""IN2R: targets made of neighbours against loops, the contract, and what it learns from mismatched pairs."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.feature_world import build_method, learn, learn_infonce
from helpers.robust_examples import example_batch, keeps_the_contract
from torch.nn.functional import normalize

from pmpguard.methods.baselines.in2r import In2r, NeighbourAttention


def remembering(**settings: object) -> In2r:
    method = build_method("in2r", dim=8, memory=20, heads=2, **settings)
    assert isinstance(method, In2r)
    generator = torch.Generator().manual_seed(3)
    method.memory.texts.copy_(normalize(torch.randn(20, 8, generator=generator), dim=1))
    method.memory.images.copy_(normalize(torch.randn(20, 8, generator=generator), dim=1))
    method.p_match[::3] = 0.2
    return method


def test_attention_against_a_loop() -> None:
    torch.manual_seed(0)
    module = NeighbourAttention(8, 2).double()
    given = torch.randn(1, 3, 8, dtype=torch.float64)
    queries, keys, values = (
        layer(given)[0] for layer in (module.to_queries, module.to_keys, module.to_values)
    )
    mixed = torch.zeros(3, 8, dtype=torch.float64)
    for head in (slice(0, 4), slice(4, 8)):
        for k in range(3):
            powers = [math.exp(float(queries[k, head] @ keys[j, head]) / 2) for j in range(3)]
            for j in range(3):
                mixed[k, head] += powers[j] / sum(powers) * values[j, head]
    expected = normalize(module.norm(given[0] + module.to_output(mixed)).mean(0), dim=0)
    torch.testing.assert_close(module(given)[0], expected)


def test_a_distrusted_image_is_drawn_to_the_captions_of_images_like_it() -> None:
    method, batch = remembering(neighbours=2), example_batch(epoch=10)
    wrong = [t for t in range(7) if float(method.p_match[batch.rows[t]]) < 0.5]
    assert 1 < len(wrong) < 7
    targets = {}
    for t in wrong:
        image = batch.images.pooled[batch.image_of[t]]
        near = (method.memory.images @ image).argsort(descending=True)[:2]
        targets[t] = method.to_text(method.memory.texts[near][None])[0]
    found = method.losses(batch)["image_to_text"]
    for t in wrong:
        own = batch.images.pooled[batch.image_of[t]]
        same = [k for k in wrong if batch.image_of[k] == batch.image_of[t]]
        row = torch.stack([own @ targets[k] for k in wrong]) / 0.05
        column = torch.stack([batch.images.pooled[batch.image_of[k]] @ targets[t] for k in wrong]) / 0.05
        places = [wrong.index(k) for k in same]
        expected = -(row.log_softmax(0)[places].mean() + column.log_softmax(0)[places].mean()) / 2
        assert float(found[t]) == pytest.approx(0.5 * float(expected), rel=1e-4)
    assert float(found[[t for t in range(7) if t not in wrong]].abs().max()) == 0


def test_trusted_pairs_have_infonce_and_distrusted_ones_do_not() -> None:
    method, batch = remembering(), example_batch(epoch=10)
    labelled = method.losses(batch)["labelled"]
    clean = method.p_match[batch.rows] > 0.5
    assert bool((labelled[clean] > 0).all()) and bool((labelled[~clean] == 0).all())
    assert set(method.losses(example_batch(epoch=0))) == {"warmup_epochs"}


@pytest.mark.parametrize("epoch", [0, 50])
def test_contract(epoch: int) -> None:
    keeps_the_contract(remembering(), epoch)


@pytest.mark.slow
def test_it_learns_more_than_infonce_from_60_percent_wrong_pairs() -> None:
    robust, plain = learn("in2r", 0.6, 0, epochs=15, dim=32), learn_infonce(0.6)
    assert robust.mr > plain.mr + 10
    assert robust.auroc is not None and robust.auroc > 0.9
