"""The server over a real index and model: every route, versions that change under load, files that vanish."""

from __future__ import annotations

import http.client
import io
import os
import shutil
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from helpers.app_clients import wait_for
from helpers.running_server import running_server
from PIL import Image

from pmpguard.models.config import RetrieverConfig
from pmpguard.models.retriever import Retriever
from pmpguard.search.embed import embed_source
from pmpguard.search.index.changes import add_to_index, build_index, remove_from_index
from pmpguard.search.query import Query
from pmpguard.search.searcher import Searcher
from pmpguard.search.sources import open_source
from pmpguard.serving.app import create_app
from pmpguard.synthetic.scenes import synthetic_scenes, write_world

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("fastapi", reason="the extra serve is not installed")


@dataclass(frozen=True)
class Made:
    """Where dataset, embedding and index lie."""

    world: Path
    embedding: Path
    index: Path


@pytest.fixture
def made(tmp_path: Path) -> Made:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    world = synthetic_scenes(30)
    write_world(world, tmp_path / "world")
    config = RetrieverConfig(dim=32, image_size=64, max_tokens=24)
    Retriever.create(config, world.table.captions).save(tmp_path / "model")
    source = open_source(tmp_path / "world")
    embed_source(source, tmp_path / "model", tmp_path / "emb", threads=0, progress=False)
    build_index(tmp_path / "index", tmp_path / "emb")
    return Made(tmp_path / "world", tmp_path / "emb", tmp_path / "index")


def test_every_route_over_a_real_index(made):
    searcher = Searcher.open(made.index)
    expected = searcher.search(Query("white storage tanks"), k=5)
    explained = searcher.explain(expected[0].id, "white storage tanks")
    image = searcher.image(expected[0].id)
    with running_server(create_app(searcher)) as address, httpx.Client(base_url=address) as client:
        info = client.get("/info").json()
        assert (info["count"], info["captions"]) == (30, 150)
        assert (info["has_places"], info["has_times"]) == (False, False)
        hits = client.get("/search", params={"text": "white storage tanks", "k": 5}).json()["hits"]
        assert [hit["id"] for hit in hits] == [hit.id for hit in expected]
        assert [hit["score"] for hit in hits] == pytest.approx([hit.score for hit in expected])
        jpeg = client.get(f"/images/{hits[0]['id']}")
        assert Image.open(io.BytesIO(jpeg.content)).size == image.size
        assert client.get("/images/scene-000001").raise_for_status().content != jpeg  # of the other world
        answer = client.get("/explain", params={"id": hits[0]["id"], "text": "white storage tanks"}).json()
        assert [word["word"] for word in answer["words"]] == ["white", "storage", "tanks"]
        for word, evidence in zip(answer["words"], explained.words, strict=True):
            assert torch.tensor(word["regions"]) == pytest.approx(evidence.regions, abs=1e-4)
        column, value = next((name, values[0]) for name, values in info["columns"].items() if values)
        kept = client.get("/search", params={"text": "tanks", "where": f"{column}={value}", "k": 50}).json()
        assert {hit["metadata"][column] for hit in kept["hits"]} == {value}
        captions = client.get("/search", params={"like": hits[0]["id"], "kind": "caption", "k": 3}).json()
        assert captions["count"] == 150
        assert client.get(f"/images/{captions['hits'][0]['image_id']}").status_code == 200
        stream = io.BytesIO()
        image.save(stream, "PNG")
        found = client.post("/search", files={"image": ("a.png", stream.getvalue())}).json()
        assert found["hits"][0]["id"] == hits[0]["id"]
        assert client.get("/search", params={"text": "!!!"}).status_code == 422
        assert client.get("/search", params={"text": "日本 🛩"}).status_code == 200
        assert client.get("/images/nobody").status_code == 404
        assert client.get("/explain", params={"id": "nobody", "text": "a"}).status_code == 404


def test_versions_change_under_load_and_every_answer_is_of_one_of_them(made):
    searcher = Searcher.open(made.index)
    ids = [hit.id for hit in searcher.search(Query("tanks"), k=30)]
    counts = {searcher.version: 30}
    answers: list[tuple[int, str, int, int]] = []
    stop = threading.Event()
    with running_server(create_app(searcher, refresh_seconds=0.02)) as address:

        def ask(number: int) -> None:
            with httpx.Client(base_url=address) as client:
                while not stop.is_set():
                    response = client.get("/search", params={"text": f"{number} white tanks", "k": 50})
                    found = response.json()
                    hits = len({hit["id"] for hit in found.get("hits", ())})
                    answers.append((response.status_code, found.get("version"), found.get("count"), hits))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(answers) > 5)
        for id in ids[:3]:
            change = remove_from_index(made.index, [id])
            counts[change.version] = change.count
            time.sleep(0.25)
        change = add_to_index(made.index, made.embedding)
        counts[change.version] = change.count
        wait_for(lambda: answers[-1][1] == change.version)
        stop.set()
        for thread in threads:
            thread.join()
    assert {status for status, *_ in answers} == {200}
    assert {version for _, version, _, _ in answers} >= {"000001", change.version}
    assert all(count == hits == counts[version] for _, version, count, hits in answers)
    assert list(counts.values()) == [30, 29, 28, 27, 30]


def test_an_index_and_images_deleted_under_the_server(made):
    searcher = Searcher.open(made.index)
    with (
        running_server(create_app(searcher, refresh_seconds=0.05)) as address,
        httpx.Client(base_url=address) as client,
    ):
        hits = client.get("/search", params={"text": "tanks"}).json()["hits"]
        shutil.rmtree(made.index)
        wait_for(lambda: client.get("/healthz").json()["status"] != "ok")
        problem = client.get("/healthz").json()["problem"]
        assert "cannot be read" in problem and str(made.index) not in problem  # nobody's business
        assert client.get("/search", params={"text": "tanks"}).json()["hits"] == hits  # it is in memory
        shutil.rmtree(made.world)
        gone = client.get(f"/images/{hits[0]['id']}")
        assert gone.status_code == 503 and str(made.world) not in gone.text
        assert client.get("/search", params={"like": hits[0]["id"]}).status_code == 503
        assert client.get("/search", params={"text": "a pond"}).status_code == 200


def test_an_index_deleted_and_built_again_in_place_is_taken_up(made, tmp_path):
    world = synthetic_scenes(12, seed=5)
    write_world(world, tmp_path / "other")
    embed_source(
        open_source(tmp_path / "other"), tmp_path / "model", tmp_path / "second", threads=0, progress=False
    )
    searcher = Searcher.open(made.index)
    with (
        running_server(create_app(searcher, refresh_seconds=0.05)) as address,
        httpx.Client(base_url=address) as client,
    ):
        before = client.get("/info").json()
        jpeg = client.get("/images/scene-000001").raise_for_status().content
        shutil.rmtree(made.index)
        build_index(made.index, tmp_path / "second")
        wait_for(lambda: client.get("/info").json()["count"] == 12)
        after = client.get("/info").json()
        assert after["version"] == before["version"] and after["fingerprint"] != before["fingerprint"]
        assert client.get("/images/scene-000001").raise_for_status().content != jpeg  # of the other world
        answer = client.get("/search", params={"text": "tanks", "k": 50}).json()
        assert len(answer["hits"]) == 12 and answer["fingerprint"] == after["fingerprint"]
        wait_for(lambda: client.get("/healthz").json()["status"] == "ok")


def test_no_spelling_of_a_path_leads_out_of_the_index(made):
    secret = made.world / "secret.txt"
    secret.write_text("nobody's business")
    searcher = Searcher.open(made.index)
    name = searcher.image_path(searcher.search(Query("tanks"), k=1)[0].id).name
    up = len(made.world.parts) + 3
    tried = [
        f"..%2f{secret.name}", f"%2e%2e/{secret.name}", f"%2e%2e%2f{secret.name}", f"..%5c{secret.name}",
        f"../{secret.name}", f"..%252f{secret.name}", f"images%2f..%2f{secret.name}", f"images/{name}",
        "..%2f" * up + str(secret).lstrip("/").replace("/", "%2f"),
        "%2e%2e/" * up + str(secret).lstrip("/"), str(secret).replace("/", "%2f"), str(secret), f"{name}%00",
    ]  # fmt: skip
    with running_server(create_app(searcher)) as address:
        host, port = address.removeprefix("http://").split(":")
        for path in tried:
            connection = http.client.HTTPConnection(host, int(port), timeout=10)
            connection.request("GET", f"/images/{path}")  # as it is: other clients tidy paths up
            response = connection.getresponse()
            body = response.read()
            assert response.status in (404, 422) and b"nobody's business" not in body, path
            connection.close()
        assert httpx.get(f"{address}/healthz").json()["status"] == "ok"


def test_an_index_built_again_with_another_model_is_taken_up_while_requests_run(made, tmp_path):
    torch.manual_seed(1)
    config = RetrieverConfig(dim=16, image_size=32, max_tokens=12)
    Retriever.create(config, ["white storage tanks beside a pond"]).save(tmp_path / "other")
    embed_source(open_source(made.world), tmp_path / "other", tmp_path / "second", threads=0, progress=False)
    searcher = Searcher.open(made.index)
    answers: list[tuple[int, str]] = []
    stop = threading.Event()
    with running_server(create_app(searcher, refresh_seconds=0.02)) as address:

        def ask(path: str) -> None:
            with httpx.Client(base_url=address) as client:
                while not stop.is_set():
                    response = client.get(path)
                    answers.append((response.status_code, response.json().get("version", "")))

        id = searcher.search(Query("tanks"), k=1)[0].id
        paths = ("/search?text=white+tanks", f"/search?like={id}", f"/explain?id={id}&text=white+tanks")
        threads = [threading.Thread(target=ask, args=(path,)) for path in paths * 2]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(answers) > 10)
        build_index(made.index, tmp_path / "second")
        wait_for(lambda: "000002" in {version for _, version in answers[-20:]})
        seen = len(answers)
        wait_for(lambda: len(answers) > seen + 20)
        stop.set()
        for thread in threads:
            thread.join()
        assert httpx.get(f"{address}/healthz").json() == {
            "status": "ok", "version": "000002", "problem": None
        }  # fmt: skip
    assert {status for status, _ in answers} == {200}
    assert {version for _, version in answers} == {"000001", "000002", ""}


def test_files_cut_short_cost_their_requests_and_not_the_server(made):
    with (
        running_server(create_app(Searcher.open(made.index), refresh_seconds=0.1)) as address,
        httpx.Client(base_url=address) as client,
    ):
        assert client.get("/search", params={"text": "tanks"}).status_code == 200
        for file in made.index.rglob("*.npy"):
            os.truncate(file, 200)
        for path in ("/search?text=tanks", "/explain?id=scene-000001&text=tanks"):
            response = client.get(path)
            assert response.status_code == 503 and "index" in response.json()["error"]
        assert client.get("/healthz").status_code == 200
        shutil.rmtree(made.index)
        shutil.rmtree(made.embedding)  # its files are those of the index
        source = open_source(made.world)
        embed_source(source, made.world.parent / "model", made.embedding, threads=0, progress=False)
        build_index(made.index, made.embedding)
        wait_for(lambda: client.get("/search", params={"text": "tanks"}).status_code == 200)
