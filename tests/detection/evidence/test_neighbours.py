"""What neighbours say of a pair, against loops; and verdicts that spread from certain pairs to others."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.detection.evidence.neighbours import (
    MIN_VOTES,
    TEMPERATURE,
    Neighbourhoods,
    find_neighbourhoods,
    neighbour_measures,
    votes,
)
from pmpguard.detection.mixture import fit_match_mixture
from pmpguard.detection.null_pairs import sample_null_pairs
from pmpguard.evaluation.detection import auroc


def vectors(count: int, dim: int, seed: int) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def naive_vote(
    number: int, own: np.ndarray, others: np.ndarray, rows: list[tuple[int, int, float]], nearest: int
) -> np.ndarray:
    """What the neighbours of one item are paired with; rows are (own, other, clean probability)."""
    rest = sorted((i for i in range(len(own)) if i != number), key=lambda i: -float(own[number] @ own[i]))
    rest = rest[:nearest]
    loud = np.exp([float(own[number] @ own[i]) / TEMPERATURE for i in rest])
    vote = np.zeros(others.shape[1])
    for one, share in zip(rest, loud / loud.sum(), strict=True):
        for mine, other, clean_probability in rows:
            if mine == one:
                vote += share * clean_probability * others[other]
    return vote


def asked_of(
    neighbourhoods: Neighbourhoods,
    text_of: Tensor,
    image_of: Tensor,
    clean_probability: Tensor,
    *asked: Tensor,
) -> dict[str, Tensor]:
    measures = neighbour_measures(neighbourhoods, text_of, image_of, clean_probability)
    return {name: measure(*asked, asked[0]) for name, measure in measures.items()}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 7), st.integers(2, 8), st.integers(1, 12), st.integers(1, 5))
def test_both_measures_equal_loops(seed: int, images: int, texts: int, pairs: int, nearest: int) -> None:
    generator = np.random.default_rng(seed)
    image_of, text_of = (generator.integers(count, size=pairs) for count in (images, texts))
    every = [(text, image) for text in range(texts) for image in range(images)]
    clean_probability = 0.1 + generator.random(pairs)
    neighbourhoods = find_neighbourhoods(vectors(texts, 4, seed), vectors(images, 3, seed + 1), nearest)
    assert neighbourhoods is not None
    found = asked_of(
        neighbourhoods, torch.from_numpy(text_of), torch.from_numpy(image_of),
        torch.from_numpy(clean_probability), *torch.tensor(every).T,
    )  # fmt: skip
    of_texts, of_images = (
        graph.vectors.double().numpy() for graph in (neighbourhoods.texts, neighbourhoods.images)
    )
    rows = list(zip(image_of.tolist(), text_of.tolist(), clean_probability.tolist(), strict=True))
    for place, (text, image) in enumerate(every):
        others = [(t, i, weight) for i, t, weight in rows if i != image]
        for name, vote, vector in (
            ("neighbour_text", naive_vote(image, of_images, of_texts, rows, nearest), of_texts[text]),
            ("neighbour_image", naive_vote(text, of_texts, of_images, others, nearest), of_images[image]),
        ):
            length = np.linalg.norm(vote)
            if abs(length - MIN_VOTES) < 1e-5:
                continue  # rounding decides
            expected = vote @ vector / length if length > MIN_VOTES else 0.0
            assert float(found[name][place]) == pytest.approx(expected, abs=1e-3 if length > 0.01 else 0.05)


def test_no_pair_votes_for_itself() -> None:
    neighbourhoods = find_neighbourhoods(vectors(8, 5, 0), vectors(8, 5, 1))
    assert neighbourhoods is not None
    rows = torch.arange(8)
    ones, unsure = torch.ones(8), torch.ones(8).index_fill(0, torch.tensor([3]), 0.01)
    before, after = (asked_of(neighbourhoods, rows, rows, some, rows, rows) for some in (ones, unsure))
    for name in ("neighbour_text", "neighbour_image"):
        torch.testing.assert_close(before[name][3], after[name][3])
        assert not torch.allclose(before[name], after[name])
    nothing = asked_of(neighbourhoods, rows, rows, torch.zeros(8), rows, rows)
    assert not any(values.any() for values in nothing.values())  # nobody is believed, nobody votes


def test_votes_add_up_by_their_shares() -> None:
    neighbourhoods = find_neighbourhoods(vectors(6, 5, 0), vectors(4, 5, 1), 3)
    assert neighbourhoods is not None
    graph, paired = neighbourhoods.texts, vectors(6, 2, 3)
    shares = graph.shares_of(torch.arange(6))  # (6, 3)
    torch.testing.assert_close(shares.sum(1), torch.ones(6))
    expected = sum(shares[2, k] * paired[graph.numbers[2, k]] for k in range(3))
    torch.testing.assert_close(votes(graph, paired, torch.tensor([2]))[0], expected)


def test_captions_of_an_exchanged_image_do_not_vouch_for_each_other() -> None:
    """Three captions of image 0 are similar and all stand with image 5: they say nothing of each other."""
    captions = vectors(18, 8, 1)
    captions[:3] = captions[0] + 0.01 * vectors(3, 8, 2)
    neighbourhoods = find_neighbourhoods(captions, vectors(6, 8, 0), 2)
    assert neighbourhoods is not None
    rows, image_of = torch.arange(18), torch.arange(18) // 3
    image_of[:3] = 5
    found = asked_of(neighbourhoods, rows, image_of, torch.ones(18), rows, image_of)
    assert (found["neighbour_image"][:3] == 0).all()  # all that are like them are of the same image


def test_a_single_item_has_no_neighbours() -> None:
    assert find_neighbourhoods(vectors(3, 4, 0), vectors(1, 4, 1)) is None
    assert find_neighbourhoods(vectors(1, 4, 0), vectors(3, 4, 1)) is None


def test_inverted_lists_tell_what_exact_neighbours_tell() -> None:
    kinds = vectors(40, 12, 0)[torch.arange(2400) % 40]
    texts, images = kinds + 0.3 * vectors(2400, 12, 1), kinds + 0.3 * vectors(2400, 12, 2)
    rows = torch.arange(2400)
    answers = []
    for exact_up_to in (10_000, 100):
        neighbourhoods = find_neighbourhoods(texts, images, 20, exact_up_to)
        assert neighbourhoods is not None
        answers.append(asked_of(neighbourhoods, rows, rows, torch.ones(2400), rows, rows))
    for name in answers[0]:
        assert np.corrcoef(answers[0][name], answers[1][name])[0, 1] > 0.98


def test_verdicts_spread_and_get_better() -> None:
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
    null, clean_probability, found = sample_null_pairs(rows, image_of, seed=0), torch.ones(1600), []
    for _ in range(4):
        measures = neighbour_measures(neighbourhoods, rows, image_of, clean_probability)
        labelled, mismatched = (
            sum(measure(*asked).double().numpy() for measure in measures.values())
            for asked in ((rows, image_of, rows), (null.texts, null.images, null.rows))
        )
        p_match = fit_match_mixture(labelled, mismatched, bootstrap=0).p_match
        clean_probability = torch.from_numpy(p_match).float()
        found.append(auroc(-p_match, is_mismatched))
    assert found[-1] > found[0] + 0.03, found
