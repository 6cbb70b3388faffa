"""A small model, a small world of images, and the index made of them."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from pmpguard.files import sha256_file
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.retriever import Retriever
from pmpguard.search.embed import EmbeddingReport, embed_source
from pmpguard.search.sources import open_source
from pmpguard.synthetic.scenes import synthetic_scenes, write_world

SCENES = 40


def save_model(folder: Path, captions: list[str], seed: int = 0, **changes: object) -> Path:
    torch.manual_seed(seed)
    settings = {"dim": 32, "image_size": 64, "max_tokens": 24, **changes}
    Retriever.create(RetrieverConfig(**settings), captions).save(folder)  # type: ignore[arg-type]
    return folder


def make_world(folder: Path) -> tuple[Path, Path]:
    """A dataset of drawn scenes with captions, and an untrained model that knows their words."""
    world = synthetic_scenes(SCENES)
    write_world(world, folder / "world")
    return folder / "world", save_model(folder / "model", world.table.captions)


def make_own_folder(folder: Path) -> None:
    """What the commands of README and of the pages start from: a dataset, and a model for it."""
    world, model = make_world(folder)
    world.rename(folder / "my-dataset")
    (folder / "runs" / "first").mkdir(parents=True)
    model.rename(folder / "runs" / "first" / "model")


def only_images(world: Path, target: Path, count: int) -> Path:
    """A folder of images without captions."""
    target.mkdir(parents=True)
    for path in sorted((world / "images").iterdir())[:count]:
        shutil.copyfile(path, target / path.name)
    return target


def embed(source: Path, model: Path, out: Path, **options: object) -> EmbeddingReport:
    settings = {"partition_size": 16, "threads": 0, "progress": False, **options}
    return embed_source(open_source(source), model, out, **settings)  # type: ignore[arg-type]


def killed_at(event: int, work: Callable[..., Any], *arguments: Any) -> bool:
    """Run `work` in a child that kills itself at its n-th change of a file; whether it came to that."""

    def child() -> None:
        torch.set_num_threads(1)
        left = [event]

        def watch(name: str, details: tuple[Any, ...]) -> None:
            if name in ("os.rename", "os.link", "os.mkdir", "os.remove") or (
                name == "open" and isinstance(details[1], str) and set(details[1]) & set("wax")
            ):
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(watch)
        work(*arguments)

    return was_killed(child, 60)


def killed_after(seconds: float, work: Callable[..., Any], *arguments: Any) -> bool:
    """Run `work` in a child that is killed after a time; whether it was still running then."""

    def child() -> None:
        torch.set_num_threads(1)
        work(*arguments)

    return was_killed(child, seconds)


def was_killed(child: Callable[[], None], seconds: float) -> bool:
    """Run a function in a child for at most so long; whether it was killed, by us or by itself."""
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(seconds)
    process.kill()  # of no effect once it has ended
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL), process.exitcode
    return process.exitcode != 0


def files_of(folder: Path) -> dict[str, str]:
    """Every file and its hash, but for the lock."""
    return {
        path.relative_to(folder).as_posix(): sha256_file(path)
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }
