"""The probability of a picked caption: ordered, less sure than plain matches, zero where nothing matches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from pmpguard.audit.proposals import likelihood_ratio, picked_probability, propose_for_rows
from pmpguard.detection.detector import NoiseDetector

LABELS = np.array([0.99] * 8 + [0.02] * 2)


def test_grows_with_the_evidence_and_stays_below_plain_matches() -> None:
    found = picked_probability(np.linspace(0, 1, 101), LABELS, 0.8)
    assert (np.diff(found) >= 0).all() and found[0] < 0.01
    assert 0.85 < found[-1] < 0.95


def test_log_odds_count_by_half() -> None:
    """Random pairs match with the ratio of plain labels turned round; the odds' root is left of it."""
    plain = likelihood_ratio(np.array([0.99]), 0.8)[0]
    before = likelihood_ratio(np.array([0.9]), 0.8)[0] / plain
    found = picked_probability(np.array([0.9]), LABELS, 0.8)[0]
    assert found / (1 - found) == pytest.approx((before / (1 - before)) ** 0.5)


def test_without_plain_matches_nothing_is_proposed_with_confidence() -> None:
    assert (picked_probability(np.array([0.2, 0.9]), np.full(5, 0.1), 0.5) == 0).all()


def scenes(seed: int = 0, pairs: int = 1200, rate: float = 0.3) -> tuple[torch.Tensor, ...]:
    """Texts and images of 12 classes, the caption each row has, and the class of each image."""
    draw = torch.Generator().manual_seed(seed)
    classes = torch.randint(12, (pairs,), generator=draw)
    hidden = torch.randn(12, 8, generator=draw)[classes] + 0.5 * torch.randn(pairs, 8, generator=draw)
    texts, images = (
        hidden @ torch.randn(8, dim, generator=draw) + 2.2 * torch.randn(pairs, dim, generator=draw)
        for dim in (24, 32)
    )
    wrong, text_of = torch.randperm(pairs, generator=draw)[: round(rate * pairs)], torch.arange(pairs)
    text_of[wrong] = wrong.roll(1)
    return texts, images, text_of, classes


def test_known_classes_make_probabilities_of_a_ranking() -> None:
    texts, images, text_of, classes = scenes()
    own = torch.arange(len(texts))
    found = NoiseDetector(bootstrap=0).fit(texts, images, text_of, own, common_space=False)
    weight = found.clean_probability[:, None].sqrt()
    solved = torch.linalg.lstsq(texts[text_of] * weight, images * weight).solution
    rows = np.flatnonzero(found.verdicts.flag)

    def propose(labels: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, bool]:
        offered = propose_for_rows(
            normalize(texts @ solved, dim=1), normalize(images, dim=1), text_of, own, found.collected,
            found.verdicts, rows, 2, p_match=found.p_match, image_labels=labels,
        )  # fmt: skip
        assert (np.diff(offered.p_match, axis=1) <= 1e-12).all()
        fits = (classes[offered.captions[:, 0]] == classes[rows]).numpy()
        return offered.p_match[:, 0], fits, offered.calibrated

    ranked, fits, calibrated = propose(None)
    assert not calibrated
    probability, fits_too, calibrated = propose(classes.numpy())
    assert calibrated and fits_too.mean() == pytest.approx(fits.mean(), abs=0.02)  # the same captions, mostly
    assert 0.3 < fits_too.mean() < 0.97
    assert abs(probability.mean() - fits_too.mean()) < 0.06 < abs(ranked.mean() - fits.mean())
    few = np.where(np.arange(len(classes)) < 40, classes.numpy(), -1)
    assert not propose(few)[2] and not propose(np.zeros(len(classes), np.int64))[2]
