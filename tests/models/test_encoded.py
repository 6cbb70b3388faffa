from __future__ import annotations

import pytest
import torch

from pmpguard.errors import ModelError
from pmpguard.models.encoded import Encoded


def some(count: int, fragments: int, seed: int = 0) -> Encoded:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(count, fragments, generator=generator) > 0.3
    return Encoded(
        torch.randn(count, 5, generator=generator),
        torch.randn(count, fragments, 5, generator=generator),
        mask,
    )


def test_rows_by_slice_list_indices_and_bool() -> None:
    items = some(6, 4)
    for rows, expected in [
        (slice(1, 4), [1, 2, 3]),
        ([5, 0], [5, 0]),
        (torch.tensor([2, 2]), [2, 2]),
        (torch.tensor([True, False, False, False, False, True]), [0, 5]),
    ]:
        picked = items[rows]
        assert len(picked) == len(expected)
        for row, source in enumerate(expected):
            assert torch.equal(picked.pooled[row], items.pooled[source])
            assert torch.equal(picked.fragments[row], items.fragments[source])
            assert torch.equal(picked.mask[row], items.mask[source])


def test_cat_pads_with_masked_fragments() -> None:
    first, second = some(2, 3, seed=1), some(3, 5, seed=2)
    both = Encoded.cat([first, second])
    assert both.fragments.shape == (5, 5, 5)
    assert not both.mask[:2, 3:].any()
    assert torch.equal(both.fragments[:2, :3], first.fragments)
    assert torch.equal(both.fragments[2:], second.fragments)
    assert torch.equal(both.mask[:2, :3], first.mask)
    assert torch.equal(both.pooled, torch.cat([first.pooled, second.pooled]))


def test_to_keeps_the_mask_boolean() -> None:
    items = some(2, 3).to(dtype=torch.float64)
    assert items.pooled.dtype == items.fragments.dtype == torch.float64
    assert items.mask.dtype == torch.bool


def test_detach_cuts_the_gradient() -> None:
    pooled = torch.randn(2, 5, requires_grad=True)
    items = Encoded(pooled, pooled[:, None] * 2, torch.ones(2, 1, dtype=torch.bool))
    assert items.fragments.requires_grad
    assert not items.detach().fragments.requires_grad
    assert not items.detach().pooled.requires_grad


@pytest.mark.parametrize(
    ("pooled", "fragments", "mask"),
    [
        ((2, 5), (3, 4, 5), (3, 4)),
        ((2, 5), (2, 4, 6), (2, 4)),
        ((2, 5), (2, 4, 5), (2, 3)),
        ((2, 5), (2, 5), (2,)),
    ],
)
def test_shapes_that_disagree_are_refused(
    pooled: tuple[int, ...], fragments: tuple[int, ...], mask: tuple[int, ...]
) -> None:
    with pytest.raises(ModelError, match="shapes do not agree"):
        Encoded(torch.zeros(pooled), torch.zeros(fragments), torch.ones(mask, dtype=torch.bool))


def test_a_mask_of_numbers_is_refused() -> None:
    with pytest.raises(ModelError, match="mask holds"):
        Encoded(torch.zeros(1, 5), torch.zeros(1, 2, 5), torch.ones(1, 2))


def test_joining_nothing_is_refused() -> None:
    with pytest.raises(ModelError, match="nothing to join"):
        Encoded.cat([])


def test_it_shows_shapes_and_no_numbers():
    items = Encoded(torch.ones(2, 4), torch.ones(2, 3, 4), torch.ones(2, 3, dtype=torch.bool))
    assert repr(items) == "Encoded(2 items of up to 3 fragments, 4-d torch.float32 on cpu)"
