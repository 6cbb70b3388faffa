import json

import numpy as np
import pytest
from PIL import Image

from pmpguard.data.pairs import PairTable
from pmpguard.data.quality import duplicates
from pmpguard.data.quality.check import check_dataset
from pmpguard.engine.parts import Engine


def landscape(seed, size=64):
    """An image with structure at several scales; each seed gives another."""
    rng = np.random.default_rng(seed)
    sides = (3, 6, 12, 24)
    noise = [Image.fromarray(rng.normal(0, side**-0.7, (side, side)).astype(np.float32)) for side in sides]
    image = sum(np.asarray(layer.resize((size, size), Image.Resampling.BICUBIC)) for layer in noise)
    scaled = 255 * (image - image.min()) / (image.max() - image.min())
    return Image.fromarray(np.stack([scaled, scaled * 0.8, scaled * 0.6], -1).astype(np.uint8))


def dataset(folder, images, name="set", captions=None):
    """`images` maps "split/file" to an image."""
    folder.mkdir(exist_ok=True)
    for place, image in images.items():
        image.save(folder / place.partition("/")[2])
    return PairTable.from_columns(
        {
            "image": [place.partition("/")[2] for place in images],
            "split": [place.partition("/")[0] for place in images],
            "caption": captions or [f"caption {number}" for number in range(len(images))],
        },
        root=folder,
        name=name,
    )


def kinds(report):
    return {finding.kind: finding for finding in report.findings}


def sets_of(finding):
    return {frozenset(item.where) for item in finding.items}


def test_a_sound_dataset_has_no_findings(tmp_path):
    table = dataset(
        tmp_path, {f"train/{seed}.png": landscape(seed) for seed in range(30)} | {"test/x.png": landscape(99)}
    )
    report = check_dataset(table, turned=True)
    assert report.findings == () and report.exit_code == 0
    assert report.pairs == {"train": 30, "test": 1} == report.images
    assert report.as_dict()["ok"] and "problems: none" in report.as_text()


@pytest.mark.parametrize("threads", [0, 2])
def test_images_that_cannot_be_used(tmp_path, threads):
    table = dataset(tmp_path, {f"train/{seed}.png": landscape(seed) for seed in range(8)})
    (tmp_path / "1.png").unlink()
    (tmp_path / "3.png").write_bytes((tmp_path / "3.png").read_bytes()[:500])
    landscape(5, 256).save(tmp_path / "5.png")
    report = check_dataset(table, max_pixels=10_000, threads=threads)
    found = {kind: [item.where for item in finding.items] for kind, finding in kinds(report).items()}
    assert found == {
        "missing_images": [("1.png",)],
        "unreadable_images": [("3.png",)],
        "oversized_images": [("5.png",)],
    }
    assert report.exit_code == 1 and all(finding.severity == "problem" for finding in report.findings)
    assert "3.png" in report.as_text() and json.loads(json.dumps(report.as_dict()))["ok"] is False


@pytest.mark.parametrize("workers", [2, 3])
def test_several_processes_find_what_one_finds(tmp_path, monkeypatch, workers):
    monkeypatch.setattr(duplicates, "IMAGES_A_PART", 4)
    table = dataset(tmp_path, {f"train/{seed % 9}-{seed}.png": landscape(seed % 9) for seed in range(14)})
    (tmp_path / "1-1.png").unlink()
    (tmp_path / "8-8.png").write_bytes(b"no image")
    alone = check_dataset(table, turned=True)
    assert {"missing_images", "unreadable_images", "duplicate_images"} <= kinds(alone).keys()
    assert check_dataset(table, turned=True, engine=Engine(workers)) == alone


def test_captions(tmp_path):
    for name in "abc":
        landscape(ord(name)).save(tmp_path / f"{name}.png")
    rows = [("a", "x"), ("a", "x"), ("a", "x"), ("b", "x"), ("b", " \u200b "), ("c", "y"), ("c", "z")]
    table = PairTable.from_columns(
        {"image": [f"{image}.png" for image, _ in rows], "caption": [caption for _, caption in rows]},
        root=tmp_path,
    )
    found = kinds(check_dataset(table))
    assert found["blank_captions"].severity == "problem"
    assert [item.where for item in found["blank_captions"].items] == [("4",)]
    assert [(item.where, item.detail) for item in found["repeated_captions"].items] == [
        (("a.png",), "3 times 'x'")
    ]
    assert [(item.where, item.detail) for item in found["shared_captions"].items] == [(("x",), "2 images")]
    assert len(found) == 3


def test_copies_and_leaks(tmp_path):
    images = {f"train/{seed}.png": landscape(seed) for seed in range(10)}
    images |= {
        "train/same.bmp": landscape(1),
        "train/near.jpg": landscape(2),
        "test/leak.jpg": landscape(3).resize((80, 80)),
        "val/own.png": landscape(50),
        "train/turned.png": landscape(4).rotate(90),
        "train/black1.png": Image.new("RGB", (64, 64)),
        "train/black2.png": Image.new("RGB", (64, 64)),
    }
    table = dataset(tmp_path, images)
    found = kinds(check_dataset(table))
    assert sets_of(found["duplicate_images"]) == {frozenset({"1.png", "same.bmp"})}
    assert sets_of(found["near_duplicate_images"]) == {
        frozenset({"2.png", "near.jpg"}),
        frozenset({"3.png", "leak.jpg"}),
    }
    assert sets_of(found["blank_images"]) == {frozenset({"black1.png"}), frozenset({"black2.png"})}
    leak = found["leaking_images"]
    assert leak.severity == "problem" and sets_of(leak) == {frozenset({"3.png", "leak.jpg"})}
    assert "1 of the 1 of set 'test'" in leak.summary
    report = check_dataset(table, turned=True)
    assert frozenset({"4.png", "turned.png"}) in sets_of(kinds(report)["near_duplicate_images"])
    assert report.findings[0].severity == "problem"  # problems come first


def test_one_file_in_two_splits_is_a_leak(tmp_path):
    landscape(0).save(tmp_path / "a.png")
    table = PairTable.from_columns(
        {"image": ["a.png", "a.png"], "caption": ["x", "y"], "split": ["train", "test"]}, root=tmp_path
    )
    report = check_dataset(table)
    assert report.images == {"train": 1, "test": 1} and report.exit_code == 1
    assert kinds(report)["leaking_images"].items[0].where == ("a.png", "a.png")


def test_two_datasets(tmp_path):
    first = dataset(
        tmp_path / "a",
        {
            "train/1.png": landscape(1),
            "train/2.png": landscape(2),
            "test/3.png": landscape(3),
            "test/4.png": landscape(4),
        },
        "A",
    )
    second = dataset(
        tmp_path / "b",
        {
            "test/p.jpg": landscape(1),
            "train/q.jpg": landscape(2),
            "train/r.jpg": landscape(4),
            "train/s.png": landscape(9),
        }
        | {"val/t.png": landscape(9)},
        "B",
    )
    report = check_dataset(first, second)
    by_summary = {finding.summary: finding for finding in report.findings if "share" in finding.summary}
    assert {(summary, finding.severity) for summary, finding in by_summary.items()} == {
        ("A 'train' and B 'test' share images: 1 of the 1 of B 'test'", "problem"),
        ("A 'test' and B 'train' share images: 1 of the 2 of A 'test'", "problem"),
        ("A 'train' and B 'train' share images: 1 of the 2 of A 'train'", "note"),
    }  # what B shares with itself is B's own affair
    assert check_dataset(first).exit_code == 0
    against_itself = check_dataset(first, first)
    assert {"A (other) test", "A test"} <= {
        part for f in against_itself.findings for i in f.items for part in i.detail.split(", ")
    }


def test_long_lists_are_cut_in_the_text_only(tmp_path):
    table = dataset(tmp_path, {f"train/{seed}.png": landscape(seed) for seed in range(9)}, captions=[""] * 9)
    report = check_dataset(table)
    assert "... and 4 more" in report.as_text()
    blank = next(finding for finding in report.as_dict()["findings"] if finding["kind"] == "blank_captions")
    assert len(blank["items"]) == 9
