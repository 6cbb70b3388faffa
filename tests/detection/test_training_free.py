"""Training-free detection: mismatched pairs told by encoders without a common space."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from pmpguard.audit.embeddings import embedding_evidence
from pmpguard.detection.training_free import training_free_evidence
from pmpguard.detection.verdicts import judge_evidence, measured_evidence
from sklearn.metrics import roc_auc_score
from torch import Tensor


@dataclass(frozen=True)
class World:
    captions: Tensor  # (C, 24)
    images: Tensor  # (I, 40), another space
    caption_of: Tensor  # (N,)
    image_of: Tensor  # (N,)
    wrong: np.ndarray  # (N,) bool


def world(rate: float, images: int = 400, per_image: int = 4, seed: int = 0) -> World:
    """Scenes of twenty kinds, seen and described in two spaces; some captions stand on other images."""
    generator = np.random.default_rng(seed)
    scenes = generator.normal(size=(20, 12))[generator.integers(20, size=images)]
    scenes = scenes + 0.5 * generator.normal(size=scenes.shape)
    image_of = np.repeat(np.arange(images), per_image)
    moved = np.flatnonzero(generator.random(len(image_of)) < rate)
    own = image_of.copy()
    own[moved] = own[generator.permutation(moved)]
    neighbour_text = scenes[own] + 0.6 * generator.normal(size=(len(own), 12))
    looks = scenes + 0.6 * generator.normal(size=scenes.shape)
    spaces = (generator.normal(size=(12, dim)) for dim in (24, 40))
    captions, pixels = (
        torch.from_numpy(x @ to).float() for x, to in zip((neighbour_text, looks), spaces, strict=True)
    )
    rows = torch.arange(len(image_of))
    return World(captions, pixels, rows, torch.from_numpy(image_of), own != image_of)


def told(given: World, rounds: int) -> dict[str, float]:
    """AUROC of each kind of evidence."""
    pairs = given.captions, given.images, given.caption_of, given.image_of
    looked = training_free_evidence(*pairs, rounds=rounds)
    found = measured_evidence(looked.measures, given.caption_of, given.image_of)
    return {
        name: roc_auc_score(~given.wrong, found.labelled[:, place]) for place, name in enumerate(found.names)
    }


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.3, 0.7])
def test_encoders_without_a_common_space_tell_wrong_pairs(rate):
    found = told(world(rate), rounds=5)
    assert set(found) == {"mapped", "said", "shown"}
    assert min(found.values()) > 0.93 and found["mapped"] > 0.96


@pytest.mark.slow
def test_rounds_of_trust_help_where_most_pairs_are_wrong():
    first, last = (told(world(0.8, images=800), rounds) for rounds in (0, 5))
    assert all(last[name] > first[name] + 0.1 for name in ("said", "shown"))
    assert last["mapped"] > first["mapped"]  # all this data is linear: one round knows nearly all of it


def test_images_with_one_caption_are_looked_at_too():
    found = told(world(0.5, images=1200, per_image=1), rounds=5)
    assert min(found.values()) > 0.94


@pytest.mark.parametrize(("images", "per_image", "dim"), [(60, 5, 64), (200, 5, 256), (600, 1, 32)])
@pytest.mark.parametrize("seed", [0, 1])
def test_no_pair_vouches_for_itself_by_way_of_others(images, per_image, dim, seed):
    """Where every caption is wrong, labelled pairs look like simulated ones after all rounds."""
    generator = torch.Generator().manual_seed(seed)
    captions, pixels = (torch.randn(n, dim, generator=generator) for n in (images * per_image, images))
    image_of = torch.arange(images).repeat_interleave(per_image)
    evidence = embedding_evidence(pixels, captions, image_of, torch.arange(len(image_of)), seed=seed)
    for name in ("mapped", "said", "shown"):
        place = evidence.names.index(name)
        labelled, simulated = evidence.labelled[:, place], evidence.wrong[:, place]
        told = roc_auc_score(np.repeat([1, 0], [len(labelled), len(simulated)]), [*labelled, *simulated])
        assert abs(told - 0.5) < 0.06, name
    found = judge_evidence([evidence], bootstrap=0)
    assert found.verdicts.mismatch_rate > 0.85
    assert found.verdicts.flag.mean() > 0.85


@pytest.mark.parametrize("images", [2, 3, 4, 7])
@pytest.mark.parametrize("per_image", [1, 3])
def test_a_handful_of_images_is_judged(images, per_image):
    given = world(0.0, images=images, per_image=per_image)
    evidence = embedding_evidence(given.images[:, :24], given.captions, given.image_of, given.caption_of)
    assert np.isfinite(evidence.labelled).all() and np.isfinite(evidence.wrong).all()
    assert len(judge_evidence([evidence], bootstrap=0).verdicts.p_match) == images * per_image


@pytest.mark.slow
def test_nearly_all_wrong_is_told_to_be_so():
    given = world(0.95, images=600)
    looked = training_free_evidence(given.captions, given.images, given.caption_of, given.image_of)
    evidence = measured_evidence(looked.measures, given.caption_of, given.image_of)
    rate = judge_evidence([evidence], bootstrap=0).verdicts.mismatch_rate
    assert rate == pytest.approx(given.wrong.mean(), abs=0.04)


@pytest.mark.slow
def test_copies_in_one_fold_do_not_teach_each_other():
    """The same image twice, with the same wrong captions: kept apart from each other, neither vouches."""
    given = world(0.0, images=300)
    twice = torch.cat([given.images, given.images[:150]])
    exchanged = torch.roll(torch.arange(150), 1)  # captions of the first 150, and of their copies, are wrong
    captions_of = given.caption_of.view(300, 4)
    caption_of = torch.cat([captions_of[:150][exchanged], captions_of[150:], captions_of[:150][exchanged]])
    image_of = torch.arange(450).repeat_interleave(4)
    wrong = (image_of < 150) | (image_of >= 300)
    together = np.random.default_rng(0).integers(5, size=300)
    aucs = []
    for fold_of in (np.concatenate([together, together[:150]]), None):
        neighbour_text = training_free_evidence(
            given.captions, twice, caption_of.flatten(), image_of, {}, fold_of=fold_of
        )
        answers = neighbour_text.measures["said"](caption_of.flatten(), image_of, image_of)
        aucs.append(roc_auc_score(~wrong, answers))
    assert aucs[0] > aucs[1] + 0.05


def test_a_part_asks_by_its_own_numbers():
    given = world(0.3)
    looked = training_free_evidence(given.captions, given.images, given.caption_of, given.image_of, rounds=1)
    captions, images = torch.tensor([7, 900, 41]), torch.tensor([3, 250])
    part = looked.of_part(captions, images)
    some, of = torch.tensor([2, 0, 1, 1]), torch.tensor([0, 1, 1, 0])
    for name, measure in looked.measures.items():
        wanted = measure(captions[some], images[of], some)
        torch.testing.assert_close(part.measures[name](some, of, some), wanted)
    assert part.alike is looked.alike


def test_what_else_is_known_counts_in_the_rounds():
    """Few pairs, nearly all wrong: what neighbours say depends on who tells which of them to hear."""
    given = world(0.9, images=150)
    right = torch.from_numpy(~given.wrong)
    pairs = given.caption_of, given.image_of

    def knows(captions: Tensor, images: Tensor, rows: Tensor) -> Tensor:
        noise = torch.randn(len(captions), generator=torch.Generator().manual_seed(0))
        return torch.where((given.image_of[captions] == images) & right[captions], 20.0, 0.0) + noise

    looks = [
        training_free_evidence(given.captions, given.images, *pairs, known, rounds=1)
        for known in ({"score": knows}, {})
    ]
    told, untold = (
        roc_auc_score(~given.wrong, looked.measures["said"](*pairs, given.caption_of)) for looked in looks
    )
    assert told > untold + 0.05


@pytest.mark.slow
def test_look_alike_captions_are_rivals_only_where_all_parts_know_the_same_ones():
    given = world(0.5)
    pairs = given.images[:, :24], given.captions, given.image_of, given.caption_of
    whole = embedding_evidence(*pairs)
    assert whole.alike is not None and "competitors" in judge_evidence([whole], bootstrap=0).names
    again = embedding_evidence(*pairs)
    assert "competitors" not in judge_evidence([whole, again], bootstrap=0).names  # two sets of numbers
