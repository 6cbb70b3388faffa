import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pmpguard.data.quality import perceptual_hash
from pmpguard.data.quality.perceptual_hash import (
    NEAR,
    bit_distance,
    groups,
    near_pairs,
    orientations,
    similar_pairs,
    thumbnail,
)

hash_of = perceptual_hash.perceptual_hash


def landscape(seed, size=128):
    """A smooth random image with large and small structures, as images have."""
    rng = np.random.default_rng(seed)
    layers = [
        np.asarray(
            Image.fromarray(rng.normal(0, side**-0.7, (side, side)).astype(np.float32)).resize(
                (size, size), Image.Resampling.BICUBIC
            )
        )
        for side in (3, 6, 12, 24)
    ]
    image = sum(layers)
    scaled = 255 * (image - image.min()) / (image.max() - image.min())
    return Image.fromarray(np.stack([scaled, scaled * 0.8, scaled * 0.6], -1).astype(np.uint8))


def distance(first, second):
    return int(bit_distance(hash_of(thumbnail(first))[None], hash_of(thumbnail(second))[None])[0])


def naive_hash(grey):
    """The definition, one frequency and one patch at a time."""
    frequencies = {}
    for k in range(8):
        for m in range(8):
            frequencies[k, m] = sum(
                grey[i, j] * np.cos(np.pi / 32 * k * (i + 0.5)) * np.cos(np.pi / 32 * m * (j + 0.5))
                for i in range(32)
                for j in range(32)
            )
    middle = np.median([value for place, value in frequencies.items() if place != (0, 0)])
    first = sum(
        1 << (8 * k + m) for (k, m), value in frequencies.items() if (k, m) != (0, 0) and value > middle
    )
    edges = [round(32 * column / 9) for column in range(10)]
    second = 0
    for row in range(8):
        patches = [grey[4 * row : 4 * row + 4, edges[c] : edges[c + 1]].mean() for c in range(9)]
        second |= sum(1 << (8 * row + c) for c in range(8) if patches[c + 1] > patches[c])
    return first, second


def test_hash_against_its_definition():
    grey = thumbnail(landscape(0))
    assert tuple(int(value) for value in hash_of(grey)) == naive_hash(grey)


def test_a_stack_of_images_hashes_like_each_alone():
    stack = orientations(thumbnail(landscape(1)))
    np.testing.assert_array_equal(hash_of(stack), np.stack([hash_of(grey) for grey in stack]))


def test_orientations_are_the_eight_of_a_square():
    grey = np.arange(32 * 32, dtype=float).reshape(32, 32)
    found = {image.tobytes() for image in orientations(grey)}
    expected = set()
    for image in (grey, grey.T):
        for rows in (1, -1):
            for columns in (1, -1):
                expected.add(np.ascontiguousarray(image[::rows, ::columns]).tobytes())
    assert found == expected
    np.testing.assert_array_equal(orientations(grey)[0], grey)


@pytest.mark.parametrize("seed", range(5))
def test_harmless_changes_stay_near_and_other_images_far(seed):
    image = landscape(seed)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=50)
    assert distance(image, Image.open(stream)) <= NEAR
    assert distance(image, image.resize((90, 90))) <= NEAR
    assert distance(image, image.point(lambda value: min(255, value * 1.1))) <= NEAR
    assert distance(image, image.crop((1, 1, 127, 127))) <= NEAR
    assert distance(image, landscape(seed + 100)) > NEAR + 8


def brute_force(first, second, near):
    return {
        (i, j)
        for i in range(len(first))
        for j in range(len(second))
        if sum((int(a) ^ int(b)).bit_count() for a, b in zip(first[i], second[j], strict=True)) <= near
        and (int(first[i, 0]) ^ int(second[j, 0])).bit_count() <= 10
    }


def noisy_copies(rng, count, flips):
    """Random hashes, half of them near copies of the others."""
    hashes = rng.integers(0, 2**63, (count, 2), dtype=np.uint64)
    for row in range(count // 2):
        copy = hashes[count // 2 + row].copy()
        for place in rng.choice(128, rng.integers(0, flips), replace=False):
            copy[place // 64] ^= np.uint64(1) << np.uint64(place % 64)
        hashes[row] = copy
    return hashes


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 40), st.integers(0, 24))
def test_search_finds_what_brute_force_finds(seed, count, near):
    rng = np.random.default_rng(seed)
    hashes = noisy_copies(rng, count, 30)
    pairs, far = near_pairs(hashes, near=near)
    expected = {(i, j) for i, j in brute_force(hashes, hashes, near) if i < j}
    assert expected == {tuple(pair) for pair in pairs.tolist()}
    assert len({tuple(pair) for pair in pairs.tolist()}) == len(pairs) and (far <= near).all()
    others = noisy_copies(rng, count, 30)
    others[0] = hashes[0]
    pairs, far = near_pairs(hashes, others, near=near)
    assert brute_force(hashes, others, near) == {tuple(pair) for pair in pairs.tolist()}
    assert (0, 0) in {tuple(pair) for pair in pairs.tolist()} and (far <= near).all()


@pytest.mark.parametrize("count", [10, 100_000, 5_000_000, 10**9])
def test_masks_of_every_size_miss_nothing(count):
    rng = np.random.default_rng(0)
    masks = np.array(perceptual_hash._masks(count, 4))
    for _ in range(300):
        different = np.uint64(0)
        for place in rng.choice(64, 4, replace=False):
            different |= np.uint64(1) << np.uint64(place)
        assert ((masks & different) == 0).any()


def test_small_chunks_change_nothing(monkeypatch):
    hashes = noisy_copies(np.random.default_rng(1), 60, 20)
    whole = near_pairs(hashes)
    monkeypatch.setattr(perceptual_hash, "_CANDIDATES_AT_ONCE", 7)
    for expected, found in zip(whole, near_pairs(hashes), strict=True):
        np.testing.assert_array_equal(expected, found)


def test_no_images_no_pairs():
    nothing = np.zeros((0, 2), np.uint64)
    assert near_pairs(nothing)[0].shape == (0, 2)
    assert near_pairs(nothing, np.ones((3, 2), np.uint64))[0].shape == (0, 2)


def test_turned_copies_are_found_only_when_asked():
    images = [landscape(seed) for seed in range(6)]
    images[4] = Image.fromarray(np.rot90(np.asarray(images[1])))
    images[5] = Image.fromarray(np.asarray(images[2])[:, ::-1])
    hashes = np.stack([hash_of(orientations(thumbnail(image))) for image in images])  # (6,8,2)
    assert len(similar_pairs(hashes[:, :1])) == 0
    assert similar_pairs(hashes).tolist() == [[1, 4], [2, 5]]


@given(st.integers(1, 30), st.lists(st.tuples(st.integers(0, 29), st.integers(0, 29)), max_size=40))
def test_groups_against_flooding(count, pairs):
    pairs = [(a % count, b % count) for a, b in pairs]
    expected = list(range(count))
    for _ in range(count):
        for a, b in pairs:
            expected[a] = expected[b] = min(expected[a], expected[b])
    found = groups(count, np.array(pairs, np.int64).reshape(-1, 2))
    assert found.tolist() == expected
