"""Calibrated evidence against loops, the rules of mismatched pairs, and that calibration helps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from pmpguard.detection.evidence.similarity import (
    cosine_moments,
    pooled_evidence,
    sample_null_numbers,
    sampled_evidence,
)
from pmpguard.detection.mixture import fit_match_mixture
from pmpguard.errors import DataError


def unit(*shape, seed=0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return values / values.norm(dim=-1, keepdim=True)


def world(images=400, per_image=3, rate=0.4, dim=32, seed=0):
    """Unit captions near their image, with hubs on both sides; a share of the labels is rotated."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.arange(images).repeat_interleave(per_image)
    centres = torch.randn(images, dim, generator=generator)
    centres += 1.5 * torch.rand(images, 1, generator=generator) * torch.ones(dim)  # hub images
    captions = centres[own] + 1.2 * torch.randn(len(own), dim, generator=generator)
    captions += 1.5 * torch.rand(len(own), 1, generator=generator) * torch.ones(dim)  # vague captions
    captions = captions / captions.norm(dim=1, keepdim=True)
    centres = centres / centres.norm(dim=1, keepdim=True)
    noisy = torch.rand(len(own), generator=generator) < rate
    labelled = own.clone()
    labelled[noisy] = own[noisy].roll(per_image)
    return captions, centres, labelled.numpy(), own.numpy() != labelled.numpy()


def test_moments_equal_the_full_matrix():
    queries, gallery = unit(7, 5, seed=1), unit(23, 5, seed=2)
    scores = queries @ gallery.T
    mean, variance = cosine_moments(queries, gallery, chunk=4)
    torch.testing.assert_close(mean, scores.mean(1))
    torch.testing.assert_close(variance, scores.var(1, correction=0))


def test_pooled_evidence_against_loops():
    captions, images = unit(6, 4, seed=3), unit(5, 4, seed=4)
    caption_of, image_of = [0, 1, 2, 3, 4, 5, 0], [0, 1, 2, 3, 4, 0, 3]
    evidence = pooled_evidence(captions, images, caption_of, image_of, mismatched_count=50)
    scores = (captions @ images.T).numpy()
    for row, (caption, image) in enumerate(zip(caption_of, image_of, strict=True)):
        score = scores[caption, image]
        along_images = [scores[caption, other] for other in range(5)]
        along_captions = [scores[other, image] for other in range(6)]
        by_caption = (score - np.mean(along_images)) / np.std(along_images)
        by_image = (score - np.mean(along_captions)) / np.std(along_captions)
        assert evidence.scores[row] == pytest.approx((by_caption + by_image) / np.sqrt(2), rel=1e-4)
    every = evidence.statistics.standardise(
        (captions @ images.T).float(), torch.arange(6)[:, None], torch.arange(5)[None, :]
    )
    assert np.isin(evidence.mismatched.round(4), every.double().numpy().round(4)).all()


def test_sampled_evidence_approaches_the_exact_one():
    captions, images, labelled, _ = world(images=60, per_image=2)
    rows = np.arange(len(captions))
    exact = pooled_evidence(captions, images, rows, labelled)

    def score(caption_numbers, image_numbers):
        return (captions[caption_numbers] * images[image_numbers]).sum(-1)

    sampled = sampled_evidence(score, rows, labelled, samples=4000, chunk=10_000)
    assert np.corrcoef(exact.scores, sampled.scores)[0, 1] > 0.999
    assert np.abs(exact.scores - sampled.scores).max() < 0.5
    assert len(sampled.mismatched) == len(exact.mismatched) == 20_000


def test_calibration_raises_auroc_and_the_rate_is_found():
    captions, images, labelled, noisy = world()
    evidence = pooled_evidence(captions, images, np.arange(len(captions)), labelled)
    raw = (captions * images[labelled]).sum(1).numpy()
    calibrated = roc_auc_score(~noisy, evidence.scores)
    assert calibrated > roc_auc_score(~noisy, raw) + 0.005
    assert calibrated > 0.97
    mixture = fit_match_mixture(evidence.scores, evidence.mismatched, bootstrap=0)
    assert abs(mixture.mismatch_rate - noisy.mean()) < 0.04


def test_wrong_pairs_score_like_mismatched_labels():
    captions, images, labelled, noisy = world()
    evidence = pooled_evidence(captions, images, np.arange(len(captions)), labelled)
    between = np.concatenate([evidence.scores[noisy], evidence.mismatched])
    is_labelled = np.arange(len(between)) < noisy.sum()
    assert abs(roc_auc_score(is_labelled, between) - 0.5) < 0.05


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), min_size=1, max_size=20), st.integers(0, 9))
def test_wrong_pairs_are_never_labelled(pairs, seed):
    caption_of, image_of = (np.array(numbers, dtype=np.int64) for numbers in zip(*pairs, strict=True))
    every = {(caption, image) for caption in set(caption_of.tolist()) for image in set(image_of.tolist())}
    if every == set(pairs):
        with pytest.raises(DataError, match="no mismatched pair can be formed"):
            sample_null_numbers(caption_of, image_of, 200, seed)
        return
    captions, images = sample_null_numbers(caption_of, image_of, 200, seed)
    drawn = set(zip(captions.tolist(), images.tolist(), strict=True))
    assert drawn <= every - set(pairs)
    again = sample_null_numbers(caption_of, image_of, 200, seed)
    np.testing.assert_array_equal(captions, again[0])
    np.testing.assert_array_equal(images, again[1])


def test_half_precision_and_gradients_do_not_leak():
    captions, images, labelled, _ = world(images=50)
    captions.requires_grad_()
    evidence = pooled_evidence(
        captions.bfloat16(), images.bfloat16(), torch.arange(150), torch.tensor(labelled)
    )
    assert evidence.scores.dtype == np.float64 and np.isfinite(evidence.scores).all()
    assert not evidence.statistics.caption_mean.requires_grad


def test_collapsed_embeddings_are_finite_and_uninformative():
    same = torch.ones(10, 4) / 2
    evidence = pooled_evidence(same, same, np.arange(10), np.arange(10))
    assert np.ptp(np.concatenate([evidence.scores, evidence.mismatched])) == 0
    assert (fit_match_mixture(evidence.scores, evidence.mismatched).p_match == 1).all()


@pytest.mark.parametrize(
    ("caption_of", "image_of", "message"),
    [
        ([0, 1], [0, 9], "image_of row 1: 9 is not one of the 3"),
        ([0, 7], [0, 1], "caption_of row 1: 7 is not one of the 4"),
        ([0, 1, 2], [0, 1], "caption_of has 3 rows but image_of 2"),
        ([], [], "caption_of has shape"),
        ([0, 1], [0, 0], "no mismatched pair"),
    ],
)
def test_bad_pairs_are_named(caption_of, image_of, message):
    with pytest.raises(DataError, match=message):
        pooled_evidence(unit(4, 3), unit(3, 3), caption_of, image_of)


def test_wrong_pairs_are_of_different_classes_where_these_are_known() -> None:
    caption_of, image_of = np.arange(200), np.arange(200) // 2
    labels = np.arange(100) % 4
    labels[:10] = -1
    captions, images = sample_null_numbers(caption_of, image_of, 2000, 0, labels)
    assert len(captions) == 2000
    of_caption = labels[image_of[captions]]  # every caption has one image here
    assert ((of_caption != labels[images]) | (of_caption == -1)).all()
    assert (of_caption == -1).any() and (labels[images] == -1).any()
    everything_alike = sample_null_numbers(caption_of, image_of, 2000, 0, np.zeros(100, dtype=np.int64))
    plain = sample_null_numbers(caption_of, image_of, 2000, 0)
    assert all((left == right).all() for left, right in zip(everything_alike, plain, strict=True))
