"""Bands by name: which of them are red, green and blue, so that no colours are swapped unnoticed.

Names are those of GeoTIFF band descriptions, of files that hold one band each, and of STAC items: `red`,
`B04`, `SR_B4`, `Band 4`. Numbers mean Sentinel-2 or Landsat 8 and 9; Landsat 4 to 7 counts from another band.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

COLOURS = ("red", "green", "blue")
_NUMBERED = re.compile(r"(?:sr|toa|rad)?[ _-]?b(?:and)?[ _-]?0*(\d{1,2})(a?)", re.IGNORECASE)
_USUAL = {"b4": "red", "b3": "green", "b2": "blue"}
_EARLY_LANDSAT = {"b3": "red", "b2": "green", "b1": "blue"}
_EARLY = re.compile(r"(?<![a-z0-9])(?:l[tem]0?[4567](?![a-z])|landsat[ _-]?[4567](?!\d))", re.IGNORECASE)


def plain_name(name: str) -> str:
    """A band's name as names are compared.

    >>> [plain_name(name) for name in ("B04", "SR_B4", "Band 4", "B8A", "Red", "NIR")]
    ['b4', 'b4', 'b4', 'b8a', 'red', 'nir']
    """
    name = name.strip()
    found = _NUMBERED.fullmatch(name)
    return f"b{int(found[1])}{found[2].lower()}" if found else name.lower()


def colour_of(name: str, scene: str = "") -> str | None:
    """Red, green or blue, or None; `scene` is the scene's name, which may tell the satellite.

    >>> colour_of("B04"), colour_of("SR_B3", "LE07_L2SP_195027"), colour_of("B08")
    ('red', 'red', None)
    """
    plain = plain_name(name)
    if plain in COLOURS:
        return plain
    return (_EARLY_LANDSAT if _EARLY.search(scene) else _USUAL).get(plain)


def true_colour(names: Sequence[str], scene: str = "") -> tuple[int, ...]:
    """The places of red, green and blue among band names; none where one is missing or there twice.

    >>> true_colour(("B02", "B03", "B04", "B08")), true_colour(("VV", "VH"))
    ((2, 1, 0), ())
    """
    colours = [colour_of(name, scene) for name in names]
    if any(colours.count(colour) != 1 for colour in COLOURS):
        return ()
    return tuple(colours.index(colour) for colour in COLOURS)


def place_of(wanted: str, names: Sequence[str], scene: str = "") -> int | None:
    """The place of the band a person means: by its name, or by its colour."""
    plain = [plain_name(name) for name in names]
    if plain_name(wanted) in plain:
        return plain.index(plain_name(wanted))
    colours = [colour_of(name, scene) for name in names]
    return colours.index(wanted.lower()) if wanted.lower() in colours else None


def described(bands: Sequence[int], names: Mapping[int, str]) -> str:
    """Bands for people: their numbers, with names where there are any.

    >>> described((1, 2), {2: "B03"})
    '1, 2 (B03)'
    """
    return ", ".join(f"{band} ({names[band]})" if names.get(band) else str(band) for band in bands)
