"""`pmpguard up` without its server: what is noticed at once, and what is said of a change."""

from __future__ import annotations

import shutil
import socket
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch

from pmpguard.cli import up as up_command
from pmpguard.cli.up import up
from pmpguard.errors import ConfigError, MissingExtraError
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.retriever import Retriever
from pmpguard.search.index.changes import tune_index
from pmpguard.search.index.version import IndexVersion
from pmpguard.synthetic.scenes import synthetic_scenes, write_world


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and three images."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("up")
    world = synthetic_scenes(3)
    write_world(world, folder / "world")
    Retriever.create(RetrieverConfig(dim=32, image_size=64), world.table.captions).save(folder / "model")
    return folder


def test_a_change_is_said_before_the_server_starts(made, tmp_path, monkeypatch, capsys):
    served: list[Path] = []
    monkeypatch.setattr(up_command, "check_startup", lambda *_: None)
    monkeypatch.setattr(up_command, "serve_folder", lambda place, *_: served.append(place))
    images = tmp_path / "images"
    shutil.copytree(made / "world" / "images", images)
    up(images, model=made / "model", device="cpu", progress=False)
    assert capsys.readouterr().err == ""
    place = images / ".pmpguard" / "index"
    tune_index(place, names=["4bit"])
    shutil.copyfile(next(iter(sorted(images.glob("*.png")))), images / "new.png")
    up(images, device="cpu", progress=False)
    assert "4 images (1 added)" in capsys.readouterr().err
    with closing(IndexVersion.open_current(place)) as version:
        assert version.description.codec_name == version.images.vectors.codec.spec.name == "4bit"
    assert served == [place] * 2


def test_what_would_keep_the_server_from_starting_is_noticed_before_anything_is_embedded(
    made, tmp_path, monkeypatch
):
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    folder, options = made / "world" / "images", {"model": made / "model", "index": tmp_path / "place/index"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1 port {port}"):
            up(folder, port=port, **options)
    with pytest.raises(ConfigError, match="token"):
        up(folder, port=0, token="a b", **options)
    monkeypatch.setenv("PMPGUARD_TOKEN", "é")
    with pytest.raises(ConfigError, match="token"):
        up(folder, port=0, **options)
    for module in ("uvicorn", "fastapi", "python_multipart"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            with pytest.raises(MissingExtraError, match=rf"{module}(.|\n)*pmpguard\[serve\]"):
                up(folder, port=0, **options)
    assert not (tmp_path / "place").exists()
