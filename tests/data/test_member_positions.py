"""Positions of members: those of a plain search, read once whoever asks, and never believed blindly."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpguard.data import member_positions
from pmpguard.data.member_positions import Version, find_member, positions_file
from pmpguard.data.shards import read_member
from pmpguard.errors import DataError


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PMPGUARD_CACHE", str(tmp_path / "cache"))
    member_positions._memory.clear()


def write_shard(path: Path, content: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as tar:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def members(count: int, letter: str = "a") -> dict[str, bytes]:
    return {f"{number:05d}.png": f"{letter}{number}".encode() * 3 for number in range(count)}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.text(max_size=5), max_size=60), st.booleans())
def test_positions_are_those_of_a_plain_search(names, collide):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PMPGUARD_CACHE", folder)
        if collide:
            patch.setattr(member_positions, "name_hash", lambda name: len(name) - 2)
        places = [(name, 10 * number, 10 * number + 7) for number, name in enumerate(names)]
        for name in {*names, "another"}:
            found = find_member("/a.tar", Version(5, 6), name, lambda: places)
            assert {(start, end) for each, start, end in places if each == name} <= set(found)
            if not collide:
                assert found == [(start, end) for each, start, end in places if each == name]


def test_a_shard_is_read_once_whoever_asks():
    asked = []

    def scan() -> Iterator[tuple[str, int, int]]:
        asked.append(1)
        yield "a.png", 0, 600

    assert find_member("/a.tar", Version(5, 6), "a.png", scan) == [(0, 600)]
    assert find_member("/a.tar", Version(5, 6), "b.png", scan) == []
    assert len(asked) == 1 and positions_file("/a.tar").is_file()
    assert find_member("/a.tar", Version(5, 7), "a.png", scan) == [(0, 600)]  # the file has another time
    assert len(asked) == 2


READ = """
import sys, pmpguard.data.member_positions as positions
from pathlib import Path
from pmpguard.data.shards import read_member
table, counted = positions._table, []
positions._table = lambda scan: counted.append(1) or table(scan)
for number in range(40):
    for path in map(Path, sys.argv[1:]):
        assert read_member(path, f"{number:05d}.png") == f"{path.stem}{number}".encode() * 3
print(len(counted))
"""


def test_processes_at_once_on_one_cache_folder_share_the_reading(tmp_path):
    paths = [write_shard(tmp_path / f"{letter}.tar", members(40, letter)) for letter in "abcdef"]
    started = [
        subprocess.Popen([sys.executable, "-c", READ, *map(str, paths)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    scans = [int(process.communicate()[0]) for process in started]
    assert sum(scans) == len(paths)
    assert len(list((tmp_path / "cache" / "shards").glob("*.positions"))) == len(paths)
    assert not list((tmp_path / "cache" / "shards").glob(".tmp-*"))


def test_a_truncated_shard_is_named_and_leaves_no_positions(tmp_path):
    path = write_shard(tmp_path / "a.tar", {"a.png": b"x" * 3000, "b.png": b"y" * 3000})
    os.truncate(path, 5000)
    with pytest.raises(DataError, match=r"a\.tar member 'b\.png': cut off"):
        read_member(path, "a.png")
    assert not positions_file(str(path)).exists()


def test_a_shard_that_changes_while_it_is_read_is_named(tmp_path, monkeypatch):
    path = write_shard(tmp_path / "a.tar", members(5))
    read = os.pread

    def read_and_change(descriptor: int, count: int, start: int) -> bytes:
        data = read(descriptor, count, start)
        if Path(f"/proc/self/fd/{descriptor}").readlink() == path:
            os.truncate(path, path.stat().st_size - 512)
        return data

    monkeypatch.setattr(os, "pread", read_and_change)
    with pytest.raises(DataError, match=r"a\.tar: changed while it was read"):
        read_member(path, "00003.png")


def test_a_shard_written_anew_is_read_anew(tmp_path):
    path = write_shard(tmp_path / "a.tar", members(5))
    assert read_member(path, "00003.png") == b"a3a3a3"
    write_shard(path, {"first.png": b"x" * 999, **members(5, "b")})
    assert read_member(path, "00003.png") == b"b3b3b3"


def test_damaged_positions_are_made_anew(tmp_path):
    path = write_shard(tmp_path / "a.tar", members(50))
    assert read_member(path, "00007.png") == b"a7a7a7"
    positions = positions_file(str(path))
    content = bytearray(positions.read_bytes())
    content[64:] = bytes(len(content) - 64)
    positions.write_bytes(content)
    assert read_member(path, "00007.png") == b"a7a7a7"
    assert positions.read_bytes() != bytes(content)
    positions.write_bytes(content[:100])  # cut off
    assert read_member(path, "00008.png") == b"a8a8a8"


FULL = """
import logging, resource, sys
from pathlib import Path
from pmpguard.data.shards import read_member
logging.basicConfig()
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
for number in range(40):
    assert read_member(Path(sys.argv[1]), f"{number:05d}.png") == f"a{number}".encode() * 3
"""


def test_a_full_disk_in_the_cache_is_said_once_and_nothing_is_lost(tmp_path):
    path = write_shard(tmp_path / "a.tar", members(40))
    done = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    assert done.stderr.count("cannot be kept there") == 1 and "File too large" in done.stderr
    assert list((tmp_path / "cache" / "shards").glob("*[!0-9]")) == []  # but for locks


def test_a_cache_folder_that_cannot_be_made_is_said_and_nothing_is_lost(tmp_path, caplog):
    (tmp_path / "cache").write_text("a file")
    path = write_shard(tmp_path / "a.tar", members(4))
    with caplog.at_level("WARNING"):
        assert [read_member(path, name) for name in members(4)] == list(members(4).values())
    assert "Set PMPGUARD_CACHE" in caplog.text
