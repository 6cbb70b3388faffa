"""Rivals: what other pictures with a claim to a caption say about a pair."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pmpguard.catching.looking import Part, WrongPairs
from pmpguard.catching.rivals import LOOK_ALIKES, UNLIKE, rival_part
from pmpguard.catching.surroundings import Side, find_surroundings

GENERATOR = np.random.default_rng(4)
CAPTIONS, IMAGES, ROWS, WRONG = 12, 9, 40, 30


def numbers(most: int, count: int) -> Tensor:
    return torch.from_numpy(GENERATOR.integers(most, size=count))


def side(captions: int) -> Side:
    found = find_surroundings(torch.from_numpy(GENERATOR.normal(size=(captions, 4))), torch.eye(3))
    assert found is not None
    return found.captions


def strongest(
    support: list[float],
    pairs: list[tuple[int, int]],
    caption: int,
    image: int,
    left: int,
    alike: Side | None,
) -> float:
    """By loops: the best claim of any picture but `image` (and for equal strings `left`)."""
    claims = [s for s, (c, i) in zip(support, pairs, strict=True) if c == caption and i not in (image, left)]
    if alike is not None:
        near = zip(
            alike.numbers[caption, :LOOK_ALIKES].tolist(), alike.cosines[caption].tolist(), strict=False
        )
        for other, cosine in near:
            claims += [
                s - UNLIKE * (1 - cosine)
                for s, (c, i) in zip(support, pairs, strict=True)
                if c == other and i != image
            ]
    return max(claims, default=-np.inf)


@pytest.mark.parametrize("with_look_alikes", [False, True])
def test_labelled_pairs_equal_loops_over_all_pairs(with_look_alikes: bool) -> None:
    caption_of, image_of = numbers(CAPTIONS, ROWS), numbers(IMAGES, ROWS)
    support = torch.from_numpy(GENERATOR.normal(size=ROWS)).float()
    alike = side(CAPTIONS) if with_look_alikes else None
    wrong = WrongPairs(numbers(CAPTIONS, WRONG), numbers(IMAGES, WRONG), numbers(ROWS, WRONG))
    found = rival_part(support, torch.rand(ROWS), caption_of, image_of, wrong, alike, seed=0)
    pairs = list(zip(caption_of.tolist(), image_of.tolist(), strict=True))
    expected = np.array([strongest(support.tolist(), pairs, c, i, -1, alike) for c, i in pairs])
    known = np.isfinite(expected)
    assert known.sum() > ROWS / 2
    assert -found.labelled.numpy()[known] == pytest.approx(expected[known], rel=1e-5)
    assert len(set(found.labelled.numpy()[~known].tolist())) <= 1


def ask(
    support: list[float], trust: list[float], pairs: list[tuple[int, int]], wrong: tuple[int, int]
) -> Part:
    caption_of, image_of = torch.tensor(pairs).T
    asked = WrongPairs(torch.tensor([wrong[0]]), torch.tensor([wrong[1]]), torch.tensor([0]))
    return rival_part(torch.tensor(support), torch.tensor(trust), caption_of, image_of, asked, None, seed=0)


def test_the_better_supported_of_two_pictures_speaks_against_the_other() -> None:
    found = ask([3.0, -1.0], [0.9, 0.1], [(0, 0), (0, 1)], (0, 2)).labelled
    assert found.tolist() == [1.0, -3.0]


def test_a_caption_that_a_picture_carries_twice_is_no_rival_of_itself() -> None:
    found = ask([3.0, 2.0, -1.0], [0.9, 0.9, 0.1], [(0, 0), (0, 0), (0, 1)], (0, 2)).labelled
    assert found.tolist() == [1.0, 1.0, -3.0]


def test_a_wrong_pair_counts_as_moved_from_the_row_that_is_probably_wrong() -> None:
    """Its rivals are then the right row's picture, as those of a labelled wrong pair."""
    found = ask([3.0, 9.0], [0.99, 0.0], [(0, 0), (0, 1)], (0, 2))
    assert found.wrong.tolist() == [-3.0]


def test_a_caption_moved_from_its_only_row_leaves_no_rival() -> None:
    """It gets the mean of pairs that have some, and so do labelled ones: nothing tells them apart."""
    found = ask([3.0, 1.0, 5.0], [0.5, 0.5, 0.5], [(0, 0), (1, 1), (1, 2)], (0, 2))
    assert found.wrong.tolist() == found.labelled[:1].tolist() == [-3.0]


def test_a_picture_that_keeps_a_copy_stays_a_rival() -> None:
    found = ask([3.0, 3.0], [0.9, 0.9], [(0, 0), (0, 0)], (0, 2))
    assert found.wrong.tolist() == [-3.0]


def test_without_any_rival_nothing_is_said() -> None:
    found = ask([3.0, 1.0], [0.5, 0.5], [(0, 0), (1, 1)], (0, 1))
    assert found.labelled.tolist() == [0.0, 0.0] and found.wrong.tolist() == [0.0]


def test_the_order_of_rows_does_not_matter_to_labelled_pairs() -> None:
    caption_of, image_of = numbers(CAPTIONS, ROWS), numbers(IMAGES, ROWS)
    support = torch.from_numpy(GENERATOR.normal(size=ROWS)).float()
    wrong = WrongPairs(numbers(CAPTIONS, WRONG), numbers(IMAGES, WRONG), numbers(ROWS, WRONG))
    trust, alike = torch.zeros(ROWS), side(CAPTIONS)
    order = torch.from_numpy(GENERATOR.permutation(ROWS))
    found = rival_part(support, trust, caption_of, image_of, wrong, alike, seed=0)
    again = rival_part(support[order], trust, caption_of[order], image_of[order], wrong, alike, seed=0)
    known = found.labelled != found.labelled.mode().values
    assert known.sum() > ROWS / 2
    assert torch.equal(found.labelled[order][known[order]], again.labelled[known[order]])


def test_a_caption_is_told_from_copies_put_on_other_pictures() -> None:
    """Each sentence stands on its own picture and on four others: its best-supported picture is right."""
    caption_of = torch.arange(200).repeat(5)
    image_of = torch.cat(
        [torch.arange(200), *((torch.arange(200) + shift) % 200 for shift in (3, 17, 40, 90))]
    )
    right = torch.arange(1000) < 200
    support = torch.from_numpy(GENERATOR.normal(size=1000)).float() + 2 * right
    wrong = WrongPairs(numbers(200, 1000), numbers(200, 1000), numbers(1000, 1000))
    part = rival_part(support, torch.full((1000,), 0.2), caption_of, image_of, wrong, None, seed=0)
    before, after = (
        (evidence[right][:, None] > evidence[~right]).double().mean()
        for evidence in (support, support + part.labelled)
    )
    assert after > before + 0.03
