"""Formats in JSON: Karpathy's, NWPU-Captions' own, the lists of PIR and HarMA, and one object per line.

Karpathy (RSICD, RSITMD, UCM and others)::

    {"dataset": "rsicd", "images": [{"filename": "a.jpg", "split": "train", "sentences": [{"raw": "..."}]}]}

NWPU-Captions as published::

    {"airplane": [{"filename": "a.jpg", "split": "train", "raw": "...", "raw_1": "...", ... "raw_4": "..."}]}

PIR and HarMA, one file per split: training lists one caption an entry, the others all captions of a image::

    [{"image": "train/a.jpg", "caption": "...", "image_id": 539, "label_name": "bridge", "label": 0}]
    [{"image": "test/b.jpg", "caption": ["...", "..."]}]
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pmpguard.data.pair_rows import (
    PairRows,
    add_record,
    dataset_name,
    images_in_order,
    iter_rows,
    json_value,
    split_of_file,
)
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import parse_json, read_json, read_lines
from pmpguard.errors import DataError
from pmpguard.files import atomic_output, new_directory, write_atomic

PIR_SPLITS = ("train", "val", "test")


def read_karpathy(files: list[Path], images: Path | None) -> PairTable:
    path = files[0]
    content = read_json(path)
    listed = _entry(content, "images", str(path))
    rows, seen = PairRows(path), dict[str, str]()
    for number, image in enumerate(_list(listed, f"{path} images")):
        where = f"{path} images[{number}]"
        name = str(_entry(image, "filename", where))
        if image.get("filepath"):
            name = f"{image['filepath']}/{name}"
        _once(seen, name, where)
        for place, sentence in enumerate(_list(_entry(image, "sentences", where), f"{where}.sentences")):
            inner = f"{where}.sentences[{place}]"
            rows.add(
                inner,
                name,
                _sentence(sentence, inner),
                _entry(image, "split", where),
                label=image.get("label"),
            )
    title = content.get("dataset")
    return rows.build(path.parent, images, title if isinstance(title, str) and title else dataset_name(path))


def _sentence(sentence: Any, where: str) -> Any:
    if isinstance(sentence, Mapping) and "raw" not in sentence and isinstance(sentence.get("tokens"), list):
        return " ".join(map(str, sentence["tokens"]))
    return _entry(sentence, "raw", where)


def write_karpathy(table: PairTable, path: Path) -> None:
    entries, sentence_id = [], 0
    for number, rows in enumerate(images_in_order(table)):
        sentences = []
        for row in rows:
            tokens = re.findall(r"[\w'-]+", row["caption"].lower())
            sentences.append(
                {"raw": row["caption"], "tokens": tokens, "imgid": number, "sentid": sentence_id}
            )
            sentence_id += 1
        entry = {
            "filename": rows[0]["image"],
            "imgid": number,
            "split": rows[0]["split"],
            "sentences": sentences,
        }
        entry["sentids"] = [sentence["sentid"] for sentence in sentences]
        entries.append(entry if rows[0]["label"] is None else {**entry, "label": rows[0]["label"]})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps({"dataset": table.name, "images": entries}, ensure_ascii=False))


def read_nwpu(files: list[Path], images: Path | None) -> PairTable:
    path = files[0]
    content = read_json(path)
    if not isinstance(content, Mapping):
        raise DataError(f"{path}: not an object of classes", fix="pass NWPU-Captions' dataset_nwpu.json")
    rows, seen = PairRows(path), dict[str, str]()
    for label, pixels in content.items():
        for number, image in enumerate(_list(pixels, f"{path} {label}")):
            where = f"{path} {label}[{number}]"
            name = f"{label}/{_entry(image, 'filename', where)}"
            _once(seen, name, where)
            _entry(image, "raw", where)
            for field in sorted(key for key in image if re.fullmatch(r"raw(_\d+)?", key)):
                rows.add(f"{where}.{field}", name, image[field], _entry(image, "split", where), label=label)
    return rows.build(path.parent, images, dataset_name(path))


def read_pir(files: list[Path], images: Path | None) -> PairTable:
    rows = PairRows(files[0])
    for path in files:
        split, seen = split_of_file(path), dict[str, str]()
        for number, entry in enumerate(_list(read_json(path), str(path))):
            where = f"{path} [{number}]"
            image, caption = _entry(entry, "image", where), _entry(entry, "caption", where)
            label = entry.get("label_name") or entry.get("label")
            if isinstance(caption, list):
                _once(seen, str(image), where)
            for sentence in caption if isinstance(caption, list) else [caption]:
                rows.add(where, image, sentence, split, image_id=entry.get("image_id"), label=label)
    return rows.build(files[0].parent, images, dataset_name(files[0]))


def write_pir(table: PairTable, target: Path) -> None:
    """A folder with `<name>_train.json` (one caption an entry) and `<name>_val.json`, `<name>_test.json`."""
    lists: dict[str, list[dict[str, Any]]] = {}
    labels: dict[str, int] = {}
    for rows in images_in_order(table):
        first = rows[0]
        if first["split"] not in PIR_SPLITS:
            raise DataError(
                f"{table.name}: split {first['split']!r}, but these lists know {', '.join(PIR_SPLITS)}",
                fix="choose a split with --split or write jsonl",
            )
        entry: dict[str, Any] = {"image": first["image"], "image_id": first["image_id"]}
        if first["label"] is not None:
            entry |= {"label_name": first["label"], "label": labels.setdefault(first["label"], len(labels))}
        captions = [row["caption"] for row in rows]
        several = [{**entry, "caption": caption} for caption in captions]
        lists.setdefault(first["split"], []).extend(
            several if first["split"] == "train" else [{**entry, "caption": captions}]
        )
    name = re.sub(r"[^\w-]+", "_", table.name)
    with new_directory(target) as folder:
        for split, entries in lists.items():
            (folder / f"{name}_{split}.json").write_text(
                json.dumps(entries, ensure_ascii=False), encoding="utf-8"
            )


def read_jsonl(files: list[Path], images: Path | None) -> PairTable:
    rows = PairRows(files[0])
    for path in files:
        split = split_of_file(path)
        for number, line in read_lines(path):
            if line.strip():
                where = f"{path} line {number}"
                record = parse_json(line, where)
                if not isinstance(record, Mapping):
                    raise DataError(f"{where}: not an object", fix='write {"image": ..., "caption": ...}')
                add_record(rows, where, record, split)
    return rows.build(files[0].parent, images, dataset_name(files[0]))


def write_jsonl(table: PairTable, path: Path) -> None:
    """One object a line with every column; unknown values are left out."""
    with atomic_output(path) as stream:
        for row in iter_rows(table):
            known = {name: value for name, value in row.items() if value is not None}
            stream.write(json.dumps(known, ensure_ascii=False, default=json_value).encode() + b"\n")


def _entry(record: Any, name: str, where: str) -> Any:
    """A field that must be there."""
    if not isinstance(record, Mapping):
        raise DataError(f"{where}: not an object with {name!r}", fix="check the file's format")
    if name not in record:
        raise DataError(
            f"{where}: no field {name!r}", fix=f"found {', '.join(map(str, record)) or 'nothing'}"
        )
    return record[name]


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise DataError(f"{where}: not a list", fix="check the file's format")
    return value


def _once(seen: dict[str, str], image: str, where: str) -> None:
    """Refuse a image that is listed a second time."""
    if image in seen:
        raise DataError(f"{where}: {image} is listed before, at {seen[image]}", fix="merge the two entries")
    seen[image] = where
