"""Random reads of members from few and from many tar shards, side by side in one process.

Shards of equal make are written below a temporary folder; half of the reads go to the first 200 of them, the
other half to all, in turns of some hundred, so that whatever else the machine does falls on both alike. The
first reading, which finds the positions of all members and writes them down, is timed apart, and so is what
a second process needs to open them.

    python benchmarks/shard_reading.py [--shards 5000] [--out benchmarks/results/shard_reading.json]
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from pmpguard.data.member_positions import positions_file
from pmpguard.data.shards import read_member
from pmpguard.training.tracking import current_commit, describe_hardware

FEW = 200
SAMPLES = 20  # in each shard, of three members
IMAGE_BYTES = 4_000
TURNS, READS = 60, 250


def write_shards(folder: Path, count: int) -> list[Path]:
    image = np.random.default_rng(0).bytes(IMAGE_BYTES)
    paths = []
    for shard in range(count):
        paths.append(folder / f"{shard:06d}.tar")
        with tarfile.open(paths[-1], "w") as tar:
            for sample in range(SAMPLES):
                for ending, content in (("jpg", image), ("txt", b"a pond"), ("json", b"{}")):
                    member = tarfile.TarInfo(f"{sample:06d}.{ending}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return paths


def read_all_once(paths: list[Path]) -> float:
    started = time.perf_counter()
    for path in paths:
        read_member(path, "000000.jpg")
    return time.perf_counter() - started


def microseconds(paths: list[Path], generator: np.random.Generator) -> tuple[float, float]:
    """Wall and processor time of a read, over some random ones."""
    shards, samples = generator.integers(len(paths), size=READS), generator.integers(SAMPLES, size=READS)
    asked = [(paths[shard], f"{sample:06d}.jpg") for shard, sample in zip(shards, samples, strict=True)]
    clock, processor = time.perf_counter(), time.process_time()
    for path, member in asked:
        read_member(path, member)
    return (
        (time.perf_counter() - clock) / READS * 1e6,
        (time.process_time() - processor) / READS * 1e6,
    )


def measure(folder: Path, count: int) -> dict[str, Any]:
    paths = write_shards(folder, count)
    first = read_all_once(paths)
    command = [sys.executable, __file__, "--only-open", str(folder)]
    second = float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    generator = np.random.default_rng(0)
    turns = [(microseconds(paths[:FEW], generator), microseconds(paths, generator)) for _ in range(TURNS)]
    few, many = ([turn[side][0] for turn in turns] for side in (0, 1))
    few_cpu, many_cpu = ([turn[side][1] for turn in turns] for side in (0, 1))
    stored = sum(positions_file(str(path)).stat().st_size for path in paths)
    return {
        "shards": count,
        "members": 3 * SAMPLES * count,
        "reads_each": TURNS * READS,
        "microseconds_a_read_of_200_shards": round(statistics.median(few), 1),
        "microseconds_a_read_of_all_shards": round(statistics.median(many), 1),
        "ratio": round(statistics.median(many) / statistics.median(few), 3),
        "ratio_of_processor_time": round(statistics.median(many_cpu) / statistics.median(few_cpu), 3),
        "aim": "ratio at most 1.2",
        "first_reading_seconds": round(first, 2),
        "opened_by_a_second_process_seconds": round(second, 2),
        "bytes_of_positions_a_member": round(stored / (3 * SAMPLES * count), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "shard_reading.json")
    parser.add_argument("--only-open", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only_open:
        print(read_all_once(sorted(options.only_open.glob("*.tar"))))
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PMPGUARD_CACHE"] = str(Path(folder) / "cache")
        shards = Path(folder) / "shards"
        shards.mkdir()
        result = measure(shards, options.shards)
    result |= {"commit": current_commit(), "hardware": describe_hardware()}
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
