"""Competitors: what other images with a claim to a caption say about a pair."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pmpguard.detection.evidence import competition as competitors
from pmpguard.detection.evidence.competition import LOOK_ALIKES, UNLIKE, competition_evidence
from pmpguard.detection.evidence.neighbours import NeighbourGraph, find_neighbourhoods
from pmpguard.detection.null_pairs import Part

CAPTIONS, IMAGES, ROWS, WRONG = 12, 9, 60, 50
Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class World:
    support: Tensor  # (ROWS,)
    clean_probability: Tensor  # (ROWS,)
    caption_of: Tensor  # (ROWS,)
    image_of: Tensor  # (ROWS,)
    wrong: tuple[Tensor, Tensor]  # (WRONG,) captions, (WRONG,) images
    alike: NeighbourGraph | None

    def part(self, seed: int = 0) -> Part:
        found = competition_evidence(
            self.support, self.clean_probability, self.caption_of, self.image_of, self.wrong, self.alike, seed
        )
        assert found is not None
        return found


def world(seed: int, with_look_alikes: bool = False) -> World:
    generator = np.random.default_rng(seed)
    caption_of = torch.from_numpy(generator.integers(CAPTIONS, size=ROWS))
    caption_of[:CAPTIONS] = torch.arange(CAPTIONS)
    image_of = torch.from_numpy(generator.integers(IMAGES, size=ROWS))
    neighbourhoods = find_neighbourhoods(torch.from_numpy(generator.normal(size=(CAPTIONS, 4))), torch.eye(3))
    assert neighbourhoods is not None
    return World(
        torch.from_numpy(generator.normal(size=ROWS)).float(),
        torch.zeros(ROWS),
        caption_of,
        image_of,
        (
            caption_of[generator.integers(ROWS, size=WRONG)],
            torch.from_numpy(generator.integers(IMAGES, size=WRONG)),
        ),
        neighbourhoods.captions if with_look_alikes else None,
    )


def strongest(world: World, caption: int, image: int, left: int) -> float:
    """By loops: the best claim of any image but `image` (and for equal strings `left`)."""
    labelled = list(
        zip(world.support.tolist(), world.caption_of.tolist(), world.image_of.tolist(), strict=True)
    )
    claims = [s for s, c, i in labelled if c == caption and i not in (image, left)]
    if world.alike is not None:
        for place in range(LOOK_ALIKES):
            other, cosine = (
                int(world.alike.numbers[caption, place]),
                float(world.alike.cosines[caption, place]),
            )
            claims += [s - UNLIKE * (1 - cosine) for s, c, i in labelled if c == other and i != image]
    return max(claims, default=-np.inf)


def agree(found: Tensor, expected: list[float]) -> None:
    known = np.isfinite(expected)
    assert known.mean() > 0.5
    assert -found.numpy()[known] == pytest.approx(np.array(expected)[known], rel=1e-5)
    assert len(set(found.numpy()[~known].tolist())) <= 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("with_look_alikes", [False, True])
def test_labelled_pairs_equal_loops_over_all_pairs(
    with_look_alikes: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(competitors, "CHUNK", 7)
    known = world(seed, with_look_alikes)
    pairs = zip(known.caption_of.tolist(), known.image_of.tolist(), strict=True)
    agree(known.part().labelled, [strongest(known, caption, image, -1) for caption, image in pairs])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("with_look_alikes", [False, True])
def test_wrong_pairs_equal_loops_without_the_image_their_caption_was_moved_from(
    with_look_alikes: bool, seed: int
) -> None:
    """One row of each caption is distrusted, so that is where it was moved from."""
    known = world(seed, with_look_alikes)
    clean_probability = torch.ones(ROWS)
    clean_probability[:CAPTIONS] = -1e4  # far under 0: the draw is certain
    known = replace(known, clean_probability=clean_probability)
    labelled = list(zip(known.caption_of.tolist(), known.image_of.tolist(), strict=True))
    expected = []
    for caption, image in zip(known.wrong[0].tolist(), known.wrong[1].tolist(), strict=True):
        left = int(known.image_of[caption])
        expected.append(
            strongest(known, caption, image, left if labelled.count((caption, left)) == 1 else -1)
        )
    agree(known.part().wrong, expected)


def ask(
    support: list[float], clean_probability: list[float], pairs: Pairs, wrong: tuple[int, int]
) -> Part | None:
    caption_of, image_of = torch.tensor(pairs).T
    asked = torch.tensor([wrong[0]]), torch.tensor([wrong[1]])
    return competition_evidence(
        torch.tensor(support), torch.tensor(clean_probability), caption_of, image_of, asked, None, seed=0
    )


def answered(
    support: list[float], clean_probability: list[float], pairs: Pairs, wrong: tuple[int, int]
) -> Part:
    found = ask(support, clean_probability, pairs, wrong)
    assert found is not None
    return found


def test_the_better_supported_of_two_images_speaks_against_the_other() -> None:
    found = answered([3.0, -1.0], [0.9, 0.1], [(0, 0), (0, 1)], (0, 2)).labelled
    assert found.tolist() == [1.0, -3.0]


def test_a_caption_that_a_image_carries_twice_is_no_rival_of_itself() -> None:
    found = answered([3.0, 2.0, -1.0], [0.9, 0.9, 0.1], [(0, 0), (0, 0), (0, 1)], (0, 2)).labelled
    assert found.tolist() == [1.0, 1.0, -3.0]


def test_a_wrong_pair_counts_as_moved_from_the_row_that_is_probably_wrong() -> None:
    """Its competitors are then the right row's image, as those of a labelled mismatched pair."""
    found = answered([3.0, 9.0], [0.99, 0.0], [(0, 0), (0, 1)], (0, 2))
    assert found.wrong.tolist() == [-3.0]


def test_a_image_that_keeps_a_copy_stays_a_rival() -> None:
    found = answered([3.0, 3.0, 1.0, 2.0], [0.9] * 4, [(0, 0), (0, 0), (1, 0), (1, 1)], (0, 2))
    assert found.wrong.tolist() == [-3.0]


def test_without_rivals_there_is_no_evidence() -> None:
    assert ask([3.0, 1.0], [0.5, 0.5], [(0, 0), (1, 1)], (0, 1)) is None
    # a caption moved from its only row leaves none behind, whatever labelled pairs have
    assert ask([7.0, 1.0, 5.0], [0.5] * 3, [(0, 0), (1, 1), (1, 2)], (0, 2)) is None


def test_the_order_of_rows_does_not_matter_to_labelled_pairs() -> None:
    known = world(0, with_look_alikes=True)
    order = torch.from_numpy(np.random.default_rng(1).permutation(ROWS))
    again = replace(
        known,
        support=known.support[order],
        caption_of=known.caption_of[order],
        image_of=known.image_of[order],
    )
    assert torch.equal(known.part().labelled[order], again.part().labelled)


@pytest.mark.parametrize("seed", range(5))
def test_a_caption_is_told_from_copies_put_on_other_images(seed: int) -> None:
    """Each sentence stands on its own image and on four others: its best-supported image is right."""
    generator = np.random.default_rng(seed)
    caption_of = torch.arange(400).repeat(5)
    shifts = (torch.arange(400) + shift for shift in (0, 3, 17, 40, 90))
    image_of = torch.cat([shifted % 400 for shifted in shifts])
    right = torch.arange(2000) < 400
    support = torch.from_numpy(generator.normal(size=2000)).float() + 2 * right
    wrong = tuple(torch.from_numpy(generator.integers(400, size=2000)) for _ in range(2))
    part = competition_evidence(
        support, torch.full((2000,), 0.2), caption_of, image_of, (wrong[0], wrong[1]), None, seed=0
    )
    assert part is not None
    before, after = (
        (evidence[right][:, None] > evidence[~right]).double().mean()
        for evidence in (support, support + part.labelled)
    )
    assert after > before + 0.01
