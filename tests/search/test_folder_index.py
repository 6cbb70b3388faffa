"""The index of a folder: where it goes, tiles it remembers, what is followed and what is refused."""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from pmpguard.errors import ConfigError, DataError
from pmpguard.geo.scenes import has_coordinates
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.retriever import Retriever
from pmpguard.search import folder_index
from pmpguard.search.folder_index import bring_up_to_date, usual_place
from pmpguard.search.query import Query
from pmpguard.search.searcher import Searcher
from pmpguard.synthetic.scenes import synthetic_scenes, write_world

GEO = "the extra geo is not installed"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a dataset of six images."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("up")
    world = synthetic_scenes(6)
    write_world(world, folder / "world")
    Retriever.create(RetrieverConfig(dim=32, image_size=64), world.table.captions).save(folder / "model")
    return folder


def update(made: Path, source: Path, index: Path, tile: int | None = None, **options: Any) -> Searcher:
    settings = {"model": made / "model", "device": "cpu", "progress": False, "tell": tell, **options}
    bring_up_to_date(source, index, tile=tile, **settings)
    return Searcher.open(index)


def tell(text: str) -> None:
    print(text, file=sys.stderr)


def write_scene(path: Path, seed: int = 0, height: int = 64) -> None:
    """A small GeoTIFF."""
    rasterio = pytest.importorskip("rasterio", reason=GEO)
    path.parent.mkdir(exist_ok=True)
    pixels = torch.randint(256, (3, height, 64), generator=torch.Generator().manual_seed(seed)).byte().numpy()
    grid = rasterio.transform.from_origin(500_000, 5_400_000, 10, 10)
    layout = {"driver": "GTiff", "width": 64, "count": 3, "dtype": "uint8", "crs": "EPSG:32633"}
    with rasterio.open(path, "w", transform=grid, height=height, **layout) as scene:
        scene.write(pixels)


def test_scenes_are_cut_into_tiles_that_keep_their_place(made, tmp_path):
    folder, index = tmp_path / "scenes", tmp_path / "place" / "index"
    write_scene(folder / "a.tif", height=80)
    for _ in range(2):
        update(made, folder, index, tile=32)
    searcher = Searcher.open(index)
    hits = searcher.search(Query("a pond"), k=50)
    assert searcher.version == "000001" and len(hits) == searcher.count > 4
    wests = sorted({float(str(hit.metadata["west"])) for hit in hits})
    assert wests[0] == pytest.approx(15, abs=1e-5) and wests[-1] < 15.01  # the zone's middle is 15° east
    assert searcher.image(hits[0].id).size == (32, 32)


def test_scenes_that_change_or_are_deleted_are_followed(made, tmp_path):
    folder, index = tmp_path / "scenes", tmp_path / "place" / "index"

    def found() -> dict[str, float]:
        update(made, folder, index, tile=32)
        searcher = Searcher.open(index)
        hits = searcher.search(Query("a pond"), k=50)
        assert all(searcher.image(hit.id).size == (32, 32) for hit in hits)
        return {hit.id: hit.score for hit in hits}

    write_scene(folder / "a.tif", 0)
    write_scene(folder / "b.tif", 1)
    before = found()
    assert {id[0] for id in before} == {"a", "b"}
    write_scene(folder / "a.tif", 2)
    os.utime(folder / "a.tif", ns=(7, 7))
    (folder / "b.tif").unlink()
    after = found()
    assert set(after) == {id for id in before if id[0] == "a"}
    assert all(after[id] != before[id] for id in after)
    folder.rename(tmp_path / "moved")
    folder = tmp_path / "moved"
    assert found() == after


def test_the_size_of_tiles_is_remembered_and_another_one_refused(made, tmp_path, capsys):
    folder = tmp_path / "scenes"
    write_scene(folder / "a.tif")
    index = usual_place(folder)
    count = update(made, folder, index, tile=32).count
    assert count > 1 and capsys.readouterr().err == ""
    for tile in (None, 32):
        searcher = update(made, folder, index, tile=tile, model=None)
        assert (searcher.version, searcher.count) == ("000001", count)
    for tile in (16, 0):
        with pytest.raises(
            ConfigError, match=rf"made of tiles of 32 pixels, and --tile is {tile}"
        ) as flagged:
            update(made, folder, index, tile=tile)
        assert "--index" in flagged.value.fix
    second = tmp_path / "place" / "second"
    assert update(made, folder, second, tile=64).count == 1
    assert update(made, folder, tmp_path / "place" / "third").count == 1  # beside it, whole
    for name in ("second", "third"):  # and neither disturbs the other
        searcher = update(made, folder, tmp_path / "place" / name, model=None)
        assert searcher.image(searcher.search(Query("a pond"))[0].id).size == (64, 64)
    with pytest.raises(ConfigError, match="made of whole images, and --tile is 32"):
        update(made, folder, tmp_path / "place" / "third", tile=32)


def test_a_first_run_that_was_killed_goes_on_with_its_tiles_or_takes_others(made, tmp_path, monkeypatch):
    folder = tmp_path / "scenes"
    write_scene(folder / "a.tif")
    for index in (tmp_path / "same", tmp_path / "others", tmp_path / "whole"):
        with monkeypatch.context() as patch:
            patch.setattr(folder_index, "build_index", lambda *_, **__: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                update(made, folder, index, tile=32)
    assert update(made, folder, tmp_path / "same").count > 1
    assert update(made, folder, tmp_path / "others", tile=64).count == 1
    assert update(made, folder, tmp_path / "whole", tile=0).count == 1


def test_scenes_with_coordinates_are_worth_a_hint(made, tmp_path, capsys):
    rasterio = pytest.importorskip("rasterio", reason=GEO)
    folder = tmp_path / "scenes"
    write_scene(folder / "a.tif")
    update(made, folder, tmp_path / "first")
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1 and "a.tif" in warnings[0] and "--tile 256" in warnings[0]
    with (
        rasterio.open(folder / "a.tif") as scene,
        rasterio.open(folder / "big.tif", "w", BIGTIFF="YES", **scene.profile),
    ):
        pass
    assert has_coordinates(folder / "big.tif")
    (folder / "big.tif").unlink()
    update(made, folder, tmp_path / "first")
    update(made, folder, tmp_path / "second", tile=0)
    assert capsys.readouterr().err == ""  # once there is an index, or whoever says so, needs none
    (tmp_path / "plain").mkdir()
    Image.new("RGB", (64, 64)).save(tmp_path / "plain" / "b.tif")
    (tmp_path / "plain" / "broken.tif").write_bytes(b"II*\0")
    update(made, tmp_path / "plain", tmp_path / "third")
    assert "--tile" not in capsys.readouterr().err


def shard(path: Path, images: list[Path]) -> Path:
    with tarfile.open(path, "w") as archive:
        for image in images:
            archive.add(image, image.name)
    return path


def test_shards_a_pattern_of_them_one_image_and_a_dataset_file(made, tmp_path):
    images = sorted((made / "world" / "images").iterdir())
    shards = [shard(tmp_path / f"part-{number}.tar", images[3 * number :][:3]) for number in range(2)]
    shutil.copyfile(images[0], tmp_path / "one.png")
    shutil.copytree(made / "world", tmp_path / "world")
    sources = {
        shards[0]: 3, tmp_path / "part-{0..1}.tar": 6, tmp_path / "part-*.tar": 6,
        tmp_path / "one.png": 1, tmp_path / "world" / "pairs.parquet": 6,
    }  # fmt: skip
    places = {usual_place(source) for source in sources}
    assert len(places) == len(sources)
    for source, count in sources.items():
        index = usual_place(source)
        assert index.parent.parent == source.parent and index.parent.name.startswith(".pmpguard-")
        assert update(made, source, index).count == count
        assert update(made, source, index, model=None).version == "000001"
    with pytest.raises(DataError, match="shard not found"):
        update(made, tmp_path / "absent-*.tar", tmp_path / "index")
    with pytest.raises(ConfigError, match=r"no folder to keep its index in(.|\n)*--index"):
        usual_place(tmp_path / "{a,b}" / "part-*.tar")


def test_a_place_that_cannot_be_written_is_named(made, tmp_path, monkeypatch):
    folder = tmp_path / "images"
    shutil.copytree(made / "world" / "images", folder)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:  # the tests may run as root, who may write anywhere
        patch.setattr(tempfile, "TemporaryFile", refuse)
        with pytest.raises(ConfigError, match=r"images/\.pmpguard: cannot be written") as flagged:
            update(made, folder, usual_place(folder))
    assert "--index" in flagged.value.fix
    shutil.rmtree(folder / ".pmpguard")
    (folder / ".pmpguard").write_text("in the way")
    with pytest.raises(ConfigError, match="cannot be written"):
        update(made, folder, usual_place(folder))
