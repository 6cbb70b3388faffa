"""Indexes whose vectors are coded: building, tuning, adding, kills, damage, and what a search gives."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.search_examples import embed, files_of, killed_at, only_images

from pmpguard.errors import ConfigError, DataError, PmpguardError
from pmpguard.files import read_json
from pmpguard.models.retriever import Retriever
from pmpguard.search.codec import CodecSpec, FragmentCodec
from pmpguard.search.index.changes import (
    add_to_index,
    build_index,
    remove_from_index,
    tune_index,
    verify_index,
)
from pmpguard.search.index.coded_files import code_pooled, decode_pooled, read_codecs
from pmpguard.search.index.coding import fit_codecs, sample_fragments
from pmpguard.search.index.embedding_files import read_partitions
from pmpguard.search.index.stored_vectors import open_vectors
from pmpguard.search.index.tuning import choose_codec
from pmpguard.search.index.version import KINDS, IndexVersion, current_version
from pmpguard.search.query import Query, SearchHit
from pmpguard.search.searcher import Searcher

TEXT = Query("a large green field beside a road")
CODEC = "4bit-16d-9r"


@pytest.fixture(scope="module")
def coded(small_search, tmp_path_factory) -> Path:
    """The index of all images, coded."""
    index = tmp_path_factory.mktemp("coded") / "index"
    build_index(index, small_search.embedding, codec=CODEC)
    return index


def hits(index: Path, k: int = 40) -> list[SearchHit]:
    return Searcher.open(index).search(TEXT, k, shortlist=100)


def test_a_search_scores_what_the_codec_decodes(small_search, coded):
    """Against the model's score of fragments that were coded and decoded here."""
    vectors = open_vectors(small_search.embedding, "image")
    rows = np.arange(len(vectors))
    items, samples = vectors.take(rows), {"image": sample_fragments(vectors), "caption": np.zeros((0, 32))}
    version = IndexVersion.open_current(coded)
    codec = version.images.vectors.codec
    assert codec.spec.name == CODEC and codec.fitted_on == len(samples["image"])
    fragments, mask = codec.decode(codec.encode(items))
    stored = version.images.vectors.take(rows[::-1])
    assert stored.fragments.equal(fragments.flip(0)) and stored.mask.equal(mask.flip(0))
    pooled = torch.from_numpy(decode_pooled(code_pooled(items.pooled)))
    assert stored.pooled.equal(pooled.flip(0)) and (pooled * items.pooled).sum(1).min() > 0.9995
    assert np.array_equal(version.images.vectors.pooled_from(7), pooled.numpy()[7:])
    model = Retriever.load(small_search.model)
    scores = model.score(model.encode_texts([TEXT.text]), stored)[0].flip(0)
    found = {hit.id: hit.score for hit in hits(coded)}
    assert found == pytest.approx(dict(zip(version.images.ids, scores.tolist(), strict=True)), abs=1e-5)


def test_a_coded_index_is_smaller_and_says_how(small_search, coded):
    version = IndexVersion.open_current(coded)
    plain = IndexVersion.open_current(small_search.index)
    assert plain.description.codec is None and plain.images.vectors.item_bytes == 32 * 4 + 16 * (64 + 1)
    assert version.images.vectors.item_bytes == 32 + 16 + 9 * (8 + 2)
    stored = read_json(version.folder / "index.json")["codec"]
    assert (stored["name"], stored["seed"], stored["image_bytes"]) == (CODEC, 0, 138)
    assert 0 < stored["agreement"] < 1 and stored["queries"] == "captions" and stored["searched"] == 40
    segment = coded / "segments/000001"
    assert not (segment / "img_fragments").exists() and not (segment / "img_mask").exists()
    assert (segment / "img_codes/img_codes_0000.npy").stat().st_size < 16 * 138
    assert np.load(segment / "img_codes/img_codes_0000.npy", allow_pickle=False).dtype.names


def test_everything_a_searcher_does_works_on_codes(coded):
    searcher = Searcher.open(coded)
    best = searcher.search(TEXT, 3)[0]
    assert best.probability is not None
    explained = searcher.explain(best.id, TEXT.text)
    assert len(explained.words) == 7
    assert len(searcher.search(Query(image=searcher.image(best.id)), 5)) == 5
    assert searcher.search(Query(TEXT.text, kind="caption"), 3)[0].kind == "caption"


def test_tuning_chooses_the_smallest_codec_that_agrees(small_search, tmp_path):
    build_index(tmp_path / "index", small_search.embedding)
    before, plain = files_of(tmp_path / "index"), hits(tmp_path / "index")
    choice, change = tune_index(tmp_path / "index", agreement=0.9, write=False)
    assert change is None and files_of(tmp_path / "index") == before
    sizes = [row.image_bytes for row in choice.table]
    assert sizes == sorted(sizes, reverse=True) and choice.table[0].codec == "float16"
    assert choice.table[0].agreement == choice.table[0].same_best == 1.0
    fits = [row for row in choice.table if row.low >= 0.9]
    assert choice.codec == fits[-1].codec != "float16"
    assert choice.table[-1].agreement < choice.table[1].agreement <= 1
    assert tune_index(tmp_path / "index", agreement=0.9, write=False)[0] == choice  # nothing is drawn anew
    again, change = tune_index(tmp_path / "index", agreement=0.9)
    assert again == choice and change.version == "000002" and change.count == 40
    assert (
        IndexVersion.open_current(tmp_path / "index").description.codec["agreement"]
        == choice.chosen.agreement
    )
    shared = {hit.id for hit in hits(tmp_path / "index", 10)} & {hit.id for hit in plain[:10]}
    assert len(shared) >= 8
    verify_index(tmp_path / "index")
    with pytest.raises(DataError, match="coded already"):
        tune_index(tmp_path / "index")


def test_a_target_that_none_reaches_leaves_float16(small_search, tmp_path):
    build_index(tmp_path / "index", small_search.embedding)
    choice, change = tune_index(tmp_path / "index", names=["2bit-8d", "2bit-8d-9r"], agreement=1)
    assert choice.codec == "float16" and change is None
    build_index(tmp_path / "auto", small_search.embedding, codec="auto", agreement=1.0)
    assert IndexVersion.open_current(tmp_path / "auto").description.codec_name in ("float16", "int8")
    with pytest.raises(ConfigError, match=r"agreement 1\.5"):
        tune_index(tmp_path / "index", agreement=1.5)


def test_images_without_captions_measure_codecs_by_their_own_regions(small_search, tmp_path):
    images = only_images(small_search.world, tmp_path / "images", 30)
    embed(images, small_search.model, tmp_path / "emb")
    build_index(tmp_path / "index", tmp_path / "emb")
    choice, _ = tune_index(tmp_path / "index", agreement=0.9)
    assert choice.queries == "images" and choice.query_count == choice.images == 30
    by_name = {row.codec: row.agreement for row in choice.table}
    assert by_name["int8"] > 0.9 > by_name["2bit-8d-9r"]


def test_a_model_that_ranks_by_pooled_vectors_is_asked_by_its_fragments_too(small_search, tmp_path):
    vectors = {kind: open_vectors(small_search.embedding, kind) for kind in KINDS}
    rows = {kind: np.arange(len(stored)) for kind, stored in vectors.items()}
    model, found = Retriever.load(small_search.model), {}
    for ranking in ("pooled", "pooled+awareness"):
        model.config = replace(model.config, ranking=ranking)
        found[ranking] = choose_codec(model, vectors, rows, names=["int8", "2bit-8d-9r"])[0]
    assert found["pooled"] == found["pooled+awareness"]
    assert found["pooled"].table[1].agreement > 0.9 > found["pooled"].table[2].agreement


def test_only_the_shortlist_is_decoded(coded, monkeypatch):
    decoded = []
    decode = FragmentCodec.decode

    def counted(self: FragmentCodec, records: np.ndarray) -> object:
        decoded.append(len(records))
        return decode(self, records)

    searcher = Searcher.open(coded)
    monkeypatch.setattr(FragmentCodec, "decode", counted)
    assert len(searcher.search(TEXT, 5, shortlist=7)) == 5
    assert 5 <= sum(decoded) <= 7 < searcher.count


def test_images_are_added_by_the_codec_of_the_index(small_search, tmp_path):
    """Nothing is fitted anew: images give the same codes wherever they are added; captions may come later."""
    images = only_images(small_search.world, tmp_path / "images", 25)
    embed(images, small_search.model, tmp_path / "first")
    index = tmp_path / "index"
    build_index(index, tmp_path / "first", codec=CODEC)
    codec = IndexVersion.open_current(index).images.vectors.codec
    assert add_to_index(index, small_search.embedding).added == 40
    version = IndexVersion.open_current(index)
    assert version.images.vectors.codec is codec and version.description.codec_name == CODEC
    names = ("segments/000001/codec_image.npy", "segments/000002/codec_image.npy")
    first, second = ((index / name).read_bytes() for name in names)
    assert first == second
    expected = codec.decode(codec.encode(open_vectors(small_search.embedding, "image").take(np.arange(40))))[
        0
    ]
    assert version.images.vectors.take(np.arange(25, 65)).fragments.equal(expected)
    assert version.captions.vectors.codec.spec.name == "4bit" and len(version.captions) == 200
    remove_from_index(index, [version.images.ids[3]])
    assert len(hits(index, 100)) == 64
    verify_index(index)


def test_an_index_is_built_from_the_segment_of_another_one(coded, tmp_path):
    build_index(tmp_path / "index", coded / "segments/000001")
    assert hits(tmp_path / "index") == hits(coded)
    assert IndexVersion.open_current(tmp_path / "index").description.codec_name == CODEC
    with pytest.raises(ConfigError, match=f"coded by {CODEC} already"):
        build_index(tmp_path / "other", coded / "segments/000001", codec="int8")


@pytest.mark.slow
def test_whatever_tuning_is_killed_at_an_index_stays_whole(small_search, tmp_path):
    original = tmp_path / "original"
    build_index(original, small_search.embedding)
    plain, ends = hits(original, 5), set()
    for event in range(1, 400, 37):
        index = tmp_path / f"index-{event}"
        shutil.copytree(original, index)
        was_killed = killed_at(event, tune, index)
        verify_index(index)
        name = current_version(index)[0]
        ends.add(name)
        assert name in ("000001", "000002")
        if name == "000001":
            assert hits(index, 5) == plain
        tune(index)
        verify_index(index)
        assert IndexVersion.open_current(index).description.codec_name == CODEC
        left = [
            path.name
            for folder in ("", "versions", "segments", "models")
            for path in (index / folder).glob(".*-*")
        ]
        assert not left
        if not was_killed:
            break
    assert ends == {"000001", "000002"}


def tune(index: Path) -> None:
    if IndexVersion.open_current(index).description.codec is None:
        tune_index(index, names=[CODEC])


@pytest.mark.parametrize(
    "name", ["img_codes/img_codes_0001.npy", "img_emb/img_emb_0001.npy", "codec_image.npy", "codec.json"]
)
def test_a_flipped_byte_is_named(coded, tmp_path, name):
    index = tmp_path / "index"
    shutil.copytree(coded, index)
    path = index / "segments/000001" / name
    data = bytearray(path.read_bytes())
    data[-9] ^= 1
    path.unlink()
    path.write_bytes(bytes(data))
    with pytest.raises(PmpguardError, match=name):
        verify_index(index)


def test_a_matrix_that_is_not_what_it_was_is_refused(coded, tmp_path):
    index = tmp_path / "index"
    shutil.copytree(coded, index)
    path = index / "segments/000001/codec_image.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"codec_image\.npy"):
        Searcher.open(index)


def test_codes_that_are_cut_short_while_in_use_are_an_error(coded, tmp_path):
    index = tmp_path / "index"
    shutil.copytree(coded, index)
    searcher = Searcher.open(index)
    searcher.search(TEXT, 40)
    path = index / "segments/000001/img_codes/img_codes_0000.npy"
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size - 50)
    with pytest.raises(PmpguardError, match=r"img_codes_0000\.npy"):
        searcher.search(TEXT, 40)


def test_records_of_another_codec_are_refused(coded, tmp_path):
    index = tmp_path / "index"
    shutil.copytree(coded, index)
    described = index / "segments/000001/codec.json"
    described.write_text(json.dumps(json.loads(described.read_text())).replace(CODEC, "4bit-16d-8r"))
    with pytest.raises(DataError, match="do not belong together"):
        open_vectors(index / "segments/000001", "image")


def test_an_embedding_that_changed_is_not_coded(small_search, tmp_path):
    shutil.copytree(small_search.embedding, tmp_path / "emb")
    path = tmp_path / "emb/img_fragments/img_fragments_0000.npy"
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"img_fragments_0000\.npy: changed"):
        build_index(tmp_path / "index", tmp_path / "emb", codec=CODEC)
    assert not (tmp_path / "index/current").exists()


def test_partitions_keep_their_numbers_and_problems(small_search, coded):
    stored = read_partitions(coded / "segments/000001")
    for before, after in zip(read_partitions(small_search.embedding), stored, strict=True):
        assert (before.number, before.images, before.captions) == (after.number, after.images, after.captions)
        assert before.problems == after.problems and before.sha256 != after.sha256
        assert all((coded / "segments/000001" / name).is_file() for name in after.sha256)
    assert set(read_codecs(coded / "segments/000001")) == {"image", "caption"}


def test_captions_of_few_words_keep_all_dimensions():
    generator = np.random.default_rng(0)
    samples = {
        "image": generator.standard_normal((200, 32)).astype(np.float32),
        "caption": generator.standard_normal((31, 32)).astype(np.float32),
    }
    assert fit_codecs(CodecSpec.parse(CODEC), samples)["caption"].kept == 32
    samples["caption"] = samples["image"]
    assert fit_codecs(CodecSpec.parse(CODEC), samples)["caption"].spec.name == "4bit-16d"
