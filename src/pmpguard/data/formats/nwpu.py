"""NWPU-Captions as published, by class.

::

    {"airplane": [{"filename": "a.jpg", "split": "train", "raw": "...", "raw_1": "...", ... "raw_4": "..."}]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pmpguard.data.formats.format import Format, Peek
from pmpguard.data.formats.json_fields import entry_of, list_of, refuse_again
from pmpguard.data.pair_rows import PairRows, dataset_name
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_json
from pmpguard.errors import DataError


def recognise_nwpu(file: Peek) -> bool:
    return (
        file.is_json
        and re.match(r'\{\s*"[^"]*"\s*:\s*\[\s*\{', file.head) is not None
        and '"raw"' in file.head
    )


def read_nwpu(files: list[Path], images: Path | None) -> PairTable:
    path = files[0]
    content = read_json(path)
    if not isinstance(content, Mapping):
        raise DataError(f"{path}: not an object of classes", fix="pass NWPU-Captions' dataset_nwpu.json")
    rows, seen = PairRows(path), dict[str, str]()
    for label, pixels in content.items():
        for number, image in enumerate(list_of(pixels, f"{path} {label}")):
            where = f"{path} {label}[{number}]"
            name = f"{label}/{entry_of(image, 'filename', where)}"
            refuse_again(seen, name, where)
            entry_of(image, "raw", where)
            for field in sorted(key for key in image if re.fullmatch(r"raw(_\d+)?", key)):
                rows.add(f"{where}.{field}", name, image[field], entry_of(image, "split", where), label=label)
    return rows.build(path.parent, images, dataset_name(path))


NWPU = Format("JSON of NWPU-Captions, by class", recognise_nwpu, read_nwpu, one_file=True)
