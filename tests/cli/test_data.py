import importlib
import inspect
import json

import numpy as np
import pytest
from PIL import Image

from pmpguard.cli.main import VERBS, main


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
            "--across",
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


PAIR_OPTIONS = {"columns", "format", "images"}


def test_every_command_that_reads_pairs_takes_their_columns_and_format():
    """Whether a dataset is asked for by its name, or by two of these options; a report has its own pairs."""
    options = {}
    for verb, (module, name, _) in VERBS.items():
        command = getattr(importlib.import_module(f"pmpguard.cli.{module}"), name)
        options[verb] = inspect.signature(command).parameters.keys()
    asked = {verb: names for verb, names in options.items() if "report" not in names}
    reads = {verb for verb, names in asked.items() if "dataset" in names or len(names & PAIR_OPTIONS) > 1}
    assert len(reads) >= 14 and {"corrupt export", "table", "up"} <= reads
    assert not [verb for verb in reads if not options[verb] >= PAIR_OPTIONS]


def test_columns_reach_check_sheet_corrupt_and_train(dataset, tmp_path, capsys):
    lines = [json.loads(line) for line in dataset.read_text().splitlines()]
    odd = tmp_path / "odd.csv"
    rows = [f"{line['image']};{line['caption']};{line['split']}" for line in lines]
    odd.write_text("\n".join(["Bild;Satz;Menge", *rows]) + "\n")
    columns = ["--columns", "image=Bild,caption=Satz,split=Menge"]
    assert main(["data", "check", str(odd), *columns, "--progress", "false"]) == 0
    assert main(["data", "sheet", str(odd), *columns, "--out", str(tmp_path / "sheet.png")]) == 0
    assert main(["corrupt", str(odd), str(tmp_path / "noise.json"), "0.25", *columns]) == 0
    assert "4 of 16 captions are now mismatched" in capsys.readouterr().out
    assert main(["train", str(tmp_path / "run"), "--dataset", str(odd)]) == 1
    error = capsys.readouterr().err
    assert "no column for the image" in error and "found Bild, Satz, Menge" in error
    assert main(["train", str(tmp_path / "run"), "--dataset", str(odd), *columns]) == 1
    assert "no split 'val'" in capsys.readouterr().err  # the pairs were read
