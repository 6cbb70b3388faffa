"""Embedding: files others can read, resumed after a kill, bad images reported."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from helpers.killed_child import kill_one_child
from helpers.search_examples import embed, files_of, killed_at, only_images, save_model

from pmpguard.data.formats import read_pairs
from pmpguard.data.images.decode import load_pair_image
from pmpguard.engine.parts import Engine
from pmpguard.errors import DataError, ModelError, PmpguardError
from pmpguard.files import verify_manifest, writer_lock
from pmpguard.models.retriever import Retriever
from pmpguard.search.index.embedding_files import open_metadata, remaining_problems
from pmpguard.search.index.stored_vectors import open_vectors


def test_the_files_can_be_read_without_us(small_search):
    folder = small_search.embedding
    assert sorted(path.name for path in (folder / "img_emb").iterdir()) == [
        "img_emb_0000.npy", "img_emb_0001.npy", "img_emb_0002.npy",
    ]  # fmt: skip
    pooled = np.load(folder / "img_emb/img_emb_0001.npy")
    fragments = np.load(folder / "img_fragments/img_fragments_0001.npy", mmap_mode="r")
    mask = np.load(folder / "img_mask/img_mask_0001.npy")
    assert pooled.shape == (16, 32) and pooled.dtype == np.float32
    assert np.allclose(np.linalg.norm(pooled, axis=1), 1, atol=1e-5)
    assert fragments.dtype == np.float16 and fragments.shape == (*mask.shape, 32) and mask.all()
    metadata = pq.read_table(folder / "metadata/metadata_0001.parquet")
    assert metadata.column_names[:1] == ["id"] and {"image", "caption", "split", "label"} <= set(
        metadata.column_names
    )
    texts = pq.read_table(folder / "text_metadata/text_metadata_0000.parquet")
    assert texts.num_rows == 80 and set(texts["image_id"].to_pylist()) == set(
        pq.read_table(folder / "metadata/metadata_0000.parquet")["id"].to_pylist()
    )
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["images"] == 40 and manifest["captions"] == 200 and manifest["problems"] == 0
    verify_manifest(folder)


def test_vectors_are_those_of_the_model(small_search):
    model, table = Retriever.load(small_search.model), read_pairs(small_search.world)
    rows = [0, 20, 39, 3]
    images, ids = open_vectors(small_search.embedding, "image"), table.column("image_id")
    stored = images.take(rows)
    first = [int(table.first_rows[row]) for row in rows]
    fresh = model.encode_images([load_pair_image(table, row) for row in first])
    assert [open_metadata(small_search.embedding, "image")["id"][row].as_py() for row in rows] == [
        ids[row] for row in first
    ]
    assert torch.allclose(stored.pooled, fresh.pooled, atol=1e-5)
    assert torch.allclose(stored.fragments, fresh.fragments, atol=1e-3) and stored.mask.equal(fresh.mask)
    captions = open_metadata(small_search.embedding, "caption")["caption"].to_pylist()
    texts = open_vectors(small_search.embedding, "caption").take([150, 2])
    again = model.encode_texts([captions[150], captions[2]])
    assert torch.allclose(texts.pooled, again.pooled, atol=1e-5)
    kept = again.mask
    assert texts.mask[:, : kept.shape[1]].equal(kept) and not texts.mask[:, kept.shape[1] :].any()
    assert torch.allclose(texts.fragments[:, : kept.shape[1]][kept], again.fragments[kept], atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [2, 3])
def test_several_processes_write_the_same_files_also_when_one_is_killed(small_search, tmp_path, workers):
    out = tmp_path / "shared"
    killed = []

    def kill_a_worker_when_the_first_part_is_done() -> None:
        while not list(out.glob("partitions/*.json")):
            time.sleep(0.01)
        killed.extend(kill_one_child("pmpguard.engine.worker"))

    killer = threading.Thread(target=kill_a_worker_when_the_first_part_is_done)
    killer.start()
    report = embed(small_search.world, small_search.model, out, partition_size=8, engine=Engine(workers))
    killer.join()
    assert len(killed) == 1 and report.embedded == 40
    straight = tmp_path / "straight"
    embed(small_search.world, small_search.model, straight, partition_size=8)
    assert files_of(out) == files_of(straight)


def test_another_number_of_threads_changes_vectors_by_rounding_alone(small_search, tmp_path):
    """One process has a thread on every core, each of two workers on half of them."""
    before = torch.get_num_threads()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        try:
            embed(small_search.world, small_search.model, tmp_path / str(threads))
        finally:
            torch.set_num_threads(before)
    for kind, part in itertools.product(("image", "caption"), ("pooled", "fragments", "mask")):
        one, two = (open_vectors(tmp_path / name, kind) for name in ("1", "2"))
        rows = range(len(one))
        tolerance = {"pooled": 1e-6, "fragments": 1e-3, "mask": 0}[part]  # fragments are float16
        found = [getattr(vectors.take(list(rows)), part) for vectors in (one, two)]
        torch.testing.assert_close(*found, rtol=0, atol=tolerance)


def test_a_part_that_a_killed_run_left_out_is_filled_in(small_search, tmp_path):
    whole, holed = tmp_path / "whole", tmp_path / "holed"
    for out in (whole, holed):
        embed(small_search.world, small_search.model, out, partition_size=16)
    (holed / "partitions/0001.json").unlink()
    assert embed(small_search.world, small_search.model, holed, partition_size=16).embedded == 16
    assert files_of(holed) == files_of(whole)


@pytest.mark.slow
def test_killed_at_any_moment_the_next_run_ends_with_the_same_files(small_search, tmp_path):
    images = only_images(small_search.world, tmp_path / "images", 10)
    straight = tmp_path / "straight"
    embed(images, small_search.model, straight, partition_size=4)
    expected = files_of(straight)
    kills = 0
    for event in (1, 3, 7, 12, 18, 25, 33, 42):
        out = tmp_path / f"killed-{event}"
        kills += killed_at(event, embed_small, images, small_search.model, out)
        report = embed(images, small_search.model, out, partition_size=4)
        assert report.images == 10 and files_of(out) == expected
    assert kills >= 6


def embed_small(images: Path, model: Path, out: Path) -> None:
    embed(images, model, out, partition_size=4)


def test_finished_partitions_are_not_done_again(small_search, tmp_path, monkeypatch):
    pixels = only_images(small_search.world, tmp_path / "images", 10)
    out = tmp_path / "out"
    assert embed(pixels, small_search.model, out, partition_size=4).embedded == 10
    (out / "partitions/0002.json").unlink()
    (out / "manifest.json").unlink()
    calls: list[int] = []
    encode = Retriever.encode_images
    monkeypatch.setattr(
        Retriever,
        "encode_images",
        lambda self, images, **o: calls.append(len(images)) or encode(self, images, **o),
    )
    assert embed(pixels, small_search.model, out, partition_size=4).embedded == 2 and calls == [2]
    assert embed(pixels, small_search.model, out, partition_size=4).embedded == 0 and calls == [2]
    shutil.copyfile(next(pixels.iterdir()), pixels / "0-new.png")
    report = embed(pixels, small_search.model, out, partition_size=4)
    assert report.embedded == 1 and report.images == 11 and calls == [2, 1]


def test_bad_images_are_reported_and_change_no_other_id(small_search, tmp_path):
    images = only_images(small_search.world, tmp_path / "images", 20)
    embed(images, small_search.model, tmp_path / "whole")
    damaged = sorted(images.iterdir())[5]
    good = damaged.read_bytes()
    damaged.write_bytes(good[:60])
    out = tmp_path / "out"
    report = embed(images, small_search.model, out)
    assert report.exit_code == 3 and [problem.id for problem in report.problems] == [damaged.name]
    assert damaged.name in report.as_text() and report.problems[0].kind == "unreadable"
    assert json.loads((out / "problems.json").read_text())[0]["image"] == damaged.name
    ids = open_metadata(out, "image")["id"].to_pylist()
    assert ids == [path.name for path in sorted(images.iterdir()) if path != damaged]
    before = open_vectors(tmp_path / "whole", "image").all_pooled()
    assert np.allclose(open_vectors(out, "image").all_pooled(), np.delete(before, 5, axis=0), atol=1e-6)
    assert embed(images, small_search.model, out).exit_code == 3  # still bad, still told
    damaged.write_bytes(good)
    repaired = embed(images, small_search.model, out)
    assert repaired.embedded == 1 and repaired.exit_code == 0 and not remaining_problems(out)
    assert repaired.images == 20


def test_captions_of_bad_images_are_left_out(small_search, tmp_path):
    world = tmp_path / "world"
    shutil.copytree(small_search.world, world)
    sorted((world / "images").iterdir())[3].write_bytes(b"")
    report = embed(world, small_search.model, tmp_path / "out")
    assert report.images == 39 and report.captions == 195 and report.exit_code == 3


def test_all_images_bad_is_an_empty_embedding(small_search, tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.png").write_bytes(b"no image")
    report = embed(tmp_path / "images", small_search.model, tmp_path / "out")
    assert report.images == 0 and report.exit_code == 3
    assert len(open_vectors(tmp_path / "out", "image")) == 0


def test_another_model_source_or_writer_is_refused(small_search, tmp_path):
    images = only_images(small_search.world, tmp_path / "images", 4)
    out = tmp_path / "out"
    embed(images, small_search.model, out)
    other = save_model(tmp_path / "other", ["a pond"], seed=1)
    with pytest.raises(ModelError, match="two models cannot be compared"):
        embed(images, other, out)
    with pytest.raises(DataError, match="holds images of"):
        embed(only_images(small_search.world, tmp_path / "second", 4), small_search.model, out)
    with writer_lock(out), pytest.raises(PmpguardError, match="being written by process"):
        embed(images, small_search.model, out)
    with pytest.raises(ModelError, match="no model here"):
        embed(images, tmp_path, tmp_path / "new")


@pytest.mark.parametrize("part", ["pooled", "fragments"])
def test_vectors_that_are_not_finite_are_never_written(small_search, tmp_path, monkeypatch, part):
    pixels = only_images(small_search.world, tmp_path / "images", 3)
    encode = Retriever.encode_images

    def broken(self, images, **options):
        encoded = encode(self, images, **options)
        getattr(encoded, part)[1, 0] = float("nan")
        return encoded

    monkeypatch.setattr(Retriever, "encode_images", broken)
    with pytest.raises(ModelError, match=r"scene-000001\.png is not finite"):
        embed(pixels, small_search.model, tmp_path / "out")
    assert not (tmp_path / "out/manifest.json").exists()
