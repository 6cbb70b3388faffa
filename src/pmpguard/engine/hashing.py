"""Hashes of many files, by several workers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pmpguard.engine.parts import Engine, Part, ranges, run_parts
from pmpguard.files import HashFiles, read_json, sha256_files, write_json

FILES_A_PART = 16


def hashing_by(engine: Engine, *, title: str = "") -> HashFiles | None:
    """What `atomic_directory` hashes its files by; None when the engine is this process alone."""

    def hash_files(directory: Path, names: Sequence[str]) -> dict[str, str]:
        with engine.files("hashes") as folder:
            for left in folder.iterdir():  # of files that have another folder now
                left.unlink()
            parts = [
                Part({"directory": str(directory), "names": some, "out": str(out)}, out, len(some))
                for start, stop in ranges(len(names), FILES_A_PART)
                for some, out in [(list(names[start:stop]), folder / f"{start:06d}.json")]
            ]
            run_parts(engine, f"{__name__}:hash_part", parts, title=title, unit=" files")
            found: dict[str, str] = {}
            for part in parts:
                found |= read_json(Path(part.arguments["out"]))
            return found

    return None if engine.alone else hash_files


def hash_part(directory: str, names: list[str], out: str) -> None:
    """Hash some files of a directory; the hashes go to another file."""
    write_json(Path(out), sha256_files(Path(directory), names))
