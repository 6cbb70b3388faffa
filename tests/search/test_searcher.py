"""Searching: two stages against exhaustive scoring, all kinds of queries, filters, versions, threads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.search_examples import embed, save_model
from PIL import Image

from pmpguard.data.formats import read_pairs
from pmpguard.data.images.decode import ImageError
from pmpguard.errors import ConfigError, DataError, PmpguardError
from pmpguard.models.encoded import Encoded
from pmpguard.search.calibration import CALIBRATION, load_calibration, match_probabilities
from pmpguard.search.index.changes import add_to_index, build_index, remove_from_index
from pmpguard.search.index.embedding_files import open_metadata
from pmpguard.search.index.stored_vectors import open_vectors
from pmpguard.search.query import Filters, Query
from pmpguard.search.query_checks import QueryError, UnknownIdError
from pmpguard.search.searcher import Searcher

TEXTS = ["a large green field beside a road", "many buildings", "two planes near a pond and some trees"]


@pytest.fixture(scope="module")
def searcher(small_search) -> Searcher:
    return Searcher.open(small_search.index)


@pytest.fixture(scope="module")
def stored(small_search) -> tuple[list[str], Encoded, list[str], Encoded]:
    """Ids and vectors of all images and captions, as they were stored."""
    found: list = []
    for kind in ("image", "caption"):
        vectors = open_vectors(small_search.embedding, kind)
        found += [
            open_metadata(small_search.embedding, kind)["id"].to_pylist(),
            vectors.take(range(len(vectors))),
        ]
    return tuple(found)


def in_order(ids: list[str], scores: torch.Tensor) -> list[str]:
    rounded = scores.double().numpy().round(6)
    return [ids[row] for row in sorted(range(len(ids)), key=lambda row: (-rounded[row], ids[row]))]


@pytest.mark.slow
@pytest.mark.parametrize("ranking", ["awareness", "gated", "pooled", "pooled+awareness"])
def test_a_shortlist_of_everything_is_the_exhaustive_order(small_search, stored, tmp_path, ranking):
    captions = read_pairs(small_search.world).captions
    model = save_model(tmp_path / "model", captions, seed=3, ranking=ranking)
    embed(small_search.world, model, tmp_path / "emb")
    build_index(tmp_path / "index", tmp_path / "emb")
    searcher = Searcher.open(tmp_path / "index")
    ids = open_metadata(tmp_path / "emb", "image")["id"].to_pylist()
    images = open_vectors(tmp_path / "emb", "image").take(range(40))
    retriever = searcher.opened.model
    for text in TEXTS:
        scores = retriever.score(retriever.encode_texts([text]), images)[0]
        for shortlist in (40, 1000):
            hits = searcher.search(Query(text), k=40, shortlist=shortlist)
            assert [hit.id for hit in hits] == in_order(ids, scores)
            assert np.allclose([hit.score for hit in hits], sorted(scores.tolist(), reverse=True), atol=1e-5)


def test_stored_fragments_give_the_scores_of_the_images(searcher, small_search):
    """Half precision on disk moves scores by less than a thousandth."""
    model, table = searcher.opened.model, read_pairs(small_search.world)
    images = [searcher.image(id) for id in table.take(table.first_rows).column("image_id")]
    scores = model.score(model.encode_texts(TEXTS[:1]), model.encode_images(images))[0]
    found = {hit.id: hit.score for hit in searcher.search(Query(TEXTS[0]), k=40)}
    for id, score in zip(table.take(table.first_rows).column("image_id"), scores.tolist(), strict=True):
        assert found[id] == pytest.approx(score, abs=1e-3)


def test_a_short_shortlist_is_the_pooled_top_ranked_finely(searcher, stored):
    ids, images, _, _ = stored
    model = searcher.opened.model
    text = model.encode_texts([TEXTS[2]])
    pooled = (text.pooled @ images.pooled.T)[0]
    chosen = pooled.argsort(descending=True)[:7]
    fine = model.score(text, images[chosen])[0]
    hits = searcher.search(Query(TEXTS[2]), k=5, shortlist=7)
    assert [hit.id for hit in hits] == in_order([ids[row] for row in chosen], fine)[:5]
    assert len(searcher.search(Query(TEXTS[2]), k=9, shortlist=2)) == 9  # never fewer than asked for


def test_a_image_finds_itself_its_captions_and_its_like(searcher, stored):
    ids, images, caption_ids, captions = stored
    model, id = searcher.opened.model, ids[4]
    image = searcher.image(id)
    hits = searcher.search(Query(image=image), k=40)
    assert hits[0].id == id and hits[0].score == pytest.approx(1, abs=1e-5) and hits[0].probability is None
    encoded = model.encode_images([image])
    assert [hit.id for hit in hits] == in_order(ids, images.pooled @ encoded.pooled[0])
    found = searcher.search(Query(image=image, kind="caption"), k=200, shortlist=200)
    assert [hit.id for hit in found] == in_order(caption_ids, model.score(captions, encoded)[:, 0])
    assert found[0].kind == "caption" and found[0].caption and found[0].metadata["image_id"] in ids
    assert found[0].probability is not None


def test_text_and_image_are_weighed(searcher, stored):
    ids, images, caption_ids, captions = stored
    model, pixel_image = searcher.opened.model, searcher.image(ids[9])
    text, image = model.encode_texts(TEXTS[:1]), model.encode_images([pixel_image])
    for weight in (0.0, 0.3, 1.0):
        query = Query(TEXTS[0], pixel_image, weight)
        expected = weight * model.score(text, images)[0] + (1 - weight) * (images.pooled @ image.pooled[0])
        hits = searcher.search(query, k=40)
        assert [hit.id for hit in hits] == in_order(ids, expected)
        both = weight * (captions.pooled @ text.pooled[0]) + (1 - weight) * model.score(captions, image)[:, 0]
        hits = searcher.search(replace(query, kind="caption"), k=200)
        assert [hit.id for hit in hits] == in_order(caption_ids, both)
        vector = searcher.encode_query(query).vector
        mixed = weight * text.pooled[0] + (1 - weight) * image.pooled[0]
        assert np.allclose(vector, (mixed / mixed.norm()).numpy(), atol=1e-6)


def test_many_queries_at_once_give_what_each_gives_alone(searcher, stored):
    image = searcher.image(stored[0][1])
    queries = [
        Query(TEXTS[0]), Query(image=image), Query(TEXTS[1], kind="caption"), Query(TEXTS[2], image),
        Query(TEXTS[1]), Query(image=image, kind="caption"),
    ]  # fmt: skip
    together = searcher.search_many(queries, k=6, shortlist=12)
    for query, hits in zip(queries, together, strict=True):
        alone = searcher.search(query, k=6, shortlist=12)
        assert [hit.id for hit in hits] == [hit.id for hit in alone]
        assert [hit.score for hit in hits] == pytest.approx([hit.score for hit in alone], abs=2e-6)
    assert searcher.search_many([]) == []


def test_hits_say_what_is_known_of_them(searcher, small_search):
    table = read_pairs(small_search.world)
    for hit in searcher.search(Query(TEXTS[0]), k=5):
        row = table.column("image_id").index(hit.id)
        assert hit.image == table.column("image")[row] and hit.caption == table.captions[row]
        assert hit.metadata["label"] == table.column("label")[row] and hit.metadata["split"]
        assert hit.kind == "image" and 0 <= hit.probability <= 1
        assert searcher.image_path(hit.id) == small_search.world / "images" / hit.image


def test_probabilities_grow_with_the_score_and_fit_the_sample(searcher):
    hits = searcher.search(Query(TEXTS[0]), k=40)
    assert [hit.probability for hit in hits] == sorted((hit.probability for hit in hits), reverse=True)
    mixture = searcher.opened.mixture
    assert mixture is not None
    scores = np.linspace(-2, 3, 50)
    low = match_probabilities(mixture, scores, prior=0.01)
    assert (np.diff(low) >= 0).all() and (
        low <= match_probabilities(mixture, scores, prior=0.3) + 1e-12
    ).all()
    plain = replace(mixture, random_matches=0.0)
    share = 1 - float(mixture.weights[0])
    assert np.allclose(match_probabilities(mixture, scores, prior=share), plain.posterior(scores), atol=1e-9)


def test_filters_narrow_what_is_found(searcher, small_search):
    labels = searcher.columns["label"]
    assert set(searcher.columns["split"]) == {"train", "val", "test"}
    everything = searcher.search(Query(TEXTS[0]), k=40)
    for kind in ("image", "caption"):
        query = Query(TEXTS[0], kind=kind)
        hits = searcher.search(query, k=200, filters=Filters(columns={"label": labels[:2]}))
        assert hits and {hit.metadata["label"] for hit in hits} <= set(labels[:2])
    some = Filters(columns={"label": labels[:2]})
    wanted = [hit for hit in everything if hit.metadata["label"] in labels[:2]]
    assert searcher.search(Query(TEXTS[0]), k=40, filters=some) == wanted
    assert searcher.search(Query(TEXTS[0]), filters=Filters(box=(0, 0, 1, 1))) == []  # no coordinates known
    with pytest.raises(ConfigError, match="no metadata column 'colour'"):
        searcher.search(Query(TEXTS[0]), filters=Filters(columns={"colour": ("red",)}))


def test_explaining_from_stored_fragments_equals_explaining_the_image(searcher, stored):
    id = stored[0][3]
    found = searcher.explain(id, TEXTS[2])
    fresh = searcher.opened.model.explain(TEXTS[2], searcher.image(id))
    assert found.score == pytest.approx(fresh.score, abs=1e-3) and found.boundary == fresh.boundary
    assert [word.word for word in found.words] == [word.word for word in fresh.words]
    for ours, theirs in zip(found.words, fresh.words, strict=True):
        assert ours.positive == pytest.approx(theirs.positive, abs=1e-3)
        assert torch.allclose(ours.regions, theirs.regions, atol=1e-3)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Query(), "is empty"), (Query(""), "no word"), (Query("  \t"), "no word"), (Query("?!"), "no word"),
        (Query("\0\0"), "no word"), (Query("a" * 10_000), "10,000 characters"),
        (Query("a pond", text_weight=1.5), "text weight"), (Query("a pond", kind="video"), "'video'"),
    ],
)  # fmt: skip
def test_queries_that_cannot_be_answered(searcher, query, message):
    with pytest.raises(QueryError, match=message):
        searcher.search(query)


def test_odd_queries_are_answered(searcher):
    for text in ("pond\0 field", "PLANES", "été 机场 🛩 field", "field " * 200):
        assert len(searcher.search(Query(text), k=3)) == 3
    assert len(searcher.search(Query("", Image.new("RGB", (5, 300))), k=3)) == 3
    with pytest.raises(QueryError, match="at least one"):
        searcher.search(Query("field"), k=0)


def test_only_ids_of_the_index_can_be_read(searcher, small_search):
    for id in ("../model/config.json", "/etc/passwd", "", "none"):
        for work in (searcher.image, searcher.image_path, lambda id: searcher.explain(id, "field")):
            with pytest.raises(UnknownIdError, match="no image"):
                work(id)


def test_a_image_that_is_gone_is_named_and_can_still_be_found(small_search, tmp_path):
    shutil.copytree(small_search.world, tmp_path / "world")
    embed(tmp_path / "world", small_search.model, tmp_path / "emb")
    build_index(tmp_path / "index", tmp_path / "emb")
    searcher = Searcher.open(tmp_path / "index")
    hit = searcher.search(Query(TEXTS[0]), k=1)[0]
    searcher.image_path(hit.id).unlink()
    with pytest.raises(ImageError, match="no such file"):
        searcher.image(hit.id)
    assert searcher.search(Query(TEXTS[0]), k=1) == [hit]
    assert searcher.explain(hit.id, "field").words


def test_searches_go_on_while_versions_change(small_search, tmp_path):
    index = tmp_path / "index"
    build_index(index, small_search.embedding)
    searcher = Searcher.open(index)
    ids = [hit.id for hit in searcher.search(Query(TEXTS[0]), k=40)]

    def ask(_: int) -> tuple[int, int]:
        hits = searcher.search(Query(TEXTS[0]), k=40)
        return len(hits), len({hit.id for hit in hits})

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask, number) for number in range(40)]
        for id in ids[:3]:
            remove_from_index(index, [id])
            assert searcher.refresh()
        add_to_index(index, small_search.embedding)
        assert searcher.refresh() and searcher.count == 40
        found = [one.result() for one in asked]
    assert {count for count, _ in found} <= {37, 38, 39, 40} and all(a == b for a, b in found)


def test_an_index_deleted_under_a_reader(small_search, tmp_path):
    index = tmp_path / "index"
    shutil.copytree(small_search.index, index)
    searcher = Searcher.open(index)
    before = searcher.search(Query(TEXTS[0]))
    shutil.rmtree(index)
    assert searcher.search(Query(TEXTS[0])) == before
    with pytest.raises(DataError, match="no index here"):
        searcher.refresh()
    assert searcher.search(Query(TEXTS[0])) == before
    searcher.close()
    with pytest.raises(ConfigError, match="closed"):
        searcher.search(Query(TEXTS[0]))


@pytest.mark.parametrize(("backend", "codec"), [("exact", "float16"), ("hnsw", "4bit")])
def test_any_file_cut_short_under_a_reader_is_an_error_and_never_a_signal(
    small_search, tmp_path, backend, codec
):
    """Touching a mapping of what was cut would kill the process. What is restored is taken up again."""
    if backend == "hnsw":
        pytest.importorskip("faiss")
    build_index(tmp_path / "built", small_search.embedding, backend=backend, codec=codec)
    index = tmp_path / "index"
    shutil.copytree(tmp_path / "built", index)  # whose files are nobody else's
    searcher = Searcher.open(index)
    best = searcher.search(Query(TEXTS[0]))[0].id
    queries: list[Callable[[], Any]] = [
        lambda: searcher.search(Query(TEXTS[0])),
        lambda: searcher.search(Query(TEXTS[0], kind="caption")),
        lambda: searcher.search(Query(image=searcher.image(best))),
        lambda: [word.word for word in searcher.explain(best, TEXTS[0]).words],
        searcher.refresh,
    ]
    before, refused = [ask() for ask in queries], set()
    for path in (path for path in index.rglob("*") if path.is_file()):
        whole = path.read_bytes()
        os.truncate(path, len(whole) // 2)
        for number, ask in enumerate(queries):
            try:
                assert ask() == before[number]
            except PmpguardError as error:
                refused.add(str(error).partition(":")[0])
        path.write_bytes(whole)
        searcher.refresh()
        assert [ask() for ask in queries] == before
    assert len(refused) > 3 and all(str(index) in name for name in refused), refused


def test_a_calibration_whose_parts_lie_nowhere_is_named(small_search, tmp_path):
    """The directory of the archive says that it begins before the file does."""
    (version,) = (small_search.index / "versions").iterdir()
    data = bytearray((version / CALIBRATION).read_bytes())
    assert load_calibration(version) is not None and data[-22:-18] == b"PK\5\6"
    data[-10:-6] = (1 << 30).to_bytes(4, "little")  # the directory's size
    (tmp_path / CALIBRATION).write_bytes(data)
    with pytest.raises(DataError, match=f"{CALIBRATION}: damaged"):
        load_calibration(tmp_path)


def test_what_a_searcher_says_of_itself(searcher, small_search):
    assert (searcher.version, searcher.count, searcher.caption_count) == ("000001", 40, 200)
    assert searcher.model_name == "tiny + tiny, ranked by awareness" and searcher.backend == "exact"
    with pytest.raises(DataError, match="no index here"):
        Searcher.open(Path(small_search.world))


def test_an_index_without_captions_finds_none(small_search, tmp_path):
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (64, 64)).save(images / "one.png")
    embed(images, small_search.model, tmp_path / "emb")
    build_index(tmp_path / "index", tmp_path / "emb")
    searcher = Searcher.open(tmp_path / "index")
    assert searcher.search(Query("field", kind="caption")) == []
    (hit,) = searcher.search(Query("field"))
    assert hit.id == "one.png" and hit.caption is None and hit.probability is None and hit.metadata == {}
    assert searcher.columns == {}
