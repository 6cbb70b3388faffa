"""Standardised cosines against loops, and that standardising helps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.detection.evidence.similarity import (
    cosine_moments,
    pooled_statistics,
    similarity_measure,
)
from pmpguard.detection.mixture import fit_match_mixture
from pmpguard.detection.null_pairs import sample_null_pairs
from pmpguard.evaluation.detection import auroc


def unit(*shape: int, seed: int = 0) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return normalize(values, dim=-1)


def with_hubs(
    images: int = 400, per_image: int = 3, rate: float = 0.4
) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
    """Captions near their image; some images and captions score high with everything."""
    generator = torch.Generator().manual_seed(0)
    own = torch.arange(images).repeat_interleave(per_image)
    centres = torch.randn(images, 32, generator=generator)
    centres += 1.5 * torch.rand(images, 1, generator=generator)
    captions = centres[own] + 1.2 * torch.randn(len(own), 32, generator=generator)
    captions += 1.5 * torch.rand(len(own), 1, generator=generator)
    labelled = own.clone()
    noisy = torch.rand(len(own), generator=generator) < rate
    labelled[noisy] = own[noisy].roll(per_image)
    return normalize(captions, dim=1), normalize(centres, dim=1), labelled, (own != labelled).numpy()


def test_moments_equal_those_of_the_full_matrix() -> None:
    queries, gallery = unit(7, 5, seed=1), unit(23, 5, seed=2)
    scores = queries @ gallery.T
    mean, variance = cosine_moments(queries, gallery, block=4)
    torch.testing.assert_close(mean, scores.mean(1))
    torch.testing.assert_close(variance, scores.var(1, correction=0))


@pytest.mark.parametrize("seed", range(3))
def test_a_pair_is_standardised_by_its_text_and_by_its_image(seed: int) -> None:
    texts, images = unit(6, 4, seed=seed), unit(5, 4, seed=seed + 10)
    of_text, of_image = torch.tensor([0, 1, 2, 5, 0]), torch.tensor([0, 4, 2, 0, 3])
    found = similarity_measure(texts, images)(of_text, of_image, of_text)
    scores = (texts @ images.T).tolist()
    for place, (text, image) in enumerate(zip(of_text.tolist(), of_image.tolist(), strict=True)):
        along_images, along_texts = scores[text], [row[image] for row in scores]
        by_text = (scores[text][image] - np.mean(along_images)) / np.std(along_images)
        by_image = (scores[text][image] - np.mean(along_texts)) / np.std(along_texts)
        assert found[place].item() == pytest.approx((by_text + by_image) / np.sqrt(2), rel=1e-3, abs=1e-4)


def test_a_block_is_standardised_like_its_pairs() -> None:
    texts, images = unit(6, 4, seed=3), unit(5, 4, seed=4)
    statistics = pooled_statistics(texts, images)
    block = statistics.standardise(texts @ images.T, torch.arange(6)[:, None], torch.arange(5)[None])
    for text in range(6):
        for image in range(5):
            one = statistics.standardise(
                (texts[text] @ images[image])[None], torch.tensor([text]), torch.tensor([image])
            )
            torch.testing.assert_close(block[text, image], one[0])


def test_standardising_tells_more_and_null_pairs_score_like_mismatched_ones() -> None:
    texts, images, labelled, noisy = with_hubs()
    rows = torch.arange(len(texts))
    measure, null = similarity_measure(texts, images), sample_null_pairs(rows, labelled)
    observed = measure(rows, labelled, rows).double().numpy()
    simulated = measure(null.texts, null.images, null.rows).double().numpy()
    raw = auroc(-(texts * images[labelled]).sum(1).numpy(), noisy)
    assert auroc(-observed, noisy) > max(0.97, raw + 0.005)
    between = np.concatenate([observed[noisy], simulated])
    assert abs(auroc(between, np.arange(len(between)) < noisy.sum()) - 0.5) < 0.05
    mixture = fit_match_mixture(observed, simulated, bootstrap=0)
    assert mixture.mismatch_rate == pytest.approx(noisy.mean(), abs=0.04)


def test_half_precision_is_read_and_equal_vectors_say_nothing() -> None:
    rows = torch.arange(30)
    texts, images = unit(30, 8, seed=1).requires_grad_(), unit(30, 8, seed=2)
    found = similarity_measure(texts.bfloat16(), images.bfloat16())(rows, rows, rows)
    assert found.dtype == torch.float32 and found.isfinite().all()
    assert not pooled_statistics(texts, images).text_mean.requires_grad
    same = torch.ones(10, 4) / 2
    assert similarity_measure(same, same)(rows[:10], rows[:10], rows[:10]).unique().numel() == 1
