"""SIGKILL at random moments: the old or the new version is whole, and whoever comes next goes on."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.search_examples import embed, files_of, killed_after, only_images

from pmpguard.search.index.changes import add_to_index, build_index, verify_index
from pmpguard.search.query import Query, SearchHit
from pmpguard.search.searcher import Searcher

QUERY = Query("a green field")
counts = pytest.mark.parametrize("count", [2, pytest.param(8, marks=pytest.mark.slow)])


@pytest.fixture(scope="module")
def parts(small_search, tmp_path_factory) -> tuple[Path, Path]:
    """Embeddings of six and of two images."""
    folder = tmp_path_factory.mktemp("parts")
    images = only_images(small_search.world, folder / "images", 6)
    embed(images, small_search.model, folder / "first")
    shutil.copyfile(min(images.iterdir()), images / "z-1.png")
    shutil.copyfile(max(images.iterdir()), images / "z-2.png")
    embed(images, small_search.model, folder / "both")
    return folder / "first", folder / "both"


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def kill(count: int, seconds: float, attempt: Callable[[int, float], bool]) -> None:
    """Attempt it at random moments until so many kills have hit the work; earlier ones where it is faster."""
    draw, kills = random.Random(7), 0
    for number in range(10 * count):
        was_hit = attempt(number, seconds * draw.random())
        kills += was_hit
        seconds *= 1.0 if was_hit else 0.8
        if kills == count:
            return
    raise AssertionError(f"{kills} kills of {count}")


def hits(index: Path) -> list[SearchHit]:
    return Searcher.open(index).search(QUERY, 10)


@pytest.mark.slow
@counts
def test_while_embedding(small_search, tmp_path, count):
    images = only_images(small_search.world, tmp_path / "images", 8)

    def work(out: Path) -> None:
        embed(images, small_search.model, out, partition_size=2)

    def attempt(number: int, seconds: float) -> bool:
        out = tmp_path / f"killed-{number}"
        was_hit = killed_after(seconds, work, out)
        work(out)
        assert files_of(out) == files_of(tmp_path / "straight") and not list(out.rglob(".tmp-*"))
        return was_hit

    kill(count, seconds_of(lambda: work(tmp_path / "straight")), attempt)


@counts
def test_while_building_for_the_first_time(parts, tmp_path, count):
    def attempt(number: int, seconds: float) -> bool:
        index = tmp_path / f"killed-{number}"
        was_hit = killed_after(seconds, build_index, index, parts[0])
        if (index / "current").exists():
            verify_index(index)
        build_index(index, parts[0])
        verify_index(index)
        assert len(hits(index)) == 6 and not list(index.rglob(".tmp-*"))
        return was_hit

    kill(count, seconds_of(lambda: build_index(tmp_path / "index", parts[0])), attempt)


@pytest.mark.slow
@counts
@pytest.mark.parametrize("change", [build_index, add_to_index])
def test_while_changing_what_is_there(parts, tmp_path, count, change):
    first, both = parts
    for name in ("old", "new"):
        build_index(tmp_path / name, first)
    taken = seconds_of(lambda: change(tmp_path / "new", both))
    old, new = hits(tmp_path / "old"), hits(tmp_path / "new")

    def attempt(number: int, seconds: float) -> bool:
        index = tmp_path / f"killed-{number}"
        shutil.copytree(tmp_path / "old", index)
        was_hit = killed_after(seconds, change, index, both)
        verify_index(index)
        assert hits(index) in (old, new)
        change(index, both)
        assert hits(index) == new and not list(index.rglob(".tmp-*"))
        return was_hit

    kill(count, taken, attempt)
