"""Canonical directions against plain canonical correlation analysis."""

from __future__ import annotations

import numpy as np
import torch

from pmpguard.detection.evidence.canonical import REGULARISATION, canonical_vectors
from pmpguard.detection.evidence.regression import regression_sums

PAIRS = 300


def drawn(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Texts and images that share two of their directions, and weights."""
    generator = np.random.default_rng(seed)
    shared = generator.normal(size=(PAIRS, 2))
    texts = np.concatenate(
        [shared + 0.3 * generator.normal(size=(PAIRS, 2)), generator.normal(size=(PAIRS, 3))], 1
    )
    images = np.concatenate([generator.normal(size=(PAIRS, 4)), shared], 1)
    return tuple(torch.from_numpy(each) for each in (texts + 1, images - 2, generator.random(PAIRS)))  # type: ignore[return-value]


def found_and_plain() -> tuple[list[np.ndarray], list[np.ndarray]]:
    texts, images, weights = drawn()
    rows = torch.arange(PAIRS)
    total = float(weights.sum())
    means = [(weights[:, None] * each).sum(0) / total for each in (texts, images)]
    sums = regression_sums(texts, images, rows, rows, weights)
    found = canonical_vectors(texts, images, sums, *means, total)
    x, y = ((each - mean).numpy() for each, mean in zip((texts, images), means, strict=True))
    w = weights.numpy() / total

    def inverse_root(values: np.ndarray) -> np.ndarray:
        covariance = sum(share * np.outer(row, row) for share, row in zip(w, values, strict=True))
        covariance += REGULARISATION * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        sizes, axes = np.linalg.eigh(covariance)
        return axes @ np.diag(sizes**-0.5) @ axes.T

    crossed = sum(share * np.outer(a, b) for share, a, b in zip(w, x, y, strict=True))
    left, correlations, right = np.linalg.svd(inverse_root(x) @ crossed @ inverse_root(y))
    k = len(correlations)
    plain = [
        x @ inverse_root(x) @ left[:, :k] * correlations**0.5,
        y @ inverse_root(y) @ right.T[:, :k] * correlations**0.5,
    ]
    return [each.numpy() for each in found], [p / np.linalg.norm(p, axis=1, keepdims=True) for p in plain]


def test_cosines_are_those_of_plain_canonical_correlation_analysis() -> None:
    for one, other in zip(*found_and_plain(), strict=True):
        np.testing.assert_allclose(one @ one.T, other @ other.T, atol=1e-6)


def test_directions_that_tell_of_each_other_decide_who_is_near() -> None:
    texts, images, _ = drawn()
    found = found_and_plain()[0]
    shared = images[:, 4:].numpy() + 2
    shared /= np.linalg.norm(shared, axis=1, keepdims=True)
    truth = (shared @ shared.T).ravel()
    for raw, vectors in zip((texts - 1, images + 2), found, strict=True):
        plain = torch.nn.functional.normalize(raw, dim=1).numpy()
        told, before = (np.corrcoef(truth, (each @ each.T).ravel())[0, 1] for each in (vectors, plain))
        assert told > 0.75 and told > before + 0.05
