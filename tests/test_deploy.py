"""What is in deploy/: its steps run as far as they can without Docker; the check notices what is wrong."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement

FOLDER = Path(__file__).resolve().parents[1] / "deploy"
GIVEN = {"PGPASSWORD": "", "PMPGUARD_TOKEN": "", "IMAGES": ""}


@pytest.fixture(scope="module")
def check() -> ModuleType:
    spec = importlib.util.spec_from_file_location("deploy_check", FOLDER / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_image_of_the_dockerfile_serves_and_the_files_beside_it_hold_together():
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    command = [sys.executable, str(FOLDER / "check.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("all as it should be\n") and "left out" in done.stdout


def test_compose_and_its_variables(check):
    text = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
    assert check.variables(FOLDER / "example.env") == GIVEN
    check.check_compose(text, GIVEN)
    for right, wrong, message in [
        ("127.0.0.1:8000:8000", "8000:8000", "open to everybody"),
        ("index:/data", "indices:/data", "volume indices"),
        ("      database:\n        condition", "      databse:\n        condition", "no service"),
        ("pgvector/pgvector:0.8.1-pg17", "pgvector/pgvector", "database: 'pgvector/pgvector'"),
        ("dockerfile: deploy/Dockerfile", "dockerfile: Dockerfile", "search: no "),
        ("${IMAGES:", "${PICTURES:", "example.env lacks"),
        ("start_period: 48h", "start_period: 20m", "reader gives up after 20m"),
        (
            "    healthcheck:\n      start_period: 48h",
            "    init: true #",
            "reader gives up after ten minutes",
        ),
    ]:
        assert right in text
        with pytest.raises(check.Failure, match=message):
            check.check_compose(text.replace(right, wrong), GIVEN)
    with pytest.raises(check.Failure, match="holds a value"):
        check.check_compose(text, GIVEN | {"PGPASSWORD": "secret"})


def test_compose_asks_docker_compose_where_there_is_one(check, tmp_path, capsys):
    path = FOLDER / "compose.yaml"
    check.check_compose_schema(path, GIVEN)
    if check.compose_program() is None:
        assert "Docker Compose is not here" in capsys.readouterr().out
        pytest.skip("Docker Compose is not here")
    assert "config: well" in capsys.readouterr().out
    text = path.read_text(encoding="utf-8")
    wrong = tmp_path / "compose.yaml"
    wrong.write_text(text.replace("restart:", "restat:"), encoding="utf-8")
    with pytest.raises(check.Failure, match="restat"):
        check.check_compose_schema(wrong, GIVEN)
    wrong.write_text(re.sub(r":\?[^}]+", ":-/given", text), encoding="utf-8")
    with pytest.raises(check.Failure, match="without a password"):
        check.check_compose_schema(wrong, GIVEN)


def test_the_unit(check, tmp_path):
    text = (FOLDER / "pmpguard.service").read_text(encoding="utf-8")
    check.check_unit(FOLDER / "pmpguard.service")
    wrong = tmp_path / "pmpguard.service"
    wrong.write_text(text.replace("ProtectHome=", "ProtectHouse="), encoding="utf-8")
    with pytest.raises(check.Failure, match=r"ProtectHouse.* in \[Service\]"):
        check.check_unit(wrong)


def test_an_image_that_runs_as_root_or_cannot_be_watched_is_noticed(check, tmp_path):
    port = {"PMPGUARD_PORT": "8000"}
    good = {"USER": "pmpguard", "EXPOSE": "8000", "HEALTHCHECK": "CMD true"}
    check.check_settings(good, port)
    for name, value in [("USER", "root"), ("EXPOSE", "80"), ("HEALTHCHECK", "NONE")]:
        with pytest.raises(check.Failure, match=name):
            check.check_settings(good | {name: value}, port)
    image = check.Image(tmp_path, full=False)
    with pytest.raises(check.Failure, match="without a version"):
        image.do("FROM", "python")
    with pytest.raises(check.Failure, match="not in the repository"):
        image.do("COPY", "nothing ./")
    with pytest.raises(check.Failure, match=r"CITATION.cff: Dockerfile.dockerignore leaves it out"):
        image.do("COPY", "pyproject.toml CITATION.cff ./")
    for unhashed in (
        "pip install torch",
        "pip install -c constraints.txt .[serve]",
        "pip install --no-deps .",
    ):
        with pytest.raises(check.Failure, match="no hash names"):
            image.do("RUN", unhashed)
    with pytest.raises(check.Failure, match="exit code 3"):
        image.do("RUN", "exit 3")


def needed_by(name: str, extras: str = "", found: set[str] | None = None) -> set[str]:
    """The packages installed here that a package needs, with their own needs, as pip would find them."""
    found = set() if found is None else found
    key = re.sub(r"[-_.]+", "-", name).lower()
    found.add(key)
    try:
        lines = distribution(key).requires or ()
    except PackageNotFoundError:  # it is not here, and has to be in the lock all the same
        lines = ()
    for line in lines:
        need = Requirement(line)
        asked = [extra.strip() for extra in extras.split(",")]
        if need.marker is None or any(need.marker.evaluate({"extra": extra}) for extra in asked):
            inner = re.sub(r"[-_.]+", "-", need.name).lower()
            if inner not in found or need.extras:
                needed_by(need.name, ",".join(need.extras), found)
    return found


def test_all_that_is_installed_is_named_by_hash_and_stands_in_the_bill_of_materials():
    lines = (FOLDER / "requirements.lock").read_text(encoding="utf-8").splitlines()
    locked = [line for line in lines if not line.startswith("#")]
    form = re.compile(r"([A-Za-z0-9._-]+)==(\S+) --hash=sha256:([0-9a-f]{64})")
    named = [match.groups() for line in locked if (match := form.fullmatch(line))]
    assert len(named) == len(locked) > 50
    bill = json.loads((FOLDER / "sbom.json").read_text(encoding="utf-8"))
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    listed = [(one["name"], one["version"], one["hashes"][0]["content"]) for one in bill["components"]]
    assert sorted(listed) == sorted(named)
    names = {re.sub(r"[-_.]+", "-", name).lower() for name, _, _ in named}
    assert not needed_by("pmpguard", "ann,geo,postgres,qdrant,serve,weights") - names - {"pmpguard"}
    constraints = (FOLDER.parent / "constraints.txt").read_text(encoding="utf-8").splitlines()
    tested = dict(line.split("==") for line in constraints if "==" in line and not line.startswith("#"))
    wrong = {
        name: version
        for name, version, _ in named
        if tested.get(name, version.partition("+")[0]) != version.partition("+")[0]
    }
    assert not wrong and len(tested) > 50
