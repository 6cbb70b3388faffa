import json

import numpy as np
import pytest
from PIL import Image

from pmpguard.cli.main import main


@pytest.fixture
def dataset(tmp_path):
    """Twelve images, two captions each, as a JSONL file beside its images."""
    rng = np.random.default_rng(0)
    lines = []
    for number in range(12):
        image = Image.fromarray(rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)).resize((48, 48))
        image.save(tmp_path / f"{number}.png")
        for caption in (f"scene {number}", f"an image of scene {number}"):
            split = "train" if number < 8 else "test"
            lines.append(json.dumps({"image": f"{number}.png", "caption": caption, "split": split}))
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_check_of_a_sound_dataset(dataset, capsys):
    assert main(["data", "check", str(dataset), "--progress", "false"]) == 0
    captured = capsys.readouterr()
    assert "train" in captured.out and "problems: none" in captured.out


def test_check_names_bad_images_and_exits_with_1(dataset, capsys):
    (dataset.parent / "3.png").write_bytes(b"")
    assert main(["data", "check", str(dataset), "--json", "--progress", "false"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert [(finding["kind"], finding["items"][0]["where"]) for finding in report["findings"]] == [
        ("unreadable_images", ["3.png"])
    ]


def test_training_on_another_datasets_test_images_is_a_problem(dataset, capsys):
    other = dataset.with_name("other.jsonl")
    other.write_text(json.dumps({"image": "9.png", "caption": "a scene", "split": "train"}) + "\n")
    assert main(["data", "check", str(dataset), "--against", str(other), "--progress", "false"]) == 1
    assert "pairs 'test' and other 'train' share images: 1 of the 4" in capsys.readouterr().out


def test_stats_as_table_and_json(dataset, capsys):
    assert main(["data", "stats", str(dataset)]) == 0
    assert "best t2i R@1 by ids" in capsys.readouterr().out
    assert main(["data", "stats", str(dataset), "--json"]) == 0
    splits = json.loads(capsys.readouterr().out)["splits"]
    assert [(split["split"], split["images"], split["best_t2i"]["1"]) for split in splits] == [
        ("train", 8, 1.0),
        ("test", 4, 1.0),
    ]


def test_sheet_is_a_image_and_depends_on_the_seed(dataset, tmp_path, capsys):
    sheets = [tmp_path / f"out/{name}.png" for name in ("a", "b", "c")]
    for path, seed in zip(sheets, ("0", "0", "1"), strict=True):
        words = [
            "data",
            "sheet",
            str(dataset),
            "--out",
            str(path),
            "--count",
            "6",
            "--columns",
            "3",
            "--seed",
            seed,
        ]
        assert main(words) == 0
    first, again, other = (path.read_bytes() for path in sheets)
    assert first == again != other
    with Image.open(sheets[0]) as image:
        assert image.width > 3 * 224 and image.format == "PNG"
    assert "6 images" in capsys.readouterr().out


def test_sheet_of_an_unknown_split_names_the_known_ones(dataset, tmp_path, capsys):
    assert main(["data", "sheet", str(dataset), "--out", str(tmp_path / "s.png"), "--split", "dev"]) == 1
    error = capsys.readouterr().err
    assert "dev" in error and "train" in error and not (tmp_path / "s.png").exists()


def test_a_missing_dataset_is_named(tmp_path, capsys):
    assert main(["data", "stats", str(tmp_path / "nowhere.json")]) == 1
    assert "nowhere.json" in capsys.readouterr().err


def test_scenes_are_written_as_a_dataset(tmp_path, capsys):
    assert main(["data", "scenes", str(tmp_path / "world"), "--count", "30"]) == 0
    assert "30 scenes" in capsys.readouterr().out
    assert main(["data", "stats", str(tmp_path / "world"), "--json"]) == 0
    assert sum(split["images"] for split in json.loads(capsys.readouterr().out)["splits"]) == 30


def test_convert_is_reachable(dataset, tmp_path):
    from pmpguard.cli import data

    assert data.convert.__module__ == "pmpguard.cli.convert_data"
