"""Every command that writes: how it is run, what it leaves, and what must be whole at any moment."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pmpguard.files import sha256_file
from torture.apart import command
from torture.artefacts import QUIET, Artefacts

Result = Any
HEADS = ("--head-width", 8, "--text-head-width", 4)
UNFINISHED = (".tmp-", ".writing-", ".old-")


@dataclass(frozen=True)
class Command:
    """A command in the folder it writes into. All three functions run in a child.

    `prepare` makes what lies there before; `run` is the command; `result` is what it was about, to be
    compared with an undisturbed run's. `whole` is called when the command was stopped: what can be read then
    has to be the state before or the one after.
    """

    name: str
    run: Callable[[Artefacts, Path], None]
    result: Callable[[Path], Result]
    prepare: Callable[[Artefacts, Path], None] = lambda made, place: None
    whole: Callable[[Path], Result] | None = None  # None: files are compared one by one


def files_of(place: Path, *left_out: str) -> dict[str, str]:
    """The files of a folder by their hashes, without locks and without what killed writers leave."""
    return {
        name: sha256_file(path)
        for path in sorted(place.rglob("*"))
        if path.is_file() and path.name != ".lock"
        for name in [path.relative_to(place).as_posix()]
        if not any(part.startswith(UNFINISHED) for part in Path(name).parts)
        and not any(Path(name).match(pattern) for pattern in left_out)
    }


def leftovers(place: Path) -> list[str]:
    return [path.name for path in place.rglob(".*") if path.name.startswith(UNFINISHED)]


def searched(index: Path) -> Result:
    """What an index answers; an error where some file of it is not what was recorded."""
    from pmpguard.search.index.changes import verify_index
    from pmpguard.search.query import Query
    from pmpguard.search.searcher import Searcher

    verify_index(index)
    hits = Searcher.open(index).search(Query("a green field next to a river"), 40)
    return [[hit.id, round(hit.score, 5)] for hit in hits]


def searched_if_there(index: Path) -> Result:
    return searched(index) if (index / "current").exists() else None


def trained(run: Path) -> Result:
    names = ("model/model.safetensors", "model/config.json", "metrics.jsonl", "noise.json", "config.json")
    return {name: sha256_file(run / name) for name in names}


def measured(folder: Path) -> Result:
    """The rows of a table without what depends on the machine."""
    of_the_machine = ("pairs_per_second", "train_seconds", "peak_memory_gb")
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    return [
        [
            row["method"],
            {name: value for name, value in row["metrics"].items() if name not in of_the_machine},
        ]
        for row in rows
    ]


def judged(out: Path) -> Result:
    import pyarrow.parquet as pq

    issues = pq.read_table(out / "issues.parquet").to_pydict()
    summary = json.loads((out / "summary.json").read_text())
    return [sha256_file(out / "pairs.parquet"), sha256_file(out / "index.html"), summary, repr(issues)]


def all_files(place: Path) -> Result:
    return files_of(place)


def exported(place: Path) -> Result:
    """The vectors; the files beside them say when they were made."""
    import pyarrow.parquet as pq

    vectors = [repr(pq.read_table(path).to_pydict()) for path in sorted((place / "x").glob("*.parquet"))]
    return [*vectors, sorted(files_of(place))]


def converts(name: str, target: str, *words: str) -> Command:
    def run(made: Artefacts, place: Path) -> None:
        command("data", "convert", made.world, place / target, *words)

    return Command(f"data convert to {name}", run, all_files)


def cleans(name: str, target: str) -> Command:
    def run(made: Artefacts, place: Path) -> None:
        command("clean", made.audit, "--out", place / target, "--policy", "rematch")

    return Command(f"clean to {name}", run, all_files)


def with_cache(work: Callable[[Artefacts, Path], list[object]], place: Path, made: Artefacts) -> None:
    """A command whose cache folder lies in its place, where it is attacked as well."""
    os.environ["PMPGUARD_CACHE"] = str(place / "cache")
    command(*work(made, place))


def embed_shards(made: Artefacts, place: Path) -> list[object]:
    return [
        "embed",
        made.shards,
        "--model",
        made.model,
        "--out",
        place / "out",
        "--partition_size",
        5,
        *QUIET,
    ]


def train_on_stored_features(made: Artefacts, place: Path) -> list[object]:
    return ["train", place / "run", "--config", made.frozen_recipe]


def simple(name: str, words: Callable[[Artefacts, Path], list[object]]) -> Command:
    return Command(name, lambda made, place: command(*words(made, place)), all_files)


def audit_first(made: Artefacts, place: Path) -> None:
    shutil.copytree(made.audit, place, dirs_exist_ok=True)


def build_first(made: Artefacts, place: Path) -> None:
    command("index", "build", place, "--embeddings", made.first)


def forget_tiles_of_now(place: Path) -> Result:
    return files_of(place, "item.json", "collection.json", "*.stac.json")


COMMANDS: tuple[Command, ...] = (
    simple("data scenes", lambda made, place: ["data", "scenes", place / "w", "--count", 12]),
    simple("data sheet", lambda made, place: ["data", "sheet", made.world, "--out", place / "s.png"]),
    converts("parquet", "pairs.parquet"),
    converts("csv", "pairs.csv"),
    converts("folder", "folder", "--to", "folder"),
    converts("shards", "shards", "--to", "webdataset"),
    simple(
        "corrupt",
        lambda made, place: [
            "corrupt", made.world, place / "noise.json", 0.4, "--write-pairs", place / "pairs.parquet"
        ],
    ),
    simple(
        "convert",
        lambda made, place: ["convert", made.weights, place / "clip", "--activation", "gelu", *HEADS],
    ),
    Command(
        "embed",
        lambda made, place: command(
            "embed", made.world, "--model", made.model, "--out", place, "--partition_size", 5, *QUIET
        ),
        all_files,
    ),
    Command("embed shards", lambda made, place: with_cache(embed_shards, place, made), all_files),
    Command("index build", build_first, searched, whole=searched_if_there),
    Command(
        "index add",
        lambda made, place: command("index", "add", place, made.both, "--update"),
        searched,
        build_first,
        searched,
    ),
    Command(
        "index remove",
        lambda made, place: command("index", "remove", place, "scene-000013.png,scene-000014.png"),
        searched,
        build_first,
        searched,
    ),
    Command(
        "index export",
        lambda made, place: command("index", "export", made.index, "--out", place / "x"),
        exported,
        whole=lambda place: None,
    ),
    Command(
        "train",
        lambda made, place: command("train", place, "--config", made.recipe),
        trained,
        whole=lambda place: None,
    ),
    Command(
        "train on stored features",
        lambda made, place: with_cache(train_on_stored_features, place, made),
        lambda place: trained(place / "run"),  # the features are stored where there is room
        whole=lambda place: None,
    ),
    Command(
        "table",
        lambda made, place: command(
            "table", made.table, "--work", place / "runs", "--out", place / "t",
            "--rows", place / "rows.jsonl",
        ),
        measured,
        whole=lambda place: None,
    ),
    Command(
        "audit",
        lambda made, place: command("audit", made.world, "--out", place, "--model", made.model),
        judged,
        whole=lambda place: judged(place) if (place / "summary.json").exists() else None,
    ),
    Command(
        "audit again",
        lambda made, place: command(
            "audit", made.world, "--out", place, "--model", made.model, "--proposals", 1
        ),
        judged,
        audit_first,
        lambda place: judged(place) if (place / "summary.json").exists() else None,
    ),
    cleans("parquet", "cleaned.parquet"),
    cleans("folder", "cleaned"),
    simple("figure", lambda made, place: ["figure", made.audit, "--out", place / "f.png", "--count", 2]),
    Command(
        "tile",
        lambda made, place: command("tile", made.scenes, "--out", place, "--size", 32, *QUIET),
        forget_tiles_of_now,
        whole=lambda place: None,
    ),
)  # fmt: skip
