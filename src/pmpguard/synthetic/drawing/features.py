"""How the large things look from above: rivers, roads, fields, coasts, mountains, stadiums, harbours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

from pmpguard.synthetic.drawing.canvas import (
    RGB,
    Canvas,
    Plane,
    Point,
    blob,
    box,
    canopy,
    noise,
    oval,
    shade,
    turned,
)
from pmpguard.synthetic.drawing.items import CROPS, DARK, FOLIAGE, PALETTE, WATER, WHITE, football_field
from pmpguard.synthetic.geometry import PIER_LENGTH, QUAY, is_long, moved
from pmpguard.synthetic.truth import Group

ROADS: dict[str, RGB] = {"grey": (136, 136, 138), "black": (62, 63, 68), "brown": (152, 116, 78)}
BANK: RGB = (176, 158, 118)


def _centre(group: Group, across: float = 0.0) -> list[Point]:
    """The centre line moved sideways, with its corners cut to a curve."""
    points = [moved(x, y, a, 0, across) for x, y, a in group.spots]
    curve = [points[0]]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        curve += [(x0 + t * (x1 - x0), y0 + t * (y1 - y0)) for t in (0.25, 0.75)]
    return [*curve, points[-1]]


def _ribbon(group: Group, half_width: float) -> list[Point]:
    """The outline of a band along a centre line."""
    return [*_centre(group, half_width), *reversed(_centre(group, -half_width))]


def river(canvas: Canvas, group: Group) -> None:
    canvas.polygon(_ribbon(group, group.reach * 1.16), BANK, 190)
    canvas.water([_ribbon(group, group.reach)], WATER[group.colour])


def _road(canvas: Canvas, line: list[Point], half_width: float, colour: RGB, marked: bool = True) -> None:
    canvas.line(line, shade(colour, 1.3), half_width * 2)
    canvas.line(line, colour, half_width * 1.72)
    if marked:
        canvas.dashes(line, WHITE, half_width * 0.14, 0.035)


def road(canvas: Canvas, group: Group) -> None:
    _road(canvas, _centre(group), group.reach, ROADS[group.colour], group.colour != "brown")


def runway(canvas: Canvas, group: Group) -> None:
    lane = group.reach / group.count
    for item in range(group.count):
        across = (item - (group.count - 1) / 2) * 2 * lane
        line = _centre(group, across)
        canvas.line(line, ROADS[group.colour], lane * 1.5)
        canvas.dashes(line, WHITE, lane * 0.14, 0.05)
        for edge in (-0.6, 0.6):
            canvas.line(_centre(group, across + edge * lane), WHITE, lane * 0.08)
        x, y, angle = group.spots[len(group.spots) // 2]
        for stripe in (-0.45, -0.15, 0.15, 0.45):
            foot = moved(x, y, angle, 0.3, across + stripe * lane)
            canvas.line([foot, moved(*foot, angle, 0.07, 0)], WHITE, lane * 0.13)


def railway_track(canvas: Canvas, group: Group) -> None:
    canvas.polygon(_ribbon(group, group.reach * 1.05), (146, 136, 124))
    for item in range(group.count):
        across = (item - (group.count - 1) / 2) * 2 * group.reach / group.count
        canvas.line(_centre(group, across), (104, 88, 74), 0.036)
        canvas.dashes(_centre(group, across), (78, 66, 58), 0.036, 0.012)
        for rail in (-0.011, 0.011):
            canvas.line(_centre(group, across + rail), (206, 206, 208), 0.006)


def bridge(canvas: Canvas, group: Group) -> None:
    """A deck over the water, with its road on to both edges of the image."""
    colour = PALETTE[group.colour]
    for x, y, angle in group.spots:
        _road(
            canvas,
            [moved(x, y, angle, -1.5, 0), moved(x, y, angle, 1.5, 0)],
            group.reach * 0.8,
            ROADS["grey"],
        )
        deck = box(x, y, angle, 0.17, group.reach)
        canvas.shadow(deck, 0.035)
        canvas.polygon(deck, colour)
        ends = [moved(x, y, angle, -0.17, 0), moved(x, y, angle, 0.17, 0)]
        canvas.dashes(ends, WHITE if group.colour != "white" else DARK, 0.007, 0.03)
        for rail in (-0.9, 0.9):
            line = [moved(x, y, angle, end, rail * group.reach) for end in (-0.17, 0.17)]
            canvas.line(line, shade(colour, 0.6), 0.009)


def crossroads(canvas: Canvas, group: Group) -> None:
    x, y, angle = group.spots[0]
    colour = ROADS[group.colour]
    arms = [angle, angle + math.pi / 2]
    for wide in (2.0, 1.72):
        for arm in arms:
            ends = [moved(x, y, arm, -1.5, 0), moved(x, y, arm, 1.5, 0)]
            canvas.line(ends, shade(colour, 1.3) if wide == 2.0 else colour, group.reach * wide)
    for arm in (*arms, angle + math.pi, angle - math.pi / 2):
        start = moved(x, y, arm, group.reach * 1.7, 0)
        canvas.dashes([start, moved(x, y, arm, 1.5, 0)], WHITE, 0.008, 0.035)
        for stripe in (-0.6, -0.2, 0.2, 0.6):  # a zebra crossing
            foot = moved(x, y, arm, group.reach * 1.15, stripe * group.reach)
            canvas.line([foot, moved(*foot, arm, group.reach * 0.4, 0)], WHITE, group.reach * 0.2)


def roundabout(canvas: Canvas, group: Group) -> None:
    x, y, angle = group.spots[0]
    reach, asphalt = group.reach, ROADS["grey"]
    for arm in range(4):
        ends = [(x, y), moved(x, y, angle + arm * math.pi / 2, 1.5, 0)]
        _road(canvas, ends, 0.05, asphalt)
    canvas.disc(x, y, reach, shade(asphalt, 1.3))
    canvas.disc(x, y, reach * 0.96, asphalt)
    canvas.disc(x, y, reach * 0.6, WHITE)
    centre = {"green": (78, 132, 58), "brown": (128, 92, 62), "white": (224, 222, 214)}[group.colour]
    canvas.textured(
        [oval(x, y, 0, reach * 0.55, reach * 0.55)], canvas.ground(shade(centre, 0.85), shade(centre, 1.15))
    )


def sea(canvas: Canvas, group: Group) -> None:
    """Sea with a wavy coast, wet sand and foam."""
    x, y, angle = group.spots[0]
    phase = canvas.rng.uniform(0, math.tau)
    steps = [step / 15 - 1 for step in range(31)]
    wave = [0.022 * math.sin(9 * t + phase) + 0.012 * math.sin(23 * t) for t in steps]
    coast = [moved(x, y, angle, w, t) for t, w in zip(steps, wave, strict=True)]
    far = [moved(x, y, angle, 2.0, 1.0), moved(x, y, angle, 2.0, -1.0)]
    canvas.line(coast, (176, 150, 106), 0.07, 130)
    canvas.water([[*coast, *far]], WATER[group.colour])
    for out, width in ((0.004, 0.02), (0.05, 0.008)):
        foam = [
            moved(u, v, angle, out + 0.008 * math.sin(31 * t), 0)
            for t, (u, v) in zip(steps, coast, strict=True)
        ]
        canvas.line(foam, WHITE, width, 190)


def pier(canvas: Canvas, group: Group) -> None:
    x, y, angle = group.spots[0]
    concrete = (166, 164, 158)
    canvas.polygon(box(*moved(x, y, angle, -QUAY / 2 - 0.5, 0), angle, QUAY / 2 + 0.5, 2.0), concrete)
    canvas.line([moved(x, y, angle, 0, -2.0), moved(x, y, angle, 0, 2.0)], shade(concrete, 0.6), 0.012)
    canvas.dashes(
        [moved(x, y, angle, -QUAY / 2, -2.0), moved(x, y, angle, -QUAY / 2, 2.0)], WHITE, 0.007, 0.04
    )
    colour = PALETTE[group.colour]
    for x, y, angle in group.spots:
        middle = moved(x, y, angle, PIER_LENGTH / 2, 0)
        deck = box(*middle, angle, PIER_LENGTH / 2, group.reach * 0.8)
        canvas.shadow(deck, 0.02)
        canvas.polygon(deck, colour)
        for plank in range(1, 10):
            across = [
                moved(x, y, angle, plank * PIER_LENGTH / 10, side * group.reach * 0.8) for side in (1, -1)
            ]
            canvas.line(across, shade(colour, 0.8), 0.005)


def forest(canvas: Canvas, group: Group) -> None:
    """Crowns over the whole image; everything else is painted on top, in its own clearing."""
    crowns = canvas.window(canopy(canvas.pixels)) + 0.08 * canvas.window(noise(canvas.pixels, "soft"))
    colour = FOLIAGE[group.colour]
    canvas.image.paste(canvas.blend(shade(colour, 0.35), shade(colour, 1.35), crowns))


def pond(canvas: Canvas, group: Group) -> None:
    narrow = 0.55 if is_long(group) else 0.92
    outlines = [blob(canvas.rng, x, y, a, group.reach, group.reach * narrow) for x, y, a in group.spots]
    canvas.water(outlines, WATER[group.colour], BANK)


def island(canvas: Canvas, group: Group) -> None:
    narrow = 0.55 if is_long(group) else 0.92
    land = {"green": (86, 122, 58), "yellow": (222, 196, 132), "brown": (128, 102, 76)}[group.colour]
    for x, y, angle in group.spots:
        for scale, colour, alpha in ((1.12, (120, 190, 186), 90), (1.0, (226, 208, 164), 255)):
            outline = blob(canvas.rng, x, y, angle, group.reach * scale, group.reach * narrow * scale)
            canvas.polygon(outline, colour, alpha)
        outline = blob(canvas.rng, x, y, angle, group.reach * 0.88, group.reach * narrow * 0.86)
        canvas.textured([outline], canvas.ground(shade(land, 0.8), shade(land, 1.2)))


def field(canvas: Canvas, group: Group) -> None:
    """Ploughed or sown: furrows across a rectangle, or a watered circle with its arm."""
    colour = CROPS[group.colour]
    for x, y, angle in group.spots:
        reach = group.reach
        tone = shade(colour, canvas.rng.uniform(0.93, 1.07))
        if group.shape == "round":
            outline = oval(x, y, 0, reach * 0.95, reach * 0.95)
        else:
            outline = box(x, y, angle, reach * 0.88, reach * 0.62)
        canvas.textured([outline], canvas.ground(shade(tone, 0.86), shade(tone, 1.14)))
        if group.shape == "round":
            for ring in (0.35, 0.65):
                circle = oval(x, y, 0, reach * ring, reach * ring)
                canvas.line([*circle, circle[0]], shade(tone, 0.82), 0.006)
            canvas.line([(x, y), moved(x, y, angle, reach * 0.93, 0)], WHITE, 0.007)
        else:
            for furrow in range(-5, 6):
                ends = [(-0.86, furrow * 0.11), (0.86, furrow * 0.11)]
                canvas.line(turned(ends, x, y, angle, reach), shade(tone, 0.8), 0.008, 150)
            canvas.line([*outline, outline[0]], shade(tone, 0.62), 0.008)


def mountain(canvas: Canvas, group: Group) -> None:
    """Relief: light from the sun on a cone with ridges, fading into the ground."""
    grid = (np.arange(canvas.pixels, dtype=np.float32) + 0.5) / canvas.pixels
    across, down = grid[None, :], grid[:, None]
    stone = {
        "brown": (134, 102, 74),
        "grey": (126, 126, 128),
        "green": (74, 104, 56),
        "white": (226, 232, 240),
    }
    rough = canvas.window(noise(canvas.pixels, "rough"))  # (pixels, pixels)
    for x, y, angle in group.spots:
        dx, dy = across - np.float32(x), down - np.float32(y)
        far = np.hypot(dx, dy) / np.float32(group.reach)
        turn = np.arctan2(dy, dx)
        ridges = np.cos(7 * turn + angle + 2.5 * far) + 0.5 * np.cos(13 * turn - angle)
        side = -(dx * canvas.sun[0] + dy * canvas.sun[1]) / (np.float32(group.reach) * (far + 0.15))
        light: Plane = (0.5 + 0.34 * side + 0.16 * ridges * np.minimum(far, 1) + 0.1 * rough).astype(
            np.float32
        )
        colour = stone[group.colour]
        relief = canvas.blend(shade(colour, 0.45), shade(colour, 1.3), light)
        edge = np.clip((0.97 + 0.06 * ridges + 0.03 * rough - far) * 9, 0, 1) * 255
        canvas.image.paste(relief, mask=canvas.alpha(edge))


def stadium(canvas: Canvas, group: Group) -> None:
    x, y, angle = group.spots[0]
    reach, colour = group.reach, PALETTE[group.colour]
    narrow = 0.74 if is_long(group) else 0.96
    outer = oval(x, y, angle, reach, reach * narrow)
    canvas.shadow(outer, reach * 0.18)
    canvas.polygon(outer, shade(colour, 0.75))
    for scale, tone in ((0.96, 1.0), (0.84, 0.82), (0.76, 1.1), (0.68, 0.7)):
        canvas.polygon(oval(x, y, angle, reach * scale, reach * narrow * scale), shade(colour, tone))
    for aisle in range(16):
        turn = aisle * math.tau / 16
        ends = [(s * math.cos(turn), s * narrow * math.sin(turn)) for s in (0.68, 0.95)]
        canvas.line(turned(ends, x, y, angle, reach), shade(colour, 0.6), reach * 0.02)
    canvas.polygon(oval(x, y, angle, reach * 0.62, reach * narrow * 0.62), (70, 126, 58))
    football_field(canvas, (x, y, angle), reach * 0.5, (76, 140, 66))


def playground(canvas: Canvas, group: Group) -> None:
    """A running track around a pitch."""
    x, y, angle = group.spots[0]
    reach, colour = group.reach, PALETTE[group.colour]

    def loop(radius: float) -> list[Point]:
        arc = [math.pi * step / 10 - math.pi / 2 for step in range(11)]
        right = [(0.42 + radius * math.cos(a), radius * math.sin(a)) for a in arc]
        return turned([*right, *((-u, -v) for u, v in right)], x, y, angle, reach)

    canvas.polygon(loop(0.56), colour)
    for lane in (0.51, 0.46, 0.41):
        canvas.line([*loop(lane), loop(lane)[0]], WHITE, reach * 0.014)
    canvas.polygon(loop(0.36), (92, 142, 68))
    football_field(canvas, (x, y, angle), reach * 0.5, (78, 142, 66))


def car_park(canvas: Canvas, group: Group) -> None:
    x, y, angle = group.spots[0]
    reach, colour = group.reach, ROADS[group.colour]
    lot = box(x, y, angle, reach * 0.95, reach * 0.72)
    canvas.textured([lot], canvas.ground(shade(colour, 0.92), shade(colour, 1.08), "paved"))
    canvas.line([*lot, lot[0]], shade(colour, 1.4), 0.012)
    for row in (-0.42, 0.0, 0.42):
        for slot in range(-5, 6):
            ends = [(slot * 0.16, row - 0.15), (slot * 0.16, row + 0.15)]
            canvas.line(turned(ends, x, y, angle, reach), WHITE, 0.006, 170)


def terminal(canvas: Canvas, group: Group) -> None:
    """A concourse with gates on a paved apron with taxi lines."""
    x, y, angle = group.spots[0]
    reach, colour = group.reach, PALETTE[group.colour]
    for turn in (angle, angle + math.pi / 2):
        ends = [moved(x, y, turn, -1.5, reach * 1.45), moved(x, y, turn, 1.5, reach * 1.45)]
        canvas.line(ends, (222, 186, 60), 0.008)
    if is_long(group):
        parts = [box(x, y, angle, reach, reach * 0.22)]
        for along in (-0.7, 0.0, 0.7):
            parts.append(box(*moved(x, y, angle, along * reach, 0), angle, reach * 0.1, reach * 0.5))
    else:
        parts = [oval(x, y, 0, reach * 0.72, reach * 0.72)]
        for arm in range(4):
            turn = angle + arm * math.pi / 2
            parts.append(box(*moved(x, y, turn, reach * 0.8, 0), turn, reach * 0.2, reach * 0.11))
    for part in parts:
        canvas.shadow(part, reach * 0.16)
    for part in reversed(parts):
        canvas.polygon(part, shade(colour, 0.9))
    if is_long(group):
        canvas.polygon(box(x, y, angle, reach * 0.96, reach * 0.15), shade(colour, 1.1))
        canvas.line(
            [moved(x, y, angle, -reach * 0.9, 0), moved(x, y, angle, reach * 0.9, 0)], DARK, reach * 0.04
        )
    else:
        canvas.disc(x, y, reach * 0.62, shade(colour, 1.1))
        canvas.disc(x, y, reach * 0.3, shade(colour, 0.7))


def school(canvas: Canvas, group: Group) -> None:
    """Wings around a courtyard, or one long block with two short wings."""
    x, y, angle = group.spots[0]
    reach, colour = group.reach, PALETTE[group.colour]
    if is_long(group):
        wings = [(0.0, 0.12, 0.98, 0.2), (-0.8, -0.12, 0.18, 0.44), (0.8, -0.12, 0.18, 0.44)]
    else:
        wings = [
            (0.0, 0.55, 0.75, 0.2),
            (0.0, -0.55, 0.75, 0.2),
            (-0.55, 0.0, 0.2, 0.6),
            (0.55, 0.0, 0.2, 0.6),
        ]
        canvas.polygon(box(x, y, angle, reach * 0.7, reach * 0.7), (120, 142, 84))
    outlines = [
        box(*turned([(u, v)], x, y, angle, reach)[0], angle, half * reach, wide * reach)
        for u, v, half, wide in wings
    ]
    for outline in outlines:
        canvas.shadow(outline, reach * 0.2)
    for outline, (_, _, half, wide) in zip(outlines, wings, strict=True):
        canvas.polygon(outline, shade(colour, 0.92))
        centre = (sum(p[0] for p in outline) / 4, sum(p[1] for p in outline) / 4)
        canvas.polygon(box(*centre, angle, half * reach * 0.9, wide * reach * 0.75), shade(colour, 1.08))


FEATURES: dict[str, Callable[[Canvas, Group], None]] = {
    "river": river,
    "road": road,
    "runway": runway,
    "railway track": railway_track,
    "bridge": bridge,
    "crossroads": crossroads,
    "roundabout": roundabout,
    "sea": sea,
    "pier": pier,
    "forest": forest,
    "pond": pond,
    "island": island,
    "field": field,
    "mountain": mountain,
    "stadium": stadium,
    "playground": playground,
    "car park": car_park,
    "terminal": terminal,
    "school": school,
}
