"""Captions of COCO and of what is annotated like it, one file per split.

::

    {"images": [{"id": 9, "file_name": "000000000009.jpg"}],
     "annotations": [{"id": 1, "image_id": 9, "caption": "a bowl"}]}

`captions_train2017.json` lies beside or above the folder `train2017`, which holds the images.
"""

from __future__ import annotations

import re
from pathlib import Path

from pmpguard.data.formats.format import Format, Peek, common_folder
from pmpguard.data.formats.json_fields import entry_of, list_of
from pmpguard.data.pair_rows import PairRows, dataset_name, split_of_file
from pmpguard.data.pairs import PairTable
from pmpguard.data.text_files import read_json
from pmpguard.errors import DataError


def recognise_coco(file: Peek) -> bool:
    return (
        file.is_json
        and file.head.startswith("{")
        and re.search(r'"(file_name|coco_url|annotations)"\s*:', file.head) is not None
        and '"sentences"' not in file.head
    )


def read_coco(files: list[Path], images: Path | None) -> PairTable:
    rows = PairRows(files[0])
    for path in files:
        content, split = read_json(path), split_of_file(path)
        named = re.search(r"(train|val|test)\d{4}", path.stem)
        file_of: dict[object, str] = {}
        for number, image in enumerate(list_of(entry_of(content, "images", str(path)), f"{path} images")):
            where = f"{path} images[{number}]"
            name = str(entry_of(image, "file_name", where))
            file_of[str(entry_of(image, "id", where))] = f"{named[0]}/{name}" if named else name
        annotations = list_of(entry_of(content, "annotations", str(path)), f"{path} annotations")
        for number, annotation in enumerate(annotations):
            where = f"{path} annotations[{number}]"
            id = str(entry_of(annotation, "image_id", where))
            if id not in file_of:
                raise DataError(f"{where}: no image has the id {id}", fix="download the file again")
            rows.add(where, file_of[id], entry_of(annotation, "caption", where), split)
    name = re.sub(r"^captions_?|(train|val|test)\d{4}$", "", files[0].stem) or "coco"
    return rows.build(common_folder(files), images, name if name == "coco" else dataset_name(files[0]))


COCO = Format("captions JSON of COCO, one file per split", recognise_coco, read_coco)
