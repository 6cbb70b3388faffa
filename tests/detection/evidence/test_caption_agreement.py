"""Agreement among an image's captions against loops, its edge cases, and that it tells wrong captions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from pmpguard.detection.evidence import caption_agreement as module
from pmpguard.detection.evidence.caption_agreement import (
    caption_agreement,
    caption_agreement_measure,
    image_level_mismatch,
)


def unit(*shape, seed=0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values / values.norm(dim=-1, keepdim=True)


def naive(captions, caption_of, image_of, query_captions, query_images, exclude_rows):
    """One query at a time, in float64 lists."""
    answers = []
    for query, (caption, image) in enumerate(zip(query_captions, query_images, strict=True)):
        cosines = []
        for row in range(len(image_of)):
            left_out = exclude_rows is not None and exclude_rows[query] == row
            if image_of[row] == image and not left_out:
                other = captions[caption_of[row]]
                cosines.append(sum(a * b for a, b in zip(captions[caption], other, strict=True)))
        best = sorted(cosines, reverse=True)[:2]
        answers.append(sum(best) / len(best) if best else None)
    known = [value for value in answers if value is not None]
    level = sum(known) / len(known) if known else 0.0
    return [level if value is None else value for value in answers]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 12), st.booleans(), st.integers(1, 400))
def test_agreement_equals_loops(seed, images, pairs, with_exclusion, budget):
    generator = np.random.default_rng(seed)
    captions = unit(6, 4, seed=seed)
    caption_of = generator.integers(6, size=pairs)
    image_of = generator.integers(images, size=pairs)
    queries = 9
    query_captions = generator.integers(6, size=queries)
    query_images = generator.integers(images + 1, size=queries)  # one image that carries no caption
    exclude = generator.integers(-1, pairs, size=queries) if with_exclusion else None
    arrays = [torch.from_numpy(values) for values in (caption_of, image_of, query_captions, query_images)]
    before, module.MAX_GATHERED = module.MAX_GATHERED, budget  # parts of any size give the same
    try:
        found = caption_agreement(captions, *arrays, None if exclude is None else torch.from_numpy(exclude))
    finally:
        module.MAX_GATHERED = before
    expected = naive(captions.tolist(), caption_of, image_of, query_captions, query_images, exclude)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_an_image_with_one_caption_says_nothing():
    captions = unit(3, 5)
    rows = torch.tensor([0, 1, 2])
    assert caption_agreement(captions, rows, rows, rows, rows, rows).tolist() == [0.0, 0.0, 0.0]
    image_of = torch.tensor([0, 0, 1])
    found = caption_agreement(captions, rows, image_of, rows, image_of, rows)
    assert found[2].item() == pytest.approx(float(found[:2].mean()))
    assert not found.isnan().any()
    levelled = caption_agreement(captions, rows, image_of, rows, image_of, rows, level=-0.5)
    assert levelled[2].item() == -0.5 and torch.equal(levelled[:2], found[:2])


def test_no_query_gives_no_answer():
    none = torch.zeros(0, dtype=torch.int64)
    assert caption_agreement(unit(2, 3), torch.tensor([0]), torch.tensor([0]), none, none).shape == (0,)


def test_the_measure_leaves_out_the_row_and_fills_lone_captions_alike():
    texts, text_of = unit(5, 4).float(), torch.arange(5)
    image_of = torch.tensor([0, 0, 0, 1, 1])
    measure = caption_agreement_measure(texts, text_of, image_of)
    expected = naive(texts.tolist(), text_of, image_of.tolist(), range(5), image_of.tolist(), range(5))
    np.testing.assert_allclose(measure(text_of, image_of, text_of).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert caption_agreement_measure(texts, text_of, text_of) is None  # one caption each
    alone = torch.tensor([0, 0, 0, 1, 2])
    level = caption_agreement_measure(texts, text_of, alone)(text_of, alone, text_of)
    assert level[3].item() == level[4].item() == pytest.approx(float(level[:3].mean()) / 2, abs=1e-6)


def test_only_captions_of_a_image_that_fail_together_are_image_level_noise():
    generator = np.random.default_rng(0)
    image_of = np.repeat(np.arange(200), 4)
    agreeing, null = generator.normal(3, 1, 800), generator.normal(size=5000)
    scattered = np.where(generator.random(800) < 0.2, 0.0, 1.0)
    assert not image_level_mismatch(scattered, image_of, agreeing, null)
    whole = np.where(np.repeat(generator.random(200) < 0.2, 4), 0.0, 1.0)
    assert image_level_mismatch(whole, image_of, agreeing, null)
    assert not image_level_mismatch(
        whole, image_of, generator.normal(size=800), null
    )  # they agree with nothing
    assert not image_level_mismatch(np.r_[np.zeros(8), np.ones(792)], image_of, agreeing, null)  # too few


@pytest.mark.parametrize("rate", [0.2, 0.6, 0.8])
def test_wrong_captions_agree_less(rate):
    """Five captions an image, a share of them from elsewhere: right ones agree more, even when few."""
    generator = torch.Generator().manual_seed(1)
    images = 400
    own = torch.arange(images).repeat_interleave(5)
    captions = torch.randn(images, 16, generator=generator)[own]
    captions = captions + 0.8 * torch.randn(len(own), 16, generator=generator)
    captions = captions / captions.norm(dim=1, keepdim=True)
    wrong = torch.rand(len(own), generator=generator) < rate
    caption_of = torch.arange(len(own))
    caption_of[wrong] = caption_of[wrong][torch.randperm(int(wrong.sum()), generator=generator)]
    truly_wrong = (own[caption_of] != own).numpy()
    rows = torch.arange(len(own))
    labelled = caption_agreement(captions, caption_of, own, caption_of, own, rows).numpy()
    assert roc_auc_score(~truly_wrong, labelled) > {0.2: 0.97, 0.6: 0.85, 0.8: 0.65}[rate]
    # a random caption in the place of a labelled one looks like a truly wrong one
    random_captions = torch.randint(len(own), (len(own),), generator=generator)
    simulated = caption_agreement(captions, caption_of, own, random_captions, own, rows).numpy()
    assert abs(np.median(simulated) - np.median(labelled[truly_wrong])) < 0.03
