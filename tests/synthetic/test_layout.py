"""Scenes' truth: every class, counts that match places, relations that match geometry."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpguard.errors import ConfigError
from pmpguard.synthetic.classes import CLASSES, GROUNDS
from pmpguard.synthetic.geometry import clearance, fits, footprint, side_of
from pmpguard.synthetic.kinds import COLOURS, KINDS, MANY
from pmpguard.synthetic.layout import draw_scene
from pmpguard.synthetic.truth import Group, Scene


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    return [draw_scene(11, index) for index in range(900)]


def items(scene: Scene) -> list[Group]:
    return [group for group in scene.groups if KINDS[group.kind].form == "item"]


def test_every_class_kind_and_ground_appears(scenes: list[Scene]) -> None:
    assert len(CLASSES) >= 24
    labels = Counter(scene.label for scene in scenes)
    assert set(labels) == set(CLASSES)
    assert max(labels.values()) < 3 * len(scenes) / len(CLASSES)
    assert {group.kind for scene in scenes for group in scene.groups} == set(KINDS)
    assert {scene.ground for scene in scenes} == set(GROUNDS)


def test_class_tables_name_only_known_things() -> None:
    for scene_class in CLASSES.values():
        named = (*scene_class.mains, *scene_class.others, *scene_class.inside, *scene_class.scenery)
        assert set(named) <= set(KINDS)
        assert set(scene_class.grounds) <= set(GROUNDS)
        assert set(scene_class.always) <= {*scene_class.others, *scene_class.inside}
    for kind in KINDS.values():
        assert set(kind.colours) <= set(COLOURS)


def test_counts_are_the_places_and_kinds_are_unique(scenes: list[Scene]) -> None:
    for scene in scenes:
        kinds = [group.kind for group in scene.groups]
        assert len(set(kinds)) == len(kinds) >= 2
        for group in items(scene):
            assert group.count == len(group.spots) >= 1
            assert not KINDS[group.kind].colours or group.colour in KINDS[group.kind].colours


def test_items_are_seen_and_do_not_hide_each_other(scenes: list[Scene]) -> None:
    """Counts must be countable: centres in the image, and no two items of a group on top of each other."""
    for scene in scenes:
        for group in items(scene):
            if group.count >= MANY and group.kind == "house":
                continue  # rows of houses run on over the edge
            for number, (x, y, _) in enumerate(group.spots):
                assert 0 < x < 1 and 0 < y < 1
                apart = 0.05 if group.kind == "train" else 0.9 * group.reach  # trains are long and narrow
                for a, b, _ in group.spots[:number]:
                    assert math.hypot(x - a, y - b) > apart


def test_relations_agree_with_geometry(scenes: list[Scene]) -> None:
    checked: Counter[str] = Counter()
    for scene in scenes:
        main = scene.main
        for group in scene.groups[1:]:
            if KINDS[group.kind].form != "item":
                continue
            checked[group.relation] += 1
            if group.relation in ("one side", "both sides"):
                sides = {side_of(main.spots, x, y) for x, y, _ in group.spots}
                assert len(sides) == (1 if group.relation == "one side" else 2)
            elif group.relation == "around":
                cx, cy, _ = main.spots[0]
                angles = sorted(math.atan2(y - cy, x - cx) for x, y, _ in group.spots)
                gaps = [b - a for a, b in zip(angles, [*angles[1:], angles[0] + math.tau], strict=True)]
                assert max(gaps) < math.pi / 1.9
            elif group.relation == "beside":
                assert min(clearance(x, y, footprint(main)) for x, y, _ in group.spots) < group.reach + 0.15
    assert all(checked[relation] > 20 for relation in ("beside", "around", "in", "one side", "both sides"))


def test_arrangements_agree_with_geometry(scenes: list[Scene]) -> None:
    for scene in scenes:
        for group in items(scene):
            if group.arrangement == "row":
                (x0, y0, _), (x1, y1, _) = group.spots[0], group.spots[-1]
                line = [(x0, y0, x1, y1, 0.0)]
                assert max(clearance(x, y, line) for x, y, _ in group.spots) < 1e-6
            if group.arrangement == "ring":
                cx = sum(x for x, _, _ in group.spots) / group.count
                cy = sum(y for _, y, _ in group.spots) / group.count
                radii = [math.hypot(x - cx, y - cy) for x, y, _ in group.spots]
                assert max(radii) - min(radii) < 1e-6


def test_class_alone_does_not_tell_scenes_apart(scenes: list[Scene]) -> None:
    """Within a class nearly every scene has its own truth: grounds, counts, colours, relations."""
    truths = defaultdict(list)
    for scene in scenes:
        groups = tuple((g.kind, g.count, g.colour, g.size, g.shape, g.relation) for g in scene.groups)
        truths[scene.label].append((scene.ground, groups))
    for found in truths.values():
        assert len(found) >= 8
        assert len(set(found)) >= 0.9 * len(found)


def test_negative_index_is_refused() -> None:
    with pytest.raises(ConfigError, match="index is -1"):
        draw_scene(0, -1)


def sampled_distance(x: float, y: float, capsule: tuple[float, float, float, float, float]) -> float:
    """Distance to a capsule by walking along its segment."""
    x0, y0, x1, y1, radius = capsule
    steps = [step / 4000 for step in range(4001)]
    return min(math.hypot(x - x0 - t * (x1 - x0), y - y0 - t * (y1 - y0)) for t in steps) - radius


unit = st.floats(-0.5, 1.5)


@settings(max_examples=40, deadline=None)
@given(unit, unit, st.lists(st.tuples(unit, unit, unit, unit, st.floats(0, 0.4)), min_size=1, max_size=3))
def test_clearance_equals_walking_along_the_segments(
    x: float, y: float, capsules: list[tuple[float, float, float, float, float]]
) -> None:
    walked = min(sampled_distance(x, y, capsule) for capsule in capsules)
    assert clearance(x, y, capsules) == pytest.approx(walked, abs=1e-3)
    reach = 0.05
    inside = 0.045 <= x <= 0.955 and 0.045 <= y <= 0.955
    if abs(walked - 0.95 * reach) > 2e-3:
        assert fits([(x, y, 0.0)], reach, capsules) == (inside and walked > 0.95 * reach)
