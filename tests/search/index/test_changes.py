"""Indexes on disk: versions, kills, full disks, damage, two writers, adding and removing."""

from __future__ import annotations

import multiprocessing
import resource
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from helpers.search_examples import embed, killed_at, only_images, save_model
from PIL import Image

from pmpguard.errors import DataError, ModelError, PmpguardError
from pmpguard.files import read_json, sha256_file, write_json, write_manifest, writer_lock
from pmpguard.search.index.changes import add_to_index, build_index, remove_from_index, verify_index
from pmpguard.search.index.version import IndexVersion, current_version
from pmpguard.search.index.writer import only_writer
from pmpguard.search.query import Query, SearchHit
from pmpguard.search.searcher import Searcher

TEXT = Query("a large green field beside a road")


@pytest.fixture(scope="module")
def halves(small_search, tmp_path_factory) -> tuple[Path, Path]:
    """Two embeddings of 20 images each, in one folder of images."""
    folder = tmp_path_factory.mktemp("halves")
    images = only_images(small_search.world, folder / "images", 40)
    for path in sorted(images.iterdir())[20:]:
        path.rename(path.with_suffix(".later"))
    embed(images, small_search.model, folder / "first")
    for number, path in enumerate(sorted(images.iterdir())):
        path.rename(path.with_suffix(".png" if number >= 20 else ".earlier"))
    embed(images, small_search.model, folder / "second")
    for path in images.glob("*.earlier"):
        path.rename(path.with_suffix(".png"))
    embed(images, small_search.model, folder / "both")
    return folder / "first", folder / "second"


def hits(index: Path, k: int = 40, query: Query = TEXT) -> list[SearchHit]:
    return Searcher.open(index).search(query, k, shortlist=100)


@pytest.mark.parametrize("backend", ["exact", "hnsw", "ivf", "postgres", "qdrant"])
def test_adding_then_searching_equals_building_then_searching(
    halves, tmp_path, backend, monkeypatch, request
):
    if backend == "postgres":
        monkeypatch.setenv("PMPGUARD_STORE", request.getfixturevalue("postgres_database"))
    if backend in ("hnsw", "ivf"):
        pytest.importorskip("faiss")
    if backend == "qdrant":
        pytest.importorskip("qdrant_client")
        monkeypatch.setenv("QDRANT_URL", ":memory:")
    first, second = halves
    change = build_index(tmp_path / "grown", second, backend=backend)
    assert change.version == "000001" and change.added == change.count == 20
    change = add_to_index(tmp_path / "grown", first)
    assert change.version == "000002" and change.added == 20 and change.count == 40
    build_index(tmp_path / "rebuilt", first.parent / "both")
    assert hits(tmp_path / "grown") == hits(tmp_path / "rebuilt")
    assert len(hits(tmp_path / "grown")) == 40
    verify_index(tmp_path / "grown")


def test_captions_and_probabilities_too_equal_those_of_a_rebuilt_index(small_search, tmp_path):
    whole = hits(small_search.index)
    assert all(hit.probability is not None for hit in whole)
    images = only_images(small_search.world, tmp_path / "more", 1)
    embed(images, small_search.model, tmp_path / "emb")
    build_index(tmp_path / "grown", tmp_path / "emb")
    assert hits(tmp_path / "grown")[0].probability is None  # no captions, no calibration
    add_to_index(tmp_path / "grown", small_search.embedding)
    remove_from_index(tmp_path / "grown", [next(images.iterdir()).name])
    assert hits(tmp_path / "grown") == whole


@pytest.mark.parametrize("backend", ["exact", "hnsw"])
def test_removed_images_and_their_captions_never_return(small_search, tmp_path, backend):
    if backend == "hnsw":
        pytest.importorskip("faiss")
    index = tmp_path / "index"
    build_index(index, small_search.embedding, backend=backend)
    gone = [hit.id for hit in hits(index, 3)]
    change = remove_from_index(index, gone)
    assert change.removed == 3 and change.count == 37
    left = hits(index)
    assert len(left) == 37 and not {hit.id for hit in left} & set(gone)
    captions = Searcher.open(index).search(Query("a field", kind="caption"), k=200, shortlist=200)
    assert len(captions) == 185 and not {hit.metadata["image_id"] for hit in captions} & set(gone)
    with pytest.raises(DataError, match="no image"):
        remove_from_index(index, [gone[0]])
    with pytest.raises(DataError, match="no ids"):
        remove_from_index(index, [])
    assert current_version(index)[0] == change.version
    back = add_to_index(index, small_search.embedding)  # what was removed can come back
    assert back.added == 3 and back.known == 37 and back.count == 40
    verify_index(index)


def test_known_images_stay_or_are_replaced(halves, tmp_path):
    first, _ = halves
    index = tmp_path / "index"
    build_index(index, first)
    before = hits(index)
    same = add_to_index(index, first.parent / "both")
    assert (same.added, same.known, same.count) == (20, 20, 40)
    update = add_to_index(index, first, update=True)
    assert (update.added, update.replaced, update.count) == (0, 20, 40)
    ids = {hit.id for hit in before}
    assert [hit for hit in hits(index) if hit.id in ids] == before
    rows = IndexVersion.open_current(index).images.row_of
    assert min(rows[id] for id in ids) >= 60  # the last copies count


def test_an_id_of_another_image_is_refused(small_search, halves, tmp_path):
    build_index(tmp_path / "index", halves[0])
    other = only_images(small_search.world, tmp_path / "elsewhere", 2)
    embed(other, small_search.model, tmp_path / "emb")
    with pytest.raises(DataError, match=r"elsewhere.*in what is added(.|\n)*--prefix"):
        add_to_index(tmp_path / "index", tmp_path / "emb")
    assert current_version(tmp_path / "index")[0] == "000001"
    verify_index(tmp_path / "index")


def test_another_model_is_refused(small_search, tmp_path):
    images = only_images(small_search.world, tmp_path / "images", 3)
    other = save_model(tmp_path / "other", ["a pond"], seed=1)
    embed(images, other, tmp_path / "emb")
    with pytest.raises(ModelError, match="two models cannot be compared"):
        add_to_index(small_search.index, tmp_path / "emb")
    with pytest.raises(ModelError, match="two models"):
        Searcher.open(small_search.index, model=other)
    with pytest.raises(ModelError, match="two models"):
        build_index(tmp_path / "index", small_search.embedding, model=other)
    assert Searcher.open(small_search.index, model=small_search.model).count == 40


def test_the_index_needs_neither_the_embedding_nor_the_model_any_more(small_search, halves, tmp_path):
    for name, source in (("emb", halves[0]), ("model", small_search.model)):
        shutil.copytree(source, tmp_path / name)
    build_index(tmp_path / "index", tmp_path / "emb", model=tmp_path / "model")
    expected = hits(tmp_path / "index")
    shutil.rmtree(tmp_path / "emb")
    shutil.rmtree(tmp_path / "model")
    assert hits(tmp_path / "index") == expected


def test_an_unfinished_or_changed_embedding_is_refused(halves, tmp_path):
    shutil.copytree(halves[0], tmp_path / "emb")
    path = tmp_path / "emb/img_emb/img_emb_0000.npy"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"img_emb_0000\.npy: changed"):
        build_index(tmp_path / "index", tmp_path / "emb")
    path.unlink()
    with pytest.raises(DataError, match=r"img_emb_0000\.npy: missing"):
        build_index(tmp_path / "index", tmp_path / "emb")
    (tmp_path / "emb/manifest.json").unlink()
    with pytest.raises(DataError, match="not a finished embedding"):
        build_index(tmp_path / "index", tmp_path / "emb")
    with pytest.raises(DataError, match="no index here"):
        Searcher.open(tmp_path / "index")


def test_a_manifest_that_leads_out_of_its_folder_writes_nothing_there(halves, tmp_path):
    """Its files are given a second name inside the index, wherever the manifest says."""
    shutil.copytree(halves[0], tmp_path / "emb")
    (tmp_path / "evil").write_text("of a stranger")
    stored = read_json(tmp_path / "emb/manifest.json")
    stored["sha256"]["../evil"] = sha256_file(tmp_path / "evil")
    write_json(tmp_path / "emb/manifest.json", stored)
    with pytest.raises(PmpguardError, match=r"'\.\./evil' is no file of this folder"):
        build_index(tmp_path / "index", tmp_path / "emb")
    assert not list((tmp_path / "index").rglob("evil"))


@pytest.mark.parametrize("name", ["../../emb", "/tmp", ".", ""])
def test_an_index_names_only_folders_of_its_own(halves, tmp_path, name):
    build_index(tmp_path / "index", halves[0])
    (tmp_path / "index/current").write_text(f"{name} 0")
    with pytest.raises(DataError, match="names no version"):
        Searcher.open(tmp_path / "index")
    (tmp_path / "index/current").write_text("000001 0")
    folder = tmp_path / "index/versions/000001"
    stored = read_json(folder / "index.json")
    stored["segments"][0]["name"] = name
    write_json(folder / "index.json", stored)
    write_manifest(folder)
    with pytest.raises(DataError, match="is no folder of an index"):
        Searcher.open(tmp_path / "index")


@pytest.mark.slow
def test_killed_at_any_moment_the_old_or_the_new_version_is_whole(halves, tmp_path):
    first, second = halves
    start = tmp_path / "start"
    build_index(start, first)
    old = hits(start)
    shutil.copytree(start, tmp_path / "added")
    add_to_index(tmp_path / "added", second)
    new = hits(tmp_path / "added")
    kills, seen = 0, set()
    for event in [*range(1, 60, 2), 70, 80]:
        index = tmp_path / "index"
        shutil.copytree(start, index)
        kills += killed_at(event, add_to_index, index, second)
        verify_index(index)
        found = hits(index)
        assert found in (old, new)
        seen.add(found == new)
        if event % 3 == 0:  # the next writer goes on as if nothing had happened
            assert add_to_index(index, second).count == 40
            assert hits(index) == new and not list(index.rglob(".tmp-*"))
        shutil.rmtree(index)
    assert kills >= 20 and seen == {True, False}


@pytest.mark.slow
def test_killed_during_a_first_build_the_next_one_succeeds(halves, tmp_path):
    kills = 0
    for event in range(1, 40, 3):
        index = tmp_path / f"index-{event}"
        kills += killed_at(event, build_index, index, halves[0])
        assert build_index(index, halves[0]).count == 20
        verify_index(index)
    assert kills >= 8


def limited_add(index: Path, embedding: Path, size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        add_to_index(index, embedding)
    except OSError:
        return
    raise SystemExit(5)


@pytest.mark.parametrize("size", [10, 400])
def test_a_full_disk_leaves_the_previous_version_as_it_was(halves, tmp_path, size):
    index = tmp_path / "index"
    build_index(index, halves[0])
    before = hits(index)
    child = multiprocessing.get_context("fork").Process(target=limited_add, args=(index, halves[1], size))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    verify_index(index)
    assert hits(index) == before and add_to_index(index, halves[1]).count == 40


@pytest.mark.parametrize("backend", ["exact", "hnsw"])
def test_verify_names_any_file_that_is_changed_or_missing(halves, tmp_path, backend):
    if backend == "hnsw":
        pytest.importorskip("faiss")
    index = tmp_path / "index"
    build_index(index, halves[0], backend=backend)
    assert (backend == "exact") != any(index.rglob("*.faiss"))
    files = [path for path in index.rglob("*") if path.is_file() and path.name != ".lock"]
    assert verify_index(index) == len(files) - 1  # all but `current`, which is read first
    for path in files:
        whole = path.read_bytes()
        for damaged in (bytes([whole[0] ^ 1]) + whole[1:], whole[:-2] + bytes([whole[-2] ^ 4]) + whole[-1:]):
            path.unlink()  # the file may be shared with the embedding
            path.write_bytes(damaged)
            with pytest.raises(PmpguardError) as flagged:
                verify_index(index)
            assert path.name in str(flagged.value), path
        path.unlink()
        with pytest.raises(PmpguardError) as flagged:
            verify_index(index)
        assert path.name in str(flagged.value), path
        path.write_bytes(whole)
    verify_index(index)


def test_the_second_writer_is_refused_and_a_dead_ones_lock_is_taken_over(halves, tmp_path):
    index = tmp_path / "index"
    build_index(index, halves[0])
    with writer_lock(index):
        for work in (lambda: add_to_index(index, halves[1]), lambda: remove_from_index(index, ["x"])):
            with pytest.raises(PmpguardError, match="being written by process"):
                work()
        assert len(hits(index)) == 20  # reading goes on
    assert killed_at(3, add_to_index, index, halves[1])
    assert add_to_index(index, halves[1]).count == 40


def test_a_second_process_that_writes_is_refused_and_the_first_one_is_not_disturbed(halves, tmp_path):
    index = tmp_path / "index"
    build_index(index, halves[0])
    fork = multiprocessing.get_context("fork")
    inside, go_on = fork.Event(), fork.Event()

    def first_writer() -> None:
        with only_writer(index):
            inside.set()
            assert go_on.wait(30)
        add_to_index(index, halves[1])

    process = fork.Process(target=first_writer)
    process.start()
    try:
        assert inside.wait(30)
        with pytest.raises(PmpguardError, match=f"being written by process {process.pid}"):
            add_to_index(index, halves[1])
        with pytest.raises(PmpguardError, match=f"being written by process {process.pid}"):
            build_index(index, halves[1])
        go_on.set()
        process.join(30)
    finally:
        process.kill()
        process.join()
    assert process.exitcode == 0 and len(hits(index)) == 40


def test_old_versions_go_unless_somebody_reads_them(halves, tmp_path):
    index = tmp_path / "index"
    build_index(index, halves[0])
    reader = Searcher.open(index)
    before = reader.search(TEXT, 20)
    ids = [hit.id for hit in before]
    for id in ids[:4]:
        remove_from_index(index, [id])
    versions = sorted(path.name for path in (index / "versions").iterdir())
    assert versions == ["000001", "000004", "000005"] and current_version(index)[0] == "000005"
    build_index(index, halves[1])
    assert reader.search(TEXT, 20) == before  # whatever happened meanwhile
    assert reader.refresh() and reader.version == "000006" and not reader.refresh()
    remove_from_index(index, [reader.search(TEXT, 1)[0].id])
    assert sorted(path.name for path in (index / "versions").iterdir()) == ["000006", "000007"]
    assert [path.name for path in (index / "segments").iterdir()] == ["000002"]


def test_versions_take_little_room(halves, tmp_path):
    index = tmp_path / "index"
    build_index(index, halves[0])
    add_to_index(index, halves[1])
    linked = index / "segments/000002/img_fragments/img_fragments_0000.npy"
    assert linked.stat().st_nlink >= 2  # the same bytes as in the embedding
    assert sum(path.stat().st_size for path in (index / "versions").rglob("*")) < 20_000


def test_an_embedding_with_other_columns_can_be_added(small_search, halves, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(images / "black.png")
    (images / "metadata.csv").write_text("file_name,text,height\nblack.png,a dark field,12\n")
    embed(images, small_search.model, tmp_path / "emb")
    build_index(tmp_path / "index", halves[0])
    add_to_index(tmp_path / "index", tmp_path / "emb")
    found = {hit.id: hit for hit in hits(tmp_path / "index")}
    assert found["black.png"].caption == "a dark field" and str(found["black.png"].metadata["height"]) == "12"
    assert "height" not in found[min(set(found) - {"black.png"})].metadata
