"""Five million pairs from parquet: seconds and peak memory to load, check, split and fingerprint a PairTable.

    python benchmarks/pair_table_scale.py [--pairs 5000000] [--out benchmarks/results/pair_table_scale.json]

Writes a synthetic parquet file below a temporary folder, then reads it in a fresh process, so that the peak
counts nothing but the reading. The aim is under 10 seconds and under 2 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ["some", "many", "green", "grey", "white", "large", "airport", "harbour", "farmland", "river"]
CHUNK = 500_000


def write_synthetic(path: Path, pairs: int, seed: int = 0) -> None:
    """Pairs like RS5M's: one caption of about twelve words an image, a hundredth held out for test."""
    generator = np.random.default_rng(seed)
    held_out = pairs // 100
    columns = ("pair_id", "image", "caption", "split", "image_id", "label")
    schema = pa.schema([(name, pa.string()) for name in columns])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for start in range(0, pairs, CHUNK):
            numbers = np.arange(start, min(start + CHUNK, pairs))
            drawn = generator.integers(len(WORDS), size=(len(numbers), 12))
            captions = [" ".join(WORDS[word] for word in row) for row in drawn]
            images = [f"pub11/{number % 1000:03d}/image_{number:08d}.jpg" for number in numbers]
            values = [
                [f"{image}#0" for image in images],
                images,
                captions,
                ["train" if number < pairs - held_out else "test" for number in numbers],
                images,
                [None] * len(numbers),
            ]
            writer.write_table(pa.table([pa.array(column, pa.string()) for column in values], schema=schema))


def measure(path: Path) -> dict[str, Any]:
    """Load the file in this process and time each step."""
    from pmpguard.data.formats import read_pairs

    before = peak_bytes()
    seconds = {}
    started = time.perf_counter()
    table = read_pairs(path)
    seconds["load and check"] = time.perf_counter() - started
    processor = time.process_time()
    loaded = peak_bytes()
    for name, step in (
        ("split", lambda: table.split("test")),
        ("fingerprint", lambda: table.fingerprint),
        ("image codes", lambda: table.image_codes),
    ):
        started = time.perf_counter()
        step()
        seconds[name] = time.perf_counter() - started
    return {
        "pairs": len(table),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "seconds_total": round(sum(seconds.values()), 2),
        "processor_seconds_until_loaded": round(processor, 2),
        "load_average_meanwhile": round(os.getloadavg()[0], 1),
        "peak_gb": round(peak_bytes() / 1e9, 2),
        "peak_gb_after_load": round(loaded / 1e9, 2),
        "peak_gb_before": round(before / 1e9, 2),
        "arrow_gb": round(table.arrow.nbytes / 1e9, 2),
    }


def peak_bytes() -> int:
    """The most memory this process has held; unlike `ru_maxrss` it starts afresh in a new process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this benchmark reads /proc/self/status, which this system does not have")


def hardware() -> dict[str, Any]:
    names = [line.partition(":")[2].strip() for line in _cpu_lines() if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.processor(), "cores": os.cpu_count()}


def _cpu_lines() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []


def commit() -> str:
    found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5_000_000)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "pair_table_scale.json"
    )
    parser.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        print(json.dumps(measure(options.read)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pairs.parquet"
        write_synthetic(path, options.pairs)
        megabytes = round(path.stat().st_size / 1e6)
        command = [sys.executable, __file__, "--read", str(path)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    measured = json.loads(done.stdout)
    result = {
        **measured,
        "file_mb": megabytes,
        "aim": "load and check under 10 s and 2 GB",
        "met": measured["seconds"]["load and check"] < 10 and measured["peak_gb_after_load"] < 2,
        "commit": commit(),
        "hardware": hardware(),
        "pyarrow": pa.__version__,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
