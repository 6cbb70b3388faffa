"""Small fake datasets, one generator per format; each writes files and returns the path to read."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

SPLITS = {"train": 3, "val": 1, "test": 2}
CLASSES = ("pond", "airport")


def image(shade: int = 0) -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (4, 4), (shade % 256, 80, 40)).save(stream, "PNG")
    return stream.getvalue()


def scenes() -> list[dict[str, Any]]:
    """The dataset that every generator writes: images with split, label and five captions."""
    found = []
    for split, count in SPLITS.items():
        for number in range(count):
            label = CLASSES[number % 2]
            name = f"{label}_{split}{number}.png"
            captions = [f"a {label}, number {number} of {split} ; view {view} é" for view in range(5)]
            found.append({"name": name, "split": split, "label": label, "captions": captions})
    return found


def rows() -> list[tuple[bytes, str, str, str]]:
    """(image, caption, split, label) of every pair, sorted; no two scenes have the same image."""
    return sorted(
        (image(shade), caption, scene["split"], scene["label"])
        for shade, scene in enumerate(scenes())
        for caption in scene["captions"]
    )


def write_images(folder: Path, prefix: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for shade, scene in enumerate(scenes()):
        (folder / f"{prefix}{scene['name']}").write_bytes(image(shade))


def karpathy(folder: Path) -> Path:
    images = [
        {
            "filename": scene["name"],
            "imgid": number,
            "split": scene["split"],
            "label": scene["label"],
            "sentences": [{"raw": caption, "tokens": caption.split()} for caption in scene["captions"]],
        }
        for number, scene in enumerate(scenes())
    ]
    write_images(folder / "images")
    return _json(folder / "dataset_fake.json", {"dataset": "fake", "images": images})


def nwpu(folder: Path) -> Path:
    classes: dict[str, list[dict[str, Any]]] = {}
    for number, scene in enumerate(scenes()):
        named = ["raw", "raw_1", "raw_2", "raw_3", "raw_4"]
        entry = {"filename": scene["name"], "imgid": number, "split": scene["split"], "sentids": 5 * number}
        entry |= dict(zip(named, scene["captions"], strict=True))
        classes.setdefault(scene["label"], []).append(entry)
        path = folder / "FAKE_images" / scene["label"] / scene["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image(number))
    return _json(folder / "dataset_fake.json", classes)


def pir(folder: Path) -> Path:
    write_images(folder / "images")
    for split in SPLITS:
        entries: list[dict[str, Any]] = []
        for number, scene in enumerate(scenes()):
            if scene["split"] != split:
                continue
            entry = {"image": f"{split}/{scene['name']}", "label_name": scene["label"], "label": number % 2}
            if split == "train":
                entries += [
                    {**entry, "image_id": number, "caption": caption} for caption in scene["captions"]
                ]
            else:
                entries.append({**entry, "caption": scene["captions"]})
        _json(folder / f"fake_{split}.json", entries)
    return folder


def amfmn(folder: Path) -> Path:
    """As published: one name per image for training, one per caption elsewhere, and `_verify` files."""
    texts = folder / "fake_precomp"
    write_images(folder / "images")
    texts.mkdir(parents=True)
    for split, ending in (("train", "_verify"), ("val", "_verify"), ("test", "")):
        chosen = [scene for scene in scenes() if scene["split"] == split]
        repeat = 1 if split == "train" else 5
        _lines(texts / f"{split}_caps{ending}.txt", [text for scene in chosen for text in scene["captions"]])
        names = [scene["name"] for scene in chosen for _ in range(repeat)]
        _lines(texts / f"{split}_filename{ending}.txt", names)
    both = [scene for scene in scenes() if scene["split"] != "test"]
    _lines(texts / "train_caps.txt", [text for scene in both for text in scene["captions"]])
    _lines(texts / "train_filename.txt", [scene["name"] for scene in both])
    return texts


def rrsitr(folder: Path) -> Path:
    write_images(folder / "images")
    for split, name in (("train", "FAKE-NC-02"), ("val", "fake_val"), ("test", "fake_test")):
        table = [
            (f"/somewhere/else/FAKE/images/{scene['name']}", caption)
            for scene in scenes()
            if scene["split"] == split
            for caption in scene["captions"]
        ]
        _csv(folder / f"{name}.csv", ["filename", "title"], table)
    return folder


def openclip(folder: Path, ending: str = "csv", names: tuple[str, str] = ("filepath", "title")) -> Path:
    write_images(folder / "images")
    table = [
        (f"images/{scene['name']}", caption, scene["split"], scene["label"])
        for scene in scenes()
        for caption in scene["captions"]
    ]
    return _csv(
        folder / f"fake.{ending}", [*names, "split", "label"], table, "\t" if ending == "tsv" else ","
    )


def jsonl(folder: Path) -> Path:
    write_images(folder)
    records = [
        {
            "image": scene["name"],
            "caption": caption,
            "split": scene["split"],
            "label": scene["label"],
            "lon": 3.5,
            "lat": -10.25,
            "time": "2024-05-01T12:00:00Z",
            "sensor": {"name": "S2", "bands": [4, 3, 2]},
        }
        for scene in scenes()
        for caption in scene["captions"]
    ]
    return _lines(folder / "fake.jsonl", [json.dumps(record) for record in records])


def metadata_folder(folder: Path) -> Path:
    for split in SPLITS:
        table = []
        for shade, scene in enumerate(scenes()):
            if scene["split"] == split:
                (folder / split).mkdir(parents=True, exist_ok=True)
                (folder / split / scene["name"]).write_bytes(image(shade))
                table += [(scene["name"], caption, scene["label"]) for caption in scene["captions"]]
        _csv(folder / split / "metadata.csv", ["file_name", "text", "label"], table)
    return folder


def webdataset(folder: Path) -> Path:
    """A shard per split; one caption as .txt and all in .json."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        with tarfile.open(folder / f"fake-{split}-0000.tar", "w") as tar:
            for shade, scene in enumerate(scenes()):
                if scene["split"] == split:
                    key = scene["name"].removesuffix(".png")
                    described = {"captions": scene["captions"], "label": scene["label"]}
                    add_member(tar, f"{key}.png", image(shade))
                    add_member(tar, f"{key}.txt", scene["captions"][0].encode())
                    add_member(tar, f"{key}.json", json.dumps(described).encode())
    return folder


def rs5m(folder: Path) -> Path:
    """One caption per image, split in the shard's name, as RS5M is published."""
    folder.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        with tarfile.open(folder / f"pub11-{split}-0000.tar", "w") as tar:
            for number, scene in enumerate(scenes()):
                if scene["split"] == split:
                    add_member(tar, f"{number:06d}.img_content", image(number))
                    add_member(tar, f"{number:06d}.img_name", scene["name"].encode())
                    add_member(tar, f"{number:06d}.caption", scene["captions"][0].encode())
    return folder


def coco(folder: Path) -> Path:
    """As COCO 2017: annotations apart from a folder of images per split."""
    for split in SPLITS:
        chosen = [(shade, scene) for shade, scene in enumerate(scenes()) if scene["split"] == split]
        for shade, scene in chosen:
            path = folder / f"{split}2017" / scene["name"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image(shade))
        images = [
            {"license": 4, "file_name": scene["name"], "height": 4, "width": 4, "id": 100 + shade}
            for shade, scene in chosen
        ]
        annotations = [
            {"image_id": 100 + shade, "id": 1000 * shade + number, "caption": caption}
            for shade, scene in chosen
            for number, caption in enumerate(scene["captions"])
        ]
        content = {"info": {"year": 2017}, "images": images, "licenses": [], "annotations": annotations}
        _json(folder / "annotations" / f"captions_{split}2017.json", content)
    return folder


def flickr_tokens(folder: Path) -> Path:
    write_images(folder / "flickr30k-images")
    pairs = [(scene["name"], text) for scene in scenes() for text in enumerate(scene["captions"])]
    return _lines(folder / "results_20130124.token", [f"{name}#{n}\t{text}" for name, (n, text) in pairs])


def llava(folder: Path) -> Path:
    """As `blip_laion_cc_sbu_558k.json`, with a later turn, and an entry of text alone."""
    write_images(folder / "images")
    entries: list[dict[str, Any]] = [
        {
            "id": f"{number:09d}",
            "image": scene["name"],
            "conversations": [
                {"from": "human", "value": "<image>\nDescribe the image."},
                {"from": "gpt", "value": scene["captions"][0]},
                {"from": "human", "value": "Is it day?"},
                {"from": "gpt", "value": "Yes."},
            ],
        }
        for number, scene in enumerate(scenes())
    ]
    entries.append({"id": "text", "conversations": [{"from": "human", "value": "Hello"}]})
    return _json(folder / "chat.json", entries)


def hugging_face_parquet(folder: Path) -> Path:
    """A dataset of the Hub: README.md, `data/<split>-...parquet` with images inside and lists of captions."""
    (folder / "data").mkdir(parents=True)
    (folder / "README.md").write_text("---\ndataset_info: {}\n---\n")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for split in SPLITS:
        chosen = [(shade, scene) for shade, scene in enumerate(scenes()) if scene["split"] == split]
        images = [{"bytes": image(shade), "path": scene["name"]} for shade, scene in chosen]
        table = pa.table(
            {
                "image": pa.array(images, kind),
                "captions": [scene["captions"] for _, scene in chosen],
                "label": [scene["label"] for _, scene in chosen],
            }
        )
        path = folder / "data" / f"{split}-00000-of-00001.parquet"
        pq.write_table(table, path, row_group_size=2)
    return folder


def saved_to_disk(folder: Path) -> Path:
    """As `datasets.DatasetDict.save_to_disk`: a stream per split, classes as numbers, their names beside."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    features = {"label": {"names": list(CLASSES), "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    _json(folder / "dataset_dict.json", {"splits": list(SPLITS)})
    for split in SPLITS:
        chosen = [(shade, scene) for shade, scene in enumerate(scenes()) if scene["split"] == split]
        table = pa.table(
            {
                "image": pa.array([{"bytes": image(shade), "path": None} for shade, _ in chosen], kind),
                "captions": [scene["captions"] for _, scene in chosen],
                "label": [CLASSES.index(scene["label"]) for _, scene in chosen],
            }
        )
        _json(folder / split / "dataset_info.json", {"features": features})
        _json(folder / split / "state.json", {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]})
        path = folder / split / "data-00000-of-00001.arrow"
        with path.open("wb") as stream, pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    return folder


def excel(folder: Path) -> Path:
    """A workbook with a header, images in `pictures`."""
    import openpyxl

    write_images(folder / "pictures")
    book = openpyxl.Workbook()
    book.active.append(["Image", "Caption", "Split", "Label"])
    for scene in scenes():
        for caption in scene["captions"]:
            book.active.append([scene["name"], caption, scene["split"], scene["label"]])
    book.save(folder / "fake.xlsx")
    return folder


def scan(folder: Path) -> Path:
    """Regions (images, 3, 8) and a caption a line, five for each image; `dev` repeats its images."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, name in (("train", "train"), ("val", "dev"), ("test", "test")):
        chosen = [(shade, scene) for shade, scene in enumerate(scenes()) if scene["split"] == split]
        regions = np.stack([np.full((3, 8), shade, np.float32) for shade, _ in chosen])
        np.save(folder / f"{name}_ims.npy", np.repeat(regions, 5, 0) if name == "dev" else regions)
        _lines(folder / f"{name}_caps.txt", [text for _, scene in chosen for text in scene["captions"]])
    return folder


def caption_files(folder: Path) -> Path:
    """A text beside each image, a caption a line, in a folder per split."""
    for shade, scene in enumerate(scenes()):
        path = folder / scene["split"] / scene["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image(shade))
        _lines(path.with_suffix(".txt"), scene["captions"])
    return folder


def metadata_lines(folder: Path) -> Path:
    """`imagefolder` with metadata.jsonl and a list of captions, in a folder per split."""
    for split in SPLITS:
        chosen = [(shade, scene) for shade, scene in enumerate(scenes()) if scene["split"] == split]
        for shade, scene in chosen:
            (folder / split).mkdir(parents=True, exist_ok=True)
            (folder / split / scene["name"]).write_bytes(image(shade))
        records = [
            {"file_name": scene["name"], "captions": scene["captions"], "label": scene["label"]}
            for _, scene in chosen
        ]
        _lines(folder / split / "metadata.jsonl", [json.dumps(record) for record in records])
    return folder


def add_member(tar: tarfile.TarFile, name: str, data: bytes, **fields: Any) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for field, value in fields.items():
        setattr(member, field, value)
    tar.addfile(member, io.BytesIO(data))


def _json(path: Path, value: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")
    return path


def _lines(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _csv(path: Path, header: list[str], table: list[tuple[str, ...]], separator: str = ",") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream, delimiter=separator).writerows([header, *table])
    return path
