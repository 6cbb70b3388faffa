"""Evidence of labelled and deliberately mismatched pairs, measured alike, against loops."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from pmpguard.detection import null_pairs as looking
from pmpguard.detection.null_pairs import (
    NullPairs,
    caption_agreement_evidence,
    null_pair_count,
    sample_null_pairs,
    similarity_evidence,
)


def small_world(images: int = 30, each: int = 3) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    captions = normalize(torch.randn(images * each, 8, generator=generator), dim=1)
    pixels = normalize(torch.randn(images, 8, generator=generator), dim=1)
    caption_of = torch.arange(images * each)
    return captions, pixels, caption_of, caption_of // each


def test_wrong_pairs_are_never_labelled_ones_and_stand_in_rows_of_their_image() -> None:
    _, _, caption_of, image_of = small_world()
    wrong = sample_null_pairs(caption_of, image_of, seed=3)
    assert len(wrong.captions) == null_pair_count(len(caption_of)) == 20_000
    assert (image_of[wrong.captions] != wrong.images).all()
    assert torch.equal(image_of[wrong.rows], wrong.images)
    again = sample_null_pairs(caption_of, image_of, seed=3)
    assert torch.equal(wrong.captions, again.captions) and torch.equal(wrong.rows, again.rows)
    assert not torch.equal(wrong.captions, sample_null_pairs(caption_of, image_of, seed=4).captions)


def test_wrong_pairs_are_repeated_when_too_few_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "MISMATCHED_AT_LEAST", 50)
    two = torch.arange(2)
    wrong = sample_null_pairs(two, two, seed=0)
    assert len(wrong.captions) == 50 and (wrong.captions != wrong.images).all()


def test_parts_are_what_loops_give() -> None:
    captions, images, caption_of, image_of = small_world()
    some = sample_null_pairs(caption_of, image_of, seed=0)
    wrong = NullPairs(some.captions[:40], some.images[:40], some.rows[:40])
    part = caption_agreement_evidence(captions, caption_of, image_of, wrong)
    centred = (captions - captions.mean(0)).double().numpy()
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    asked = [*zip(range(90), image_of.tolist(), range(90), strict=True)]
    asked += [*zip(wrong.captions.tolist(), wrong.images.tolist(), wrong.rows.tolist(), strict=True)]
    found = torch.cat([part.labelled, part.wrong])
    for (caption, image, row), value in zip(asked, found.tolist(), strict=True):
        others = [r for r in range(90) if image_of[r] == image and r != row]
        cosines = sorted((float(centred[caption] @ centred[r]) for r in others), reverse=True)
        assert value == pytest.approx(np.mean(cosines[:2]), abs=1e-5)

    score, _ = similarity_evidence(captions, images, caption_of, image_of, wrong)
    cosines = (captions @ images.T).double().numpy()  # (C, I)
    by_caption = (cosines - cosines.mean(1, keepdims=True)) / cosines.std(1, keepdims=True)
    by_image = (cosines - cosines.mean(0)) / cosines.std(0)
    both = (by_caption + by_image) / 2**0.5
    np.testing.assert_allclose(score.labelled.numpy(), both[caption_of, image_of], atol=1e-4)
    np.testing.assert_allclose(score.wrong.numpy(), both[wrong.captions, wrong.images], atol=1e-4)
