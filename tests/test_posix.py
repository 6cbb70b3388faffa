"""Where the system has no fcntl and no resource, as on Windows, everything but the server still works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.search_examples import make_world

from pmpguard.posix import lock, open_to_read, peak_resident_bytes, read_into, unlock

WITHOUT_POSIX = """
import os, sys
sys.modules["fcntl"] = sys.modules["resource"] = None
for name in ("preadv", "pread", "O_NOFOLLOW", "O_DIRECTORY", "fork"):
    if hasattr(os, name):
        delattr(os, name)
import importlib, pkgutil, pmpguard
for module in pkgutil.walk_packages(pmpguard.__path__, "pmpguard."):
    if not module.name.startswith("pmpguard.interop."):  # made of extras, which do not bear this
        importlib.import_module(module.name)
from pmpguard.cli.main import main
for words in sys.argv[1].split(";"):
    print(words, main(words.split()))
"""
COMMANDS = (
    "data check world --progress false",
    "embed world --model model --out vectors --progress false",
    "index build index --embeddings vectors",
    "index add index vectors",
    "index verify index",
    "search index river -k 2",
    "evaluate model --dataset world --bootstrap 0",
    "train run --scenes 60 --train.epochs 1 --train.model.vision tiny --train.model.text tiny "
    "--train.model.dim 32 --train.model.image_size 64 --train.device cpu --train.method infonce "
    "--train.batch_size 40",
    "serve index --port 0",
)


@pytest.mark.slow
def test_everything_but_the_server_works_without_posix(tmp_path: Path) -> None:
    make_world(tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_POSIX, ";".join(COMMANDS)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=240,
    )
    codes = [line.rpartition(" ")[2] for line in result.stdout.splitlines() if line.startswith(COMMANDS)]
    assert codes == ["0"] * (len(COMMANDS) - 1) + ["1"], result.stderr[-3000:]
    assert result.stderr.count("no file locks on") == 1
    assert "the server does not run on" in result.stderr and "memory unknown" in result.stdout


def test_a_lock_is_held_until_it_is_given_back(tmp_path: Path) -> None:
    first, second = open_to_read(tmp_path), open_to_read(tmp_path)
    assert first is not None and second is not None
    assert lock(first) and not lock(second)
    unlock(first)
    assert lock(second, shared=True) and lock(first, shared=True, wait=True) and not lock(first)
    os.close(first)
    os.close(second)


def test_reading_at_an_offset_is_the_same_without_preadv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(range(100)))
    descriptor = os.open(tmp_path / "file", os.O_RDONLY)
    for _ in range(2):
        buffer = memoryview(bytearray(30))
        assert read_into(descriptor, buffer, 80) == 20
        assert bytes(buffer[:20]) == bytes(range(80, 100))
        monkeypatch.delattr(os, "preadv", raising=False)
    os.close(descriptor)


def test_the_peak_of_memory_is_plausible() -> None:
    assert 10**7 < (peak_resident_bytes() or 0) < 10**12
