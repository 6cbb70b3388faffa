"""Scenes cut into overlapping tiles that know where they lie.

Every scene becomes a folder of its own, `<scene>-<fingerprint>`, written whole or not at all;
`metadata.parquet` lists the tiles of all of them and is replaced last. Whoever is killed in between loses the
scene at work and nothing else: the next run finds the finished folders by their fingerprints and goes on.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from pmpguard.config import fingerprint, to_dict
from pmpguard.data.images.decode import ImageProblem
from pmpguard.data.parquet_bounds import read_bounded
from pmpguard.errors import ConfigError, DataError
from pmpguard.files import (
    atomic_output,
    file_name_of,
    new_directory,
    read_json,
    remove_leftovers,
    write_json,
    write_manifest,
    writer_lock,
)
from pmpguard.geo.pixels import SceneLook, Stretch, read_tile, scene_look
from pmpguard.geo.scene_files import find_scenes
from pmpguard.geo.scenes import (
    SceneFacts,
    ScenePlace,
    degrees_of,
    ground_resolution,
    map_bounds,
    scene_facts,
    shifted,
    side_files,
)
from pmpguard.geo.stac_input import NamedScene, stac_root, stac_scenes
from pmpguard.geo.stacks import opened_scene
from pmpguard.progress import watched

METADATA = "metadata.parquet"
DOWNLOADS = ".downloads"  # of assets on the web
_TILES = "tiles.parquet"
_SCENE = "scene.json"
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("image", pa.string()),  # relative to the folder of metadata.parquet
        ("scene", pa.string()),
        ("row", pa.int64()),  # of the tile's upper left pixel in the scene
        ("column", pa.int64()),
        ("width", pa.int64()),
        ("height", pa.int64()),
        ("valid", pa.float64()),  # share of pixels with data
        ("west", pa.float64()),  # degrees of EPSG:4326; west > east across the antimeridian
        ("south", pa.float64()),
        ("east", pa.float64()),
        ("north", pa.float64()),
        ("crs", pa.string()),
        ("left", pa.float64()),  # bounds in the scene's own reference system
        ("bottom", pa.float64()),
        ("right", pa.float64()),
        ("top", pa.float64()),
        ("transform", pa.list_(pa.float64())),  # a, b, c, d, e, f: x = a column + b row + c
        ("resolution", pa.float64()),  # metres on the ground
        ("time", pa.string()),  # ISO 8601, UTC
        ("time_source", pa.string()),
        ("cloud_cover", pa.float64()),
    ]
)


@dataclass(frozen=True)
class TileSettings:
    """How scenes are cut; `bands`, by number or name, empty means red, green and blue."""

    size: int = 256
    overlap: float = 0.25
    bands: tuple[int | str, ...] = ()
    stretch: Stretch = "auto"
    min_valid: float = 0.5
    nodata: float | None = None
    format: Literal["png", "jpeg"] = "png"
    quality: int = 90

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(f"size: {self.size} pixels", fix="give at least 1, usually 224 to 512")
        if not 0 <= self.overlap < 1:
            raise ConfigError(f"overlap: {self.overlap:g}", fix="give a share from 0 up to, not including, 1")
        if not 0 <= self.min_valid <= 1:
            raise ConfigError(f"min_valid: {self.min_valid:g}", fix="give a share between 0 and 1")
        if len(self.bands) not in (0, 1, 3):
            raise ConfigError(f"bands: {len(self.bands)} are given", fix="give one, for grey, or three")
        if not 1 <= self.quality <= 100:
            raise ConfigError(f"quality: {self.quality}", fix="give 1 to 100")


@dataclass(frozen=True)
class TileReport:
    """What became of the scenes; the exit code is 1 when any could not be cut."""

    out: Path
    cut: int
    found_done: int
    tiles: int
    left_out: int
    problems: tuple[ImageProblem, ...]
    warnings: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        return 1 if self.problems else 0

    def as_text(self) -> str:
        lines = [
            f"{self.out}: {self.tiles:,} tiles; {self.cut} scenes cut now, {self.found_done} found done",
            f"{self.left_out:,} tiles left out for want of data" if self.left_out else "",
            *(f"warning: {warning}" for warning in self.warnings),
            *(f"not cut: {problem.reason}" for problem in self.problems),
        ]
        return "\n".join(line for line in lines if line)


def offsets(extent: int, size: int, overlap: float) -> list[int]:
    """Where tiles begin along one side: evenly, and the last one ends where the scene ends.

    >>> offsets(600, 256, 0.25), offsets(100, 256, 0.25)
    ([0, 192, 344], [0])
    """
    step = max(1, round(size * (1 - overlap)))
    last = max(0, extent - size)
    return [*range(0, last, step), last]


def tile_scenes(
    scenes: Path | str,
    out: Path,
    settings: TileSettings,
    progress: bool = False,
    *,
    forget_others: bool = False,
) -> TileReport:
    """Cut every scene that is not cut yet and list all tiles; a scene that cannot be cut is reported.

    `scenes` is a file, a folder, or a STAC document on disk or on the web, whose assets are kept in `out`.
    What `out` holds of other scenes, moved or deleted since, stays unless `forget_others` is true.
    """
    problems, notes, done = list[ImageProblem](), list[str](), 0
    with writer_lock(out):
        remove_leftovers(out)
        found = _named_scenes(scenes, out, settings, problems, progress)
        missing = len(problems)
        earlier = _finished(out)
        for scene in found:
            try:
                folder = out / f"{scene.name}-{_mark(scene, settings)}"
                _check_source(scene, earlier.get(scene.name, []))
                if folder.exists():
                    folder.touch()  # the newest folder of a scene counts
                    done += 1
                else:
                    _cut(scene, folder, settings, progress)
            except DataError as error:
                problems.append(ImageProblem(scene.name, str(scene.files.path), "unreadable", error.message))
            else:
                notes += read_json(folder / _SCENE)["warnings"]
        finished, wanted = _finished(out), {scene.name for scene in found}
        current = [
            folders[-1] for name, folders in sorted(finished.items()) if name in wanted or not forget_others
        ]
        tables = [read_bounded(folder / _TILES) for folder in current]
        left_out = sum(read_json(folder / _SCENE)["left_out"] for folder in current)
        everything = pa.concat_tables([SCHEMA.empty_table(), *tables], promote_options="default")
        with atomic_output(out / METADATA) as stream:
            pq.write_table(everything, stream, compression="zstd")
        for outdated in {folder for folders in finished.values() for folder in folders} - set(current):
            shutil.rmtree(outdated)
    cut = len(found) - done - (len(problems) - missing)
    return TileReport(out, cut, done, len(everything), left_out, tuple(problems), tuple(notes))


def _named_scenes(
    scenes: Path | str, out: Path, settings: TileSettings, problems: list[ImageProblem], progress: bool
) -> Sequence[NamedScene]:
    """What is to be cut; what a catalogue names and cannot be had joins the problems."""
    start = stac_root(scenes)
    if start is not None:
        found = stac_scenes(start, out / DOWNLOADS, settings.bands, progress)
        problems += found.problems
        return found.scenes
    path = Path(scenes)
    root = path if path.is_dir() else path.parent
    return [
        NamedScene(scene, file_name_of(scene.path.relative_to(root).as_posix().removesuffix(".tif")))
        for scene in find_scenes(path, settings.bands)
    ]


def _mark(scene: NamedScene, settings: TileSettings) -> str:
    """Changes with the files, with those beside them that belong to them, and with the settings."""
    files = [file for part in scene.files.files for file in side_files(part)]
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    described = {} if scene.files.item is None else {"item": scene.files.item["properties"]}
    return fingerprint({"files": states, "settings": to_dict(settings), **described})


def _check_source(scene: NamedScene, earlier: list[Path]) -> None:
    """Two scenes of one name from different folders would take each other's place."""
    for folder in earlier:
        source = Path(read_json(folder / _SCENE)["source"])
        if source != scene.files.files[0].resolve() and source.exists():
            raise DataError(
                f"{scene.files.path}: {folder.parent} holds tiles of another scene of this name, {source}"
            )


def _cut(scene: NamedScene, folder: Path, settings: TileSettings, progress: bool) -> None:
    """Write the scene's tiles, their table and what is to say about them."""
    with opened_scene(scene.files) as dataset, new_directory(folder) as temporary:
        facts = scene_facts(dataset, scene.files.path, scene.files.item)
        look = scene_look(
            dataset, scene.files.path, settings.bands, settings.stretch, settings.nodata, scene.files.names
        )
        rows, left_out = [], 0
        for image, row in _tiles(dataset, scene, facts, look, settings, progress):
            if image is None:
                left_out += 1
                continue
            suffix = "jpg" if settings.format == "jpeg" else "png"
            file = f"{row['row']}_{row['column']}.{suffix}"
            options = {"quality": settings.quality} if settings.format == "jpeg" else {}
            image.save(temporary / file, settings.format.upper(), **options)
            rows.append({**row, "image": f"{folder.name}/{file}"})
        names = [name for name in facts.properties if name not in SCHEMA.names]
        extra = [pa.field(name, pa.string()) for name in names]
        pq.write_table(pa.Table.from_pylist(rows, pa.schema([*SCHEMA, *extra])), temporary / _TILES)
        write_json(
            temporary / _SCENE,
            {
                "scene": scene.name,
                "source": str(scene.files.files[0].resolve()),
                "left_out": left_out,
                "warnings": [*scene.files.notes, *facts.warnings, *look.notes],
                "settings": to_dict(settings),
            },
        )
        write_manifest(temporary)


def _tiles(
    dataset: Any,
    scene: NamedScene,
    facts: SceneFacts,
    look: SceneLook,
    settings: TileSettings,
    progress: bool,
) -> Iterator[tuple[Image.Image | None, dict[str, Any]]]:
    """Every tile with its row of metadata, but for the image's path; None of one with too little data."""
    width, height = min(settings.size, dataset.width), min(settings.size, dataset.height)
    known = {
        "scene": scene.name,
        "width": width,
        "height": height,
        "time": facts.time and facts.time.isoformat().replace("+00:00", "Z"),
        "time_source": facts.time_source,
        "cloud_cover": facts.cloud_cover,
    }
    places = [
        (column, row)
        for row in offsets(dataset.height, settings.size, settings.overlap)
        for column in offsets(dataset.width, settings.size, settings.overlap)
    ]
    for column, row in watched(places, len(places), scene.name, unit=" tiles", active=progress):
        part = (column, row, width, height)
        pixels, valid = read_tile(dataset, scene.files.path, look, part, settings.min_valid)
        if pixels is None:
            yield None, {}
            continue
        own = {"id": f"{scene.name}_{row}_{column}", "row": row, "column": column, "valid": valid}
        yield (
            Image.fromarray(pixels),
            {**facts.properties, **known, **own, **_coordinates(facts.place, part)},
        )


def _coordinates(scene: ScenePlace | None, part: tuple[int, int, int, int]) -> dict[str, Any]:
    """Where a part of the scene lies; nothing where the scene does not know its own place."""
    if scene is None:
        return {}
    column, row, width, height = part
    degrees = degrees_of(scene, *part) or (None,) * 4
    bounds = map_bounds(scene.transform, *part)
    return {
        **dict(zip(("west", "south", "east", "north"), degrees, strict=True)),
        **dict(zip(("left", "bottom", "right", "top"), bounds, strict=True)),
        "crs": scene.crs_name,
        "transform": list(shifted(scene.transform, column, row)),
        "resolution": ground_resolution(scene, column + width / 2, row + height / 2),
    }


def _finished(out: Path) -> dict[str, list[Path]]:
    """The finished folders of every scene, the newest last."""
    folders: dict[str, list[Path]] = {}
    for file in out.glob(f"*/{_SCENE}"):
        if not file.parent.name.startswith("."):  # at work, or left by a killed writer
            folders.setdefault(read_json(file)["scene"], []).append(file.parent)
    for found in folders.values():
        found.sort(key=lambda folder: folder.stat().st_mtime_ns)
    return folders
