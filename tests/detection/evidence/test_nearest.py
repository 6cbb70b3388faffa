"""Nearest vectors: exact against a full sort, inverted lists against exact."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.detection.evidence.nearest import BLOCK_ROWS, centred, nearest_others


def clustered(count: int, kinds: int = 40, dim: int = 16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(kinds, dim, generator=generator)
    members = centres[torch.randint(kinds, (count,), generator=generator)]
    return normalize(members + 0.5 * torch.randn(count, dim, generator=generator), dim=1)


@pytest.mark.parametrize(("count", "nearest"), [(2, 5), (7, 3), (7, 60), (BLOCK_ROWS + 3, 4)])
def test_exact_neighbours_equal_a_full_sort(count: int, nearest: int) -> None:
    vectors = clustered(count)
    cosines, numbers = nearest_others(vectors, nearest)
    assert cosines.shape == numbers.shape == (count, min(nearest, count - 1))
    every = (vectors.double() @ vectors.double().T).numpy()
    for one in {0, count // 2, count - 1}:
        others = sorted((n for n in range(count) if n != one), key=lambda n: -every[one, n])
        assert numbers[one].tolist() == others[: numbers.shape[1]]
        np.testing.assert_allclose(cosines[one].numpy(), every[one, numbers[one]], atol=1e-6)


def test_inverted_lists_find_nearly_all_and_never_the_vector_itself() -> None:
    vectors = clustered(6000)
    exact, numbers = nearest_others(vectors, 20)
    cosines, found = nearest_others(vectors, 20, exact_up_to=1000)
    shared = [len(set(a) & set(b)) / 20 for a, b in zip(numbers.tolist(), found.tolist(), strict=True)]
    assert np.mean(shared) > 0.9
    own = found == torch.arange(6000)[:, None]
    assert (cosines[own] == -1).all() and own.float().mean() < 0.01  # what is missing repeats the vector
    torch.testing.assert_close(
        cosines[~own], (vectors[:, None] * vectors[found]).sum(2)[~own], rtol=0, atol=1e-5
    )
    assert (cosines.diff(dim=1) <= 0).all() and float((exact - cosines)[~own].mean()) < 0.02


def test_inverted_lists_are_the_same_every_time_whatever_was_drawn_before() -> None:
    vectors = clustered(3000)
    first = nearest_others(vectors, 5, exact_up_to=10)
    torch.rand(7)
    again = nearest_others(vectors, 5, exact_up_to=10)
    assert torch.equal(first[0], again[0]) and torch.equal(first[1], again[1])


def test_many_equal_vectors_are_each_others_neighbours() -> None:
    vectors = clustered(20).repeat(60, 1)
    cosines, numbers = nearest_others(vectors, 10, exact_up_to=100)
    present = numbers != torch.arange(1200)[:, None]
    assert present.all() and (numbers % 20 == torch.arange(1200)[:, None] % 20).all()
    torch.testing.assert_close(cosines, torch.ones_like(cosines))


def test_what_all_have_in_common_is_taken_away() -> None:
    vectors = clustered(50) + 5
    found = centred(vectors).double().numpy()
    plain = vectors.double().numpy() - vectors.double().numpy().mean(0)
    np.testing.assert_allclose(found, plain / np.linalg.norm(plain, axis=1, keepdims=True), atol=1e-5)
    assert not centred(torch.ones(4, 3)).any()
