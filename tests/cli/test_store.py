"""`--store` from the shell's side: build, search, add, remove, and two servers on one database."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.live_postgres import LivePostgres
from helpers.search_examples import embed, make_world, only_images

from pmpguard.cli.main import main

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("store")
    world, model = make_world(folder)
    embed(only_images(world, folder / "images", 8), model, folder / "embedding")
    only_images(world, folder / "all", 12)
    return folder


def told(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    code = main([str(word) for word in words])
    both = capsys.readouterr()
    assert "s3cret" not in both.out + both.err
    return code, both.out + both.err


def test_every_verb_takes_the_store(made, postgres: LivePostgres, monkeypatch, capsys, tmp_path):
    store, index = postgres.new_database("verbs"), tmp_path / "index"
    monkeypatch.setenv("PMPGUARD_STORE", "")  # and whatever the verbs set is undone
    code, text = told(capsys, "index", "build", index, "--embeddings", made / "embedding", "--store", store)
    assert code == 0 and "8 images (8 added)" in text
    code, text = told(
        capsys, "search", index, "a river", "--k", 3, "--device", "cpu", "--store", store, "--json"
    )
    assert code == 0 and len(json.loads(text)["hits"]) == 3
    monkeypatch.setenv("PMPGUARD_STORE", store)
    add = ("index", "add", index, made / "all", "--device", "cpu", "--progress", "false")
    code, text = told(capsys, *add, "--prefix", "more-")
    assert code == 0 and "20 images (12 added)" in text
    first = json.loads(told(capsys, "search", index, "a river", "--device", "cpu", "--json")[1])["hits"][0][
        "id"
    ]
    code, text = told(capsys, "index", "remove", index, first, "--store", store)
    assert code == 0 and "19 images (1 removed)" in text
    assert "searched by postgres" in told(capsys, "index", "info", index)[1]
    assert postgres.run("SELECT sum(rows) FROM pmpguard.collections", "verbs") == [(20,)]


def test_a_store_that_cannot_be_used_is_told_without_its_password(
    made, postgres, monkeypatch, capsys, tmp_path
):
    monkeypatch.setenv("PMPGUARD_STORE", "")
    build = ("index", "build", tmp_path / "index", "--embeddings", made / "embedding")
    code, text = told(capsys, *build, "--store", "postgresql://ana:s3cret@127.0.0.1:1/images")
    assert (
        code == 1
        and "PostgreSQL database images at 127.0.0.1:1: connection failed" in text
        and "Fix: check" in text
    )
    code, text = told(capsys, *build, "--store", postgres.url("missing"))
    assert code == 1 and "createdb" in text
    code, text = told(capsys, *build, "--store", postgres.url(), "--backend", "exact")
    assert code == 1 and "--store is for --backend postgres" in text
    assert told(capsys, *build, "--backend", "exact")[0] == 0
    code, text = told(capsys, "search", tmp_path / "index", "a river", "--store", postgres.url())
    assert code == 1 and "is searched by exact, not by a database" in text


@pytest.mark.slow
def test_two_servers_configured_by_the_environment_share_one_database(made, postgres, monkeypatch, capsys):
    monkeypatch.setenv("PMPGUARD_STORE", postgres.new_database("shared_by_two"))
    index = made / "all" / ".pmpguard" / "index"
    environment = {**os.environ, "PMPGUARD_PORT": "0", "PMPGUARD_DEVICE": "cpu", "PMPGUARD_TOKEN": "abc"}
    up = {"PMPGUARD_FOLDER": str(made / "all"), "PMPGUARD_MODEL": str(made / "model")}
    started = []
    try:
        for verb, more in (("up", up), ("serve", {"PMPGUARD_INDEX": str(index)})):
            command = [sys.executable, "-m", "pmpguard.cli.main", verb]
            process = subprocess.Popen(command, env=environment | more, stdout=subprocess.PIPE, text=True)
            assert process.stdout is not None
            told_first = process.stdout.readline()
            assert "12 images, index version 000001" in told_first
            started.append((process, process.stdout.readline().partition("#")[0].strip()))
        found = [
            httpx.get(f"{address}search?text=a+river&k=5", headers={"Authorization": "Bearer abc"}).json()[
                "hits"
            ]
            for _, address in started
        ]
        assert len(found[0]) == 5 and found[0] == found[1]
        assert httpx.get(f"{started[1][1]}search?text=a+river").status_code == 401
    finally:
        for process, _ in started:
            process.send_signal(signal.SIGTERM)
        assert [process.wait(30) for process, _ in started] == [0, 0]
