"""Images: the same scene at every size, colours where the truth says, noise that is not the signal."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from PIL import Image

from pmpguard.errors import ConfigError
from pmpguard.synthetic.drawing.features import FEATURES
from pmpguard.synthetic.drawing.items import PAINTERS, PALETTE
from pmpguard.synthetic.drawing.render import render_scene
from pmpguard.synthetic.kinds import KINDS
from pmpguard.synthetic.layout import draw_scene
from pmpguard.synthetic.truth import Group, Scene


def one_group(
    kind: str, colour: str, ground: str = "dry grass", spots: tuple[tuple[float, float], ...] = ((0.5, 0.5),)
) -> Scene:
    """A hand-made scene with nothing but some items."""
    places = tuple((x, y, 0.3) for x, y in spots)
    group = Group(kind, len(spots), colour, "", "", "", "", places, KINDS[kind].reach[-1])
    return Scene(0, 0, "snowfield", ground, (group,))


def test_every_kind_has_a_painter_and_every_colour_a_tone() -> None:
    assert set(KINDS) == set(FEATURES) | set(PAINTERS)
    assert not set(FEATURES) & set(PAINTERS)
    for name in PAINTERS:
        assert set(KINDS[name].colours) <= set(PALETTE)


@pytest.mark.parametrize("size", [64, 96, 128, 224])
def test_shape_and_type(size: int) -> None:
    image = render_scene(draw_scene(0, 1), size)
    assert image.shape == (size, size, 3)
    assert image.dtype == np.uint8


def test_rendering_is_deterministic() -> None:
    scene = draw_scene(4, 2)
    assert render_scene(scene, 64).tobytes() == render_scene(scene, 64).tobytes()
    assert render_scene(draw_scene(4, 3), 64).tobytes() != render_scene(scene, 64).tobytes()


def test_the_same_scene_at_every_size() -> None:
    """Halving the large image gives the small one, up to noise; another scene's image is far off."""
    for index in range(12):
        small = render_scene(draw_scene(9, index), 64).astype(float)
        large = Image.fromarray(render_scene(draw_scene(9, index), 128)).reduce(2)
        other = render_scene(draw_scene(9, index + 100), 64).astype(float)
        difference = np.abs(small - np.asarray(large, float)).mean()
        assert difference < 8
        assert difference < 0.5 * np.abs(small - other).mean()


@pytest.mark.parametrize("kind", [name for name in PAINTERS if len(set(KINDS[name].colours)) > 1])
def test_items_are_visible_and_their_colours_differ_at_64_px(kind: str) -> None:
    bare = render_scene(one_group(kind, KINDS[kind].colours[0], spots=()), 64).astype(float)
    tones = []
    for colour in sorted(set(KINDS[kind].colours)):
        image = render_scene(one_group(kind, colour), 64).astype(float)
        changed = np.abs(image - bare).sum(2) > 60
        assert 9 <= changed.sum() < 0.5 * changed.size
        tones.append(image[29:35, 29:35].mean((0, 1)))
    for number, tone in enumerate(tones):
        for other in tones[:number]:
            assert np.abs(tone - other).sum() > 8


def test_every_colour_of_every_large_thing_shows() -> None:
    found: dict[str, tuple[Scene, int]] = {}
    for index in range(600):
        scene = draw_scene(1, index)
        for position, group in enumerate(scene.groups):
            if group.kind in FEATURES:
                found.setdefault(group.kind, (scene, position))
    assert set(found) == set(FEATURES)
    for kind, (scene, position) in found.items():
        images = []
        for colour in KINDS[kind].colours:
            groups = list(scene.groups)
            groups[position] = dataclasses.replace(groups[position], colour=colour)
            images.append(render_scene(dataclasses.replace(scene, groups=tuple(groups)), 64).astype(float))
        for number, image in enumerate(images):
            for other in images[:number]:
                assert (np.abs(image - other).sum(2) > 24).sum() > 12, kind


def test_two_colours_of_one_thing_look_different_at_64_px() -> None:
    for kind, first, second in (
        ("car", "red", "blue"),
        ("house", "white", "brown"),
        ("tree", "green", "orange"),
    ):
        a = render_scene(one_group(kind, first), 64).astype(float)
        b = render_scene(one_group(kind, second), 64).astype(float)
        assert np.abs(a - b).max() > 80


def test_more_items_cover_more_pixels() -> None:
    places = ((0.2, 0.2), (0.5, 0.2), (0.8, 0.2), (0.2, 0.7), (0.5, 0.7), (0.8, 0.7))
    empty = render_scene(one_group("car", "red", spots=()), 64).astype(int)
    covered = []
    for count in range(1, 7):
        image = render_scene(one_group("car", "red", spots=places[:count]), 64).astype(int)
        redder = (image[..., 0] - image[..., 2]) - (empty[..., 0] - empty[..., 2])
        covered.append(int((redder > 30).sum()))
    assert covered == sorted(covered)
    assert covered[5] > 4 * covered[0] > 0


def test_sizes_out_of_range_are_refused() -> None:
    for size in (8, 4096):
        with pytest.raises(ConfigError, match=f"size is {size}"):
            render_scene(draw_scene(0, 0), size)


def test_ground_is_textured_not_flat() -> None:
    empty = render_scene(one_group("car", "red", spots=()), 128).astype(float)
    coarse = np.asarray(Image.fromarray(empty.astype(np.uint8)).reduce(16), float)
    assert coarse.std(axis=(0, 1)).mean() > 2  # broad patches, beyond the sensor's grain
