"""Evidence of a linear map: naive least squares, no pair vouching for itself or its image, features."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from pmpguard.detection.evidence.regression import FOLDS, RIDGE, regression_evidence, whiten
from pmpguard.detection.null_pairs import sample_null_pairs
from pmpguard.evaluation.detection import auroc

IMAGES, CAPTIONS_EACH, SCENES = 400, 5, 12


def world(wrong: float, level: str = "caption") -> tuple[torch.Tensor, ...]:
    """Captions and images of a dozen scenes in two unrelated spaces, some pairs or images exchanged."""
    generator = torch.Generator().manual_seed(3)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    scene = torch.randint(SCENES, (IMAGES,), generator=generator)
    image_of = torch.arange(IMAGES).repeat_interleave(CAPTIONS_EACH)
    images = normalize(normal(SCENES, 24)[scene] + 0.8 * normal(IMAGES, 24), dim=1)
    captions = normalize(normal(SCENES, 16)[scene[image_of]] + 0.8 * normal(len(image_of), 16), dim=1)
    caption_of = torch.arange(len(image_of))
    moved = torch.rand(IMAGES if level == "image" else len(image_of), generator=generator) < wrong
    if level == "image":
        place = torch.arange(IMAGES)
        chosen = moved.nonzero()[:, 0]
        place[chosen] = chosen[torch.randperm(len(chosen), generator=generator)]
        placed = place[image_of]
    else:
        chosen = moved.nonzero()[:, 0]
        placed = image_of.clone()
        placed[chosen] = image_of[chosen[torch.randperm(len(chosen), generator=generator)]]
    is_mismatched = scene[placed] != scene[image_of]
    return captions, images, caption_of, placed, is_mismatched


def test_agrees_with_plain_least_squares_over_the_other_folds() -> None:
    captions, images, caption_of, image_of, _ = world(0.5)
    wrong = sample_null_pairs(caption_of, image_of, seed=0)
    clean_probability = torch.rand(len(image_of), generator=torch.Generator().manual_seed(1))
    part = regression_evidence(captions, images, caption_of, image_of, wrong, clean_probability, seed=7)
    folds = np.random.default_rng([7, 4]).integers(FOLDS, size=IMAGES)
    inputs, wanted = (x.double().numpy() for x in (captions[caption_of], images[image_of]))
    weights = clean_probability.double().numpy()
    asked = [(row, int(image_of[row]), part.labelled[row]) for row in (0, 17, 1234)]
    asked += [(int(wrong.captions[k]), int(wrong.images[k]), part.wrong[k]) for k in (3, 500, 9999)]
    for caption, image, found in asked:
        fold = folds[image]
        others = np.flatnonzero(folds[image_of.numpy()] != fold)
        x, y, w = inputs[others], wanted[others], weights[others, None]
        squares = sum(np.outer(a, a) * b for a, b in zip(x, w[:, 0], strict=True))
        penalty = RIDGE * np.trace(squares) / len(squares)
        learned = np.linalg.solve(squares + penalty * np.eye(len(squares)), x.T @ (w * y))
        regression = captions.double().numpy() @ learned
        regression /= np.linalg.norm(regression, axis=1, keepdims=True)
        cosines = regression @ images.double().numpy().T  # (C, I)
        own, row, column = cosines[caption, image], cosines[caption], cosines[:, image]
        by_caption, by_image = ((own - line.mean()) / line.std() for line in (row, column))
        assert float(found) == pytest.approx((by_caption + by_image) / 2**0.5, abs=1e-3)


@pytest.mark.parametrize("level", ["caption", "image"])
def test_tells_wrong_pairs_even_where_most_are_wrong_and_when_they_were_exchanged_together(
    level: str,
) -> None:
    captions, images, caption_of, image_of, is_mismatched = world(0.8, level)
    wrong = sample_null_pairs(caption_of, image_of, seed=0)
    part = regression_evidence(
        captions, images, caption_of, image_of, wrong, torch.ones(len(image_of)), seed=0
    )
    found = auroc(-part.labelled.double().numpy(), is_mismatched.numpy())
    assert found > 0.85
    told = regression_evidence(
        captions, images, caption_of, image_of, wrong, (~is_mismatched).float(), seed=0
    )
    assert auroc(-told.labelled.double().numpy(), is_mismatched.numpy()) > found  # trust helps
    typical = part.labelled[is_mismatched]
    assert abs(float(part.wrong.median() - typical.median())) < 0.5 * float(typical.std())  # one density


def test_no_pair_of_a_image_counts_when_it_is_judged() -> None:
    captions, images, caption_of, image_of, _ = world(0.5)
    wrong = sample_null_pairs(caption_of, image_of, seed=0)
    ones = torch.ones(len(image_of))
    before = regression_evidence(captions, images, caption_of, image_of, wrong, ones, seed=0)
    own = image_of == int(image_of[40])
    after = regression_evidence(
        captions, images, caption_of, image_of, wrong, torch.where(own, 0.0, 1.0), seed=0
    )
    torch.testing.assert_close(before.labelled[own], after.labelled[own], rtol=1e-3, atol=1e-3)
    assert not torch.allclose(before.labelled[~own], after.labelled[~own], rtol=1e-3, atol=1e-3)


def test_where_nothing_is_trusted_nothing_is_said() -> None:
    captions, images, caption_of, image_of, _ = world(0.5)
    wrong = sample_null_pairs(caption_of, image_of, seed=0)
    nothing = torch.zeros(len(image_of))
    for some in (slice(None), slice(0, 1)):
        part = regression_evidence(
            captions, images, caption_of[some], image_of[some], wrong, nothing[some], seed=0
        )
        assert (part.labelled == 0).all() and (part.wrong == 0).all()


def test_features_are_unit_and_half_evened_out() -> None:
    generator = torch.Generator().manual_seed(0)
    raw = torch.randn(5000, 6, generator=generator) * torch.tensor([8.0, 4.0, 2.0, 1.0, 0.5, 0.0])
    raw[:, 0] += 3
    found = whiten(raw)
    assert found.shape == (5000, 5)  # one direction has no deviation at all
    unit = normalize(raw, dim=1).double().numpy()
    left, sizes, _ = np.linalg.svd(unit - unit.mean(0), full_matrices=False)
    for most, few in ((256, 5), (2, 2)):
        naive = (left * sizes**0.5)[:, :few]
        naive /= np.linalg.norm(naive, axis=1, keepdims=True)
        some = whiten(raw, most=most)[:60].double().numpy()
        np.testing.assert_allclose(some @ some.T, naive[:60] @ naive[:60].T, atol=1e-3)
    assert (whiten(torch.ones(3, 4)) == 0).all()  # all the same: nothing to tell
