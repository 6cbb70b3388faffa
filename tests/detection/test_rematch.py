"""Rematching against brute force, and on a planted world."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pmpguard.detection import rematch
from pmpguard.detection.evidence.similarity import pooled_statistics, similarity_measure
from pmpguard.detection.mixture import MatchMixture, fit_match_mixture
from pmpguard.detection.null_pairs import sample_null_pairs
from pmpguard.detection.rematch import (
    Candidates,
    find_proposals,
    mutual_best,
    propose_captions,
    propose_images,
    standardised_cosines,
    without_labelled,
)
from pmpguard.evaluation.detection import rematch_precision


def table_scores(matrix):
    return lambda captions, images: matrix[captions][:, images]


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_top_candidates_equal_a_full_sort(chunk):
    matrix = torch.randn(11, 8, generator=torch.Generator().manual_seed(0))
    images, captions = torch.tensor([6, 0, 3]), torch.tensor([10, 2, 4, 5, 7])
    found = propose_captions(table_scores(matrix), images, captions, 3, chunk)
    for row, image in enumerate(images.tolist()):
        ranked = sorted(captions.tolist(), key=lambda caption: -matrix[caption, image].item())
        assert found.partners[row].tolist() == ranked[:3]
        assert found.scores[row].tolist() == [matrix[caption, image].item() for caption in ranked[:3]]
    found = propose_images(table_scores(matrix), captions, images, 9, chunk)
    for row, caption in enumerate(captions.tolist()):
        assert found.partners[row].tolist() == sorted(
            images.tolist(), key=lambda image: -matrix[caption, image].item()
        )


def test_labelled_pairs_are_never_candidates():
    matrix = torch.ones(4, 3)
    caption_of, image_of = np.array([0, 1, 2, 3, 3]), np.array([0, 0, 1, 1, 2])
    scores = without_labelled(table_scores(matrix), (caption_of, image_of))(
        torch.tensor([3, 0]), torch.tensor([2, 0])
    )
    assert scores.tolist() == [[-torch.inf, 1.0], [1.0, -torch.inf]]
    found = propose_images(
        without_labelled(table_scores(matrix), (caption_of, image_of)),
        torch.tensor([3]),
        torch.tensor([1, 2]),
    )
    assert found.partners.tolist() == [[-1, -1]]


def test_mutual_best_against_brute_force():
    matrix = torch.randn(9, 9, generator=torch.Generator().manual_seed(1))
    captions, images = torch.tensor([8, 1, 3, 5, 0, 2]), torch.tensor([4, 7, 2, 0])
    for k in (1, 2, 6):
        found = mutual_best(
            images,
            captions,
            propose_captions(table_scores(matrix), images, captions, k),
            propose_images(table_scores(matrix), captions, images, 1),
        )
        expected = set()
        for caption in captions.tolist():
            best = max(images.tolist(), key=lambda image: matrix[caption, image].item())
            ranked = sorted(captions.tolist(), key=lambda other: -matrix[other, best].item())
            if caption in ranked[:k]:
                expected.add((best, caption))
        assert set(zip(found[0].tolist(), found[1].tolist(), strict=True)) == expected
        assert found[2].tolist() == matrix[found[1], found[0]].tolist()


def test_mutual_best_of_nothing():
    none = torch.empty(0, dtype=torch.int64)
    empty = Candidates(torch.empty(0, 0), torch.empty(0, 0, dtype=torch.int64))
    assert all(len(part) == 0 for part in mutual_best(none, none, empty, empty))


def planted(rate=0.4, images=300, per_image=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    own = torch.arange(images).repeat_interleave(per_image)
    centres = torch.randn(images, 32, generator=generator)
    captions = centres[own] + 0.8 * torch.randn(len(own), 32, generator=generator)
    noisy = torch.rand(len(own), generator=generator) < rate
    labelled = own.clone()
    labelled[noisy] = own[noisy].roll(per_image)
    unit = [values / values.norm(dim=1, keepdim=True) for values in (captions, centres)]
    return unit[0], unit[1], own.numpy(), labelled.numpy()


def judged(captions, images, labelled) -> MatchMixture:
    rows, image_of = torch.arange(len(captions)), torch.from_numpy(labelled)
    measure, null = similarity_measure(captions, images), sample_null_pairs(rows, image_of)
    return fit_match_mixture(
        measure(rows, image_of, rows).numpy(),
        measure(null.texts, null.images, null.rows).numpy(),
        bootstrap=0,
    )


def test_planted_partners_are_found(monkeypatch):
    captions, images, own, labelled = planted()
    rows = np.arange(len(own))
    mixture = judged(captions, images, labelled)
    score = standardised_cosines(captions, images, pooled_statistics(captions, images))
    monkeypatch.setattr(rematch, "QUERIES_AT_ONCE", 64)
    proposals = find_proposals(score, rows, labelled, mixture.p_match, mixture, captions_per_image=2)
    truth = np.stack([rows, own], axis=1)
    assert rematch_precision(proposals, truth).same_image > 0.9
    assert len(proposals) > 0.6 * (own != labelled).sum()
    assert len(np.unique(proposals.captions)) == len(proposals)
    assert (proposals.probabilities >= 0.5).all()
    assert not (labelled[proposals.captions] == proposals.images).any()
    np.testing.assert_array_equal(proposals.probabilities, mixture.posterior(proposals.scores))


def test_partners_in_a_large_pool_are_found_in_the_nearest_cells(monkeypatch):
    """All cells asked, it is the exact search; of few, what is found is scored exactly."""
    captions, images, _, _ = planted(images=1500)
    score = standardised_cosines(captions, images, pooled_statistics(captions, images))
    asked, pools = torch.arange(0, 1500, 5), (torch.arange(len(captions)), torch.arange(len(images)))
    exact = propose_captions(score, asked, pools[0], 4), propose_images(score, asked, pools[1], 4)
    monkeypatch.setattr(rematch, "MAX_EXACT_NEIGHBOURS", 1000)
    for probed, least in ((32, 1.0), (3, 0.55)):
        monkeypatch.setattr(rematch, "PROBED_CELLS", probed)
        near = propose_captions(score, asked, pools[0], 4), propose_images(score, asked, pools[1], 4)
        for found, known in zip(near, exact, strict=True):
            assert (found.partners == known.partners).float().mean() >= least
            same = found.partners == known.partners
            torch.testing.assert_close(found.scores[same], known.scores[same])


def test_nothing_flagged_nothing_proposed():
    captions, images, _, labelled = planted(images=20)
    rows = np.arange(len(labelled))
    mixture = judged(captions, images, labelled)
    score = standardised_cosines(captions, images, pooled_statistics(captions, images))
    assert len(find_proposals(score, rows, labelled, np.ones(len(rows)), mixture)) == 0
