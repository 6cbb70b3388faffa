"""Competition: what other images with a claim to a text say about a pair."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pmpguard.detection.evidence import competition
from pmpguard.detection.evidence.competition import DISTANCE_COST, SIMILAR_TEXTS, competition_evidence
from pmpguard.detection.evidence.neighbours import NeighbourGraph, find_neighbourhoods
from pmpguard.detection.null_pairs import Evidence, NullPairs

TEXTS, IMAGES, ROWS, NULL = 12, 9, 60, 50
Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class World:
    support: Tensor  # (ROWS,)
    clean_probability: Tensor  # (ROWS,)
    text_of: Tensor  # (ROWS,)
    image_of: Tensor  # (ROWS,)
    null: tuple[Tensor, Tensor]  # (NULL,) texts, (NULL,) images
    similar: NeighbourGraph | None

    def evidence(self, seed: int = 0) -> Evidence:
        found = competition_evidence(
            self.support,
            self.clean_probability,
            self.text_of,
            self.image_of,
            NullPairs(*self.null, torch.zeros_like(self.null[0])),
            self.similar,
            seed,
        )
        assert found is not None
        return found


def world(seed: int, with_similar: bool = False) -> World:
    generator = np.random.default_rng(seed)
    text_of = torch.from_numpy(generator.integers(TEXTS, size=ROWS))
    text_of[:TEXTS] = torch.arange(TEXTS)
    image_of = torch.from_numpy(generator.integers(IMAGES, size=ROWS))
    neighbourhoods = find_neighbourhoods(torch.from_numpy(generator.normal(size=(TEXTS, 4))), torch.eye(3))
    assert neighbourhoods is not None
    return World(
        torch.from_numpy(generator.normal(size=ROWS)).float(),
        torch.zeros(ROWS),
        text_of,
        image_of,
        (
            text_of[generator.integers(ROWS, size=NULL)],
            torch.from_numpy(generator.integers(IMAGES, size=NULL)),
        ),
        neighbourhoods.texts if with_similar else None,
    )


def strongest(world: World, caption: int, image: int, left: int) -> float:
    """By loops: the best claim of any image but `image` (and for equal strings `left`)."""
    labelled = list(zip(world.support.tolist(), world.text_of.tolist(), world.image_of.tolist(), strict=True))
    claims = [s for s, c, i in labelled if c == caption and i not in (image, left)]
    if world.similar is not None:
        for place in range(SIMILAR_TEXTS):
            other, cosine = (
                int(world.similar.numbers[caption, place]),
                float(world.similar.cosines[caption, place]),
            )
            claims += [s - DISTANCE_COST * (1 - cosine) for s, c, i in labelled if c == other and i != image]
    return max(claims, default=-np.inf)


def agree(found: Tensor, expected: list[float]) -> None:
    known = np.isfinite(expected)
    assert known.mean() > 0.5
    assert -found.numpy()[known] == pytest.approx(np.array(expected)[known], rel=1e-5)
    assert len(set(found.numpy()[~known].tolist())) <= 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("with_similar", [False, True])
def test_labelled_pairs_equal_loops_over_all_pairs(
    with_similar: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(competition, "QUERIES_AT_ONCE", 7)
    known = world(seed, with_similar)
    pairs = zip(known.text_of.tolist(), known.image_of.tolist(), strict=True)
    agree(known.evidence().observed, [strongest(known, caption, image, -1) for caption, image in pairs])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("with_similar", [False, True])
def test_null_pairs_equal_loops_without_the_image_their_caption_was_moved_from(
    with_similar: bool, seed: int
) -> None:
    """One row of each caption is distrusted, so that is where it was moved from."""
    known = world(seed, with_similar)
    clean_probability = torch.ones(ROWS)
    clean_probability[:TEXTS] = -1e4  # far under 0: the draw is certain
    known = replace(known, clean_probability=clean_probability)
    labelled = list(zip(known.text_of.tolist(), known.image_of.tolist(), strict=True))
    expected = []
    for caption, image in zip(known.null[0].tolist(), known.null[1].tolist(), strict=True):
        left = int(known.image_of[caption])
        expected.append(
            strongest(known, caption, image, left if labelled.count((caption, left)) == 1 else -1)
        )
    agree(known.evidence().null, expected)


def ask(
    support: list[float], clean_probability: list[float], pairs: Pairs, null: tuple[int, int]
) -> Evidence | None:
    text_of, image_of = torch.tensor(pairs).T
    asked = NullPairs(torch.tensor([null[0]]), torch.tensor([null[1]]), torch.tensor([0]))
    return competition_evidence(
        torch.tensor(support), torch.tensor(clean_probability), text_of, image_of, asked, None, seed=0
    )


def answered(
    support: list[float], clean_probability: list[float], pairs: Pairs, null: tuple[int, int]
) -> Evidence:
    found = ask(support, clean_probability, pairs, null)
    assert found is not None
    return found


def test_the_better_supported_of_two_images_speaks_against_the_other() -> None:
    found = answered([3.0, -1.0], [0.9, 0.1], [(0, 0), (0, 1)], (0, 2)).observed
    assert found.tolist() == [1.0, -3.0]


def test_a_caption_that_an_image_carries_twice_is_no_competitor_of_itself() -> None:
    found = answered([3.0, 2.0, -1.0], [0.9, 0.9, 0.1], [(0, 0), (0, 0), (0, 1)], (0, 2)).observed
    assert found.tolist() == [1.0, 1.0, -3.0]


def test_a_null_pair_counts_as_moved_from_the_row_that_is_probably_wrong() -> None:
    """Its competitors are then the right row's image, as those of a labelled mismatched pair."""
    found = answered([3.0, 9.0], [0.99, 0.0], [(0, 0), (0, 1)], (0, 2))
    assert found.null.tolist() == [-3.0]


def test_an_image_that_keeps_a_copy_stays_a_competitor() -> None:
    found = answered([3.0, 3.0, 1.0, 2.0], [0.9] * 4, [(0, 0), (0, 0), (1, 0), (1, 1)], (0, 2))
    assert found.null.tolist() == [-3.0]


def test_without_competitors_there_is_no_evidence() -> None:
    assert ask([3.0, 1.0], [0.5, 0.5], [(0, 0), (1, 1)], (0, 1)) is None
    # a caption moved from its only row leaves none behind, whatever labelled pairs have
    assert ask([7.0, 1.0, 5.0], [0.5] * 3, [(0, 0), (1, 1), (1, 2)], (0, 2)) is None


def test_the_order_of_rows_does_not_matter_to_labelled_pairs() -> None:
    known = world(0, with_similar=True)
    order = torch.from_numpy(np.random.default_rng(1).permutation(ROWS))
    again = replace(
        known,
        support=known.support[order],
        text_of=known.text_of[order],
        image_of=known.image_of[order],
    )
    assert torch.equal(known.evidence().observed[order], again.evidence().observed)


@pytest.mark.parametrize("seed", range(5))
def test_a_caption_is_told_from_copies_put_on_other_images(seed: int) -> None:
    """Each sentence stands on its own image and on four others: its best-supported image is right."""
    generator = np.random.default_rng(seed)
    text_of = torch.arange(400).repeat(5)
    shifts = (torch.arange(400) + shift for shift in (0, 3, 17, 40, 90))
    image_of = torch.cat([shifted % 400 for shifted in shifts])
    right = torch.arange(2000) < 400
    support = torch.from_numpy(generator.normal(size=2000)).float() + 2 * right
    null = NullPairs(*(torch.from_numpy(generator.integers(400, size=2000)) for _ in range(3)))
    part = competition_evidence(support, torch.full((2000,), 0.2), text_of, image_of, null, None, seed=0)
    assert part is not None
    before, after = (
        (evidence[right][:, None] > evidence[~right]).double().mean()
        for evidence in (support, support + part.observed)
    )
    assert after > before + 0.01
