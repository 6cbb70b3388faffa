"""Recall against enumeration of every order that ties allow."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpguard.errors import DataError
from pmpguard.evaluation.recall import recall_from_chunks, recall_names, retrieval_recall


def hit_share(scores, relevant, k):
    """Share of the orders compatible with the scores in which a relevant item is among the first k."""
    levels = sorted(set(scores), reverse=True)
    groups = [[item for item, score in enumerate(scores) if score == level] for level in levels]
    hits = orders = 0
    for arrangement in itertools.product(*(itertools.permutations(group) for group in groups)):
        first = list(itertools.chain(*arrangement))[:k]
        hits += any(item in relevant for item in first)
        orders += 1
    return Fraction(hits, orders)


def brute_force(scores, image_of, ks, strings=None):
    """(i2t, t2i) in percent by enumeration."""
    captions, images = len(scores), len(scores[0])
    strings = strings or list(range(captions))
    carried = [{strings[c] for c in range(captions) if image_of[c] == image} for image in range(images)]
    i2t, t2i = [], []
    for k in ks:
        by_image = [
            hit_share(
                [row[image] for row in scores],
                {c for c in range(captions) if strings[c] in carried[image]},
                k,
            )
            for image in range(images)
            if carried[image]
        ]
        by_caption = [
            hit_share(scores[c], {image for image in range(images) if strings[c] in carried[image]}, k)
            for c in range(captions)
        ]
        i2t.append(float(100 * sum(by_image) / len(by_image)))
        t2i.append(float(100 * sum(by_caption) / len(by_caption)))
    return i2t, t2i


@st.composite
def small_worlds(draw):
    captions, images = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    value = st.sampled_from([-2.0, -1.0, 0.0, 1.0])
    scores = draw(
        st.lists(st.lists(value, min_size=images, max_size=images), min_size=captions, max_size=captions)
    )
    image_of = draw(st.lists(st.integers(0, images - 1), min_size=captions, max_size=captions))
    strings = draw(st.lists(st.integers(0, 3), min_size=captions, max_size=captions))
    return scores, image_of, strings, draw(st.integers(1, 7))


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(small_worlds())
def test_equals_enumeration_of_tie_orders(world):
    scores, image_of, strings, chunk = world
    ks = (1, 2, 4)
    found = retrieval_recall(
        np.array(scores), image_of, caption_strings=strings, ks=ks, bootstrap=0, chunk=chunk
    )
    i2t, t2i = brute_force(scores, image_of, ks)
    assert found.i2t == pytest.approx(i2t)
    assert found.t2i == pytest.approx(t2i)
    assert found.mr == pytest.approx(np.mean([*i2t, *t2i]))
    i2t, t2i = brute_force(scores, image_of, ks, strings)
    assert found.string_aware.i2t == pytest.approx(i2t)
    assert found.string_aware.t2i == pytest.approx(t2i)


def test_every_chunk_size_gives_the_same():
    generator = np.random.default_rng(0)
    scores = generator.integers(-4, 4, (60, 25)).astype(
        np.float32
    )  # full of ties, also beyond the tenth place
    image_of = generator.integers(0, 25, 60)
    strings = generator.integers(0, 30, 60)
    whole = retrieval_recall(scores, image_of, caption_strings=strings)
    for chunk in (1, 7, 59, 60):
        parts = retrieval_recall(scores, image_of, caption_strings=strings, chunk=chunk)
        assert parts.as_dict() == pytest.approx(whole.as_dict())


def test_stream_is_read_once():
    scores = torch.randn(30, 10, generator=torch.Generator().manual_seed(0))
    image_of = np.arange(30) % 10
    blocks = iter([scores[:11], scores[11:12], scores[12:]])
    assert recall_from_chunks(blocks, image_of, 10).as_dict() == retrieval_recall(scores, image_of).as_dict()


def test_without_ties_equals_plain_ranks():
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(200, 40)) - 5
    image_of = np.repeat(np.arange(40), 5)
    found = retrieval_recall(scores, image_of, bootstrap=0)
    for place, k in enumerate((1, 5, 10)):
        order = np.argsort(-scores, axis=1)[:, :k]
        assert found.t2i[place] == pytest.approx(100 * (order == image_of[:, None]).any(1).mean())
        order = np.argsort(-scores, axis=0)[:k]  # (k, images)
        assert found.i2t[place] == pytest.approx(100 * (image_of[order] == np.arange(40)).any(0).mean())


def test_transposing_swaps_the_directions():
    generator = np.random.default_rng(2)
    scores = generator.integers(0, 5, (12, 12)).astype(float)
    partner = generator.permutation(12)
    straight = retrieval_recall(scores, partner, bootstrap=0)
    swapped = retrieval_recall(scores.T, np.argsort(partner), bootstrap=0)
    assert straight.i2t == pytest.approx(swapped.t2i)
    assert straight.t2i == pytest.approx(swapped.i2t)


def test_constant_scores_give_chance_not_index_order():
    found = retrieval_recall(np.zeros((50, 50)), np.arange(50), bootstrap=0)
    assert found.i2t == pytest.approx((2, 10, 20))
    assert found.t2i == pytest.approx((2, 10, 20))


def test_equal_captions_limit_ids_but_not_strings():
    """Two images under one sentence: ids can only guess between them."""
    scores = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    found = retrieval_recall(scores, [0, 1, 2], caption_strings=[7, 7, 8], ks=(1,), bootstrap=0)
    assert found.t2i[0] == pytest.approx(100 * 2 / 3)
    assert found.string_aware.t2i[0] == found.string_aware.i2t[0] == 100
    assert found.as_dict()["t2i_r1_string"] == 100


def test_one_item_and_distractors():
    assert retrieval_recall(np.array([[-3.0]]), [0]).mr == 100
    found = retrieval_recall(np.array([[0.0, 1.0, 2.0]]), [0], ks=(1, 2, 3), bootstrap=0)
    assert found.t2i == (0, 0, 100)
    assert found.i2t == (100, 100, 100)  # images without captions are no queries


def test_scores_of_minus_infinity_rank_last():
    scores = np.array([[1.0, -np.inf], [-np.inf, -np.inf]])
    found = retrieval_recall(scores, [0, 1], ks=(1,), bootstrap=0)
    assert found.t2i[0] == 75 and found.i2t[0] == 75


def test_bootstrap_interval():
    generator = np.random.default_rng(3)
    scores = generator.normal(size=(1500, 300))
    image_of = np.repeat(np.arange(300), 5)
    scores[np.arange(1500), image_of] += 2.5
    found = retrieval_recall(scores, image_of)
    again = retrieval_recall(scores, image_of)
    other = retrieval_recall(scores, image_of, seed=1)
    assert found.intervals == again.intervals != other.intervals
    assert list(found.intervals) == recall_names() == list(found.as_dict())
    for name, (low, high) in found.intervals.items():
        assert low < found.as_dict()[name] < high
    # i2t R@1 resamples 300 independent hits: compare with the binomial deviation
    share = found.i2t[0] / 100
    low, high = found.intervals["i2t_r1"]
    assert high - low == pytest.approx(100 * 2 * 1.96 * np.sqrt(share * (1 - share) / 300), rel=0.15)


def test_bootstrap_keeps_an_images_captions_together():
    """Captions of one image that all hit or all miss vary like images, not like single captions."""
    scores = np.zeros((500, 100))
    image_of = np.repeat(np.arange(100), 5)
    hit = np.arange(100) < 50
    scores[np.arange(500), image_of] = np.where(hit[image_of], 1.0, -1.0)
    low, high = retrieval_recall(scores, image_of, ks=(1,)).intervals["t2i_r1"]
    assert high - low == pytest.approx(100 * 2 * 1.96 * np.sqrt(0.25 / 100), rel=0.2)


@pytest.mark.parametrize(
    ("scores", "image_of", "message"),
    [
        (np.array([[0.0, np.nan], [1.0, 2.0]]), [0, 1], "captions 0..2: 1 values are NaN"),
        (np.zeros((2, 2)), [0, 2], "caption_image row 1: image 2 is not one of the 2"),
        (
            np.zeros((2, 2)),
            [0, 1, 1],
            r"shape \(2, 2\), but caption_image names 3 captions\nFix: captions are rows",
        ),
        (np.zeros((3, 2)), [0, 1], r"shape \(3, 2\), but caption_image names 2 captions"),
        (np.zeros((2, 2)), [0.0, 1.0], "float64 values\nFix: give numbers of images"),
        (np.zeros((0, 2)), [], "at least one caption"),
        (np.zeros(4), [0], r"shape \(4,\)\nFix: give \(captions, images\)"),
    ],
)
def test_bad_input_is_named(scores, image_of, message):
    with pytest.raises(DataError, match=message):
        retrieval_recall(scores, image_of)


def test_strings_of_another_length_are_refused():
    with pytest.raises(DataError, match="caption_strings has shape"):
        retrieval_recall(np.zeros((2, 2)), [0, 1], caption_strings=[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_tensors_are_as_good_as_arrays(dtype):
    scores = torch.randint(-3, 3, (9, 4), generator=torch.Generator().manual_seed(3)).to(dtype)
    image_of = torch.arange(9) % 4
    found = retrieval_recall(scores.requires_grad_(), image_of, bootstrap=0)
    assert found == retrieval_recall(scores.detach().double().numpy(), image_of.tolist(), bootstrap=0)
