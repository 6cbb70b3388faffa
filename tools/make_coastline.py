"""Write the coastline that the search page draws under its map.

    npm pack world-atlas@2.0.2 && tar xzf world-atlas-2.0.2.tgz package/land-110m.json
    python tools/make_coastline.py package/land-110m.json src/pmpguard/web/shared/coastline.js

The source is Natural Earth's land at 1:110,000,000, which is in the public domain, as world-atlas packs it
into TopoJSON. Rings are written in hundredths of a degree, each number as the difference from the last one.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"  # 64, of which 32 go on
HEAD = """// Land of the Earth, to be drawn under a map: Natural Earth 1:110m, version 4.1, public domain
// (naturalearthdata.com), by way of the npm package world-atlas 2.0.2, file land-110m.json of SHA-256
// {digest}.
// Written by tools/make_coastline.py; rings of hundredths of a degree as differences, five bits a character.
"""

TURN = 36_000
Point = tuple[int, int]
Ring = list[Point]


def rings_of(topology: dict[str, Any]) -> Iterator[Ring]:
    """Outlines and holes of all land in hundredths of a degree, without the last point: it is the first."""
    (wide, high), (left, low) = topology["transform"]["scale"], topology["transform"]["translate"]
    arcs = []
    for arc in topology["arcs"]:
        x = y = 0
        points = []
        for across, up in arc:
            x, y = x + across, y + up
            points.append((round(100 * (x * wide + left)), round(100 * (y * high + low))))
        arcs.append(points)
    for geometry in topology["objects"]["land"]["geometries"]:
        polygons = geometry["arcs"] if geometry["type"] == "MultiPolygon" else [geometry["arcs"]]
        for polygon in polygons:
            for numbers in polygon:
                yield unwrapped([arcs[number] if number >= 0 else arcs[~number][::-1] for number in numbers])


def unwrapped(arcs: Sequence[Ring]) -> Ring:
    """Arcs as one ring whose longitudes go on beyond 180 degrees instead of jumping back.

    Points that follow on themselves are left out. Land around a pole becomes a band that ends at the pole.
    """
    points = [point for arc in arcs for point in arc]
    ring = points[:1]
    for x, y in points[1:]:
        x += TURN * round((ring[-1][0] - x) / TURN)
        if (x, y) != ring[-1]:
            ring.append((x, y))
    middle = (min(x for x, _ in ring) + max(x for x, _ in ring)) / 2
    ring = [(x - TURN * round(middle / TURN), y) for x, y in ring]  # a lake lies in its land, not a turn away
    (first, low), (last, _) = ring[0], ring[-1]
    if first == last:
        return ring[:-1]
    pole = -9000 if low < 0 else 9000
    return [*ring, (last, pole), (first, pole)]


def encoded(rings: Iterable[Ring]) -> str:
    """Rings with blanks between them.

    >>> encoded([[(0, 0), (100, -1)]])
    '00e61'
    """
    words = []
    for ring in rings:
        x = y = 0
        letters = []
        for across, up in ring:
            letters += [number(across - x), number(up - y)]
            x, y = across, up
        words.append("".join(letters))
    return " ".join(words)


def number(value: int) -> str:
    """Five bits a letter, the lowest first; letters from the 32nd on say that more follow.

    The last bit is the sign.

    >>> [number(value) for value in (0, -1, 15, 16)]
    ['0', '1', 'U', 'W1']
    """
    left = 2 * value if value >= 0 else -2 * value - 1
    letters = ""
    while left >= 32:
        letters += DIGITS[32 + left % 32]
        left //= 32
    return letters + DIGITS[left]


def main(source: str, target: str) -> None:
    data = Path(source).read_bytes()
    rings = [ring for ring in rings_of(json.loads(data)) if len(ring) > 2]
    head = HEAD.format(digest=hashlib.sha256(data).hexdigest())
    Path(target).write_text(f'{head}\nexport const COASTLINE = "{encoded(rings)}";\n', encoding="utf-8")
    print(f"{target}: {len(rings)} rings, {sum(map(len, rings)):,} points")


if __name__ == "__main__":
    main(*sys.argv[1:])
