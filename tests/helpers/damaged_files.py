"""Files of every format with damage: reading them gives a result or our error, nothing else."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from helpers import format_examples as examples

from pmpguard.audit.cleaning import read_decisions
from pmpguard.cli.corrupt import import_noise
from pmpguard.data.formats import read_pairs
from pmpguard.data.formats.embeddings import read_clip_embeddings
from pmpguard.data.formats.scan import image_features
from pmpguard.data.images.decode import ImageError, load_pair_image
from pmpguard.data.statistics import dataset_statistics
from pmpguard.errors import PmpguardError
from pmpguard.noise.imported import read_captions
from pmpguard.noise.inject import corrupt_pairs
from pmpguard.noise.manifest import apply_manifest, save_manifest

HOSTILE = (
    b"\\ud800", b"\xed\xa0\x80", b"\xff", b"\0", b"\x1b]0;x\x07", b"9" * 5000, b"[" * 3000, b'"', b"{", b"}",
    b"[]", b"null", b"NaN", b"-1e999", b"\n", b"\r", b",", b"\t", b"../../etc/passwd", b"a" * 300, b"1e5",
    b"\xef\xbb\xbf", b'["a", 1]', b'{"raw": 1}', b" ", b"0001-01-01T00:00:00+14:00", b"\xff\xfe", b"sep=;\n",
    b"['a' 'b']", b"\x80\x80\x80\x80\xff\xff\xff\x7f",
)  # fmt: skip


def damaged(data: bytes, chance: random.Random) -> bytes:
    """One to three cuts, flips, insertions, repetitions or hostile values."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(changed) + 1)
        stop = min(len(changed), start + chance.choice((0, 1, 1, 2, 4, 20)))
        kind = chance.randrange(5)
        if kind == 0:
            changed[start:stop] = chance.choice(HOSTILE)
        elif kind == 1:
            changed[start:stop] = bytes(chance.randrange(256) for _ in range(stop - start))
        elif kind == 2:
            del changed[start:]
        elif kind == 3:
            changed[start:start] = changed[start : start + chance.randrange(200)]
        else:
            quotes = [place for place, byte in enumerate(changed) if byte in b'":,']
            place = chance.choice(quotes) if quotes else start
            changed[place + 1 : place + 1] = chance.choice(HOSTILE)
    return bytes(changed)


# ------------------------------------------------------------------------------- what is read, by its name


@dataclass(frozen=True)
class Family:
    """Files that `write` makes in a folder, what reads them, and the endings of those that are damaged."""

    write: Callable[[Path], Path]
    read: Callable[[Path, random.Random], object]
    endings: tuple[str, ...]


def read_dataset(path: Path, chance: random.Random) -> None:
    """As `data stats` reads it, and one image; an image that is damaged is no matter here."""
    table = read_pairs(path)
    dataset_statistics(table).as_text()
    try:
        load_pair_image(table, chance.randrange(len(table)))
    except ImageError:
        return


def read_regions(path: Path, chance: random.Random) -> None:
    table = read_pairs(path)
    dataset_statistics(table).as_text()
    image_features(table)


def clip_folder(folder: Path) -> Path:
    for name, width in (("img_emb", 4), ("text_emb", 4)):
        (folder / name).mkdir(parents=True)
        np.save(folder / name / f"{name}_0.npy", np.ones((6, width), np.float16))
    (folder / "metadata").mkdir()
    columns = {"image_path": [f"{row}.png" for row in range(6)], "caption": ["a pond"] * 6, "key": ["0"] * 6}
    pq.write_table(pa.table(columns), folder / "metadata" / "metadata_0.parquet")
    return folder


def noise_folder(folder: Path) -> Path:
    """Our noise file, index files of both kinds and wrong captions, beside the pairs they are about."""
    path = examples.jsonl(folder / "pairs")
    table = read_pairs(path)
    save_manifest(corrupt_pairs(table, 0.4, 0), folder / "noise.json")
    np.save(folder / "permutation.npy", np.roll(np.arange(15), 1))
    np.save(folder / "image_of_caption.npy", np.roll(np.arange(15) // 5, 1))
    wrong = [{"pair_id": pair, "caption": "a lake"} for pair in table.column("pair_id")]
    (folder / "wrong.jsonl").write_text("\n".join(map(json.dumps, wrong)))
    return folder


def read_noise(folder: Path, chance: random.Random) -> None:
    table = read_pairs(folder / "pairs" / "fake.jsonl")
    apply_manifest(table, folder / "noise.json")
    read_captions(folder / "wrong.jsonl", table)
    out = folder.parent / "imported.json"
    kinds: tuple[Literal["permutation", "image_of_caption"], ...] = ("permutation", "image_of_caption")
    for kind in kinds:
        import_noise(folder / "pairs" / "fake.jsonl", folder / f"{kind}.npy", out, kind)


def decision_files(folder: Path) -> Path:
    """A report's decisions and an export of Label Studio."""
    folder.mkdir(parents=True)
    decided = {"1": {"action": "keep"}, "2": {"action": "edit", "caption": "a pond"}}
    (folder / "decisions.json").write_text(json.dumps({"dataset": "f", "decisions": decided}))
    value = {"choices": ["drop"]}
    result = [{"from_name": "decision", "to_name": "image", "type": "choices", "value": value}]
    tasks = [
        {
            "data": {"pair_id": pair, "dataset": "f"},
            "annotations": [{"was_cancelled": False, "result": result}],
        }
        for pair in ("1", "2")
    ]
    (folder / "tasks.json").write_text(json.dumps(tasks))
    return folder


def read_both_decisions(folder: Path, chance: random.Random) -> None:
    for name in ("decisions.json", "tasks.json"):
        read_decisions(folder / name, "f", ["1", "2"])


def _dataset(write: Callable[[Path], Path], *endings: str) -> Family:
    return Family(write, read_dataset, endings)


FAMILIES: dict[str, Family] = {
    "karpathy": _dataset(examples.karpathy, ".json"),
    "nwpu": _dataset(examples.nwpu, ".json"),
    "pir": _dataset(examples.pir, ".json"),
    "coco": _dataset(examples.coco, ".json"),
    "llava": _dataset(examples.llava, ".json"),
    "captions": _dataset(examples.caption_files, ".txt"),
    "amfmn": _dataset(examples.amfmn, ".txt"),
    "flickr": _dataset(examples.flickr_tokens, ".token"),
    "rrsitr": _dataset(examples.rrsitr, ".csv"),
    "csv": _dataset(examples.openclip, ".csv"),
    "excel": _dataset(examples.excel, ".xlsx"),
    "jsonl": _dataset(examples.jsonl, ".jsonl"),
    "image folder, csv": _dataset(examples.metadata_folder, ".csv"),
    "image folder, jsonl": _dataset(examples.metadata_lines, ".jsonl"),
    "webdataset": _dataset(examples.webdataset, ".tar"),
    "rs5m": _dataset(examples.rs5m, ".tar"),
    "parquet": _dataset(examples.hugging_face_parquet, ".parquet"),
    "arrow": _dataset(examples.saved_to_disk, ".arrow", ".json"),
    "scan": Family(examples.scan, read_regions, (".npy", ".txt")),
    "clip-retrieval": Family(clip_folder, lambda path, _: read_clip_embeddings(path), (".npy", ".parquet")),
    "noise": Family(noise_folder, read_noise, (".json", ".npy", ".jsonl")),
    "decisions": Family(decision_files, read_both_decisions, (".json",)),
}


def fuzz(name: str, folder: Path, cases: int, first: int = 0) -> tuple[Counter[str], list[dict[str, Any]]]:
    """Read `cases` damaged copies; how many were read and refused, and those that ended in any other way."""
    family = FAMILIES[name]
    path = family.write(folder / "data")
    places = sorted((folder / "data").rglob("*"))
    files = [file for file in places if file.suffix in family.endings and file.is_file()]
    contents = {file: file.read_bytes() for file in files}
    outcomes: Counter[str] = Counter()
    failures = []
    for number in range(first, first + cases):
        chance = random.Random(f"{name} {number}")
        file = chance.choice(files)
        changed = damaged(contents[file], chance)
        file.unlink()  # a new file: the one before may be mapped
        file.write_bytes(changed)
        try:
            family.read(path, chance)
            outcomes["read"] += 1
        except PmpguardError as error:
            said = bool(error.message and str(folder) in error.message)
            outcomes["refused" if said else "refused without naming the file"] += 1
            if not said:
                failures.append({"case": number, "file": file.name, "error": error.message[:300]})
        except Exception as error:
            outcomes["other exception"] += 1
            failures.append(
                {"case": number, "file": file.name, "error": f"{type(error).__name__}: {error!s:.300}"}
            )
        file.unlink()
        file.write_bytes(contents[file])
    return outcomes, failures
