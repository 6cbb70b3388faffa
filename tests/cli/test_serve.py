"""`pmpguard serve` and `pmpguard up`: started as processes, asked, told to stop."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pmpguard.cli.index import IndexChange
from pmpguard.cli.up import tell
from pmpguard.errors import ConfigError, DataError, ModelError
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.retriever import Retriever
from pmpguard.search import folder_index
from pmpguard.search.folder_index import bring_up_to_date
from pmpguard.search.query import Query
from pmpguard.search.searcher import Searcher
from pmpguard.serving.run import _stop_signals, make_server, open_listener, serve_index
from pmpguard.synthetic.scenes import synthetic_scenes, write_world

httpx = pytest.importorskip("httpx", reason="httpx is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

START = """
import sys
from pmpguard.cli.main import run_verb
from pmpguard.cli.serve import serve
from pmpguard.cli.up import up
verb, *words = sys.argv[1:]
sys.exit(run_verb(verb, {"serve": serve, "up": up}[verb], words))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a folder of twelve images, one of them unreadable."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("serve")
    world = synthetic_scenes(13)
    write_world(world, folder / "world")
    Retriever.create(RetrieverConfig(dim=32, image_size=64), world.table.captions).save(folder / "model")
    (folder / "images").mkdir()
    for path in sorted((folder / "world" / "images").iterdir())[:11]:
        shutil.copyfile(path, folder / "images" / path.name)
    (folder / "images" / "bad.png").write_bytes(b"no image")
    return folder


def test_a_signal_that_comes_before_the_server_listens_to_it_is_not_lost() -> None:
    async def app(scope: object, receive: object, send: object) -> None: ...

    server = make_server(app)
    with open_listener("127.0.0.1", 0) as listener, _stop_signals(server):
        signal.raise_signal(signal.SIGTERM)
        assert server.should_exit
        server.run(sockets=[listener])  # ends at once


@contextlib.contextmanager
def started(
    *words: object, end: signal.Signals = signal.SIGTERM, **extra: str
) -> Iterator[tuple[str, list[str]]]:
    """Start a verb; yields the page's address and, once it has ended well, what it wrote to stderr."""
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **extra}
    command = [sys.executable, "-c", START, *map(str, words), "--device", "cpu", "--port", "0"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    errors: list[str] = []
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        if not lines[1].startswith("http://"):
            raise AssertionError(process.communicate(timeout=10))
        yield lines[1].strip(), errors
        process.send_signal(end)
        _, stderr = process.communicate(timeout=15)
        errors += stderr.splitlines()
        assert process.returncode == 0, stderr
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_up_from_nothing_to_a_page_and_again_with_one_more_image(made, tmp_path):
    folder = tmp_path / "images"
    shutil.copytree(made / "images", folder)
    words = ("up", folder, "--model", made / "model", "--progress", "false")
    with started(*words) as (address, errors):
        assert address.startswith("http://127.0.0.1:") and address.endswith("/")
        info = httpx.get(f"{address}info").json()
        assert (info["count"], info["version"]) == (11, "000001")
        assert "<title>pmpguard search</title>" in httpx.get(address).text
        hit = httpx.get(f"{address}search", params={"text": "a pond"}).json()["hits"][0]
        assert httpx.get(f"{address}images/{hit['id']}").headers["content-type"] == "image/jpeg"
    assert [line for line in errors if "bad.png" in line]
    assert sorted(path.name for path in (folder / ".pmpguard").iterdir()) == ["index"]
    shutil.copyfile(next((made / "world" / "images").iterdir()), folder / "new.png")
    with started("up", folder, "--progress", "false", end=signal.SIGINT) as (address, _):  # knows its model
        info = httpx.get(f"{address}info").json()
        assert (info["count"], info["version"]) == (12, "000002")


@pytest.mark.slow
def test_serve_with_a_token_from_the_environment(made, tmp_path):
    index = tmp_path / "index"
    bring_up_to_date(
        made / "images", index, model=made / "model", tile=0, device="cpu", progress=False, tell=print
    )
    with started("serve", index, PMPGUARD_TOKEN="s3cret") as (address, _):
        base, _, token = address.partition("#token=")
        assert token == "s3cret"
        assert httpx.get(f"{base}info").status_code == 401
        headers = {"Authorization": "Bearer s3cret"}
        assert httpx.get(f"{base}info", headers=headers).json()["count"] == 11
        assert httpx.get(f"{base}info", headers={**headers, "Host": "evil.example"}).status_code == 421


def up_to_date(made: Path, folder: Path, index: Path, model: str | None = "model") -> None:
    path = None if model is None else made / model
    change = bring_up_to_date(folder, index, model=path, tile=0, device="cpu", progress=False, tell=tell)
    if change is not None:
        tell(IndexChange(index, change).as_text())


def test_a_second_start_embeds_nothing_and_images_that_stay_bad_change_nothing(made, tmp_path, capsys):
    folder, index = made / "images", tmp_path / "place" / "index"
    up_to_date(made, folder, index)
    assert "left out bad.png" in capsys.readouterr().err
    up_to_date(made, folder, index, model=None)
    up_to_date(made, folder, index)
    searcher = Searcher.open(index)
    assert (searcher.version, searcher.count) == ("000001", 11)
    assert [path.name for path in index.parent.iterdir()] == ["index"]


def test_up_follows_changed_and_deleted_images_and_says_so(made, tmp_path, capsys):
    folder, index = tmp_path / "images", tmp_path / "images" / ".pmpguard" / "index"
    shutil.copytree(made / "images", folder)
    (folder / "bad.png").unlink()
    up_to_date(made, folder, index)
    assert capsys.readouterr().err == ""
    first, second, *_ = sorted(folder.glob("*.png"))
    before = Searcher.open(index).explain(first.name, "a pond").score
    shutil.copyfile(max(folder.glob("*.png")), first)
    second.unlink()
    up_to_date(made, folder, index, model=None)
    assert capsys.readouterr().err == f"{index}: version 000003, 10 images (1 replaced, 1 removed)\n"
    searcher = Searcher.open(index)
    assert searcher.explain(first.name, "a pond").score != before
    assert second.name not in {hit.id for hit in searcher.search(Query("a pond"), k=20)}


def test_a_first_start_that_was_killed_and_then_changed_ends_in_step(made, tmp_path, monkeypatch):
    folder, index = tmp_path / "images", tmp_path / "place" / "index"
    shutil.copytree(made / "images", folder)
    with monkeypatch.context() as patch:
        patch.setattr(folder_index, "build_index", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            up_to_date(made, folder, index)
    gone, changed, *_ = sorted(folder.glob("scene*"))
    gone.unlink()
    shutil.copyfile(max(folder.glob("scene*")), changed)
    up_to_date(made, folder, index)
    searcher = Searcher.open(index)
    found = {hit.id: hit.score for hit in searcher.search(Query("a pond"), k=20)}
    twin = max(folder.glob("scene*")).name  # the same image, scored in a batch of its own
    assert len(found) == 10 and found[changed.name] == pytest.approx(found[twin], abs=1e-5)


def test_what_is_wrong_is_said(made, tmp_path):
    with pytest.raises(DataError, match="no such folder"):
        up_to_date(made, tmp_path / "nothing", tmp_path / "index")
    (tmp_path / "bad").mkdir()
    shutil.copyfile(made / "images" / "bad.png", tmp_path / "bad" / "bad.png")
    with pytest.raises(DataError, match="none of 1 images could be read"):
        up_to_date(made, tmp_path / "bad", tmp_path / "bad-place" / "index")
    assert not (tmp_path / "bad-place" / "index").exists()


def test_another_model_than_the_index_was_made_with_is_refused(made, tmp_path):
    index = tmp_path / "place" / "index"
    up_to_date(made, made / "images", index)
    torch.manual_seed(1)
    Retriever.create(RetrieverConfig(dim=32, image_size=64), ["a pond"]).save(tmp_path / "other")
    with pytest.raises(ModelError, match="is of model"):
        bring_up_to_date(
            made / "images", index, model=tmp_path / "other", tile=0, device="cpu", progress=False, tell=print
        )
    with pytest.raises(ModelError, match="is of model"):
        Searcher.open(index, model=tmp_path / "other")


def test_a_taken_port_and_a_bad_token_are_clear_errors(made, tmp_path):
    index = tmp_path / "index"
    up_to_date(made, made / "images", index)
    searcher = Searcher.open(index)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"):
            serve_index(searcher, port=port)
    with pytest.raises(ConfigError, match="cannot listen"):
        serve_index(searcher, port=70_000)
    for token in ("a b", "é", "\n"):
        with pytest.raises(ConfigError, match="token"):
            serve_index(searcher, token=token, port=0)


def test_the_body_of_an_answer_does_not_wait_for_the_other_side():
    with open_listener("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
