"""What one scene contains and where it stands: a pure function of (seed, index).

Truth is made together with its geometry: a group of things counts only what found a place, so captions
written from the truth are always right. Everything is in unit coordinates; pixel size comes later.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence

from pmpguard.errors import ConfigError
from pmpguard.synthetic.classes import CLASSES, GROUNDS, SceneClass
from pmpguard.synthetic.geometry import (
    TRIES,
    Capsule,
    bridge_spots,
    clearance,
    fits,
    footprint,
    inside_spots,
    line_through,
    moved,
    on_line,
    pier_spots,
    place,
    ring,
    shore_line,
    side_of,
)
from pmpguard.synthetic.kinds import KINDS, MANY, Kind
from pmpguard.synthetic.truth import Group, Scene, Spot

Related = tuple[tuple[Spot, ...], str, str]  # places, arrangement, relation to the main group


def draw_scene(seed: int, index: int) -> Scene:
    """The scene number `index` of the world `seed`.

    >>> draw_scene(0, 3) == draw_scene(0, 3), draw_scene(0, 3) == draw_scene(1, 3)
    (True, False)
    """
    if index < 0:
        raise ConfigError(f"scene index is {index}", fix="scenes are numbered from 0")
    rng = random.Random(f"scene truth {seed} {index}")
    label = rng.choice(tuple(CLASSES))
    while True:
        ground = rng.choice(CLASSES[label].grounds)
        groups = _draw_groups(rng, label, CLASSES[label], ground)
        if len(groups) > 1:
            return Scene(seed, index, label, ground, tuple(groups))


def _draw_groups(rng: random.Random, label: str, scene_class: SceneClass, ground: str) -> list[Group]:
    """The main group first, then one to three more; an empty list where the choice did not fit."""
    name = rng.choice(scene_class.mains)
    hides = GROUNDS[ground].hides
    crowded = label == "dense residential"
    main = _street_houses(rng, hides) if crowded else _draw_main(rng, name, hides)
    if main is None:
        return []
    groups = [main]
    pool = [kind for kind in dict.fromkeys((*scene_class.others, *scene_class.inside)) if kind != name]
    chosen = rng.sample(pool, min(len(pool), rng.choice((1, 2, 2, 3))))
    chosen = [*scene_class.always, *(kind for kind in chosen if kind not in scene_class.always)][:3]
    chosen.sort(key=lambda kind: KINDS[kind].form == "item")  # roads and bridges first: they need the space
    blocked = [] if KINDS[name].form == "cover" or crowded else footprint(main)
    within: list[Capsule] = []
    for kind in chosen:
        inside = kind in scene_class.inside and (kind not in scene_class.others or rng.random() < 0.5)
        relation = "in" if inside or crowded else _draw_relation(rng, main)
        taken = within if inside and KINDS[name].form != "cover" else blocked
        group = _draw_group(rng, kind, main, relation, taken, hides)
        if group is None and kind in scene_class.always:
            return []
        if group is not None:
            groups.append(group)
            taken.extend(footprint(group))
            if KINDS[kind].form == "bridge":
                blocked.extend(footprint(group))
    if crowded:
        groups[0] = _clear_houses(main, blocked)
    return groups if groups[0].count >= (MANY if crowded else 1) else []


def _look(rng: random.Random, kind: Kind, hides: Sequence[str]) -> tuple[str, str]:
    """Colour and shape; a colour that would vanish on its ground is avoided."""
    stands_out = kind.family in ("tree", "sport")  # drawn with shadows or white lines
    colours = [colour for colour in kind.colours if stands_out or colour not in hides] or list(kind.colours)
    return rng.choice(colours) if colours else "", rng.choice(kind.shapes) if kind.shapes else ""


def _draw_size(rng: random.Random, kind: Kind, count: int) -> tuple[str, float]:
    if len(kind.reach) == 1:
        return "", kind.reach[0]
    large = count < MANY and rng.random() < 0.5
    words = ("narrow", "wide") if kind.form == "linear" else ("small", "large")
    return words[large], kind.reach[large] * rng.uniform(0.95, 1.05)


def _draw_main(rng: random.Random, name: str, hides: Sequence[str]) -> Group | None:
    kind = KINDS[name]
    count = rng.choice(kind.counts)
    if name in ("tree", "rock", "tent", "house", "building"):  # one alone is no scene's subject
        count = rng.choice((2, 3, 4, 5, 6))
    colour, shape = _look(rng, kind, hides)
    size, reach = _draw_size(rng, kind, count)
    if kind.form == "linear":
        return _linear(rng, name, count, colour, size, shape, reach)
    if kind.form == "shore":
        return Group(name, 1, colour, "", "", "", "", (shore_line(rng),), reach)
    if kind.form == "cover":
        return Group(name, 1, colour, "", "", "", "", ((0.5, 0.5, 0.0),), reach)
    if kind.form == "pier":
        return Group(name, count, colour, "", "", "", "", pier_spots(rng, count), reach)
    if count == 1 or kind.form == "cross":
        spot = (rng.uniform(0.38, 0.62), rng.uniform(0.38, 0.62), rng.uniform(0, math.tau))
        return Group(name, 1, colour, size, shape, "", "", (spot,), reach)
    placed = place(rng, count, reach, [], lambda: (rng.uniform(0.2, 0.8), rng.uniform(0.2, 0.8), 0.0), None)
    if placed is None:
        return None
    spots, arrangement = placed
    return Group(name, len(spots), colour, size, shape, arrangement, "", spots, reach)


def _draw_relation(rng: random.Random, main: Group) -> str:
    kind = KINDS[main.kind]
    if kind.form == "linear":
        return rng.choice(("one side", "both sides"))
    if kind.form == "item" and main.count == 1 and main.kind != "roundabout":
        return rng.choice(("beside", "beside", "around"))
    return "beside"


def _draw_group(
    rng: random.Random, name: str, main: Group, relation: str, blocked: list[Capsule], hides: Sequence[str]
) -> Group | None:
    """One more group that keeps clear of `blocked`; fewer items, or none, if space is short."""
    kind = KINDS[name]
    count = rng.choice(kind.counts)
    if relation in ("around", "both sides") and count < 4:
        count = rng.choice((4, 5, 6)) if kind.reach[0] < 0.1 else count
    if name == "train":
        count = min(count, main.count)
    on_water = KINDS[main.kind].family in ("water", "island")
    colour, shape = _look(
        rng, kind, (main.colour, *(() if on_water else hides)) if relation == "in" else hides
    )
    size, reach = _draw_size(rng, kind, count)
    if kind.form == "linear":
        for _ in range(TRIES):
            group = _linear(rng, name, 1, colour, size, shape, reach)
            clear = (clearance(x, y, blocked) for x, y, _ in group.spots)
            if not blocked or min(clear) > group.reach:
                return group
        return None
    if kind.form == "bridge":
        spots = bridge_spots(rng, main, count)
        return Group(name, len(spots), colour, "", "", "", "over", spots, reach)
    while count:
        placed = _relate(rng, count, reach, main, relation, blocked)
        if placed is not None:
            spots, arrangement, relation = placed
            return Group(name, len(spots), colour, size, shape, arrangement, relation, spots, reach)
        count = count // 2 if count >= MANY else count - 1
    return None


def _relate(
    rng: random.Random, count: int, reach: float, main: Group, relation: str, blocked: list[Capsule]
) -> Related | None:
    """Places for `count` items in the wanted relation to the main group, with the relation achieved."""
    form = KINDS[main.kind].form
    anchors = footprint(main)
    if relation == "in" and (form == "cover" or main.kind == "house"):
        placed = place(rng, count, reach, blocked, lambda: (rng.random(), rng.random(), 0.0), None)
        return (*placed, "in") if placed else None
    if relation == "in":
        for _ in range(TRIES):
            spots = inside_spots(rng, count, reach, main)
            if spots and fits(spots, reach, blocked):
                return spots, "", "in"
        return None
    if relation == "around" and count >= 4:
        for _ in range(TRIES):
            spots = ring(rng, count, main.spots[0][0], main.spots[0][1], main.reach + reach * 1.2 + 0.02)
            if fits(spots, reach, blocked):
                return spots, "", "around"
    if form == "linear":
        return _beside_line(rng, count, reach, main, relation, blocked)

    def next_to() -> Spot:
        x0, y0, x1, y1, radius = rng.choice(anchors)
        t, angle = rng.random(), heading + rng.uniform(-spread, spread)
        gap = radius + reach * (1.2 if count < 3 else 2.2) + rng.uniform(0.01, 0.06)
        x, y = x0 + t * (x1 - x0) + gap * math.cos(angle), y0 + t * (y1 - y0) + gap * math.sin(angle)
        return x, y, angle + math.pi / 2

    def near(spots: Sequence[Spot]) -> bool:
        return min(clearance(x, y, anchors) for x, y, _ in spots) < reach + 0.14

    one_way = main.count == 1 and count > 1  # else "beside" would look like "around"
    spread = 0.7 if one_way else math.pi
    for _ in range(4 if one_way else 1):
        heading = rng.uniform(0, math.tau)
        placed = place(rng, count, reach, blocked, next_to, near)
        if placed:
            return (*placed, "beside")
    return None


def _beside_line(
    rng: random.Random, count: int, reach: float, main: Group, relation: str, blocked: list[Capsule]
) -> Related | None:
    """Items along a river, road or track: all on one side, or some on each."""
    sides = (1, -1) if relation == "both sides" and count > 1 else (rng.choice((1, -1)),)
    shares = [count - count // 2, count // 2] if len(sides) == 2 else [count]
    spots: list[Spot] = []
    arrangement = ""
    for side, share in zip(sides, shares, strict=True):

        def along(side: int = side) -> Spot:
            x, y, angle = on_line(main.spots, rng.uniform(0.15, 0.85))
            gap = side * (main.reach + reach * rng.uniform(1.2, 3.5))
            return x - gap * math.sin(angle), y + gap * math.cos(angle), angle

        def same_side(candidates: Sequence[Spot], side: int = side) -> bool:
            return all(side_of(main.spots, x, y) == side for x, y, _ in candidates)

        occupied = blocked + [(x, y, x, y, reach) for x, y, _ in spots]
        placed = place(rng, share, reach, occupied, along, same_side)
        if placed is None:
            return None
        spots.extend(placed[0])
        arrangement = placed[1] if len(sides) == 1 else ""
    return tuple(spots), arrangement, "both sides" if len(sides) == 2 else "one side"


def _linear(
    rng: random.Random, name: str, count: int, colour: str, size: str, shape: str, reach: float
) -> Group:
    """A river, road, runway or some parallel tracks across the image."""
    spots = line_through(rng, shape == "curved")
    return Group(name, count, colour, size, shape, "", "", spots, reach * count)


def _street_houses(rng: random.Random, hides: Sequence[str]) -> Group:
    """Rows of houses along parallel streets, as candidates: `_clear_houses` drops those in the way."""
    colour, _ = _look(rng, KINDS["house"], hides)
    angle, reach = rng.uniform(0, math.tau), KINDS["house"].reach[0]
    spots = []
    for row in range(-4, 5):
        across = row * 0.15 + (0.05 if row % 2 else 0.0)  # every second gap is a street
        for column in range(-6, 7):
            x, y = moved(0.5, 0.5, angle, column * 0.135 + rng.uniform(-0.01, 0.01), across)
            if -0.05 < x < 1.05 and -0.05 < y < 1.05 and rng.random() < 0.94:
                spots.append((x, y, angle))
    return Group("house", len(spots), colour, "small", "", "", "", tuple(spots), reach)


def _clear_houses(houses: Group, blocked: Sequence[Capsule]) -> Group:
    spots = tuple(s for s in houses.spots if clearance(s[0], s[1], blocked) > houses.reach * 0.9)
    return dataclasses.replace(houses, count=len(spots), spots=spots)
