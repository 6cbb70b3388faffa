"""Methods × rates × levels × seeds from one recipe: finished rows are skipped, a stopped grid goes on."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
import yaml

from pmpguard.config import fingerprint, from_dict, to_dict
from pmpguard.data.splits import HoldOut
from pmpguard.device import pick_device
from pmpguard.engine.parts import Engine, Part, run_parts
from pmpguard.errors import ConfigError
from pmpguard.experiments.rows import ResultRow, append_row, read_rows, row_fingerprint
from pmpguard.experiments.run import (
    SCENES,
    ExperimentConfig,
    NoiseConfig,
    PreparedDataset,
    deciding_settings,
    prepare_dataset,
    resolve_experiment,
    run_experiment,
)
from pmpguard.noise.inject import check_rate
from pmpguard.training.config import TrainConfig, resolve
from pmpguard.training.distributed import World, barrier


@dataclass(frozen=True)
class GridMethod:
    """One line of the table.

    Args:
        name: what the line is called.
        method: the method to train; by default the one of that name.
        preset: of the method.
        settings: of the method.
        oracle: train on the truly clean pairs alone.
        train: training settings that differ from the recipe's.
        rates: only these rates, where the recipe has more.
        judge: a folder of embeddings or a model that the method asks about pairs.
    """

    name: str
    method: str = ""
    preset: str = "recommended"
    settings: dict[str, Any] = field(default_factory=dict)
    oracle: bool = False
    train: dict[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = ()
    judge: Path | None = None


@dataclass(frozen=True)
class GridConfig:
    """A table: what is compared, on what, how often.

    Args:
        title: of the rendered table.
        dataset: a dataset in any known format, or "scenes".
        datasets: several of them, instead of `dataset`.
        images: folder of the images, where they are not beside the pairs.
        scenes: number of scenes of the synthetic scenes.
        methods: the lines.
        rates: mismatch rates.
        levels: of the noise.
        seeds: of noise and training.
        train: settings shared by all lines.
        rows: file that collects the rows, by default benchmarks/results/NAME-OF-THE-RECIPE.jsonl.
        paper_table: number of the paper's table to show beside.
        paper_dataset: its dataset, where it has none of the name of ours.
        hold_out: images kept from training, for datasets without splits of their own.
        one_caption: train with one caption of each image.
        format: the dataset's format, where it cannot be told from the path.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
    """

    title: str = "Results"
    dataset: str = SCENES
    datasets: tuple[str, ...] = ()
    images: Path | None = None
    scenes: int = 2000
    methods: tuple[GridMethod, ...] = (GridMethod("infonce"), GridMethod("pmpguard"))
    rates: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8)
    levels: tuple[Literal["caption", "image"], ...] = ("caption",)
    seeds: tuple[int, ...] = (0, 1, 2)
    train: TrainConfig = field(default_factory=TrainConfig)
    rows: Path = Path("benchmarks/results/rows.jsonl")
    paper_table: int | None = None
    paper_dataset: str = ""
    hold_out: HoldOut | None = None
    one_caption: bool = False
    format: str | None = None
    columns: str | None = None

    @property
    def places(self) -> tuple[str, ...]:
        """Every dataset of the table."""
        return self.datasets or (self.dataset,)


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    line: GridMethod
    level: Literal["caption", "image"]
    rate: float
    seed: int
    config: ExperimentConfig

    @property
    def fingerprint(self) -> str:
        """Identifies the run by its line and everything that decides it."""
        return row_fingerprint(self.line.name, deciding_settings(self.config))


def recipe_path(recipe: Path) -> Path:
    """The file of a recipe: itself, or by its name the one that comes with the package."""
    own = Path(__file__).parent / "recipes" / f"{recipe}.yaml"
    return own if len(recipe.parts) == 1 and own.exists() and not recipe.is_file() else recipe


def read_grid(recipe: Path, changes: dict[str, Any] | None = None) -> GridConfig:
    """A recipe from a YAML file, with some of its settings replaced; unknown settings are errors."""
    path = recipe_path(recipe)
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        known = ", ".join(sorted(file.stem for file in (Path(__file__).parent / "recipes").glob("*.yaml")))
        raise ConfigError(f"{path}: no such recipe", fix=f"give a YAML file or one of {known}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML ({error})") from error
    if not isinstance(plain, dict):
        raise ConfigError(f"{path}: a recipe is a mapping of settings, this is {type(plain).__name__}")
    changes = changes or {}
    plain.setdefault("rows", f"benchmarks/results/{path.stem}.jsonl")
    if "dataset" in changes:  # one that was asked for stands in for all of the recipe's
        plain.pop("datasets", None)
    merged = merge(plain, changes)
    grid = from_dict(GridConfig, merged, where=str(path))
    shared = merged.get("train", {}).get("model", {})
    for line in grid.methods:  # what the method of a line decides is not given elsewhere
        config = cell_config(grid, line, "caption", 0.0, 0, resolved=False).train
        resolve(config, merge(shared, line.train.get("model", {})))
    if len(grid.places) > 1 and grid.images is not None:
        raise ConfigError("images: one folder of images for several datasets", fix="give --dataset, too")
    return grid


def grid_cells(grid: GridConfig) -> list[Cell]:
    """Every run of the grid, dataset by dataset and seed by seed: an unfinished grid has complete seeds.

    Names and settings of all lines are checked here, before the first run rather than before its own.
    """
    twice = [name for name, count in Counter(line.name for line in grid.methods).items() if count > 1]
    if twice:
        raise ConfigError(f"methods: two lines are called {twice[0]!r}", fix="give each line its own name")
    for rate in grid.rates:
        check_rate(rate)
    cells = [
        Cell(line, level, rate, seed, cell_config(grid, line, level, rate, seed, dataset))
        for dataset in grid.places
        for seed in grid.seeds
        for level in grid.levels
        for rate in grid.rates
        for line in grid.methods
        if not line.rates or rate in line.rates
    ]
    if not cells:
        raise ConfigError("the recipe asks for no run", fix="give methods, rates, levels and seeds")
    return cells


def cell_config(
    grid: GridConfig,
    line: GridMethod,
    level: Literal["caption", "image"],
    rate: float,
    seed: int,
    dataset: str | None = None,
    *,
    resolved: bool = True,
) -> ExperimentConfig:
    """The experiment behind one cell, with every setting; the grid's one dataset where none is named."""
    merged = merge(to_dict(grid.train), line.train)
    train = from_dict(TrainConfig, merged, where=f"methods.{line.name}.train")
    train = replace(
        train, method=line.method or line.name, preset=line.preset, settings=line.settings, seed=seed
    )
    dataset = grid.dataset if dataset is None else dataset
    config = ExperimentConfig(
        dataset,
        grid.images,
        grid.scenes,
        NoiseConfig(rate, level),
        line.oracle,
        train,
        grid.hold_out,
        grid.one_caption,
        line.judge,
        grid.format,
        grid.columns,
    )
    return resolve_experiment(config) if resolved else config


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Nested settings with some replaced.

    >>> merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 5}})
    {'a': {'b': 5, 'c': 2}}
    """
    merged = dict(base)
    for key, value in changes.items():
        inner = merged.get(key)
        merged[key] = merge(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return merged


def finished_rows(grid: GridConfig) -> dict[str, ResultRow]:
    """The rows collected so far, by fingerprint; those of other settings are among them."""
    return {row.fingerprint: row for row in read_rows(grid.rows)} if grid.rows.exists() else {}


@dataclass
class OpenImages:
    """A dataset with its images as lines want them, opened once; never those of two datasets at once."""

    dataset: str = ""
    by_size: dict[str, PreparedDataset] = field(default_factory=dict)

    def of(self, config: ExperimentConfig) -> PreparedDataset:
        settings = config.train
        if config.dataset != self.dataset:
            self.by_size.clear()
            self.dataset = config.dataset
        storage = [settings.cache_images, settings.cache_images_gb]
        size = fingerprint([settings.model.input_size, settings.model.fit, *storage])
        if size not in self.by_size:
            self.by_size[size] = prepare_dataset(config)
        return self.by_size[size]


def run_grid(
    grid: GridConfig,
    work: Path,
    *,
    keep_models: bool = False,
    report: Callable[[int, int, ResultRow], None] | None = None,
    cells: Sequence[Cell] | None = None,
    workers: int = 1,
) -> list[ResultRow]:
    """Run what is missing of these cells, by default all, and return their rows.

    With several `workers`, processes of this machine that share its GPU, each takes the next run as soon as
    it is free. A run's row is on disk when it ends, whatever becomes of the others.
    """
    cells = grid_cells(grid) if cells is None else cells
    if workers > 1:
        run_in_workers(grid, work, keep_models, cells, workers)
    finished, opened = finished_rows(grid), OpenImages()
    rows = []
    for number, cell in enumerate(cells, start=1):
        row = finished.get(cell.fingerprint) or run_cell(grid, cell, work, keep_models, opened)
        if report is not None:
            report(number, len(cells), row)
        rows.append(row)
    return rows


def run_cell(grid: GridConfig, cell: Cell, work: Path, keep_models: bool, opened: OpenImages) -> ResultRow:
    """One run, and its row on disk."""
    world = World.current()
    name = "".join(letter if letter.isalnum() else "-" for letter in cell.line.name)
    folder = work / f"{name}-{cell.level}-{cell.rate:g}-{cell.seed}-{cell.fingerprint}"
    result = run_experiment(cell.config, folder, opened.of(cell.config))
    row = replace(result.row, method=cell.line.name, fingerprint=cell.fingerprint)
    del result
    if world.is_main:
        append_row(grid.rows, row)
        if not keep_models:
            shutil.rmtree(folder, ignore_errors=True)
    barrier(world)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return row


def run_in_workers(
    grid: GridConfig, work: Path, keep_models: bool, cells: Sequence[Cell], workers: int
) -> None:
    """Every cell without a row by the next free process."""
    shared = {"grid": to_dict(grid), "work": str(work), "keep_models": keep_models}
    finished = finished_rows(grid)
    parts = [Part({**shared, "cell": cell.fingerprint}) for cell in cells if cell.fingerprint not in finished]
    on_gpu = pick_device(grid.train.device).type == "cuda"
    run_parts(Engine(workers), f"{__name__}:run_part", parts, title="runs", unit=" runs", gpu=on_gpu)


def run_part(grid: dict[str, Any], cell: str, work: str, keep_models: bool) -> None:
    """One cell of a grid in a worker, unless it was finished by one that died just after."""
    config = from_dict(GridConfig, grid, where="grid")
    chosen = next(each for each in grid_cells(config) if each.fingerprint == cell)
    if cell not in finished_rows(config):
        row = run_cell(config, chosen, Path(work), keep_models, _OPENED)
        print(f"{row.method} at {row.rate:g}, seed {row.seed}: mR {row.metrics['mr']:.2f}", flush=True)


_OPENED = OpenImages()  # of a worker, for all its runs
