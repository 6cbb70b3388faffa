"""What the Dockerfile installs, with the hash of every file, and the same as a software bill of materials.

    python deploy/lock.py                 # writes deploy/requirements.lock and deploy/sbom.json
    pip install --require-hashes --no-deps -r deploy/requirements.lock

pip resolves the extras of a server with the versions of constraints.txt, for the Python and the machine it
runs on (CPython 3.11 on Linux), and reports which file it would take from where. The lock file names each by
version and SHA-256: another file under the same name is not installed. The bill is CycloneDX 1.6.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = "ann,geo,postgres,qdrant,serve,weights"
OURS = "pmpguard"


def resolved(extras: str) -> list[dict[str, Any]]:
    """What pip would install into an empty environment, without installing it."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        command = [sys.executable, "-m", "pip", "install", *options, "-c", str(ROOT / "constraints.txt")]
        subprocess.run([*command, f"{ROOT}[{extras}]"], check=True)
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["install"]
    return sorted(found, key=lambda one: name_of(one).lower())


def name_of(package: dict[str, Any]) -> str:
    return str(package["metadata"]["name"])


def sha256_of(package: dict[str, Any]) -> str:
    return str(package["download_info"]["archive_info"]["hashes"]["sha256"])


def lock_lines(packages: list[dict[str, Any]]) -> list[str]:
    """One requirement with its hash for each package but ours."""
    return [
        f"{name_of(one)}=={one['metadata']['version']} --hash=sha256:{sha256_of(one)}"
        for one in packages
        if name_of(one) != OURS
    ]


def bill(packages: list[dict[str, Any]]) -> dict[str, Any]:
    """The packages as a CycloneDX document; the same packages give the same document."""
    (own,) = [one for one in packages if name_of(one) == OURS]
    others = [one for one in packages if name_of(one) != OURS]
    components = [component(one) for one in others]
    serial = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(lock_lines(packages)))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {**component(own), "type": "application"}},
        "components": components,
    }


def component(package: dict[str, Any]) -> dict[str, Any]:
    about = package["metadata"]
    name, version = name_of(package), str(about["version"])
    address = f"pkg:pypi/{name.lower().replace('_', '-')}@{version.replace('+', '%2B')}"
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": version,
        "purl": address,
    }
    hashes = package["download_info"].get("archive_info", {}).get("hashes", {})
    if "sha256" in hashes:
        found["hashes"] = [{"alg": "SHA-256", "content": hashes["sha256"]}]
    if about.get("license_expression"):
        found["licenses"] = [{"expression": about["license_expression"]}]
    elif about.get("license") not in (None, "", "UNKNOWN") and len(about["license"]) < 100:
        found["licenses"] = [{"license": {"name": about["license"]}}]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--extras", default=EXTRAS)
    parser.add_argument("--out", type=Path, default=ROOT / "deploy")
    options = parser.parse_args()
    packages = resolved(options.extras)
    head = [
        "# Made by deploy/lock.py for CPython 3.11 on Linux (x86_64), with the CPU build of torch,",
        "# whose index is https://download.pytorch.org/whl/cpu.",
    ]
    lock = "\n".join([*head, *lock_lines(packages)]) + "\n"
    (options.out / "requirements.lock").write_text(lock, encoding="utf-8")
    text = json.dumps(bill(packages), indent=1, ensure_ascii=False) + "\n"
    (options.out / "sbom.json").write_text(text, encoding="utf-8")
    print(
        f"{len(packages) - 1} packages in {options.out / 'requirements.lock'} and {options.out / 'sbom.json'}"
    )


if __name__ == "__main__":
    main()
