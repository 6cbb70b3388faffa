"""How each countable thing looks from above: one small painter per kind.

A painter gets the canvas, the item's spot, its reach (the radius it may fill) and its colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pmpguard.synthetic.drawing.canvas import RGB, Canvas, blob, box, oval, shade, turned
from pmpguard.synthetic.truth import Spot

PALETTE: dict[str, RGB] = {
    "red": (186, 54, 44),
    "blue": (48, 94, 190),
    "green": (52, 136, 66),
    "white": (238, 236, 230),
    "grey": (132, 134, 138),
    "black": (42, 43, 48),
    "brown": (116, 78, 50),
    "yellow": (232, 198, 52),
    "orange": (228, 124, 40),
    "": (225, 226, 228),
}
FOLIAGE: dict[str, RGB] = {"green": (52, 96, 42), "yellow": (192, 166, 52), "orange": (188, 94, 38)}
WATER: dict[str, RGB] = {"blue": (44, 98, 156), "green": (46, 116, 92), "brown": (122, 98, 64)}
CROPS: dict[str, RGB] = {
    "green": (92, 146, 62),
    "yellow": (218, 192, 84),
    "brown": (112, 80, 54),
    "orange": (204, 136, 66),
}
WHITE: RGB = (236, 236, 232)
DARK: RGB = (46, 50, 58)

_HALF_PLANE = [(1, 0), (0.84, 0.11), (0.32, 0.13), (-0.2, 0.95), (-0.42, 0.95), (-0.12, 0.13), (-0.68, 0.1)]
_HALF_PLANE += [(-0.86, 0.4), (-1.0, 0.4), (-0.92, 0.0)]
PLANE = [*_HALF_PLANE, *((x, -y) for x, y in reversed(_HALF_PLANE))]
HULL = [(1, 0), (0.55, 0.3), (-0.2, 0.36), (-0.95, 0.28), (-0.95, -0.28), (-0.2, -0.36), (0.55, -0.3)]
CROSS = [(1, 0.24), (0.38, 0.24), (0.38, 0.66), (-0.1, 0.66), (-0.1, 0.24), (-0.9, 0.24)]
CROSS += [(x, -y) for x, y in reversed(CROSS)]


def _lit(canvas: Canvas, colour: RGB, angle: float) -> RGB:
    """A sloped face's colour: faces turned to the sun are lighter."""
    facing = -(math.cos(angle) * canvas.sun[0] + math.sin(angle) * canvas.sun[1])
    return shade(colour, 0.9 + 0.2 * facing)


def plane(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    outline = turned(PLANE, x, y, angle, reach)
    canvas.shadow(outline, reach * 0.22)
    canvas.polygon(outline, colour)
    canvas.line(turned([(0.9, 0), (-0.9, 0)], x, y, angle, reach), shade(colour, 1.12), reach * 0.16)
    for side in (0.42, -0.42):
        canvas.line(turned([(0.2, side), (0.0, side)], x, y, angle, reach), shade(colour, 0.6), reach * 0.12)


def boat(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    hull = turned(HULL, x, y, angle, reach)
    canvas.shadow(hull, reach * 0.2)
    canvas.polygon(hull, colour)
    canvas.polygon(turned([(u * 0.7, v * 0.62) for u, v in HULL], x, y, angle, reach), shade(colour, 1.25))
    canvas.polygon(turned([(0.2, 0.16), (-0.4, 0.16), (-0.4, -0.16), (0.2, -0.16)], x, y, angle, reach), DARK)


def ship(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    hull = turned([(u, v * 0.72) for u, v in HULL], x, y, angle, reach)
    canvas.shadow(hull, reach * 0.15)
    canvas.polygon(hull, colour)
    canvas.polygon(turned([(u * 0.86, v * 0.5) for u, v in HULL], x, y, angle, reach), (170, 150, 130))
    for along in (0.35, 0.02, -0.31):
        cx, cy = turned([(along, 0)], x, y, angle, reach)[0]
        canvas.polygon(box(cx, cy, angle, reach * 0.13, reach * 0.14), shade(colour, 0.75))
    cx, cy = turned([(-0.7, 0)], x, y, angle, reach)[0]
    canvas.polygon(box(cx, cy, angle, reach * 0.14, reach * 0.18), WHITE)


def car(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    body = box(x, y, angle, reach * 0.85, reach * 0.46)
    canvas.shadow(body, reach * 0.25)
    canvas.polygon(body, colour)
    for along, half in ((0.3, 0.1), (-0.52, 0.08)):
        cx, cy = turned([(along, 0)], x, y, angle, reach)[0]
        canvas.polygon(box(cx, cy, angle, reach * half, reach * 0.36), DARK)


def truck(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    canvas.shadow(box(x, y, angle, reach * 0.92, reach * 0.34), reach * 0.3)
    cx, cy = turned([(0.68, 0)], x, y, angle, reach)[0]
    canvas.polygon(box(cx, cy, angle, reach * 0.24, reach * 0.3), shade(colour, 0.62))
    cx, cy = turned([(-0.25, 0)], x, y, angle, reach)[0]
    canvas.polygon(box(cx, cy, angle, reach * 0.66, reach * 0.35), colour)


def bus(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    body = box(x, y, angle, reach * 0.95, reach * 0.3)
    canvas.shadow(body, reach * 0.28)
    canvas.polygon(body, colour)
    canvas.line(turned([(0.7, 0), (-0.75, 0)], x, y, angle, reach), shade(colour, 1.3), reach * 0.16)
    canvas.line(turned([(0.86, 0.26), (0.86, -0.26)], x, y, angle, reach), DARK, reach * 0.1)


def train(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    for coach in range(-2, 3):
        cx, cy = turned([(coach * 0.4, 0)], x, y, angle, reach)[0]
        outline = box(cx, cy, angle, reach * 0.185, 0.024)
        canvas.shadow(outline, 0.02)
        canvas.polygon(outline, colour)
        canvas.polygon(box(cx, cy, angle, reach * 0.15, 0.008), shade(colour, 1.3))


def container(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    body = box(x, y, angle, reach * 0.92, reach * 0.42)
    canvas.shadow(body, reach * 0.3)
    canvas.polygon(body, colour)
    for along in (-0.6, -0.2, 0.2, 0.6):
        ribs = turned([(along, 0.4), (along, -0.4)], x, y, angle, reach)
        canvas.line(ribs, shade(colour, 0.78), reach * 0.06)


def house(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    long, wide = 0.86, 0.66
    outline = box(x, y, angle, reach * long, reach * wide)
    canvas.shadow(outline, reach * 0.45)
    faces = [
        ([(long, wide), (-long, wide), (-0.4, 0), (0.4, 0)], math.pi / 2),
        ([(long, -wide), (-long, -wide), (-0.4, 0), (0.4, 0)], -math.pi / 2),
        ([(long, wide), (long, -wide), (0.4, 0)], 0.0),
        ([(-long, wide), (-long, -wide), (-0.4, 0)], math.pi),
    ]
    for corners, normal in faces:
        canvas.polygon(turned(corners, x, y, angle, reach), _lit(canvas, colour, angle + normal))
    canvas.line(turned([(0.4, 0), (-0.4, 0)], x, y, angle, reach), shade(colour, 1.2), reach * 0.08)


def building(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    outline = box(x, y, angle, reach * 0.9, reach * 0.55)
    canvas.shadow(outline, reach * 0.6)
    canvas.polygon(outline, shade(colour, 1.15))
    canvas.polygon(box(x, y, angle, reach * 0.8, reach * 0.46), shade(colour, 0.94))
    for along, across in ((0.45, 0.15), (-0.2, -0.18), (-0.55, 0.12)):
        cx, cy = turned([(along, across)], x, y, angle, reach)[0]
        canvas.polygon(box(cx, cy, angle, reach * 0.12, reach * 0.1), shade(colour, 0.66))
        canvas.polygon(box(cx, cy, angle, reach * 0.08, reach * 0.06), shade(colour, 1.1))


def factory(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    """A shed with a saw-tooth roof."""
    x, y, angle = spot
    canvas.shadow(box(x, y, angle, reach * 0.92, reach * 0.62), reach * 0.4)
    for tooth in range(5):
        left = -0.92 + tooth * 0.368
        for start, width, tone in ((left, 0.23, 1.08), (left + 0.23, 0.138, 0.7)):
            strip = [(start, 0.62), (start + width, 0.62), (start + width, -0.62), (start, -0.62)]
            canvas.polygon(turned(strip, x, y, angle, reach), shade(colour, tone))


def church(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    outline = turned(CROSS, x, y, angle, reach)
    canvas.shadow(outline, reach * 0.3)
    canvas.polygon(outline, _lit(canvas, colour, angle + math.pi / 2))
    for corners in (
        [(1, 0), (1, -0.24), (-0.9, -0.24), (-0.9, 0)],
        [(0.38, 0.66), (0.14, 0.66), (0.14, -0.66), (0.38, -0.66)],
    ):
        canvas.polygon(turned(corners, x, y, angle, reach), _lit(canvas, colour, angle - math.pi / 2))
    canvas.line(turned([(1, 0), (-0.9, 0)], x, y, angle, reach), shade(colour, 1.25), reach * 0.05)
    canvas.line(turned([(0.14, 0.66), (0.14, -0.66)], x, y, angle, reach), shade(colour, 1.25), reach * 0.05)
    tower = turned([(-0.74, 0)], x, y, angle, reach)[0]
    steeple = box(*tower, angle, reach * 0.24, reach * 0.24)
    canvas.shadow(steeple, reach * 0.75)
    tent(canvas, (*tower, angle), reach * 0.34, shade(colour, 0.9))


def storage_tank(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, _ = spot
    canvas.shadow(oval(x, y, 0, reach * 0.86, reach * 0.86), reach * 0.45)
    canvas.disc(x, y, reach * 0.88, shade(colour, 0.72))
    canvas.disc(x, y, reach * 0.8, colour)
    dx, dy = canvas.sun
    canvas.disc(x - dx * reach * 0.22, y - dy * reach * 0.22, reach * 0.46, shade(colour, 1.14))
    canvas.disc(x, y, reach * 0.1, shade(colour, 0.6))


def tent(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    corners = box(x, y, angle, reach * 0.72, reach * 0.72)
    canvas.shadow(corners, reach * 0.35)
    for side in range(4):
        a, b = corners[side], corners[(side + 1) % 4]
        normal = math.atan2((a[1] + b[1]) / 2 - y, (a[0] + b[0]) / 2 - x)
        facing = -(math.cos(normal) * canvas.sun[0] + math.sin(normal) * canvas.sun[1])
        canvas.polygon([a, b, (x, y)], shade(colour, 0.88 + 0.3 * facing))


def umbrella(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    canvas.shadow(oval(x, y, 0, reach * 0.85, reach * 0.85), reach * 0.5)
    canvas.disc(x, y, reach * 0.9, colour)
    for wedge in range(3):
        a = angle + wedge * math.tau / 3
        edge = [
            (x + reach * 0.9 * math.cos(a + t), y + reach * 0.9 * math.sin(a + t)) for t in (0, 0.25, 0.5)
        ]
        canvas.polygon([(x, y), *edge], shade(colour, 1.3))
    canvas.disc(x, y, reach * 0.12, WHITE)


def wind_turbine(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    dx, dy = canvas.sun[0] * reach * 0.7, canvas.sun[1] * reach * 0.7
    canvas.line([(x, y), (x + dx, y + dy)], (30, 32, 38), reach * 0.1, 130)
    for fx, fy, tone, alpha in ((x + dx, y + dy, (30, 32, 38), 120), (x, y, WHITE, 255)):
        for blade in range(3):
            a = angle + blade * math.tau / 3
            foot = [(0.06, 0.09), (0.95, 0.02), (0.95, -0.02), (0.06, -0.09)]
            canvas.polygon(turned(foot, fx, fy, a, reach), tone, alpha)
    canvas.disc(x, y, reach * 0.13, WHITE)


def solar_panel(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    for row in (-0.5, 0.0, 0.5):
        cx, cy = turned([(0, row)], x, y, angle, reach)[0]
        outline = box(cx, cy, angle, reach * 0.92, reach * 0.2)
        canvas.shadow(outline, reach * 0.12)
        canvas.polygon(outline, (196, 200, 208))
        canvas.polygon(box(cx, cy, angle, reach * 0.88, reach * 0.165), shade(colour, 0.8))
        for cell in (-0.6, -0.3, 0.0, 0.3, 0.6):
            grid = turned([(cell, row + 0.16), (cell, row - 0.16)], x, y, angle, reach)
            canvas.line(grid, shade(colour, 1.5), reach * 0.02)


def swimming_pool(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    canvas.polygon(box(x, y, angle, reach * 0.95, reach * 0.66), (214, 206, 190))
    canvas.polygon(box(x, y, angle, reach * 0.76, reach * 0.46), (64, 178, 220))
    canvas.polygon(box(x, y, angle, reach * 0.6, reach * 0.32), (92, 200, 232))


def tennis_court(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    canvas.polygon(box(x, y, angle, reach * 0.95, reach * 0.6), shade(colour, 0.68))
    canvas.polygon(box(x, y, angle, reach * 0.74, reach * 0.38), colour)
    lines = [(0.74, 0.38), (-0.74, 0.38), (-0.74, -0.38), (0.74, -0.38), (0.74, 0.38)]
    canvas.line(turned(lines, x, y, angle, reach), WHITE, reach * 0.06)
    canvas.line(turned([(0, 0.5), (0, -0.5)], x, y, angle, reach), WHITE, reach * 0.07)
    canvas.line(turned([(0.4, 0), (-0.4, 0)], x, y, angle, reach), WHITE, reach * 0.05)


def football_field(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    for stripe in range(8):
        left = -0.95 + stripe * 0.2375
        corners = [(left, 0.58), (left + 0.24, 0.58), (left + 0.24, -0.58), (left, -0.58)]
        canvas.polygon(turned(corners, x, y, angle, reach), shade(colour, 1.12 if stripe % 2 else 0.95))
    width = reach * 0.035
    edge = [(0.9, 0.52), (-0.9, 0.52), (-0.9, -0.52), (0.9, -0.52), (0.9, 0.52)]
    canvas.line(turned(edge, x, y, angle, reach), WHITE, width)
    canvas.line(turned([(0, 0.52), (0, -0.52)], x, y, angle, reach), WHITE, width)
    circle = oval(x, y, 0, reach * 0.17, reach * 0.17)
    canvas.line([*circle, circle[0]], WHITE, width)
    for end in (0.9, -0.9):
        goal = [(end, 0.25), (end * 0.74, 0.25), (end * 0.74, -0.25), (end, -0.25)]
        canvas.line(turned(goal, x, y, angle, reach), WHITE, width)


def bunker(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    canvas.polygon(blob(canvas.rng, x, y, angle, reach * 1.15, reach * 0.95), (84, 128, 56))
    canvas.polygon(blob(canvas.rng, x, y, angle, reach * 0.98, reach * 0.74), shade(colour, 0.82))
    canvas.polygon(blob(canvas.rng, x, y, angle, reach * 0.86, reach * 0.62), colour)


def tree(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    dx, dy = canvas.sun
    canvas.disc(x + dx * reach * 0.5, y + dy * reach * 0.5, reach * 0.85, (18, 24, 20), 110)
    canvas.disc(x, y, reach * 0.78, shade(colour, 0.72))
    for lobe in range(5):
        a = angle + lobe * math.tau / 5
        u, v = x + math.cos(a) * reach * 0.45, y + math.sin(a) * reach * 0.45
        light = -(math.cos(a) * dx + math.sin(a) * dy)
        canvas.disc(u, v, reach * 0.42, shade(colour, 0.95 + 0.28 * light))
    canvas.disc(x - dx * reach * 0.2, y - dy * reach * 0.2, reach * 0.36, shade(colour, 1.3))


def rock(canvas: Canvas, spot: Spot, reach: float, colour: RGB) -> None:
    x, y, angle = spot
    rng = canvas.rng
    sides = [(math.cos(a) * rng.uniform(0.7, 0.95), math.sin(a) * rng.uniform(0.6, 0.9)) for a in _CORNERS]
    outline = turned(sides, x, y, angle, reach)
    canvas.shadow(outline, reach * 0.45)
    canvas.polygon(outline, shade(colour, 0.78))
    dx, dy = canvas.sun
    top = (x - dx * reach * 0.12, y - dy * reach * 0.12)
    for a, b in zip(outline, [*outline[1:], outline[0]], strict=True):
        normal = math.atan2((a[1] + b[1]) / 2 - y, (a[0] + b[0]) / 2 - x)
        facing = -(math.cos(normal) * dx + math.sin(normal) * dy)
        canvas.polygon([a, b, top], shade(colour, 0.95 + 0.3 * facing))


_CORNERS = [math.tau * corner / 7 for corner in range(7)]

PAINTERS: dict[str, Callable[[Canvas, Spot, float, RGB], None]] = {
    "plane": plane,
    "boat": boat,
    "ship": ship,
    "car": car,
    "truck": truck,
    "bus": bus,
    "train": train,
    "container": container,
    "house": house,
    "building": building,
    "factory": factory,
    "church": church,
    "storage tank": storage_tank,
    "tent": tent,
    "umbrella": umbrella,
    "wind turbine": wind_turbine,
    "solar panel": solar_panel,
    "swimming pool": swimming_pool,
    "tennis court": tennis_court,
    "football field": football_field,
    "bunker": bunker,
    "tree": tree,
    "rock": rock,
}
