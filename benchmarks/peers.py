"""The tests against other libraries' own code, and what they measure: `make peers`.

    PMPGUARD_PEERS=PYTHON PMPGUARD_EXPORT_PEERS=PYTHON python benchmarks/peers.py [--out FILE]

The first Python has open_clip, CLIP_benchmark and torchgeo, the second FiftyOne, geopandas and Label Studio's
SDK, which the project's own environment must not have. It records their versions, how many tests ran, the
largest difference of each model's vectors and of recalls, and counts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pmpguard.device import pick_device
from pmpguard.files import write_json
from pmpguard.training.tracking import current_commit, describe_hardware

ROOT = Path(__file__).parents[1]
OUT = ROOT / "benchmarks" / "results" / "peers.json"
TESTS = {
    "PMPGUARD_PEERS": (
        "models/test_openclip_references.py",
        "models/test_siglip_references.py",
        "evaluation/test_peer_recall.py",
        "interop/test_clip_export.py",
        "audit/test_given_data.py",
    ),
    "PMPGUARD_EXPORT_PEERS": ("audit/test_exports.py", "geo/test_geoparquet.py"),
}
PACKAGES = {
    "PMPGUARD_PEERS": (
        "open_clip_torch",
        "clip_benchmark",
        "torchgeo",
        "transformers",
        "torchvision",
    ),
    "PMPGUARD_EXPORT_PEERS": ("fiftyone", "geopandas", "label-studio-sdk"),
}
VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


class Record:
    """A plugin of pytest that keeps how tests end and what they call `record_property` with."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.measured: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] = self.outcomes.get(report.outcome, 0) + 1
            self.measured |= {name: float(str(value)) for name, value in report.user_properties}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    versions: dict[str, Any] = {}
    for variable, packages in PACKAGES.items():
        if not os.environ.get(variable):
            parser.error(f"{variable} names no Python; `make peers` makes both")
        os.environ[variable] = str(Path(os.environ[variable]).absolute())
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [os.environ[variable], "-c", VERSIONS, *packages]
        told = subprocess.run(command, env=clean, capture_output=True, text=True, check=True)
        versions |= json.loads(told.stdout.splitlines()[-1])
    record = Record()
    files = [str(ROOT / "tests" / name) for names in TESTS.values() for name in names]
    failed = pytest.main(["-q", "-k", "real", "-p", "no:cacheprovider", *files], plugins=[record])
    write_json(
        options.out,
        {
            "versions": versions,
            "tests": record.outcomes,
            "measured": dict(sorted(record.measured.items())),
            "commit": current_commit(),
            "hardware": describe_hardware(pick_device("cpu")),
        },
    )
    print(options.out.read_text())
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
