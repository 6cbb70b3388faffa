"""Noise files of the protocol: RSICD and UCM, both levels, rates 0.2 to 0.8, seeds 0 to 2, in three forms.

Besides, caption-level noise of the same datasets with one caption kept of each training image.

    python benchmarks/noise_protocol.py --rsicd DIR --ucm DIR --write OUT    # the files, and their hashes
    python benchmarks/noise_protocol.py --rsicd DIR --ucm DIR                # make all again and compare

The list of hashes is src/pmpguard/experiments/noise_files.json, by which `pmpguard table --check` knows them.
Each file is made, written as our noise file, as RRSITR's CSV and, where captions are permuted, as NCR's
`.npy`; all three are read back and must give the same pairs. Whoever has the datasets gets the same bytes,
and whoever has a file can look it up by its hash.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import pmpguard
from pmpguard.data.formats import read_pairs
from pmpguard.data.pairs import PairTable
from pmpguard.data.splits import keep_one_caption
from pmpguard.errors import DataError
from pmpguard.files import sha256_file, write_json
from pmpguard.noise.exported import save_index, save_rrsitr, to_image_index
from pmpguard.noise.imported import from_image_index, read_index
from pmpguard.noise.inject import Corruption, Level, Mode, corrupt_pairs
from pmpguard.noise.manifest import apply_manifest, save_manifest

LISTED = Path(pmpguard.__file__).parent / "experiments" / "noise_files.json"
RATES, SEEDS = (0.2, 0.4, 0.6, 0.8), (0, 1, 2)
KINDS: tuple[tuple[Level, Mode], ...] = (
    ("caption", "replace"),  # of the tables
    ("caption", "permute"),
    ("image", "permute"),  # of the tables
)


def noise_files(
    table: PairTable, folder: Path, dataset: str, kinds: Sequence[tuple[Level, Mode]] = KINDS
) -> Iterator[dict[str, Any]]:
    """Make, write and read back every noise file of a dataset; one entry of the list for each."""
    for level, mode in kinds:
        for rate in RATES:
            for seed in SEEDS:
                made = corrupt_pairs(table, rate, seed, level, mode)
                name = f"{dataset}-{level}-{mode}-{rate:g}-{seed}".replace(", ", "-").replace(" ", "-")
                yield {
                    "name": name,
                    "level": level,
                    "mode": mode,
                    "rate": rate,
                    "seed": seed,
                    "mismatched": int(made.is_noisy.sum()),
                    "sha256": written(made, table, folder / name),
                }


def written(made: Corruption, clean: PairTable, folder: Path) -> dict[str, str]:
    """The hash of each form, once it was read back and gave the same pairs."""
    ours = folder / "noise.json"
    csv = folder / f"{made.table.name.upper()}-NC-{round(10 * made.requested_rate):02d}.csv"  # RRSITR's name
    save_manifest(made, ours)
    again = apply_manifest(clean, ours)
    require_same("noise.json", again.table.captions, made.table.captions)
    save_rrsitr(made, csv)
    split = made.table.split(made.split)
    listed = read_pairs(csv, format="rrsitr", images=clean.root)
    require_same(csv.name, pairs_of(listed), pairs_of(split))
    hashes = {"noise.json": sha256_file(ours), csv.name: sha256_file(csv)}
    if made.mode == "permute":
        index = folder / "t2i_index.npy"
        save_index(to_image_index(made), index)
        moved = from_image_index(clean, read_index(index), made.split)
        require_same(index.name, Counter(pairs_of(moved.table)), Counter(pairs_of(made.table)))
        if not np.array_equal(np.sort(moved.is_noisy), np.sort(made.is_noisy)):
            raise DataError(f"{index}: other pairs count as mismatched after reading it back")
        hashes[index.name] = sha256_file(index)
    return hashes


def pairs_of(table: PairTable) -> list[tuple[str, str]]:
    return list(zip(table.column("image"), table.captions, strict=True))


def require_same(name: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise DataError(f"{name}: reading it back gives other pairs")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rsicd", type=Path, required=True)
    parser.add_argument("--ucm", type=Path, required=True)
    parser.add_argument("--write", type=Path, help="keep the files here and write the list of hashes")
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for path in (options.rsicd, options.ucm):
            table = read_pairs(path)
            one = keep_one_caption(table)  # of each training image, as the table rsicd-one-caption trains
            for name, pairs, kinds in (
                (table.name, table, KINDS),
                (f"{table.name}, one caption", one, KINDS[:1]),
            ):
                files = list(noise_files(pairs, options.write or Path(scratch), name, kinds))
                found[name] = {"fingerprint": pairs.fingerprint, "pairs": len(pairs), "files": files}
    if options.write:
        write_json(LISTED, found)
        print(f"wrote {sum(len(each['files']) for each in found.values())} noise files to {options.write}")
        return 0
    listed = json.loads(LISTED.read_text())
    differing = [name for name, each in found.items() if each != listed.get(name)]
    print(f"differ from {LISTED.name}: {', '.join(differing)}" if differing else "all hashes as listed")
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())
