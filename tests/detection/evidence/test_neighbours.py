"""What neighbours say of a pair, against loops; and verdicts that spread from certain pairs to others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.detection.evidence import neighbours as surroundings
from pmpguard.detection.evidence.neighbours import (
    QUIET,
    TEMPERATURE,
    collect_votes,
    find_neighbourhoods,
    neighbour_evidence,
)
from pmpguard.detection.mixture import fit_match_mixture
from pmpguard.detection.null_pairs import NullPairs, sample_null_pairs
from pmpguard.evaluation.detection import auroc


def vectors(count: int, dim: int, seed: int) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def naive_vote(
    number: int, own: np.ndarray, others: np.ndarray, rows: list[tuple[int, int, float]], nearest: int
) -> np.ndarray:
    """What the neighbours of one item are paired with; rows are (own, other, trust)."""
    rest = sorted((i for i in range(len(own)) if i != number), key=lambda i: -float(own[number] @ own[i]))
    rest = rest[:nearest]
    loud = np.exp([float(own[number] @ own[i]) / TEMPERATURE for i in rest])
    vote = np.zeros(others.shape[1])
    for one, share in zip(rest, loud / loud.sum(), strict=True):
        for mine, other, clean_probability in rows:
            if mine == one:
                vote += share * clean_probability * others[other]
    return vote


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(2, 8), st.integers(1, 12), st.integers(1, 5))
def test_both_parts_equal_loops(seed: int, images: int, captions: int, pairs: int, nearest: int) -> None:
    generator = np.random.default_rng(seed)
    image_of, caption_of = (generator.integers(count, size=pairs) for count in (images, captions))
    wrong_images, wrong_captions = (generator.integers(count, size=5) for count in (images, captions))
    clean_probability = 0.1 + generator.random(pairs)
    neighbourhoods = find_neighbourhoods(vectors(captions, 4, seed), vectors(images, 3, seed + 1), nearest)
    assert neighbourhoods is not None
    places = torch.zeros(5, dtype=torch.int64)
    wrong = NullPairs(torch.from_numpy(wrong_captions), torch.from_numpy(wrong_images), places)
    parts = neighbour_evidence(
        neighbourhoods,
        torch.from_numpy(caption_of),
        torch.from_numpy(image_of),
        wrong,
        torch.from_numpy(clean_probability),
    )
    text, looks = (
        neighbourhoods.captions.vectors.double().numpy(),
        neighbourhoods.images.vectors.double().numpy(),
    )
    rows = list(zip(image_of.tolist(), caption_of.tolist(), clean_probability.tolist(), strict=True))
    for asked_captions, asked_images, which in (
        (caption_of, image_of, "labelled"),
        (wrong_captions, wrong_images, "wrong"),
    ):
        for query, (caption, image) in enumerate(zip(asked_captions, asked_images, strict=True)):
            others = [(c, i, weight) for i, c, weight in rows if i != image]
            for name, vote, vector in (
                ("said", naive_vote(image, looks, text, rows, nearest), text[caption]),
                ("shown", naive_vote(caption, text, looks, others, nearest), looks[image]),
            ):
                length = np.linalg.norm(vote)
                if abs(length - QUIET) < 1e-5:
                    continue  # rounding decides
                expected = vote @ vector / length if length > QUIET else 0.0
                found = float(getattr(parts[name], which)[query])
                assert found == pytest.approx(expected, abs=1e-3 if length > 0.01 else 0.05)


def test_no_pair_is_judged_by_itself() -> None:
    neighbourhoods = find_neighbourhoods(vectors(8, 5, 0), vectors(8, 5, 1))
    assert neighbourhoods is not None
    rows, clean_probability = torch.arange(8), torch.ones(8)
    before = collect_votes(
        neighbourhoods.images, neighbourhoods.captions.vectors, rows, rows, clean_probability
    )
    other_caption = rows.clone()
    other_caption[3] = 5
    after = collect_votes(
        neighbourhoods.images, neighbourhoods.captions.vectors, rows, other_caption, clean_probability
    )
    torch.testing.assert_close(before[3], after[3])
    assert not torch.allclose(before, after)
    unheard = collect_votes(
        neighbourhoods.images, neighbourhoods.captions.vectors, rows, rows, torch.zeros(8)
    )
    assert not unheard.any()  # nobody is trusted, nobody speaks


def test_captions_of_an_exchanged_image_do_not_vouch_for_each_other() -> None:
    """Three captions of image 0 are alike and all stand with image 5: they say nothing of each other."""
    images = vectors(6, 8, 0)
    captions = vectors(18, 8, 1)
    captions[:3] = captions[0] + 0.01 * vectors(3, 8, 2)
    neighbourhoods = find_neighbourhoods(captions, images, 2)
    assert neighbourhoods is not None
    image_of = torch.arange(18) // 3
    image_of[:3] = 5
    wrong = sample_null_pairs(torch.arange(18), image_of, seed=0)
    parts = neighbour_evidence(neighbourhoods, torch.arange(18), image_of, wrong, torch.ones(18))
    assert (parts["shown"].labelled[:3] == 0).all()  # all who are like them are of the same image


def test_large_sets_and_single_items_do_without(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_neighbourhoods(vectors(3, 4, 0), vectors(1, 4, 1)) is None
    monkeypatch.setitem(surroundings.MOST, "cpu", 10)
    assert find_neighbourhoods(vectors(10, 4, 0), vectors(10, 4, 1)) is not None
    assert find_neighbourhoods(vectors(11, 4, 0), vectors(10, 4, 1)) is None


def test_trust_spreads_and_verdicts_get_better() -> None:
    """Forty kinds of images and captions, four of five captions wrong: each round tells them better."""
    generator = np.random.default_rng(0)
    kind = generator.integers(40, size=800)
    centres = vectors(40, 16, 0), vectors(40, 16, 1)
    image_of = torch.arange(800).repeat_interleave(2)
    right = kind[image_of.numpy()]
    is_mismatched = generator.random(1600) < 0.8
    described = np.where(is_mismatched, generator.integers(40, size=1600), right)
    captions = centres[0][described] + 0.7 * vectors(1600, 16, 2)
    images = centres[1][kind] + 0.7 * vectors(800, 16, 3)
    neighbourhoods = find_neighbourhoods(normalize(captions, dim=1), normalize(images, dim=1))
    assert neighbourhoods is not None
    rows = torch.arange(1600)
    wrong, clean_probability, found = sample_null_pairs(rows, image_of, seed=0), torch.ones(1600), []
    for _ in range(4):
        parts = neighbour_evidence(neighbourhoods, rows, image_of, wrong, clean_probability)
        labelled, mismatched = (
            sum(getattr(part, which).double().numpy() for part in parts.values())
            for which in ("labelled", "wrong")
        )
        p_match = fit_match_mixture(labelled, mismatched, bootstrap=0).p_match
        clean_probability = torch.from_numpy(p_match).float()
        found.append(auroc(-p_match, is_mismatched))
    assert found[-1] > found[0] + 0.05, found
