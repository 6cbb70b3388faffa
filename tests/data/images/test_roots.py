"""Where images are looked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from pmpguard.cli.main import main
from pmpguard.data.formats import read_pairs
from pmpguard.data.formats.shards import image_bytes
from pmpguard.data.images.decode import ImageError, load_pair_image
from pmpguard.data.images.roots import locate_images, outside_allowed
from pmpguard.data.pairs import PairTable
from pmpguard.data.quality.check import check_dataset
from pmpguard.errors import DataError


def put(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


@pytest.mark.parametrize(
    ("stored", "named", "root"),
    [
        ("data/images/a.png", "a.png", "data/images"),
        ("data/pictures/a.png", "a.png", "data/pictures"),
        ("data/a.png", "/home/someone/a.png", "data"),
        ("images/train/a.png", "x/train/a.png", "images"),
        ("train2017/a.png", "train2017/a.png", "."),  # beside data/, which holds the annotations
        ("data/UCM_images/a.png", "a.png", "data/UCM_images"),
    ],
)
def test_usual_places(tmp_path: Path, stored: str, named: str, root: str) -> None:
    put(tmp_path, stored)
    (tmp_path / "data").mkdir(exist_ok=True)
    found, names = locate_images([named], tmp_path / "data", None)
    assert found.resolve() == (tmp_path / root).resolve() and (found / names[0]).is_file()


def test_the_folder_with_most_of_the_names_is_taken(tmp_path: Path) -> None:
    names = [f"{number}.png" for number in range(10)]
    put(tmp_path / "a", *names[:2])
    put(tmp_path / "b", *names)
    assert locate_images(names, tmp_path, None) == (tmp_path / "b", names)


def test_a_folder_beside_is_not_taken_for_the_images(tmp_path: Path) -> None:
    put(tmp_path / "other_dataset", "1.png")
    (tmp_path / "mine").mkdir()
    assert locate_images(["1.png"], tmp_path / "mine", None)[0] == tmp_path / "mine" / "images"


def test_a_name_that_no_file_system_takes_is_missing(tmp_path: Path) -> None:
    assert locate_images(["a" * 5000, "b"], tmp_path, None)[1] == ["a" * 5000, "b"]


def confined_dataset(folder: Path) -> PairTable:
    """Four images: inside, by `..`, by an absolute path, by a link that leads out."""
    secret = folder / "secret" / "s.png"
    for path in (secret, folder / "data" / "a.png"):
        path.parent.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(path)
    (folder / "data" / "link.png").symlink_to(secret)
    names = ["a.png", "../secret/s.png", str(secret), "link.png"]
    lines = [json.dumps({"image": name, "caption": f"{row}"}) for row, name in enumerate(names)]
    (folder / "data" / "x.jsonl").write_text("\n".join(lines))
    return read_pairs(folder / "data" / "x.jsonl")


def test_images_outside_the_dataset_are_refused_and_named_unless_allowed(tmp_path):
    table = confined_dataset(tmp_path)
    load_pair_image(table, 0)
    for row in (1, 2, 3):
        with pytest.raises(ImageError, match=f"row {row} names an image outside") as error:
            load_pair_image(table, row)
        assert "--allow-outside" in error.value.fix and error.value.kind == "outside"
        with pytest.raises(DataError, match="outside"):
            image_bytes(table, table.column("image")[row])
        load_pair_image(replace(table, allow_outside=True).slice(row), 0)
        with outside_allowed(True):
            load_pair_image(table, row)
            with pytest.raises(ImageError):
                load_pair_image(replace(table, allow_outside=False), row)
    assert len(list(check_dataset(table).problems)) == 1
    assert not check_dataset(read_pairs(tmp_path / "data" / "x.jsonl", allow_outside=True)).problems


def test_absolute_names_below_the_folder_are_found_there(tmp_path):
    table = confined_dataset(tmp_path)
    (tmp_path / "data" / "y.csv").write_text(f"filepath,title\n{tmp_path / 'data' / 'a.png'},a pond\n")
    load_pair_image(read_pairs(tmp_path / "data" / "y.csv"), 0)
    load_pair_image(replace(table, root=tmp_path), 2)  # the folder that holds both


def test_the_option_of_the_command_opens_them(tmp_path, capsys):
    confined_dataset(tmp_path)
    words = ["data", "convert", str(tmp_path / "data" / "x.jsonl"), str(tmp_path / "out"), "--to", "folder"]
    assert main(words) == 1
    assert "--allow-outside" in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main([*words, "--allow-outside"]) == 0


def test_a_recorded_folder_that_holds_everything_is_not_believed(tmp_path):
    confined_dataset(tmp_path)
    (tmp_path / "data" / "deep").mkdir()
    name = str(tmp_path / "secret" / "s.png").lstrip("/")
    table = PairTable.from_columns({"image": [name], "caption": ["a"]}, Path("/"))
    table.write_parquet(tmp_path / "data" / "deep" / "p.parquet")
    with pytest.raises(ImageError):
        load_pair_image(read_pairs(tmp_path / "data" / "deep" / "p.parquet"), 0)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("D:\\data\\images\\{}.png", "images/{}.png"),
        ("images\\{}.png", "images/{}.png"),
        ("{}", "{}.png"),
        ("/home/someone/images/{}", "images/{}.png"),
    ],
)
def test_names_of_windows_and_names_without_an_ending(tmp_path: Path, named: str, found: str) -> None:
    put(tmp_path / "images", "a.png", "b.png")
    root, names = locate_images([named.format(name) for name in "ab"], tmp_path, None)
    assert [root / name for name in names] == [tmp_path / "images" / f"{name}.png" for name in "ab"]
    assert names in ([found.format(name) for name in "ab"], ["a.png", "b.png"])


def test_a_name_with_a_backslash_is_left_alone_where_it_is_a_file(tmp_path: Path) -> None:
    put(tmp_path, "a\\b.png")
    assert locate_images(["a\\b.png"], tmp_path, None) == (tmp_path, ["a\\b.png"])


def test_addresses_are_not_fetched(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("url,caption\nhttps://example.org/1.jpg,a pond\n")
    with pytest.raises(DataError, match=r"images are addresses \(https://example\.org/1\.jpg\).*img2dataset"):
        read_pairs(tmp_path / "a.csv", strict=True)
