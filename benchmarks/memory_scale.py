"""Peak memory of a command for few and for many pairs: what each further pair costs.

Pairs have one image and one caption. Images are of 32 pixels in tar shards, all different; a model with tiny
encoders embeds them and is trained for one epoch;
the audit is one of given embeddings. Every command runs in a fresh process at each number of pairs, and the
highest resident size it had, mapped files included, is read from the kernel. What a further pair may cost is
what its two vectors take in float32.

    python benchmarks/memory_scale.py [--commands stats audit ...] [--scale 1.0] [--out FILE.json]

Commands that are not named keep what an earlier run has written of them.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from pmpguard.training.tracking import current_commit, describe_hardware

DIM = 512  # of the given embeddings, as CLIP's
TINY: dict[str, Any] = {"vision": "tiny", "text": "tiny", "dim": DIM, "image_size": 32, "max_tokens": 16}
SIZES = {  # pairs, few and many: what two cores do in some minutes
    "stats": (100_000, 1_000_000),
    "check": (20_000, 100_000),
    "embed": (20_000, 100_000),
    "train": (60_000, 120_000),  # from 50,000 on the detector works in the ways of large sets
    "audit": (60_000, 120_000),
}
MEMBERS = 1000  # of a shard
WORDS = ["many", "green", "grey", "large", "old", "airport", "harbour", "field", "road", "bridge", "pond"]
CHUNK = 100_000


def write_images(folder: Path, pairs: int) -> None:
    generator = np.random.default_rng(0)
    for shard in range(-(-pairs // MEMBERS)):
        with tarfile.open(folder / f"{shard:04d}.tar", "w") as tar:
            for number in range(MEMBERS):
                stream = io.BytesIO()
                pixels = generator.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).resize((32, 32)).save(stream, "PNG")
                member = tarfile.TarInfo(f"{number:06d}.png")
                member.size = len(stream.getvalue())
                tar.addfile(member, io.BytesIO(stream.getvalue()))


def captions_of(rows: np.ndarray) -> list[str]:
    drawn = np.random.default_rng([1, int(rows[0])]).integers(len(WORDS), size=(len(rows), 9))
    return [
        " ".join([*(WORDS[word] for word in row), str(number)])
        for row, number in zip(drawn, rows, strict=True)
    ]


def write_pairs(path: Path, pairs: int) -> None:
    """A parquet table whose last two hundred pairs validate and test."""
    names = ("pair_id", "image", "image_id", "caption", "split")
    schema = pa.schema([(name, pa.string()) for name in names])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, pairs, CHUNK):
            rows = np.arange(start, min(start + CHUNK, pairs))
            images = [f"{row // MEMBERS:04d}.tar#{row % MEMBERS:06d}.png" for row in rows]
            ids = [f"image-{row}" for row in rows]
            splits = [("val", "test")[row % 2] if row >= pairs - 200 else "train" for row in rows]
            columns = [ids, images, ids, captions_of(rows), splits]
            writer.write_table(pa.table([pa.array(column, pa.string()) for column in columns], schema=schema))


def write_embeddings(folder: Path, pairs: int) -> None:
    """As clip-retrieval writes them, in float16 files of 100,000; a tenth of the pairs is mismatched."""
    generator = np.random.default_rng(0)
    for name in ("img_emb", "text_emb", "metadata"):
        (folder / name).mkdir(parents=True)
    for number, start in enumerate(range(0, pairs, CHUNK)):
        rows = np.arange(start, min(start + CHUNK, pairs))
        shared = generator.standard_normal((len(rows), DIM), np.float32)
        texts = shared + generator.standard_normal((len(rows), DIM), np.float32)
        wrong = generator.permutation(len(rows))[: len(rows) // 10]
        texts[wrong] = np.roll(texts[wrong], 1, axis=0)
        for kind, vectors in (("img_emb/img_emb", shared), ("text_emb/text_emb", texts)):
            np.save(folder / f"{kind}_{number}.npy", vectors.astype(np.float16))
        metadata = pa.table(
            {"image_path": [f"image-{row}.png" for row in rows], "caption": captions_of(rows)}
        )
        pq.write_table(metadata, folder / "metadata" / f"metadata_{number}.parquet")


def run_command(command: str, folder: Path) -> dict[str, Any]:
    """Run one command in this process; its peak."""
    from pmpguard.cli.main import main

    pairs, images = str(folder / "pairs.parquet"), str(folder / "images")
    arguments = {
        "stats": ["data", "stats", pairs],
        "check": ["data", "check", pairs, "--images", images, "--progress", "false"],
        "embed": ["embed", pairs, "--images", images, "--model", str(folder / "model"), "--out",
                  str(folder / "embedded"), "--device", "cpu", "--progress", "false"],
        "audit": ["audit", str(folder / "clip"), "--embeddings", str(folder / "clip"), "--out",
                  str(folder / "audit")],
        "train": ["train", str(folder / "run"), "--dataset", pairs, "--images", images, "--config",
                  str(folder / "train.yaml")],
    }  # fmt: skip
    clock, processor = time.perf_counter(), time.process_time()
    code = main(arguments[command])
    if code not in ((0, 1) if command == "check" else (0, 3)):  # 1: something was found
        raise SystemExit(f"{command}: exit code {code}")
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line
    )
    return {
        "peak_bytes": int(status["VmHWM"].split()[0]) * 1024,
        "seconds": round(time.perf_counter() - clock, 1),
        "processor_seconds": round(time.process_time() - processor, 1),
    }


def prepare(folder: Path, command: str, pairs: int) -> None:
    from pmpguard.models.config import RetrieverConfig
    from pmpguard.models.retriever import Retriever

    if command == "audit":
        write_embeddings(folder / "clip", pairs)
        return
    write_pairs(folder / "pairs.parquet", pairs)
    (folder / "images").mkdir()
    write_images(folder / "images", 0 if command == "stats" else pairs)
    if command == "embed":
        Retriever.create(RetrieverConfig(**TINY), captions_of(np.arange(1000))).save(folder / "model")
    settings = {
        "method": "pmpguard", "model": TINY, "epochs": 1, "batch_size": 256, "checkpoint_every": -1,
        "cache_images": "never", "device": "cpu",
    }  # fmt: skip
    (folder / "train.yaml").write_text(json.dumps({"train": settings}))


def measure(command: str, pairs: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, command, pairs)
        environment = {**os.environ, "PMPGUARD_CACHE": str(folder / "cache")}
        line = [sys.executable, __file__, "--child", command, "--folder", name]
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {"pairs": pairs, **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commands", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the usual numbers of pairs")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "memory_scale.json")
    parser.add_argument("--child", choices=list(SIZES), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(run_command(options.child, options.folder)))
        return
    commands = {}
    for command in options.commands:
        few, many = (measure(command, round(options.scale * size)) for size in SIZES[command])
        growth = (many["peak_bytes"] - few["peak_bytes"]) / (many["pairs"] - few["pairs"])
        commands[command] = {
            "few": few,
            "many": many,
            "bytes_a_further_pair": round(growth),
            "met": growth <= 2 * 4 * DIM,
            "commit": current_commit(),
        }
        print(command, json.dumps(commands[command]), flush=True)
    known = json.loads(options.out.read_text())["commands"] if options.out.is_file() else {}
    result = {
        "aim": f"at most {2 * 4 * DIM} bytes a further pair: two vectors of {DIM} numbers in float32",
        "commands": {**known, **commands},
        "commit": current_commit(),
        "hardware": describe_hardware(),
    }
    options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
