"""Verdicts from evidence: what counts, what is left out, what is remembered, what is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pmpguard.detection.judge import FLAGGED_BELOW, Verdicts, Weights, judge_pairs
from pmpguard.detection.null_pairs import Evidence, NullPairs, sample_null_pairs
from pmpguard.errors import DataError
from pmpguard.evaluation.detection import auroc

PAIRS = 1500
ROWS = torch.arange(PAIRS)


def normal(count: int, seed: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def null_pairs(image_of: Tensor = ROWS) -> NullPairs:
    return sample_null_pairs(ROWS, image_of, count=5000)


def two_kinds(rate: float) -> tuple[dict[str, Evidence], np.ndarray]:
    """A strong and a weak kind of evidence of pairs of which a share is mismatched."""
    wrong = np.arange(PAIRS) < round(rate * PAIRS)
    right = torch.from_numpy(~wrong)
    evidence = {
        name: Evidence(normal(PAIRS, seed) + shift * right, normal(5000, seed + 1))
        for name, shift, seed in (("regression", 3.0, 0), ("neighbour_text", 1.0, 10))
    }
    return evidence, wrong


def judged(rate: float = 0.3, **options: object) -> tuple[Verdicts, np.ndarray]:
    evidence, wrong = two_kinds(rate)
    return judge_pairs(evidence, ROWS, ROWS, null_pairs(), **options), wrong  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8])
def test_rate_flags_and_ranks(rate: float) -> None:
    found, wrong = judged(rate, bootstrap=30)
    assert found.noise_rate == pytest.approx(rate, abs=0.04)
    assert found.noise_rate_interval is not None
    low, high = found.noise_rate_interval
    assert low - 0.02 <= rate <= high + 0.02
    assert found.flag.tolist() == (found.p_match < FLAGGED_BELOW).tolist()
    assert sorted(found.rank.tolist()) == list(range(1, PAIRS + 1))
    assert (np.diff(found.p_match[np.argsort(found.rank)]) >= 0).all()
    assert found.informative
    if rate:
        alone = auroc(-two_kinds(rate)[0]["regression"].observed.double().numpy(), wrong)
        assert auroc(-found.combined, wrong) > alone
    assert bool(found.warnings) == (rate == 0.8)


def test_evidence_is_standardised_by_null_pairs_and_competition_comes_last() -> None:
    text_of = torch.arange(PAIRS) // 3  # texts on three images each
    evidence, _ = two_kinds(0.3)
    null = sample_null_pairs(text_of, ROWS, count=5000)
    found = judge_pairs(evidence, text_of, ROWS, null)
    assert found.names == ("regression", "neighbour_text", "competition")
    assert found.measured_names == found.names[:2] and found.evidence.shape == (PAIRS, 3)
    part = evidence["regression"].arrays()
    np.testing.assert_allclose(found.evidence[:, 0], (part[0] - part[1].mean()) / part[1].std())
    without, _ = judged()
    assert "competition" not in without.names  # no text stands on two images
    np.testing.assert_array_equal(without.p_match, without.p_measured)
    assert found.noise_rate == without.noise_rate  # competition says which, not how many


def test_any_pair_can_be_judged_like_a_labelled_one() -> None:
    found, _ = judged()
    order = (1, 0)
    columns = found.evidence[:, order]
    again = found.judge(columns, tuple(found.names[place] for place in order))
    np.testing.assert_allclose(again, found.p_measured)


def test_weights_and_rate_are_learned_from_what_is_held_out() -> None:
    """Trained pairs are remembered by heart: by them alone nothing would be mismatched."""
    evidence, wrong = two_kinds(0.4)
    held_out = np.arange(PAIRS) % 2 == 0
    learned_by_heart = torch.from_numpy(np.where(held_out, 0.0, 2.0 * wrong)).float()
    part = evidence["regression"]
    evidence["regression"] = Evidence(part.observed + learned_by_heart, part.null)
    found = judge_pairs(evidence, ROWS, ROWS, null_pairs(), held_out=held_out)
    plain = judge_pairs(evidence, ROWS, ROWS, null_pairs())
    assert found.noise_rate == pytest.approx(0.4, abs=0.05) and plain.noise_rate < 0.35
    none = judge_pairs(evidence, ROWS, ROWS, null_pairs(), held_out=np.zeros(PAIRS, bool))
    np.testing.assert_array_equal(none.p_match, plain.p_match)


def test_known_weights_and_a_known_rate_are_kept() -> None:
    known = Weights({"regression": 0.5, "neighbour_text": 2.0}, {})
    found, _ = judged(known=known, noise_rate=0.3)
    assert found.weights.support == known.support and found.noise_rate == 0.3
    np.testing.assert_allclose(found.support, found.evidence @ [0.5, 2.0])
    assert found.p_match.mean() == pytest.approx(0.7, abs=0.06)
    partly, _ = judged(known=Weights({"regression": 0.5}, {}))  # one kind is new: all is learned anew
    assert partly.weights.support == judged()[0].weights.support


@pytest.mark.parametrize("seed", range(3))
def test_evidence_that_says_nothing_is_noticed(seed: int) -> None:
    evidence = {
        name: Evidence(normal(PAIRS, seed + k), normal(5000, 90 + seed + k))
        for k, name in enumerate(("regression", "neighbour_text"))
    }
    found = judge_pairs(evidence, ROWS, ROWS, null_pairs())
    assert found.noise_rate > 0.9 and found.p_match.mean() < 0.1
    assert "either most captions are wrong, or the embeddings are too weak" in found.warnings[0]
    assert not found.informative and found.noise_rate_interval is None
    with_interval = judge_pairs(evidence, ROWS, ROWS, null_pairs(), bootstrap=3)
    assert with_interval.noise_rate_interval == (0.0, 1.0)
    constant = {"regression": Evidence(torch.ones(PAIRS), torch.ones(5000))}
    equal = judge_pairs(constant, ROWS, ROWS, null_pairs())
    assert (equal.p_match == 1).all() and not equal.informative and "says nothing" in equal.warnings[0]


def test_few_pairs_are_called_a_rough_guess() -> None:
    few = torch.arange(30)
    evidence = {"regression": Evidence(normal(30, 0) + 3, normal(500, 1))}
    found = judge_pairs(evidence, few, few, sample_null_pairs(few, few, count=500))
    assert found.warnings == ("only 30 pairs: the estimated noise rate is a rough guess",)


@pytest.mark.parametrize("together", [False, True])
def test_agreement_counts_unless_whole_images_are_mismatched(together: bool) -> None:
    image_of = ROWS // 5
    generator = np.random.default_rng(0)
    wrong = np.repeat(generator.random(PAIRS // 5) < 0.3, 5) if together else generator.random(PAIRS) < 0.3
    right = torch.from_numpy(~wrong)
    agrees = torch.ones(PAIRS) if together else right
    evidence = {
        "regression": Evidence(normal(PAIRS, 0) + 4 * right, normal(5000, 1)),
        "caption_agreement": Evidence(normal(PAIRS, 2) + 3 * agrees, normal(5000, 3)),
    }
    found = judge_pairs(evidence, ROWS, image_of, null_pairs(image_of))
    assert ("caption_agreement" in found.measured_names) != together
    assert any("image-level noise" in warning for warning in found.warnings) == together
    assert found.noise_rate == pytest.approx(wrong.mean(), abs=0.04)
    assert auroc(-found.p_match, wrong) > 0.98


def test_without_evidence_there_is_nothing_to_judge() -> None:
    with pytest.raises(DataError, match="no evidence"):
        judge_pairs({}, ROWS, ROWS, null_pairs())
