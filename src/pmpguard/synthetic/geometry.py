"""Places in the unit square: free space, rows, clusters and rings, and what lies beside or on a line."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Sequence

from pmpguard.synthetic.kinds import KINDS, MANY
from pmpguard.synthetic.truth import Group, Spot

Capsule = tuple[float, float, float, float, float]  # a segment x0, y0, x1, y1 and the radius around it
Placed = tuple[tuple[Spot, ...], str]  # the items' places and their arrangement

LONG_SHAPES = ("long", "oval")
LONG_KINDS = ("playground", "football field")
PIER_LENGTH = 0.5
QUAY = 0.13
TRIES = 16


def moved(x: float, y: float, angle: float, along: float, across: float) -> tuple[float, float]:
    """The point `along` in the direction of `angle` and `across` at right angles to it."""
    cosine, sine = math.cos(angle), math.sin(angle)
    return x + along * cosine - across * sine, y + along * sine + across * cosine


def clearance(x: float, y: float, capsules: Iterable[Capsule]) -> float:
    """Distance to the nearest capsule's edge, negative inside it.

    >>> round(clearance(0.5, 0.5, [(0.0, 0.0, 1.0, 0.0, 0.1)]), 3)
    0.4
    """
    nearest = math.inf
    for x0, y0, x1, y1, radius in capsules:
        dx, dy = x1 - x0, y1 - y0
        length = dx * dx + dy * dy
        t = min(1.0, max(0.0, ((x - x0) * dx + (y - y0) * dy) / length)) if length else 0.0
        nearest = min(nearest, math.hypot(x - x0 - t * dx, y - y0 - t * dy) - radius)
    return nearest


def fits(spots: Sequence[Spot], reach: float, blocked: Sequence[Capsule]) -> bool:
    """Whether items of this reach lie in the image and touch nothing. Stops at the first that does not."""
    low, high, apart = reach * 0.9, 1 - reach * 0.9, reach * 0.95
    for x, y, _ in spots:
        if not (low <= x <= high and low <= y <= high):
            return False
    for x, y, _ in spots:
        for x0, y0, x1, y1, radius in blocked:
            dx, dy, px, py = x1 - x0, y1 - y0, x - x0, y - y0
            length = dx * dx + dy * dy
            if length:
                t = (px * dx + py * dy) / length
                t = 0.0 if t < 0.0 else 1.0 if t > 1.0 else t
                px, py = px - t * dx, py - t * dy
            if px * px + py * py <= (radius + apart) ** 2:
                return False
    return True


def is_long(group: Group) -> bool:
    return group.shape in LONG_SHAPES or group.kind in LONG_KINDS


def footprint(group: Group) -> list[Capsule]:
    """The space a group occupies; nothing for what merely covers the ground."""
    form = KINDS[group.kind].form
    spots, reach = group.spots, group.reach
    if form == "cover":
        return []
    if form == "linear":
        return [(a[0], a[1], b[0], b[1], reach) for a, b in itertools.pairwise(spots)]
    if form == "shore":
        x, y, angle = spots[0]
        start, end = moved(x, y, angle, 1.0, 2.0), moved(x, y, angle, 1.0, -2.0)
        return [(*start, *end, 1.0)]
    if form == "pier":
        x, y, angle = spots[0]
        quay = (*moved(x, y, angle, -QUAY, 2.0), *moved(x, y, angle, -QUAY, -2.0), QUAY)
        return [quay, *((*moved(x, y, a, 0, 0), *moved(x, y, a, PIER_LENGTH, 0), reach) for x, y, a in spots)]
    if form in ("bridge", "cross"):
        turns = (0.0, math.pi / 2) if form == "cross" else (0.0,)
        return [
            (*moved(x, y, a + turn, -1.5, 0), *moved(x, y, a + turn, 1.5, 0), reach)
            for x, y, a in spots
            for turn in turns
        ]
    if is_long(group):
        half = reach * 0.45
        return [(*moved(x, y, a, -half, 0), *moved(x, y, a, half, 0), reach * 0.6) for x, y, a in spots]
    circles = [(x, y, x, y, reach) for x, y, _ in spots]
    if group.kind == "roundabout":
        x, y, angle = spots[0]
        circles += [(x, y, *moved(x, y, angle + arm * math.pi / 2, 1.5, 0), 0.06) for arm in range(4)]
    return circles


def line_through(rng: random.Random, curved: bool) -> tuple[Spot, ...]:
    """A centre line across the image, from outside to outside."""
    angle, offset = rng.uniform(0, math.tau), rng.uniform(-0.2, 0.2)
    swing = rng.uniform(0.08, 0.14) if curved else 0.0
    waves, phase = rng.uniform(0.8, 1.3), rng.uniform(0, math.tau)
    x, y = moved(0.5, 0.5, angle, 0, offset)
    steps = [step / 14 * 1.8 - 0.9 for step in range(15)]
    points = [moved(x, y, angle, t, swing * math.sin(math.tau * waves * t + phase)) for t in steps]
    ends = [*points[1:], points[-1]]
    angles = [math.atan2(b[1] - a[1], b[0] - a[0]) for a, b in zip(points, ends, strict=True)]
    angles[-1] = angles[-2]
    return tuple((*point, direction) for point, direction in zip(points, angles, strict=True))


def on_line(line: Sequence[Spot], t: float) -> Spot:
    """The point at the fraction `t` of a centre line, with the line's direction there."""
    whole, part = divmod(t * (len(line) - 1), 1)
    a = line[int(whole)]
    b = line[min(int(whole) + 1, len(line) - 1)]
    return a[0] + part * (b[0] - a[0]), a[1] + part * (b[1] - a[1]), a[2]


def side_of(line: Sequence[Spot], x: float, y: float) -> int:
    """+1 or -1: on which side of the centre line a point lies."""
    a, b = min(
        itertools.pairwise(line),
        key=lambda ends: clearance(x, y, [(ends[0][0], ends[0][1], ends[1][0], ends[1][1], 0.0)]),
    )
    return 1 if (b[0] - a[0]) * (y - a[1]) - (b[1] - a[1]) * (x - a[0]) > 0 else -1


def shore_line(rng: random.Random) -> Spot:
    """A point on the coast and the direction out to sea; sand keeps at least half of the image."""
    angle = rng.uniform(0, math.tau)
    return (*moved(0.5, 0.5, angle, rng.uniform(0.02, 0.18), 0), angle)


def pier_spots(rng: random.Random, count: int) -> tuple[Spot, ...]:
    """Where piers leave the quay, and their direction; the quay lies along a side of the image."""
    angle = rng.randrange(4) * math.pi / 2
    along = [(item + 0.5) / count - 0.5 + rng.uniform(-0.03, 0.03) for item in range(count)]
    return tuple((*moved(0.5, 0.5, angle, QUAY - 0.5, position), angle) for position in along)


def bridge_spots(rng: random.Random, river: Group, count: int) -> tuple[Spot, ...]:
    """Crossing points and the bridges' direction."""
    places = [rng.uniform(0.42, 0.58)] if count == 1 else [rng.uniform(0.34, 0.4), rng.uniform(0.6, 0.66)]
    angle = river.spots[7][2] + math.pi / 2
    return tuple((*on_line(river.spots, t)[:2], angle) for t in places)


def inside_spots(rng: random.Random, count: int, reach: float, main: Group) -> tuple[Spot, ...]:
    """Places in or on the main thing; empty when the draw put two too close together."""
    form = KINDS[main.kind].form
    spots: list[Spot] = []
    for item in range(count):
        x, y, angle = main.spots[item % len(main.spots)]
        if main.kind == "railway track":  # a train on its own track
            track = (item - (main.count - 1) / 2) * 0.06
            x, y, angle = on_line(main.spots, rng.uniform(0.42, 0.58))
            spots.append((*moved(x, y, angle, 0, track), angle))
        elif form == "linear":
            x, y, angle = on_line(main.spots, rng.uniform(0.15, 0.85))
            room = max(0.0, main.reach - reach * 0.8)
            spots.append((*moved(x, y, angle, 0, rng.uniform(-room, room)), angle + rng.choice((0, math.pi))))
        elif form == "cross":
            angle += rng.randrange(4) * math.pi / 2
            spots.append((*moved(x, y, angle, rng.uniform(0.12, 0.6), main.reach * 0.45), angle))
        elif form == "shore":
            x, y = rng.random(), rng.random()
            deep = clearance(x, y, footprint(main)) < -reach * 1.3
            spots.append((x, y, rng.uniform(0, math.tau)) if deep else (-1.0, -1.0, 0.0))
        elif main.kind == "roundabout":
            turn = rng.uniform(0, math.tau)
            spots.append((*moved(x, y, turn, main.reach * 0.8, 0), turn + math.pi / 2))
        elif main.kind == "car park":
            row = rng.choice((-0.42, 0.0, 0.42)) * main.reach
            slot = rng.uniform(-0.7, 0.7) * main.reach
            spots.append((*moved(x, y, angle, slot, row), angle + math.pi / 2))
        elif reach * 2.2 > main.reach:  # too large to lie inside
            return ()
        else:
            far, turn = (
                math.sqrt(rng.random()) * max(0.0, main.reach * 0.85 - reach),
                rng.uniform(0, math.tau),
            )
            narrow = 0.5 if is_long(main) else 1.0
            spots.append((*moved(x, y, angle, far * math.cos(turn), far * narrow * math.sin(turn)), turn))
    gap = reach * (1.1 if main.kind in ("car park", "railway track") else 1.9)
    pairs = ((a, b) for i, a in enumerate(spots) for b in spots[:i])
    apart = main.kind == "railway track" or all(math.hypot(a[0] - b[0], a[1] - b[1]) > gap for a, b in pairs)
    return tuple(spots) if apart else ()


def place(
    rng: random.Random,
    count: int,
    reach: float,
    blocked: list[Capsule],
    propose: Callable[[], Spot],
    accept: Callable[[Sequence[Spot]], bool] | None,
) -> Placed | None:
    """Items as a row, cluster, ring or scattered, around proposed centres; None where nothing fits."""
    choices = ["row", "cluster", "", *(["ring"] if count >= 5 else [])] if 3 <= count < MANY else [""]
    rng.shuffle(choices)
    for arrangement in choices:
        for _ in range(TRIES if arrangement or count == 1 else 3):  # scattering tries enough by itself
            if arrangement or count == 1:
                x, y, angle = propose()
                if not (0 < x < 1 and 0 < y < 1):
                    continue
                spots = _pattern(rng, arrangement, count, reach, x, y, angle)
            else:
                spots = _scatter(rng, count, reach, blocked, propose)
            if spots and fits(spots, reach, blocked) and (accept is None or accept(spots)):
                return spots, arrangement
    return None


def _scatter(
    rng: random.Random, count: int, reach: float, blocked: list[Capsule], propose: Callable[[], Spot]
) -> tuple[Spot, ...]:
    """Independent places, kept apart from each other; empty where they do not all fit."""
    spots: list[Spot] = []
    for _ in range(count * 8):
        x, y, _ = propose()
        spot = (x + rng.uniform(-0.15, 0.15), y + rng.uniform(-0.15, 0.15), rng.uniform(0, math.tau))
        apart = all(math.hypot(spot[0] - a, spot[1] - b) > reach * 2.3 for a, b, _ in spots)
        if apart and fits((spot,), reach, blocked):
            spots.append(spot)
            if len(spots) == count:
                return tuple(spots)
    return ()


def _pattern(
    rng: random.Random, arrangement: str, count: int, reach: float, x: float, y: float, angle: float
) -> tuple[Spot, ...]:
    if arrangement == "ring":
        return ring(rng, count, x, y, max(reach * 2.4 * count / math.tau, reach * 2.2))
    step = reach * 2.15
    columns = count if arrangement == "row" else math.ceil(math.sqrt(count))
    facing = angle + rng.choice((0.0, math.pi / 2))
    spots = []
    for item in range(count):
        row, column = divmod(item, columns)
        in_row = min(columns, count - row * columns)
        u = (column - (in_row - 1) / 2) * step
        v = (row - (math.ceil(count / columns) - 1) / 2) * step
        spots.append((*moved(x, y, angle, u, v), facing))
    return tuple(spots)


def ring(rng: random.Random, count: int, x: float, y: float, radius: float) -> tuple[Spot, ...]:
    first = rng.uniform(0, math.tau)
    angles = [first + math.tau * item / count for item in range(count)]
    return tuple((x + radius * math.cos(a), y + radius * math.sin(a), a + math.pi / 2) for a in angles)
