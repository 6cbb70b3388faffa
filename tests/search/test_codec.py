"""The fragment codec against loops, planted structure, and what decoding promises."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import normalize

from pmpguard.errors import ConfigError, DataError
from pmpguard.models.encoded import Encoded
from pmpguard.search.codec import (
    CodecSpec,
    fit_codec,
    pack,
    pool_regions,
    principal_directions,
    quantise,
    quantiser_levels,
    random_rotation,
    unpack,
)


def items(
    count: int = 6, fragments: int = 9, dim: int = 32, seed: int = 0, rank: int | None = None
) -> Encoded:
    """Unit vectors; of `rank` directions and a little of all others where it is given."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, fragments, rank or dim, generator=generator)
    if rank:
        vectors = vectors @ torch.randn(rank, dim, generator=generator)
        vectors = vectors + 0.05 * torch.randn(count, fragments, dim, generator=generator)
    vectors = normalize(vectors, dim=-1)
    return Encoded(vectors[:, 0], vectors, torch.ones(count, fragments, dtype=torch.bool))


@pytest.mark.parametrize("bits", [2, 4])
def test_levels_lose_least_of_a_normal_distribution(bits):
    """Against a sum over a fine grid: no level can move without losing more; the error is the known one."""
    grid = np.linspace(-8, 8, 8_001)
    density = np.exp(-(grid**2) / 2)
    density /= density.sum()

    def loss(levels: np.ndarray) -> float:
        return float((density * np.abs(grid[:, None] - levels).min(1) ** 2).sum())

    levels = quantiser_levels(bits).astype(np.float64)
    assert loss(levels) == pytest.approx({2: 0.1175, 4: 0.009497}[bits], rel=1e-3)  # Max (1960), table I
    for place, step in itertools.product(range(2**bits), (-0.01, 0.01)):
        moved = levels.copy()
        moved[place] += step
        assert loss(moved) > loss(levels)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_codes_are_the_nearest_levels_and_the_scale_is_the_best(bits):
    vectors = np.random.default_rng(0).standard_normal((5, 24)).astype(np.float32) * [
        [1],
        [3],
        [0.1],
        [1],
        [0],
    ]
    codes, scale = quantise(vectors.astype(np.float32), bits)
    levels = quantiser_levels(bits)
    for vector, code, own in zip(vectors, codes, scale, strict=True):
        spread = max(abs(vector)) if bits == 8 else math.sqrt(sum(x * x for x in vector) / len(vector))
        for number, chosen in zip(vector, code, strict=True):
            distances = [abs(number - level * spread) for level in levels]
            assert distances[chosen] <= min(distances) + 1e-6
        errors = [
            sum((x - factor * own * levels[c]) ** 2 for x, c in zip(vector, code, strict=True))
            for factor in (0.99, 1, 1.01)
        ]
        assert errors[1] == min(errors)
    assert scale[4] == 0


@given(bits=st.sampled_from([2, 4, 8]), count=st.integers(1, 21), seed=st.integers(0, 99))
def test_packing_loses_nothing(bits, count, seed):
    codes = np.random.default_rng(seed).integers(0, 2**bits, (3, 2, count)).astype(np.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (3, 2, math.ceil(count * bits / 8))
    assert np.array_equal(unpack(packed, bits, count), quantiser_levels(bits)[codes])
    for place in range(count):  # the first code in the lowest bits
        byte, shift = divmod(place * bits, 8)
        assert ((packed[..., byte] >> shift) & (2**bits - 1) == codes[..., place]).all()


def test_a_seed_gives_one_rotation():
    rotation = random_rotation(16, 3)
    assert np.allclose(rotation @ rotation.T, np.eye(16))
    assert np.array_equal(rotation, random_rotation(16, 3))
    assert not np.allclose(rotation, random_rotation(16, 4))


def test_projection_keeps_the_directions_that_vectors_have():
    vectors = items(40, rank=5).fragments.flatten(0, 1).numpy()
    kept = principal_directions(vectors, 5)
    assert np.allclose(kept.T @ kept, np.eye(5))
    lost = vectors - vectors @ kept @ kept.T
    assert (lost**2).sum(1).mean() < 0.01
    some = np.linalg.qr(np.random.default_rng(0).standard_normal((32, 5)))[0]
    assert ((vectors @ kept) ** 2).sum() > ((vectors @ some) ** 2).sum()
    with pytest.raises(DataError, match="no fragments"):
        principal_directions(vectors[:0], 5)


def merged_by_loops(vectors: np.ndarray, real: list[int], count: int) -> list[set[int]]:
    """Ward's clustering from its definition: the pair whose union adds least to the sum of squares."""
    groups = [{place} for place in real]

    def within(group: set[int]) -> float:
        rows = vectors[sorted(group)].astype(np.float64)
        return float(((rows - rows.mean(0)) ** 2).sum())

    while len(groups) > count:
        _, a, b = min(
            (within(groups[a] | groups[b]) - within(groups[a]) - within(groups[b]), a, b)
            for a, b in itertools.combinations(range(len(groups)), 2)
        )
        groups[a] |= groups.pop(b)
    return groups


@settings(max_examples=25, deadline=None)
@given(fragments=st.integers(1, 10), count=st.integers(1, 10), seed=st.integers(0, 99))
def test_regions_are_merged_as_by_loops(fragments, count, seed):
    some = items(3, fragments, 6, seed)
    mask = torch.rand(3, fragments, generator=torch.Generator().manual_seed(seed)) < 0.8
    mask[0] = True
    group, pooled = pool_regions(some.fragments, mask, count)
    assert group.shape == (3, fragments) and pooled.shape == (3, count, 6)
    for item in range(3):
        real = torch.nonzero(mask[item])[:, 0].tolist()
        assert (group[item] >= 0).tolist() == mask[item].tolist()
        expected = merged_by_loops(some.fragments[item].numpy(), real, count)
        found = [set(np.flatnonzero(group[item] == number).tolist()) for number in range(count)]
        assert sorted(map(sorted, filter(None, found))) == sorted(map(sorted, expected))
        for number, members in enumerate(found):
            if members:
                mean = normalize(some.fragments[item, sorted(members)].mean(0), dim=0)
                assert torch.allclose(pooled[item, number], mean, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("int8", 0.9999),
        ("4bit", 0.99),
        ("2bit", 0.93),
        ("4bit-6d", 0.98),
        ("4bit-6d-8r", 0.93),
        ("int8-6d", 0.99),
    ],
)
def test_what_is_decoded_points_the_same_way(name, least):
    some = items(50, 9, 32, rank=6)
    codec = fit_codec(CodecSpec.parse(name), some.fragments.flatten(0, 1).numpy())
    fragments, mask = codec.decode(codec.encode(some))
    assert mask.equal(some.mask) and fragments.shape == some.fragments.shape
    assert torch.allclose(fragments.norm(dim=-1), torch.ones(50, 9), atol=1e-5)
    assert (fragments * some.fragments).sum(-1).mean() > least


def test_masked_fragments_stay_masked_and_change_nothing():
    some = items(4, 7, 16)
    mask = torch.tensor([[True] * 7, [True] * 3 + [False] * 4, [False, True] * 3 + [False], [False] * 7])
    codec = fit_codec(CodecSpec.parse("4bit-8d-5r"), some.fragments.flatten(0, 1).numpy())
    hidden = Encoded(some.pooled, some.fragments.masked_fill(~mask[..., None], torch.nan), mask)
    for version in (Encoded(some.pooled, some.fragments, mask), hidden):
        fragments, found = codec.decode(codec.encode(version))
        assert found.equal(mask) and not fragments[~mask].any() and fragments.isfinite().all()
    alone = codec.decode(codec.encode(Encoded(some.pooled[1:2], some.fragments[1:2, :3], mask[1:2, :3])))[0]
    assert torch.allclose(alone[0], fragments[1, :3], atol=1e-6)


def test_bytes_are_what_the_name_says():
    """49 regions of 512 numbers: float16 takes 50,176 bytes."""
    sample = items(30, 49, 512).fragments.flatten(0, 1).numpy()
    sizes = {
        name: fit_codec(CodecSpec.parse(name), sample).record(49).itemsize
        for name in ("int8", "4bit", "4bit-128d", "4bit-128d-16r", "2bit-128d-16r")
    }
    assert sizes == {
        "int8": 49 * 514 + 49, "4bit": 49 * 258 + 49, "4bit-128d": 49 * 66 + 49,
        "4bit-128d-16r": 16 * 66 + 49, "2bit-128d-16r": 16 * 34 + 49,
    }  # fmt: skip


def test_more_than_254_regions_have_groups_too():
    some = items(2, 300, 8)
    codec = fit_codec(CodecSpec.parse("int8"), some.fragments.flatten(0, 1).numpy())
    assert torch.allclose(codec.decode(codec.encode(some))[0], some.fragments, atol=0.02)


def test_unknown_names_and_too_many_dimensions_are_refused():
    for name in ("5bit", "float16", "4bit-0d", "4bit-16r-8d", "int4", ""):
        with pytest.raises(ConfigError, match="is unknown"):
            CodecSpec.parse(name)
    for name in ("int8", "2bit-64d", "4bit-96d-16r", "4bit-9r"):
        assert CodecSpec.parse(name).name == name
    with pytest.raises(ConfigError, match="have 32 dimensions"):
        fit_codec(CodecSpec.parse("4bit-32d"), items().fragments.flatten(0, 1).numpy())
