"""Table 3's recipe on a stand-in for RS5M: drawn scenes in its layout, with its published faults.

Writes the stand-in and a CLIP of the usual shape but few and random weights below a temporary folder, runs
`pmpguard table table3` on them, and records the rows, named a stand-in, with the time of each step. What it
shows is that the way from shards to a table is whole, and what it costs; recalls of a random CLIP after one
epoch on drawn scenes say nothing of RS5M.

    python benchmarks/rs5m_stand_in.py [--samples 20000] [--out benchmarks/results/rs5m_stand_in.json]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pmpguard.cli.main import main as pmpguard
from pmpguard.data.formats import read_pairs
from pmpguard.experiments.rows import read_rows
from pmpguard.synthetic.rs5m_layout import write_rs5m
from pmpguard.training.tracking import current_commit, describe_hardware

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from helpers.clip_checkpoint import save_tiny_clip

SIZE, WIDTH = 32, 64
LINES = ["infonce", "ccl", "pmpguard"]


def measure(folder: Path, samples: int) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    began = time.process_time()

    def done(step: str) -> None:
        nonlocal began
        seconds[step], began = round(time.process_time() - began, 1), time.process_time()

    told = write_rs5m(folder / "rs5m", samples, val=0.1, size=SIZE)
    done("written")
    table = read_pairs(folder / "rs5m")
    done("read")
    clip = str(save_tiny_clip(folder / "clip", table.captions, size=SIZE, width=WIDTH))
    model = {"vision": clip, "text": clip, "dim": WIDTH, "image_size": SIZE, "max_tokens": 32}
    train = {"model": model, "epochs": 1, "batch_size": 128, "precision": "fp32", "device": "cpu",
             "optimiser": {"encoder_lr": 1e-3, "head_lr": 1e-3}}  # fmt: skip
    held_out = {"test": samples // 40, "val": samples // 40, "train": samples, "of": "val"}
    given = {
        "dataset": folder / "rs5m", "lines": json.dumps(LINES), "seeds": "[0]", "train": json.dumps(train),
        "hold_out": json.dumps(held_out), "work": folder / "work", "out": folder / "out",
        "rows": folder / "rows.jsonl",
    }  # fmt: skip
    if pmpguard(["table", "table3", *(f"--{name}={value}" for name, value in given.items())]):
        raise SystemExit("the table was not made")
    done("table")
    rows = [
        {"method": row.method, "dataset": row.dataset, "recalls": row.metrics}
        for row in read_rows(folder / "rows.jsonl")
    ]
    return {"samples": told, "processor_seconds": seconds, "settings": {**train, "model": "tiny CLIP"},
            "hold_out": held_out, "rows": rows}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "rs5m_stand_in.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PMPGUARD_CACHE"] = str(Path(folder) / "cache")
        result = {"stand_in": True, **measure(Path(folder), options.samples)}
    result |= {"commit": current_commit(), "hardware": describe_hardware()}
    options.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
