"""Karpathy's JSON, in which RSICD, RSITMD, UCM-Captions and others are published.

::

    {"dataset": "rsicd", "images": [{"filename": "a.jpg", "split": "train", "sentences": [{"raw": "..."}]}]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pmpguard.data.formats.format import Format, Peek
from pmpguard.data.formats.json_fields import entry_of, list_of, refuse_again
from pmpguard.data.pair_rows import PairRows, dataset_name, images_in_order
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_json
from pmpguard.files import write_atomic


def recognise_karpathy(file: Peek) -> bool:
    listed = file.is_json and re.search(r'"images"\s*:\s*\[', file.head) is not None
    return listed and '"file_name"' not in file.head  # which is COCO's


def read_karpathy(files: list[Path], images: Path | None) -> PairTable:
    path = files[0]
    content = read_json(path)
    listed = entry_of(content, "images", str(path))
    rows, seen = PairRows(path), dict[str, str]()
    for number, image in enumerate(list_of(listed, f"{path} images")):
        where = f"{path} images[{number}]"
        name = str(entry_of(image, "filename", where))
        if image.get("filepath"):
            name = f"{image['filepath']}/{name}"
        refuse_again(seen, name, where)
        for place, sentence in enumerate(list_of(entry_of(image, "sentences", where), f"{where}.sentences")):
            inner = f"{where}.sentences[{place}]"
            rows.add(
                inner,
                name,
                _sentence(sentence, inner),
                entry_of(image, "split", where),
                label=image.get("label"),
            )
    title = content.get("dataset")
    return rows.build(path.parent, images, title if isinstance(title, str) and title else dataset_name(path))


def _sentence(sentence: Any, where: str) -> Any:
    if isinstance(sentence, Mapping) and "raw" not in sentence and isinstance(sentence.get("tokens"), list):
        return " ".join(map(str, sentence["tokens"]))
    return entry_of(sentence, "raw", where)


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


KARPATHY = Format(
    "JSON of RSICD, RSITMD, UCM", recognise_karpathy, read_karpathy, write_karpathy, (".json",), one_file=True
)
