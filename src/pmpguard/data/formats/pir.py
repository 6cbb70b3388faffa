"""The lists of PIR and HarMA, one file per split.

Training lists one caption an entry, the other splits all captions of an image::

    [{"image": "train/a.jpg", "caption": "...", "image_id": 539, "label_name": "bridge", "label": 0}]
    [{"image": "test/b.jpg", "caption": ["...", "..."]}]
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from pmpguard.data.formats.format import Format, Peek
from pmpguard.data.formats.json_fields import entry_of, list_of, refuse_again
from pmpguard.data.pair_rows import PairRows, dataset_name, images_in_order, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_json
from pmpguard.errors import DataError
from pmpguard.files import new_directory

PIR_SPLITS = ("train", "val", "test")


def recognise_pir(file: Peek) -> bool:
    return file.is_json and file.head.startswith("[") and '"image"' in file.head and '"caption"' in file.head


def read_pir(files: list[Path], images: Path | None) -> PairTable:
    rows = PairRows(files[0])
    for path in files:
        split, seen = split_of_file(path), dict[str, str]()
        for number, entry in enumerate(list_of(read_json(path), str(path))):
            where = f"{path} [{number}]"
            image, caption = entry_of(entry, "image", where), entry_of(entry, "caption", where)
            label = entry.get("label_name") or entry.get("label")
            if isinstance(caption, list):
                refuse_again(seen, str(image), where)
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


PIR = Format("JSON lists of PIR and HarMA, one file per split", recognise_pir, read_pir, write_pir)
