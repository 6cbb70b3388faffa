"""Hashes by several workers are those of one process."""

from __future__ import annotations

import json

from pmpguard.engine import hashing
from pmpguard.engine.hashing import hashing_by
from pmpguard.engine.parts import ALONE, Engine
from pmpguard.files import atomic_directory, verify_manifest


def test_a_directory_hashed_by_several_workers_has_the_same_manifest(tmp_path, monkeypatch):
    monkeypatch.setattr(hashing, "FILES_A_PART", 3)
    for name, engine in (("alone", ALONE), ("shared", Engine(2, scratch=tmp_path / "scratch"))):
        with atomic_directory(tmp_path / name, hashing_by(engine)) as folder:
            for number in range(8):
                (folder / f"{number}.bin").write_bytes(bytes([number]) * 1000)
        verify_manifest(tmp_path / name)
    alone, shared = (json.loads((tmp_path / n / "manifest.json").read_text()) for n in ("alone", "shared"))
    assert alone == shared and len(shared["sha256"]) == 8
