import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pmpguard.cli.main import run_verb
from pmpguard.cli.tile import parse_bands, tile
from pmpguard.errors import ConfigError, MissingExtraError

rasterio = pytest.importorskip("rasterio", reason="the extra geo is not installed")


def write_scene(path, bands=3, side=40, kind="uint8", seed=0):
    pixels = np.random.default_rng(seed).integers(1, 200, (bands, side, side), dtype=kind)
    place = rasterio.transform.from_origin(500_000, 5_400_000, 10, 10)
    path.parent.mkdir(parents=True, exist_ok=True)
    with rasterio.open(
        path,
        "w",
        driver="GTiff",
        width=side,
        height=side,
        count=bands,
        dtype=kind,
        crs="EPSG:32633",
        transform=place,
    ) as dataset:
        dataset.write(pixels)
    return pixels


def run(*words):
    return run_verb("tile", tile, [*words, "--progress", "false"])


def test_tiles_of_a_folder(tmp_path, capsys):
    pixels = write_scene(tmp_path / "in" / "a.tif", bands=4)
    out = tmp_path / "out"
    words = ["--size", "20", "--overlap", "0", "--bands", "4,3,2", "--stretch", "none", "--min-valid", "0.9"]
    assert run(str(tmp_path / "in"), "--out", str(out), *words) == 0
    assert "4 tiles; 1 scenes cut now, 0 found done" in capsys.readouterr().out
    rows = pq.read_table(out / "metadata.parquet").to_pylist()
    assert [(row["row"], row["column"]) for row in rows] == [(0, 0), (0, 20), (20, 0), (20, 20)]
    image = np.asarray(Image.open(out / rows[1]["image"]))
    assert np.array_equal(image, np.moveaxis(pixels[[3, 2, 1], :20, 20:], 0, -1))


def test_a_damaged_scene_sets_the_exit_code_and_is_in_the_report(tmp_path, capsys):
    write_scene(tmp_path / "in" / "a.tif")
    (tmp_path / "in" / "b.tif").write_bytes(b"II*\0 and then nothing")
    assert run(str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert report["tiles"] == 1 and report["cut"] == 1
    assert [problem["image"] for problem in report["problems"]] == [str(tmp_path / "in" / "b.tif")]


@pytest.mark.parametrize("text", ["1,2,", "0,1,2", "-1", ","])
def test_bands_that_are_no_numbers(text):
    with pytest.raises(ConfigError, match="bands"):
        parse_bands(text)


def test_without_the_extra_the_error_says_how_to_get_it(tmp_path, monkeypatch):
    write_scene(tmp_path / "a.tif")
    monkeypatch.setitem(sys.modules, "rasterio", None)
    with pytest.raises(MissingExtraError, match=r"pmpguard\[geo\]"):
        tile(tmp_path / "a.tif", tmp_path / "out", progress=False)


def test_the_folder_to_write_must_be_named(tmp_path):
    with pytest.raises(ConfigError, match="where do the tiles go"):
        tile(tmp_path)


RUN = """
import sys
from pathlib import Path
from pmpguard.cli.tile import tile
tile(Path(sys.argv[1]), Path(sys.argv[2]), size=16, overlap=0.5, progress=False)
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(tmp_path):
    for number in range(6):
        write_scene(tmp_path / "in" / f"{number}.tif", side=120, seed=number)
    out = tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    process = subprocess.Popen([sys.executable, "-c", RUN, tmp_path / "in", out], env=environment)
    try:
        deadline = time.monotonic() + 60
        while len(list(out.glob("[0-9]-*/scene.json"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    finished = list(out.glob("[0-9]-*"))
    assert 2 <= len(finished) < 6 and not (out / "metadata.parquet").exists()
    report = tile(tmp_path / "in", out, size=16, overlap=0.5, progress=False)
    assert (report.found_done, report.cut) == (len(finished), 6 - len(finished))
    assert [path for path in out.iterdir() if path.name.startswith(".tmp")] == []
    tile(tmp_path / "in", tmp_path / "straight", size=16, overlap=0.5, progress=False)
    table, straight = (pq.read_table(folder / "metadata.parquet") for folder in (out, tmp_path / "straight"))
    assert table.equals(straight)
    for name in table["image"].to_pylist()[::50]:
        assert (out / name).read_bytes() == (tmp_path / "straight" / name).read_bytes()
