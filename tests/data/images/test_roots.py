"""Where images are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from pmpguard.data.images.roots import locate_images


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
