"""What is said of images that look alike, against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pmpguard.detection.evidence.witnesses import neighbour_consensus


def unit(*shape, seed=0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values / values.norm(dim=-1, keepdim=True)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 15), st.integers(1, 4), st.integers(1, 4))
def test_consensus_equals_loops(seed, count, pairs, nearest, chunk):
    generator = np.random.default_rng(seed)
    images, captions = unit(count, 5, seed=seed), unit(6, 3, seed=seed + 1)
    caption_of, image_of = generator.integers(6, size=pairs), generator.integers(count, size=pairs)
    found = neighbour_consensus(
        images,
        captions,
        torch.from_numpy(caption_of),
        torch.from_numpy(image_of),
        nearest=nearest,
        chunk=chunk,
    )
    own = np.zeros((count, 3))
    for image in range(count):
        mine = [captions[caption_of[row]].numpy() for row in range(pairs) if image_of[row] == image]
        if mine:
            own[image] = np.mean(mine, axis=0)
    for image in range(count):
        others = sorted(
            (other for other in range(count) if other != image),
            key=lambda other: -float(images[image] @ images[other]),
        )[:nearest]
        mean = np.mean([own[other] for other in others], axis=0)
        length = np.linalg.norm(mean)
        np.testing.assert_allclose(found[image].numpy(), mean / length if length else mean, atol=1e-9)


def test_an_image_never_hears_its_own_captions():
    images = unit(6, 4)
    captions = unit(6, 4, seed=1)
    rows = torch.arange(6)
    before = neighbour_consensus(images, captions, rows, rows, nearest=2)
    changed = captions.clone()
    changed[3] = -captions[3]
    after = neighbour_consensus(images, changed, rows, rows, nearest=2)
    torch.testing.assert_close(before[3], after[3])
    assert not torch.allclose(before, after)


def test_one_image_has_no_neighbours():
    found = neighbour_consensus(unit(1, 3), unit(2, 3), torch.tensor([0, 1]), torch.tensor([0, 0]))
    assert found.tolist() == [[pytest.approx(0)] * 3]
