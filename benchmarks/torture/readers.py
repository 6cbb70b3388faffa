"""What reads strangers' files back, as the commands do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pmpguard.errors import DataError
from torture.apart import command
from torture.artefacts import Artefacts


@dataclass(frozen=True)
class Reader:
    """Something that is read back: a copy of what lies at `source`, of which `files` are damaged."""

    name: str
    source: Callable[[Artefacts], Path]
    files: Sequence[str]
    read: Callable[[Path, Artefacts], Any]


PIXELS = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)


def load_model(folder: Path, made: Artefacts) -> None:
    import pmpguard

    model = pmpguard.load(folder)
    model.score(model.encode_texts(["a river"]), model.encode_images(PIXELS))


def search_index(folder: Path, made: Artefacts) -> None:
    from pmpguard.search.index.changes import verify_index
    from pmpguard.search.query import Query
    from pmpguard.search.searcher import Searcher

    with_errors: list[Exception] = []
    try:
        verify_index(folder)
    except Exception as error:
        with_errors.append(error)
    searcher = Searcher.open(folder)
    hits = searcher.search(Query("a river"), 5)
    if hits:
        searcher.explain(hits[0].id, "a river")
    if with_errors:
        raise with_errors[0]


def build_from_embedding(folder: Path, made: Artefacts) -> None:
    from pmpguard.search.index.changes import build_index

    build_index(folder.parent / "built", folder, model=made.model)


def read_vectors(folder: Path, made: Artefacts) -> None:
    from pmpguard.data.formats.embeddings import read_clip_embeddings

    read_clip_embeddings(folder)


def resume_run(folder: Path, made: Artefacts) -> None:
    from pmpguard.files import read_json
    from pmpguard.training import checkpoint

    found = checkpoint.latest_checkpoint(folder)
    if found is None:
        return
    identity = checkpoint.RunIdentity(**IDENTITY[0]) if IDENTITY else None
    if identity is None:
        stored = read_json(made.run / "checkpoints" / found.name / "state.json")
        IDENTITY.append(stored["identity"])
        identity = checkpoint.RunIdentity(**stored["identity"])
    checkpoint.refuse_foreign(folder, identity)
    checkpoint.load_checkpoint(found, identity)


IDENTITY: list[dict[str, Any]] = []


def clean_audit(folder: Path, made: Artefacts) -> None:
    from pmpguard.cli.clean import clean

    clean(folder, folder.parent / "cleaned.parquet", policy="rematch")


def clean_with_decisions(path: Path, made: Artefacts) -> None:
    from pmpguard.cli.clean import clean

    clean(made.audit, path.parent / "cleaned.csv", decisions=path)


def use_noise(path: Path, made: Artefacts) -> None:
    from pmpguard.data.formats import read_pairs
    from pmpguard.noise.manifest import apply_manifest

    apply_manifest(read_pairs(made.world), path)


def parse_yaml(path: Path, made: Artefacts) -> None:
    command("train", path.parent / "run", "--config", path, "--print_config")


def parse_recipe(path: Path, made: Artefacts) -> None:
    command("table", path, "--render_only", "--rows", made.rows, "--out", path.parent / "t")


def render_rows(path: Path, made: Artefacts) -> None:
    command("table", made.table, "--render_only", "--rows", path, "--out", path.parent / "t")


def cut_scenes(folder: Path, made: Artefacts) -> None:
    from pmpguard.geo.tiles import TileSettings, tile_scenes

    report = tile_scenes(folder, folder.parent / "tiles", TileSettings(32))
    if report.problems:  # what cannot be cut is told of, and the others are
        raise DataError("a scene was refused")


def read_scene_images(folder: Path, made: Artefacts) -> None:
    from pmpguard.data.images.decode import load_image

    for path in sorted(folder.glob("*.tif")):
        load_image(path)


def convert_weights(path: Path, made: Artefacts) -> None:
    from pmpguard.models.checkpoints import read_foreign_weights

    read_foreign_weights(path)


def use_tiles(folder: Path, made: Artefacts) -> None:
    from pmpguard.search.sources import open_source

    source = open_source(folder)
    source.by_id("image")


EMBEDDED = ("**/*.json", "**/*.np[yz]", "**/*.parquet")


READERS: tuple[Reader, ...] = (
    Reader("model", lambda made: made.model, ("config.json", "model.safetensors", "*.json"), load_model),
    Reader("clip folder", lambda made: made.clip, ("*.json", "model.safetensors"), load_model),
    Reader(
        "index",
        lambda made: made.index,
        ("current", "**/*.json", "**/*.np[yz]", "**/*.parquet"),
        search_index,
    ),
    Reader(
        "embedding", lambda made: made.both, ("**/*.json", "**/*.npy", "**/*.parquet"), build_from_embedding
    ),
    Reader("vectors to audit", lambda made: made.both, EMBEDDED[1:], read_vectors),
    Reader("checkpoint", lambda made: made.run, ("checkpoints/*/*",), resume_run),
    Reader("audit", lambda made: made.audit, ("*.json", "*.parquet"), clean_audit),
    Reader("decisions", lambda made: made.decisions, ("decisions.json",), clean_with_decisions),
    Reader("noise", lambda made: made.noise, ("noise.json",), use_noise),
    Reader("yaml of a run", lambda made: made.recipe, ("train.yaml",), parse_yaml),
    Reader("yaml of a table", lambda made: made.table, ("table.yaml",), parse_recipe),
    Reader("rows of a table", lambda made: made.rows, ("rows.jsonl",), render_rows),
    Reader("scenes to cut", lambda made: made.scenes, ("*.tif",), cut_scenes),
    Reader("tiles to embed", lambda made: made.tiles, ("metadata.parquet",), use_tiles),
    Reader("scenes as images", lambda made: made.scenes, ("*.tif",), read_scene_images),
    Reader("foreign weights", lambda made: made.weights, ("weights.pt",), convert_weights),
)
