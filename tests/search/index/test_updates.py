"""An index follows its images: new, changed, deleted, renamed, moved, no longer readable."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from helpers.search_examples import embed, killed_at, only_images
from PIL import Image

from pmpguard.errors import DataError, PmpguardError
from pmpguard.files import writer_lock
from pmpguard.search.index.changes import add_to_index, build_index, verify_index
from pmpguard.search.index.updates import (
    EMBEDDINGS,
    INCOMING,
    Differences,
    Update,
    add_source,
    differences,
    follow_source,
)
from pmpguard.search.index.version import IndexVersion
from pmpguard.search.query import Query
from pmpguard.search.searcher import Searcher
from pmpguard.search.sources import open_source

QUERY = Query("a green field")


@pytest.fixture
def places(small_search, tmp_path) -> tuple[Path, Path]:
    """A folder of six images and its index."""
    images, index = only_images(small_search.world, tmp_path / "images", 6), tmp_path / "index"
    embed(images, small_search.model, tmp_path / "emb")
    build_index(index, tmp_path / "emb")
    return images, index


def follow(index: Path, folder: Path, **options: frozenset[str]) -> Update:
    return follow_source(index, open_source(folder), device="cpu", progress=False, **options)


def difference(index: Path, folder: Path) -> Differences:
    return differences(IndexVersion.open_current(index), open_source(folder))


def paint(path: Path, colour: int) -> None:
    Image.new("RGB", (64, 64), (colour, 90, 30)).save(path)


def test_nothing_new_changes_nothing(places):
    images, index = places
    update = follow(index, images)
    assert update.change.version == "000001" and update.change.count == 6 and not update.problems
    assert difference(index, images) == Differences(frozenset(), frozenset(), frozenset())


def test_new_changed_deleted_and_renamed_images_are_followed(small_search, places, tmp_path):
    images, index = places
    names = sorted(path.name for path in images.iterdir())
    paint(images / "new.png", 200)
    paint(images / names[0], 10)
    (images / names[1]).unlink()
    (images / names[2]).rename(images / "renamed.png")
    assert difference(index, images) == Differences(
        frozenset({"new.png", "renamed.png"}), frozenset({names[0]}), frozenset(names[1:3])
    )
    change = follow(index, images).change
    assert (change.added, change.replaced, change.removed, change.count) == (2, 1, 2, 6)
    verify_index(index)
    embed(images, small_search.model, tmp_path / "again")
    build_index(tmp_path / "rebuilt", tmp_path / "again")
    followed, rebuilt = (Searcher.open(place).search(QUERY, 10) for place in (index, tmp_path / "rebuilt"))
    assert followed == rebuilt and len(followed) == 6
    assert follow(index, images).change.version == change.version  # now in step


@pytest.mark.slow
def test_a_file_that_was_only_touched_is_embedded_again_and_found_as_before(places):
    images, index = places
    before = Searcher.open(index).search(QUERY, 10)
    os.utime(min(images.iterdir()), ns=(1, 1))
    change = follow(index, images).change
    assert (change.replaced, change.count) == (1, 6)
    assert Searcher.open(index).search(QUERY, 10) == before


def test_the_stamp_of_a_file_is_neither_shown_nor_filtered_by(places):
    _, index = places
    searcher = Searcher.open(index)
    assert "file_stamp" in searcher.opened.version.images.metadata.column_names
    assert "file_stamp" not in searcher.columns
    assert all("file_stamp" not in hit.metadata for hit in searcher.search(QUERY, 10))


@pytest.mark.slow
def test_a_image_that_can_no_longer_be_read_is_forgotten_and_returns_when_repaired(places):
    images, index = places
    path = min(images.iterdir())
    whole = path.read_bytes()
    path.write_bytes(b"half a pic")
    update = follow(index, images)
    assert [problem.id for problem in update.problems] == [path.name] and update.change.removed == 1
    assert path.name not in {hit.id for hit in Searcher.open(index).search(QUERY, 10)}
    assert follow(index, images).change.version == update.change.version
    assert not follow(index, images, unreadable=frozenset({path.name})).problems  # not tried again
    path.write_bytes(whole)
    assert follow(index, images).change.added == 1


@pytest.mark.slow
def test_images_of_other_folders_stay(small_search, places, tmp_path):
    images, index = places
    other = tmp_path / "other"
    other.mkdir()
    paint(other / "far.png", 5)
    add_source(index, open_source(other), device="cpu", progress=False)
    paint(images / "extra.png", 6)
    add_source(index, open_source(images, prefix="again/"), device="cpu", progress=False)
    (images / "extra.png").unlink()
    change = follow(index, images).change
    assert change.removed == 1 and change.count == 13  # only again/extra.png has gone
    ids = {hit.id for hit in Searcher.open(index).search(QUERY, 20)}
    assert "far.png" in ids and "again/extra.png" not in ids
    clash = tmp_path / "clash"
    clash.mkdir()
    paint(clash / "far.png", 7)
    with pytest.raises(DataError, match=r"clash.far\.png in what is added"):
        follow(index, clash)


def test_a_folder_that_has_moved_is_found_where_it_is_now(places, tmp_path):
    images, index = places
    moved = images.rename(tmp_path / "moved")
    with pytest.raises(DataError, match="--update"):
        add_source(index, open_source(moved), device="cpu", progress=False)
    assert follow(index, moved).change.replaced == 6
    searcher = Searcher.open(index)
    assert searcher.image(searcher.search(QUERY, 1)[0].id).size == (64, 64)


def test_an_index_made_before_stamps_were_kept_can_be_followed(small_search, places, monkeypatch):
    images, index = places
    monkeypatch.setattr("pmpguard.search.sources._stamped", lambda source: source)
    plain = images.parent / "plain"
    embed(images, small_search.model, plain)
    build_index(index, plain)
    monkeypatch.undo()
    assert follow(index, images).change.version == "000002"


def test_what_an_interrupted_run_left_counts_only_while_its_images_are_the_same(small_search, places):
    images, index = places
    paint(images / "new.png", 200)
    embed(images, small_search.model, index / INCOMING / EMBEDDINGS)  # a run that was killed before adding
    paint(images / "new.png", 20)
    os.utime(images / "new.png", ns=(5, 5))
    assert follow(index, images).change.added == 1
    assert not (index / INCOMING).exists()
    assert follow(index, images).change.added == 0  # its stamp is that of the newer file


def test_what_an_interrupted_run_left_of_another_model_is_embedded_again(small_search, places):
    images, index = places
    left, settings = index / INCOMING / EMBEDDINGS, index / INCOMING / EMBEDDINGS / "embedding.json"
    paint(images / "new.png", 200)
    embed(images, small_search.model, left)
    stored = json.loads(settings.read_text())
    settings.write_text(json.dumps({**stored, "model": {**stored["model"], "fingerprint": "another"}}))
    assert follow(index, images).change.added == 1
    verify_index(index)


def test_while_one_run_adds_another_is_refused_and_leaves_its_work_alone(places):
    images, index = places
    paint(images / "new.png", 200)
    with writer_lock(index / INCOMING):
        with pytest.raises(PmpguardError, match=f"being written by process {os.getpid()}"):
            follow(index, images)
        (images / "new.png").unlink()
        assert follow(index, images).change.version == "000001"  # there is nothing to add
        assert (index / INCOMING).is_dir()


def test_when_no_image_can_be_read_any_more_the_index_is_empty(places):
    images, index = places
    whole = {path: path.read_bytes() for path in images.iterdir()}
    for path in whole:
        path.write_bytes(b"")
    change = follow(index, images).change
    assert (change.removed, change.count) == (6, 0)
    assert Searcher.open(index).search(QUERY, 10) == []
    for path, data in whole.items():
        path.write_bytes(data)
    assert follow(index, images).change.count == 6


@pytest.mark.slow
def test_killed_at_any_moment_the_next_start_brings_the_index_in_step(places, tmp_path):
    images, index = places
    shutil.copytree(index, tmp_path / "start")
    paint(images / "new.png", 200)
    paint(min(images.iterdir()), 10)
    max(images.glob("scene*")).unlink()
    follow(index, images)
    expected = Searcher.open(index).search(QUERY, 10)
    kills = 0
    for event in (5, 30, 60, 75, 90, 110, 125):
        place = tmp_path / f"killed-{event}"
        shutil.copytree(tmp_path / "start", place)
        kills += killed_at(event, follow, place, images)
        verify_index(place)
        follow(place, images)
        assert Searcher.open(place).search(QUERY, 10) == expected and not (place / INCOMING).exists()
    assert kills >= 4


def test_adding_what_is_there_makes_no_version(places, tmp_path):
    _, index = places
    change = add_to_index(index, tmp_path / "emb")
    assert (change.version, change.added, change.known, change.count) == ("000001", 0, 6, 6)
    assert [path.name for path in (index / "segments").iterdir()] == ["000001"]
