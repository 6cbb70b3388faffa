"""Ten thousand damaged files for every reader: how many are read, refused, or end in anything else.

    python benchmarks/fuzz_readers.py [--cases 10000] [--family NAME ...] [--out benchmarks/results/...]

Each family runs in a process of its own, so that a crash of a library is counted, too. Case n of a family is
drawn from the seed "FAMILY n", so a failure can be made again. Families are recorded as they end.
"""

from __future__ import annotations

import argparse
import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pmpguard.device import pick_device
from pmpguard.files import write_json
from pmpguard.training.tracking import current_commit, describe_hardware

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))
OUT = ROOT / "benchmarks" / "results" / "fuzz_readers.json"
SHOWN = 20  # failures kept of a family


def one_family(name: str, cases: int) -> dict[str, Any]:
    from helpers.damaged_files import fuzz

    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        outcomes, failures = fuzz(name, Path(folder), cases)
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cases": cases,
        "outcomes": dict(sorted(outcomes.items())),
        "failures": failures[:SHOWN],
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 1),
        "peak_megabytes": round(used.ru_maxrss / 1024),
        "commit": current_commit(),
    }


def in_process(name: str, cases: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--child", name, "--cases", str(cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"cases": cases, "crashed": done.returncode, "said": done.stderr[-500:]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> int:
    from helpers.damaged_files import FAMILIES

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--family", action="append", choices=sorted(FAMILIES))
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(one_family(options.child, options.cases)))
        return 0
    recorded = json.loads(options.out.read_text()) if options.out.is_file() else {"families": {}}
    for name in options.family or FAMILIES:
        recorded["families"][name] = in_process(name, options.cases)
        recorded |= {"commit": current_commit(), "hardware": describe_hardware(pick_device("cpu"))}
        recorded |= {"python": sys.version.split()[0], "seed": "FAMILY CASE"}
        recorded["time"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(options.out, recorded)
        print(name, json.dumps(recorded["families"][name]), flush=True)
    families = recorded["families"].values()
    return int(any("crashed" in each or each["failures"] for each in families))


if __name__ == "__main__":
    sys.exit(main())
