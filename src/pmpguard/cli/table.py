"""`pmpguard table`: every run of a recipe, collected as rows and rendered as tables and a plot."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import yaml

from pmpguard.config import to_dict
from pmpguard.data.known_datasets import is_stand_in
from pmpguard.device import pick_device
from pmpguard.errors import ConfigError, DataError, MissingExtraError
from pmpguard.evaluation.evaluate import SMALL_GALLERY, small_gallery_note
from pmpguard.experiments.downloads import missing_dataset, missing_weights
from pmpguard.experiments.grid import Cell, GridConfig, finished_rows, grid_cells, merge, read_grid, run_grid
from pmpguard.experiments.paper_reference import find_paper_row
from pmpguard.experiments.plots import plot_mr
from pmpguard.experiments.recipe_names import find_recipe, recipe_titles
from pmpguard.experiments.render import make_sections, to_csv, to_latex, to_markdown
from pmpguard.experiments.rows import ResultRow, summarise
from pmpguard.experiments.run import SCENES
from pmpguard.experiments.submission import CheckReport, check_submission
from pmpguard.files import require_writable, write_atomic
from pmpguard.training.distributed import joined_processes

SOME_MISSING = 3  # exit code when data or weights kept some runs from starting


@dataclass(frozen=True)
class Missing:
    """Data or weights that are not there, how many unfinished runs wait for them, and how to get them."""

    what: str
    runs: int
    advice: str


@dataclass(frozen=True)
class TableReport:
    """The finished rows of a recipe, how many runs it has, and what was written."""

    rows: tuple[ResultRow, ...]
    runs: int
    files: tuple[Path, ...]
    text: str
    interrupted: bool = False
    missing: tuple[Missing, ...] = ()

    @property
    def exit_code(self) -> int:
        return 130 if self.interrupted else SOME_MISSING if self.missing else 0

    def as_dict(self) -> dict[str, Any]:
        return {
            "runs": self.runs,
            "finished": len(self.rows),
            "interrupted": self.interrupted,
            "missing": to_dict(list(self.missing)),
            "files": [str(file) for file in self.files],
            "rows": to_dict(list(self.rows)),
        }

    def as_text(self) -> str:
        return self.text


@dataclass(frozen=True)
class RecipeList:
    """The recipes that come with the package."""

    titles: dict[str, str]

    def as_dict(self) -> dict[str, Any]:
        return self.titles

    def as_text(self) -> str:
        width = max(map(len, self.titles))
        return "\n".join(f"{name:<{width}}  {title}" for name, title in self.titles.items())


def table(
    recipe: str = "",
    /,
    list: bool = False,
    work: Path = Path("runs"),
    out: Path | None = None,
    render_only: bool = False,
    keep_models: bool = False,
    lines: list[str] | None = None,
    rates: list[float] | None = None,
    levels: list[Literal["caption", "image"]] | None = None,
    seeds: list[int] | None = None,
    dataset: str | None = None,
    datasets: list[str] | None = None,
    images: Path | None = None,
    scenes: int | None = None,
    rows: Path | None = None,
    train: dict[str, Any] | None = None,
    hold_out: dict[str, Any] | None = None,
    one_caption: bool | None = None,
    format: str | None = None,
    columns: str | None = None,
    workers: int = 1,
    only_missing: bool = False,
    check: Path | None = None,
    rerun: int | None = None,
) -> TableReport | RecipeList | CheckReport:
    """Run every method, rate and seed of a recipe that is not finished yet, then render the table.

    Each finished run is one line of a JSONL file, so that a stopped table goes on where it was. Written are
    table.md, table.csv, table.tex and mr.png (mR against the mismatch rate), with means and deviations over
    seeds and, marked as such, the paper's printed values beside ours. Runs whose data or weights are not on
    this machine are left out, with a word on what to download and where to put it; the exit code is then 3.

    Args:
        recipe: what is compared: a name that --list shows, or a YAML file; the options below replace its
            settings.
        list: only show the recipes that come with the package.
        work: folder for unfinished runs.
        out: folder of the tables, by default tables/NAME-OF-THE-RECIPE.
        render_only: run nothing, render the recorded rows, those of other settings included.
        keep_models: keep each run's folder with its model and metrics.
        lines: run only these lines of the recipe.
        rates: mismatch rates to run, for example [0.2,0.8].
        levels: levels of the noise to run: caption, image, or both.
        seeds: seeds of noise and training to run.
        dataset: a dataset in any known format, or "scenes" for the synthetic scenes.
        datasets: several datasets, for recipes that have more than one.
        images: folder of the images, where they are not beside the pairs.
        scenes: number of scenes of the synthetic scenes.
        rows: the JSONL file that collects the rows.
        train: training settings of all lines, for example --train.epochs 3 (a line's own settings win).
        hold_out: images kept from training, for example --hold_out.test 5000.
        one_caption: train with one caption of each image.
        format: the dataset's format, where it cannot be told from the path.
        columns: names of unusual columns: image=COLUMN,caption=COLUMN, several captions as A+B.
        workers: processes that take one run after the other, all on this machine's GPU; each row is written
            as its run ends.
        only_missing: leave out runs that have a row already, even one recorded with other settings.
        check: a JSONL file of rows to verify, as a submission; no recipe is run.
        rerun: with --check, the number of a row to run once more and compare; --dataset says where its
            dataset lies.
    """
    if check is not None:
        return check_submission(check, rerun, dataset, images, work)
    if list:
        return RecipeList(recipe_titles())
    if not recipe:
        raise ConfigError("which recipe?", fix="`pmpguard table --list` shows those there are")
    path = find_recipe(recipe)
    changes = {"rates": rates, "levels": levels, "seeds": seeds, "dataset": dataset, "datasets": datasets,
               "images": images, "scenes": scenes, "rows": rows, "train": nested(train or {}),
               "hold_out": hold_out, "one_caption": one_caption, "format": format,
               "columns": columns}  # fmt: skip
    plain = {name: to_dict(value) for name, value in changes.items() if value is not None}
    grid = with_lines(read_grid(path, plain), lines)
    cells = grid_cells(grid)
    out = Path("tables") / path.stem if out is None else out
    if render_only:
        return rendered(grid, recorded_rows(grid, cells), len(cells), out)
    if workers > 1 and "WORLD_SIZE" in os.environ:
        raise ConfigError("workers: a launcher has started several processes already", fix="leave one out")
    chosen = without_row(grid, cells) if only_missing else cells
    if not chosen:
        return rendered(grid, recorded_rows(grid, cells), len(cells), out)
    pick_device(grid.train.device)
    for folder in (work, out, grid.rows.parent):
        require_writable(folder)
    ready, missing = ready_cells(chosen, set(finished_rows(grid)))
    if not ready:
        raise DataError("nothing can be run", fix=advise(missing))
    try:
        with joined_processes(grid.train.device) as world:
            report = Progress(grid) if world.is_main else None
            finished = run_grid(
                grid, work, keep_models=keep_models, report=report, cells=ready, workers=workers
            )
    except KeyboardInterrupt:
        kept = chosen_rows(grid)
        text = (
            f"stopped with {len(kept)} of {len(cells)} runs finished; run the same command again to "
            "continue, or with --render_only true to see the finished ones"
        )
        return TableReport(tuple(kept), len(cells), (), text, interrupted=True)
    finished = recorded_rows(grid, cells) if only_missing else finished
    return rendered(grid, finished, len(cells), out, missing)


def ready_cells(cells: Sequence[Cell], finished: set[str]) -> tuple[list[Cell], tuple[Missing, ...]]:
    """The cells that are finished or can be run, and what the others lack."""
    advice: dict[str, str | None] = {}
    waiting: Counter[str] = Counter()
    ready = []
    for cell in cells:
        config = cell.config
        needs = {} if config.dataset == SCENES else {config.dataset: missing_dataset}
        if config.judge is not None:
            needs[str(config.judge)] = missing_weights
        needs |= {config.train.model.vision: missing_weights, config.train.model.text: missing_weights}
        for name, find in needs.items():
            if name not in advice:
                advice[name] = find(name)
        lacking = [name for name in needs if advice[name]]
        if lacking and cell.fingerprint not in finished:
            waiting.update(lacking)
        else:
            ready.append(cell)
    return ready, tuple(Missing(name, runs, advice[name] or "") for name, runs in waiting.items())


def advise(missing: Sequence[Missing]) -> str:
    """What to download for the runs that could not start."""
    return "\n".join(
        f"{each.what} is not there, {each.runs} runs wait for it: {each.advice}" for each in missing
    )


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with dotted names as nested ones.

    >>> nested({"epochs": 3, "model.dim": 64, "model": {"text": "tiny"}})
    {'epochs': 3, 'model': {'dim': 64, 'text': 'tiny'}}
    >>> nested({"optimiser": {"encoder_lr": "1e-4"}})  # the command line leaves some as they were typed
    {'optimiser': {'encoder_lr': 0.0001}}
    """
    result: dict[str, Any] = {}
    for name, value in settings.items():
        first, _, rest = name.partition(".")
        if isinstance(value, str):
            value = typed(value)
        inner = nested({rest: value}) if rest else nested(value) if isinstance(value, dict) else value
        result = merge(result, {first: inner})
    return result


def typed(text: str) -> Any:
    """What a word of YAML means; YAML 1.1 takes 1e-4 for a word, we do not.

    >>> typed("1e-4"), typed("true"), typed("mobilenet-v2")
    (0.0001, True, 'mobilenet-v2')
    """
    try:
        value = yaml.safe_load(text)
        return float(value) if isinstance(value, str) else value
    except (ValueError, yaml.YAMLError):
        return text


def with_lines(grid: GridConfig, names: Sequence[str] | None) -> GridConfig:
    """The recipe with only some of its lines."""
    known = [line.name for line in grid.methods]
    for name in names or ():
        if name not in known:
            raise ConfigError(f"lines: the recipe has no line {name!r}", fix=f"known: {', '.join(known)}")
    return grid if names is None else replace(grid, methods=tuple(x for x in grid.methods if x.name in names))


def chosen_rows(grid: GridConfig) -> list[ResultRow]:
    """The finished rows of exactly this recipe."""
    finished = finished_rows(grid)
    return [finished[cell.fingerprint] for cell in grid_cells(grid) if cell.fingerprint in finished]


def recorded_rows(grid: GridConfig, cells: Sequence[Cell]) -> list[ResultRow]:
    """For every cell its row, or the last of the same line, noise and seed recorded with other settings."""
    exact = finished_rows(grid)
    alike = {_run_of_row(row): row for row in exact.values()}
    found = [exact.get(cell.fingerprint) or alike.get(_run_of(cell)) for cell in cells]
    return [row for row in found if row is not None]


def _run_of(cell: Cell) -> tuple[str, str, float, int, str]:
    """What a run is, whatever its settings: line, noise, seed and dataset, however its folder is written."""
    return cell.line.name, cell.level, cell.rate, cell.seed, Path(cell.config.dataset).name.casefold()


def _run_of_row(row: ResultRow) -> tuple[str, str, float, int, str]:
    return row.method, row.level, row.rate, row.seed, str(row.settings.get("dataset")).casefold()


def without_row(grid: GridConfig, cells: Sequence[Cell]) -> Sequence[Cell]:
    """The cells of which no row is recorded, with these settings or with others."""
    have = set(map(_run_of_row, finished_rows(grid).values()))
    return [cell for cell in cells if _run_of(cell) not in have]


class Progress:
    """Says on stderr how each run of a grid went, or that it was finished before."""

    def __init__(self, grid: GridConfig) -> None:
        self.before = set(finished_rows(grid))

    def __call__(self, number: int, total: int, row: ResultRow) -> None:
        how = "finished before" if row.fingerprint in self.before else f"{row.seconds:.0f} s"
        print(
            f"[{number}/{total}] {row.method}, {row.rate:.0%} mismatched ({row.level}), seed {row.seed}: "
            f"mR {row.metrics['mr']:.2f}, {how}",
            file=sys.stderr,
        )


def rendered(
    grid: GridConfig, rows: Sequence[ResultRow], runs: int, out: Path, missing: tuple[Missing, ...] = ()
) -> TableReport:
    """Write the tables and the plot of these rows into `out`."""
    if not rows:
        raise DataError(
            f"{grid.rows}: no finished run of this recipe",
            fix="run it without --render_only",
        )
    order = [line.name for line in grid.methods]
    summaries = sorted(summarise(rows), key=lambda summary: order.index(summary.method))
    told = {line.name for line in grid.methods if line.oracle}
    sections = []
    printed = {summary.dataset: paper_dataset(grid, summary.dataset) for summary in summaries}
    for dataset, name in printed.items():
        some = [summary for summary in summaries if summary.dataset == dataset]
        sections += make_sections(some, grid.paper_table, name, told)
    out.mkdir(parents=True, exist_ok=True)
    texts = {
        "table.md": to_markdown(sections, grid.title),
        "table.csv": to_csv(sections),
        "table.tex": to_latex(sections, grid.title),
    }
    for name, text in texts.items():
        write_atomic(out / name, text)
    files = [out / name for name in texts]
    notes = [] if len(rows) == runs else [f"{runs - len(rows)} of {runs} runs are missing"]
    few = min(int(row.metrics.get("test_images", SMALL_GALLERY)) for row in rows)
    notes += [small_gallery_note(few)] if few < SMALL_GALLERY else []
    now = {cell.fingerprint for cell in grid_cells(grid)}
    others = sum(row.fingerprint not in now for row in rows)
    if others:
        notes.append(
            f"{others} of {len(rows)} rows were recorded with other settings than the recipe has now, or "
            "with settings of which not all are known"
        )
    try:
        plot_mr(summaries, out / "mr.png", grid.paper_table, *(printed.values() if len(printed) == 1 else ()))
        files.append(out / "mr.png")
    except MissingExtraError as error:
        notes.append(f"no plot: {error.message}; {error.fix}")
    notes.append(f"wrote {', '.join(map(str, files))}")
    if missing:
        notes.append(advise(missing))
    text = "\n".join([texts["table.md"], *notes])
    return TableReport(tuple(rows), runs, tuple(files), text, missing=missing)


def paper_dataset(grid: GridConfig, dataset: str) -> str:
    """The paper's dataset to show beside one of ours: its namesake, else the one the recipe names.

    A stand-in has none.
    """
    if is_stand_in(dataset):
        return ""
    if grid.paper_table is not None and find_paper_row(grid.paper_table, dataset):
        return dataset
    return grid.paper_dataset
