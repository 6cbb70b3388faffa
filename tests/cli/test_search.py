"""`pmpguard embed`, `index ...` and `search` through the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from pmpguard.cli import embed as embed_command
from pmpguard.cli import index as index_command
from pmpguard.cli import search as search_command
from pmpguard.cli.main import main, run_verb
from pmpguard.errors import ConfigError, DataError, PmpguardError
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.retriever import Retriever
from pmpguard.search.index import updates as updating
from pmpguard.search.query_checks import QueryError
from pmpguard.synthetic.scenes import synthetic_scenes, write_world

VERBS = {
    "embed": embed_command.embed, "index build": index_command.build, "index add": index_command.add,
    "index remove": index_command.remove, "index verify": index_command.verify,
    "index tune": index_command.tune,
    "index info": index_command.info, "search": search_command.search,
}  # fmt: skip


def run(verb: str, *words: object) -> int:
    return run_verb(verb, VERBS[verb], [str(word) for word in words])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with dataset, model, embedding and index."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("search-commands")
    world = synthetic_scenes(30)
    write_world(world, folder / "world")
    config = RetrieverConfig(dim=32, image_size=64, max_tokens=24)
    Retriever.create(config, world.table.captions).save(folder / "model")
    words = ["--model", folder / "model", "--out", folder / "emb", "--progress", "false", "--device", "cpu"]
    assert run("embed", folder / "world", *words) == 0
    assert run("index build", folder / "index", "--embeddings", folder / "emb") == 0
    return folder


def told(capsys: pytest.CaptureFixture[str], verb: str, *words: object, code: int = 0) -> Any:
    capsys.readouterr()
    assert run(verb, *words, "--json") == code
    return json.loads(capsys.readouterr().out)


def test_a_table_of_hits(made, capsys):
    assert run("search", made / "index", "a green field", "--k", 4) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5 and lines[0].split() == ["score", "match", "id", "caption"]
    assert lines[1].split()[0] == "1" and "%" in lines[1]
    scores = [float(line.split()[1]) for line in lines[1:]]
    assert scores == sorted(scores, reverse=True)


def test_hits_as_json_with_explanations_filters_and_a_sheet(made, tmp_path, capsys):
    sheet = tmp_path / "deep" / "sheet.png"
    found = told(
        capsys, "search", made / "index", "green field", "--k", 3, "--where", "split=test,split=val",
        "--explain", "true", "--sheet", sheet, "--geojson", tmp_path / "new" / "hits.geojson",
    )  # fmt: skip
    assert len(found["hits"]) == 3 and found["count"] == 30 and found["version"] == "000001"
    for hit in found["hits"]:
        assert hit["metadata"]["split"] in ("test", "val") and hit["kind"] == "image"
        words = hit["explanation"]["words"]
        assert [word["word"] for word in words] == ["green", "field"]
        total = sum(word["positive"] + word["negative"] for word in words)
        assert total == pytest.approx(hit["explanation"]["score"], abs=1e-4) and len(words[0]["regions"]) > 1
    assert Image.open(sheet).width > 600
    written = json.loads((tmp_path / "new" / "hits.geojson").read_text())
    assert [feature["id"] for feature in written["features"]] == [hit["id"] for hit in found["hits"]]
    assert run("search", made / "index", "green field", "--k", 2, "--explain", "true") == 0
    assert "best at row" in capsys.readouterr().out


def test_searching_by_image_and_for_captions(made, tmp_path, capsys):
    image = next((made / "world/images").iterdir())
    found = told(capsys, "search", made / "index", "", "--image", image, "--k", 2)
    assert Path(found["hits"][0]["image"]).name == image.name and found["hits"][0]["probability"] is None
    found = told(
        capsys,
        "search",
        made / "index",
        "",
        "--image",
        image,
        "--kind",
        "caption",
        "--sheet",
        tmp_path / "s.png",
    )
    assert found["hits"][0]["kind"] == "caption" and (tmp_path / "s.png").is_file()
    found = told(capsys, "search", made / "index", "a pond", "--image", image, "--text-weight", 0.2)
    assert len(found["hits"]) == 20


def test_a_image_alone_needs_no_text(made, capsys):
    image = made / "world/images/scene-000003.png"
    found = told(capsys, "search", made / "index", "--image", image, "-k", 2)
    assert found["hits"][0]["image"].endswith("scene-000003.png") and len(found["hits"]) == 2
    with pytest.raises(PmpguardError, match="is empty"):
        run("search", made / "index")


def test_a_box_west_of_greenwich(made, capsys):
    assert run("search", made / "index", "field", "--box", "-10,40,5,50") == 0
    assert capsys.readouterr().out == "nothing found among 30 images\n"


def test_the_nearest_to_a_place_come_first(made, tmp_path, capsys):
    images = tmp_path / "images"
    images.mkdir()
    for number in range(4):
        Image.new("RGB", (64, 64), (60 * number, 0, 0)).save(images / f"{number}.png")
    table = {"id": list("wxyz"), "image": [f"{number}.png" for number in range(4)]}
    places = {"lon": [8.0, 7.5, None, -170.0], "lat": [47.0, 47.0, None, 0.0]}
    pq.write_table(pa.table({**table, **places}), images / "metadata.parquet")
    words = (images, "--model", made / "model", "--out", tmp_path / "emb", "--progress", "false")
    assert run("embed", *words) == 0
    assert run("index build", tmp_path / "index", "--embeddings", tmp_path / "emb") == 0
    hits = told(capsys, "search", tmp_path / "index", "--near", "7.4,47.0")["hits"]
    assert [hit["id"] for hit in hits] == ["x", "w", "z"]
    away = [hit["metadata"]["distance_km"] for hit in hits]
    assert away[:2] == pytest.approx([7.58, 45.5], abs=0.1) and [-hit["score"] for hit in hits] == away
    assert told(capsys, "search", tmp_path / "index", "--near", "7.4,47.0", "-k", 1)["hits"] == hits[:1]
    near = told(capsys, "search", tmp_path / "index", "field", "--near", "7.4,47.0", "--radius", 50)["hits"]
    assert {hit["id"] for hit in near} == {"w", "x"} and near[0]["score"] > near[1]["score"]
    assert {hit["metadata"]["distance_km"] for hit in near} == set(away[:2])
    box = told(capsys, "search", tmp_path / "index", "--near=-171,-1,-169,1", "--radius", 1)["hits"]
    assert [(hit["id"], hit["score"]) for hit in box] == [("z", 0.0)]
    assert run("search", tmp_path / "index", "--near", "7.4,47.0") == 0
    assert "km" in capsys.readouterr().out.splitlines()[0]
    with pytest.raises(PmpguardError, match="how near"):
        run("search", tmp_path / "index", "field", "--near", "7.4,47.0")


def test_repeated_conditions_and_numbers(made, tmp_path, capsys):
    images = tmp_path / "images"
    images.mkdir()
    rows = [("a, b", 5.0), ("a, b", 30.0), ("c", 5.0), ("c", 20.0)]
    for number in range(4):
        Image.new("RGB", (64, 64), (60 * number, 0, 0)).save(images / f"{number}.png")
    table = {"id": list("wxyz"), "image": [f"{number}.png" for number in range(4)]}
    columns = {"label": [label for label, _ in rows], "cloud_cover": [cover for _, cover in rows]}
    pq.write_table(pa.table({**table, **columns}), images / "metadata.parquet")
    words = (images, "--model", made / "model", "--out", tmp_path / "emb", "--progress", "false")
    assert run("embed", *words) == 0
    assert run("index build", tmp_path / "index", "--embeddings", tmp_path / "emb") == 0

    def ids(*conditions: str) -> str:
        options = [word for condition in conditions for word in ("--where", condition)]
        hits = told(capsys, "search", tmp_path / "index", "field", *options)["hits"]
        return "".join(sorted(hit["id"] for hit in hits))

    assert ids() == "wxyz" and ids("label=a, b") == "wx" and ids("label=a, b,label=c") == "wxyz"
    assert ids("label=a, b", "cloud_cover=5") == "w" == ids("cloud_cover=5.0", "label=a, b")
    assert ids("cloud_cover<20") == "wy" and ids("cloud_cover<=20") == "wyz"
    assert ids("cloud_cover>=20", "cloud_cover<30") == "z" and ids("cloud_cover > -1", "label=c") == "yz"
    with pytest.raises(ConfigError, match="holds no numbers"):
        ids("label<3")


def test_nothing_found_and_nothing_asked(made, tmp_path, capsys):
    assert run("search", made / "index", "field", "--box", "5,5,6,6") == 0
    assert capsys.readouterr().out == "nothing found among 30 images\n"
    assert run("search", made / "index", "field", "--kind", "caption", "--where", "split=none") == 0
    assert capsys.readouterr().out == "nothing found among 150 captions\n"
    empty = tmp_path / "empty.geojson"
    words = ("search", made / "index", "field", "--where", "split=none", "--geojson", empty)
    assert run(*words, "--sheet", tmp_path / "never.png") == 0
    assert capsys.readouterr().out == f"nothing found among 30 images\nfootprints: {empty}\n"
    assert json.loads(empty.read_text())["features"] == []
    with pytest.raises(PmpguardError, match="is empty"):
        run("search", made / "index", "")
    for words in (("", "--image", made / "world/images/scene-000000.png"), ("field", "--kind", "caption")):
        with pytest.raises(QueryError, match="only images found by words"):
            run("search", made / "index", *words, "--explain")
    with pytest.raises(QueryError, match="k is 0"):
        run("search", made / "index", "field", "-k", 0)
    with pytest.raises(QueryError, match="shortlist is 0"):
        run("search", made / "index", "field", "--shortlist", 0)
    for path in (made / "nothing.png", made / "model/config.json"):
        with pytest.raises(QueryError, match=r"after --image"):
            run("search", made / "index", "", "--image", path)
    with pytest.raises(ConfigError, match="four are needed"):
        run("search", made / "index", "field", "--box", "5,5")


def test_adding_removing_and_looking_at_an_index(made, tmp_path, capsys):
    index, images = tmp_path / "index", tmp_path / "images"
    shutil.copytree(made / "index", index)
    images.mkdir()
    for number in range(3):
        Image.new("RGB", (64, 64), (80 * number, 0, 0)).save(images / f"{number}.png")
    (images / "bad.png").write_bytes(b"no image")
    options = ("--progress", "false", "--device", "cpu")
    change = told(capsys, "index add", index, images, *options, code=3)
    assert (change["added"], change["count"], len(change["problems"])) == (3, 33, 1)
    assert not (index / "incoming").exists()
    (images / "bad.png").unlink()
    again = told(capsys, "index add", index, images, *options)
    assert (again["added"], again["known"], again["version"]) == (0, 3, "000002")
    Image.new("RGB", (64, 64)).save(images / "new.png")
    assert told(capsys, "index add", index, images, *options)["added"] == 1
    assert told(capsys, "index add", index, images, "--update", "true", *options)["count"] == 34
    assert told(capsys, "index add", index, images, "--prefix", "two/", *options)["count"] == 38
    with pytest.raises(ConfigError, match="one id on each line"):
        run("index remove", index, f"@{tmp_path / 'absent'}")
    with pytest.raises(ConfigError, match="has its ids already"):
        run("index add", index, made / "emb", "--prefix", "two/")
    listed = tmp_path / "ids.txt"
    listed.write_text("two/0.png\ntwo/1.png\n")
    assert told(capsys, "index remove", index, f"@{listed}")["removed"] == 2
    assert told(capsys, "index remove", index, "0.png,1.png")["count"] == 34
    info = told(capsys, "index info", index)
    assert (
        info["images"] == 34 and info["captions"] == 150 and info["calibrated"] and info["backend"] == "exact"
    )
    assert run("index info", index) == 0
    assert "34 images, 150 captions" in capsys.readouterr().out
    assert run("index verify", index) == 0
    assert "all as they were written" in capsys.readouterr().out


def test_tuning_prints_a_table_and_stores_the_smallest_that_agrees(made, tmp_path, capsys):
    index = tmp_path / "index"
    shutil.copytree(made / "index", index)
    quiet = ("--progress", "false")
    told_only = told(capsys, "index tune", index, "--agreement", "0.9", "--write", "false", *quiet)
    assert told_only["version"] is None and told_only["queries"] == "captions"
    assert run("index tune", index, "--agreement", "0.9", *quiet) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["codec", "bytes", "an", "image", "agreement", "at", "least", "same", "best"]
    assert [line.split()[0] for line in lines[1:-2]] == [row["codec"] for row in told_only["table"]]
    assert [line.split()[0] for line in lines if line.endswith("<-")] == [told_only["codec"]]
    assert lines[-1] == f"{index}: version 000002, vectors as {told_only['codec']}"
    info = told(capsys, "index info", index)
    row = next(row for row in told_only["table"] if row["codec"] == told_only["codec"])
    assert info["codec"]["agreement"] == row["agreement"] and info["image_bytes"] == row["image_bytes"]
    assert run("index info", index) == 0
    assert (
        f"vectors: {row['codec']} (agreement with float16 {row['agreement']:.3f})" in capsys.readouterr().out
    )
    words = ("--embeddings", made / "emb", "--codec", "2bit-8d", *quiet)
    assert run("index build", tmp_path / "built", *words) == 0
    assert told(capsys, "index info", tmp_path / "built")["codec"]["name"] == "2bit-8d"
    with pytest.raises(ConfigError, match="'7bit' is unknown"):
        run("index build", tmp_path / "other", "--embeddings", made / "emb", "--codec", "7bit")


def test_adding_an_embedding_of_the_same_images_changes_nothing(made, tmp_path, capsys):
    shutil.copytree(made / "index", tmp_path / "index")
    change = told(capsys, "index add", tmp_path / "index", made / "emb")
    assert (change["added"], change["known"], change["count"]) == (0, 30, 30)


def test_adding_images_none_of_which_can_be_read(made, tmp_path, capsys):
    shutil.copytree(made / "index", tmp_path / "index")
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.png").write_bytes(b"")
    words = ("index add", tmp_path / "index", tmp_path / "images", "--progress", "false")
    change = told(capsys, *words, code=3)
    assert (change["version"], change["added"], change["count"]) == ("000001", 0, 30)
    assert [(problem["id"], problem["reason"]) for problem in change["problems"]] == [
        ("a.png", "the file is empty")
    ]
    assert run(*words) == 3
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path / 'index'}: version 000001, 30 images (1 could not be read)",
        "  a.png: the file is empty",
    ]
    assert not (tmp_path / "index/incoming").exists() and run("index verify", tmp_path / "index") == 0


def test_embedding_again_and_with_bad_images(made, tmp_path, capsys):
    words = (made / "world", "--model", made / "model", "--out", made / "emb", "--progress", "false")
    assert told(capsys, "embed", *words)["embedded"] == 0
    assert run("embed", *words) == 0
    assert "30 images and 150 captions, 0 images embedded now" in capsys.readouterr().out
    images = tmp_path / "images"
    images.mkdir()
    Image.new("RGB", (64, 64)).save(images / "good.png")
    (images / "bad.png").write_bytes(b"")
    words = (images, "--model", made / "model", "--out", tmp_path / "emb")
    assert run("embed", *words) == 3
    captured = capsys.readouterr()
    assert "bad.png: the file is empty" in captured.out and captured.err == ""  # a bar is for a terminal
    with pytest.raises(ConfigError, match="give --out FOLDER"):
        run("embed", images)
    with pytest.raises(ConfigError, match="--embeddings FOLDER"):
        run("index build", tmp_path / "index")


def test_what_an_interrupted_add_left_is_continued_or_cleared_away(made, tmp_path, capsys, monkeypatch):
    index = tmp_path / "index"
    shutil.copytree(made / "index", index)
    folders = [tmp_path / name for name in ("one", "two")]
    for folder in folders:
        folder.mkdir()
        Image.new("RGB", (64, 64)).save(folder / f"{folder.name}.png")

    def stop(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    options = ("--progress", "false", "--device", "cpu")
    with monkeypatch.context() as patch:
        patch.setattr(updating, "add_to_index", stop)
        with pytest.raises(KeyboardInterrupt):
            run("index add", index, folders[0], *options)
    assert (index / "incoming").is_dir()
    assert told(capsys, "index add", index, folders[1], *options)["added"] == 1
    found = told(capsys, "search", index, "field", "--k", 40)["hits"]
    assert "two.png" in {hit["id"] for hit in found} and "one.png" not in {hit["id"] for hit in found}
    same = tmp_path / "three"
    same.mkdir()
    Image.new("RGB", (64, 64)).save(same / "two.png")
    with pytest.raises(DataError, match="--prefix"):
        run("index add", index, same, *options)


def test_hostile_names_reach_the_terminal_as_escapes_and_stop_nobody(made, tmp_path, capsys):
    """Escape sequences, a bell and line breaks in names, and one name too long for any file."""
    names = ["fine.png", "red\x1b[31m\x07.png", "two\nlines.png"]
    for name in names:
        Image.new("RGB", (64, 64), "green").save(tmp_path / name)
    lines = [*names, "x" * 5000, "gone\x1b]0;title\x07.png"]
    rows = [json.dumps({"image": name, "caption": f"a green field {name[:5]}"}) for name in lines]
    (tmp_path / "pairs.jsonl").write_text("\n".join(rows))
    words = ["--model", made / "model", "--out", tmp_path / "emb", "--progress", "false", "--device", "cpu"]
    index = tmp_path / "index"
    assert main(list(map(str, ["embed", tmp_path / "pairs.jsonl", *words]))) == 3  # some cannot be read
    assert main(["index", "build", str(index), "--embeddings", str(tmp_path / "emb")]) == 0
    assert main(["search", str(index), "a green field", "--device", "cpu"]) == 0
    assert main(["data", "check", str(tmp_path / "pairs.jsonl")]) == 1
    out, err = capsys.readouterr()
    assert "3 images and 3 captions" in out and "x" * 301 not in out + err
    assert r"red\u001b[31m\u0007.png" in out and r"gone\u001b]0;title\u0007.png" in out
    assert r"two\u000alines.png" in out and "two\nlines" not in out + err
    assert not set("\x1b\x07") & set(out + err)
