"""Which files a scene consists of: one GeoTIFF, or one for each band."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pmpguard.errors import DataError, PmpguardError
from pmpguard.geo.bands import place_of, true_colour
from pmpguard.geo.scenes import opened_file

SUFFIXES = (".tif", ".tiff")
_BAND_IN_NAME = re.compile(
    r"(?<![A-Za-z0-9])((?:(?:SR|TOA|RAD)_)?B(?:AND)?[_-]?\d{1,2}A?"
    r"|red|green|blue|nir\d*|swir\d*|rededge\d*|coastal|pan)"
    r"(?:_\d+m)?(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_FILE_CHOICES = 60  # bands of one scene; more are a folder of something else


@dataclass(frozen=True)
class SceneFiles:
    """A scene: `path` is its file, or what its file would be called if its bands were in one.

    `bands` are the files of red, green and blue, or of what was asked for, where each lies in its own; then
    `names` are their names. `item` is what a catalogue says of the scene.
    """

    path: Path
    bands: tuple[Path, ...] = ()
    names: tuple[str, ...] = ()
    item: Mapping[str, Any] | None = field(default=None, compare=False)
    notes: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        return self.bands or (self.path,)


def find_scenes(path: Path, wanted: Sequence[int | str] = ()) -> list[SceneFiles]:
    """The scenes of a folder and all below it, in order, or the one file; hidden ones do not count.

    Files that hold one band each and differ in nothing but the band's name are one scene, where red, green
    and blue are among them, or the bands named in `wanted`.
    """
    if path.is_file():
        return [SceneFiles(path)]
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder", fix="check the path")
    inside = [
        file
        for file in sorted(path.rglob("*"))
        if file.suffix.lower() in SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not inside:
        raise DataError(
            f"{path}: no GeoTIFF files ({', '.join(SUFFIXES)})", fix="check the folder, or name a STAC file"
        )
    return sorted(_stacked(inside, wanted), key=lambda scene: scene.path)


def band_in_name(path: Path) -> tuple[str, str] | None:
    """The band a file's name speaks of, and the name without it.

    >>> band_in_name(Path("T32TQM_20220611T100601_B04_10m.tif")), band_in_name(Path("town.tif"))
    (('B04', 'T32TQM_20220611T100601'), None)
    """
    found = list(_BAND_IN_NAME.finditer(path.stem))
    if not found:
        return None
    last = found[-1]
    before, after = path.stem[: last.start()].rstrip("._-"), path.stem[last.end() :].lstrip("._-")
    return last[1], "_".join(part for part in (before, after) if part) or "scene"


def _stacked(files: Sequence[Path], wanted: Sequence[int | str]) -> list[SceneFiles]:
    groups: dict[tuple[Path, str], dict[str, Path]] = {}
    scenes = []
    for file in files:
        found = band_in_name(file)
        if found is None or found[0].upper() in groups.get((file.parent, found[1]), {}):
            scenes.append(SceneFiles(file))
        else:
            groups.setdefault((file.parent, found[1]), {})[found[0].upper()] = file
    for (folder, name), bands in groups.items():
        scenes += _scenes_of_group(folder / f"{name}.tif", bands, wanted)
    return scenes


def _scenes_of_group(path: Path, bands: Mapping[str, Path], wanted: Sequence[int | str]) -> list[SceneFiles]:
    """One scene of the bands that are wanted, or one each where they do not belong together."""
    chosen = chosen_bands(list(bands), wanted, path.stem)
    apart = [SceneFiles(file) for file in bands.values()]
    if len(bands) < 2 or len(bands) > _FILE_CHOICES or any(isinstance(band, int) for band in wanted):
        return apart
    if chosen:
        files = tuple(bands[name] for name in chosen)
        return [SceneFiles(path, files, tuple(chosen))] if _one_grid(files) else apart
    if not _one_grid(tuple(bands.values())):
        return apart
    note = (
        f"{path.parent}: files of single bands ({', '.join(bands)}) without red, green and blue among them "
        "are shown as grey; --bands NAME,NAME,NAME makes colour of three"
    )
    return [SceneFiles(apart[0].path, notes=(note,)), *apart[1:]]


def chosen_bands(names: Sequence[str], wanted: Sequence[int | str], scene: str) -> list[str]:
    """The bands asked for by name, else red, green and blue; none where one is missing."""
    if not wanted:
        return [names[place] for place in true_colour(names, scene)]
    places = [None if isinstance(band, int) else place_of(band, names, scene) for band in wanted]
    return [] if None in places else [names[place] for place in places if place is not None]


def _one_grid(files: Sequence[Path]) -> bool:
    """Whether files hold one band each of the same ground; what cannot be read is told of later."""
    outlines = []
    for file in files:
        try:
            with opened_file(file) as dataset:
                if dataset.count != 1:
                    return False
                bounds, coarse = dataset.bounds, max(map(abs, dataset.res))
                outlines.append((dataset.crs, bounds, coarse))
        except PmpguardError:
            return False
    reference, first, _ = outlines[0]
    return all(
        crs == reference
        and all(abs(a - b) <= 1.5 * max(coarse, outlines[0][2]) for a, b in zip(bounds, first, strict=True))
        for crs, bounds, coarse in outlines
    )
