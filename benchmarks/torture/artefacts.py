"""Small artefacts of every kind, made once by the commands themselves: what attacks damage and continue."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
import torch
import yaml
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from pmpguard.data.formats import read_pairs
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.retriever import Retriever
from torture.apart import command

SCENES = 24
TRAINING = {
    "scenes": 40,
    "train": {
        "method": "infonce", "epochs": 2, "batch_size": 8, "device": "cpu", "checkpoint_every": 1,
        "model": {"vision": "tiny", "text": "tiny", "dim": 32, "image_size": 32, "max_tokens": 16},
    },
}  # fmt: skip


@dataclass(frozen=True)
class Artefacts:
    """Where everything lies."""

    folder: Path

    @property
    def world(self) -> Path:
        return self.folder / "world"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def clip(self) -> Path:
        return self.folder / "clip"

    @property
    def weights(self) -> Path:
        """A checkpoint as OpenCLIP names it."""
        return self.folder / "openclip" / "weights.pt"

    @property
    def first(self) -> Path:
        """An embedding of the first half of the images."""
        return self.folder / "first"

    @property
    def both(self) -> Path:
        return self.folder / "both"

    @property
    def index(self) -> Path:
        return self.folder / "index"

    @property
    def noise(self) -> Path:
        return self.folder / "noise.json"

    @property
    def audit(self) -> Path:
        return self.folder / "audit"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def recipe(self) -> Path:
        return self.folder / "train.yaml"

    @property
    def table(self) -> Path:
        return self.folder / "table.yaml"

    @property
    def scenes(self) -> Path:
        return self.folder / "scenes"

    @property
    def tiles(self) -> Path:
        """What was cut from the scenes."""
        return self.folder / "tiles"

    @property
    def shards(self) -> Path:
        """The world in tar files."""
        return self.folder / "shards"

    @property
    def frozen_recipe(self) -> Path:
        """Of a run whose encoders are frozen and whose features go to disk."""
        return self.folder / "frozen.yaml"

    @property
    def rows(self) -> Path:
        return self.folder / "rows.jsonl"

    @property
    def decisions(self) -> Path:
        return self.folder / "decisions.json"

    @property
    def images(self) -> Path:
        """A folder with the second half of the images alone."""
        return self.folder / "images"


def make_artefacts(folder: Path) -> Artefacts:
    """Run in a child: it computes."""
    made = Artefacts(folder)
    folder.mkdir(parents=True, exist_ok=True)
    command("data", "scenes", made.world, "--count", SCENES)
    torch.manual_seed(0)
    settings = RetrieverConfig(vision="tiny", text="tiny", dim=32, image_size=32, max_tokens=16)
    Retriever.create(settings, read_pairs(made.world).captions).save(made.model)
    half = sorted((made.world / "images").iterdir())[SCENES // 2 :]
    made.images.mkdir()
    for path in half:
        shutil.copyfile(path, made.images / path.name)
    command("embed", made.images, "--model", made.model, "--out", made.first, *QUIET)
    command("embed", made.world, "--model", made.model, "--out", made.both, *QUIET)
    command("index", "build", made.index, "--embeddings", made.both)
    command("data", "convert", made.world, made.shards, "--to", "webdataset")
    command("corrupt", made.world, made.noise, 0.3)
    made.recipe.write_text(yaml.safe_dump(TRAINING))
    made.frozen_recipe.write_text(yaml.safe_dump(recipe_of_frozen(made.world)))
    command("train", made.run, "--config", made.recipe)
    command("audit", made.world, "--out", made.audit, "--model", made.model)
    made.table.write_text(yaml.safe_dump(recipe_of_table()))
    command("table", made.table, "--work", folder / "runs", "--out", folder / "t", "--rows", made.rows)
    make_decisions(made)
    make_clip(made)
    make_scene(made.scenes)
    command("tile", made.scenes, "--out", made.tiles, "--size", 32, *QUIET)
    return made


QUIET = ("--progress", "false")


def recipe_of_table() -> dict[str, object]:
    train = {**TRAINING["train"], "epochs": 1, "checkpoint_every": -1}  # type: ignore[dict-item]
    del train["method"]
    return {
        "title": "Two lines", "scenes": TRAINING["scenes"], "rates": [0.2], "seeds": [0],
        "methods": [{"name": "infonce"}, {"name": "ccl"}], "train": train,
    }  # fmt: skip


def recipe_of_frozen(world: Path) -> dict[str, object]:
    train = {**TRAINING["train"], "cache_images": "never"}  # type: ignore[dict-item]
    frozen = {"vision_options": {"frozen": True}, "text_options": {"frozen": True}}
    plain = {"flip": False, "rotate": False, "crop_min": 1.0}
    return {
        "scenes": TRAINING["scenes"],
        "train": {**train, "model": {**train["model"], **frozen}, "augmentation": plain},  # type: ignore[dict-item]
    }


def make_clip(made: Artefacts) -> None:
    """A tiny CLIP, in Hugging Face's form and as a checkpoint of OpenCLIP."""
    sys.path.append(str(Path(__file__).parents[2] / "tests"))
    from helpers.openclip_weights import openclip_names, tiny_clip

    model = tiny_clip()
    model.save_pretrained(made.clip)
    ends = {"<|startoftext|>": 48, "<|endoftext|>": 49}
    rules = tokenizers.Tokenizer(WordLevel({"a": 0, "river": 1, **ends}, unk_token="<|endoftext|>"))
    rules.pre_tokenizer = Whitespace()
    rules.save(str(made.clip / "tokenizer.json"))
    made.weights.parent.mkdir()
    torch.save(openclip_names(model), made.weights)


def make_scene(folder: Path) -> None:
    """Two GeoTIFFs: one in strips with a palette of three bands, one in tiles of 16 bits."""
    import rasterio
    from rasterio.transform import Affine

    folder.mkdir()
    place = {"crs": "EPSG:32633", "transform": Affine(10.0, 0.0, 500_000.0, 0.0, -10.0, 5_400_000.0)}
    generator = np.random.default_rng(0)
    options = {"driver": "GTiff", "width": 96, "height": 64, "count": 3, **place}
    with rasterio.open(folder / "strips.tif", "w", dtype="uint8", **options) as scene:
        scene.write(generator.integers(1, 255, (3, 64, 96), dtype=np.uint8))
    layout = {"tiled": True, "blockxsize": 32, "blockysize": 32, "compress": "deflate", "nodata": 0}
    with rasterio.open(folder / "tiled.tif", "w", dtype="uint16", **options, **layout) as scene:
        scene.write(generator.integers(1, 9000, (3, 64, 96), dtype=np.uint16))
        scene.update_tags(TIFFTAG_DATETIME="2024:05:01 10:00:00")


def make_decisions(made: Artefacts) -> None:
    """As the report's page saves them: something about the first pairs."""
    summary = json.loads((made.audit / "summary.json").read_text())
    pairs = read_pairs(made.audit / "pairs.parquet", format="parquet").column("pair_id")
    chosen = [{"action": "keep"}, {"action": "drop"}, {"action": "edit", "caption": "a river"}]
    decisions = dict(zip(pairs, chosen, strict=False))
    content = {"dataset": summary["dataset"], "decisions": decisions}
    made.decisions.write_text(json.dumps(content))
