"""Atomic files and directories under kills, full disks, second writers and flipped bytes."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.search_examples import killed_at

from pmpguard import files, locked_files
from pmpguard.errors import DataError, FullDiskError, PmpguardError
from pmpguard.files import (
    MANIFEST,
    atomic_directory,
    atomic_output,
    discard,
    file_name_of,
    make_folder,
    new_directory,
    new_together,
    plain_value,
    read_json,
    read_manifest,
    recover_directory,
    remove_leftovers,
    sha256_file,
    verify_manifest,
    write_atomic,
    write_json,
    write_manifest,
    writer_lock,
)


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Run Python code in a process of its own, with the same import path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out + err


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


WRITE_FOR_EVER = """
import itertools, sys
from pathlib import Path
from pmpguard.files import atomic_directory, write_atomic
for version in itertools.count():
    with atomic_directory(Path(sys.argv[1]) / "model") as folder:
        for part in range(4):
            (folder / f"{part}.bin").write_bytes(bytes([version % 256]) * 50_000)
    write_atomic(Path(sys.argv[1]) / "notes.txt", f"{version}" * 10_000)
    print(version, flush=True)
"""


def test_a_kill_at_any_moment_leaves_the_old_or_the_new_version(tmp_path):
    chance = random.Random(0)
    for _ in range(10):
        process = start(WRITE_FOR_EVER, tmp_path)
        assert process.stdout is not None
        process.stdout.readline()  # at least one version is whole
        time.sleep(chance.uniform(0, 0.05))
        process.send_signal(signal.SIGKILL)
        finish(process)
        recover_directory(tmp_path / "model")
        verify_manifest(tmp_path / "model")
        parts = [(tmp_path / "model" / f"{part}.bin").read_bytes() for part in range(4)]
        assert len(set(parts)) == 1 and len(parts[0]) == 50_000
        text = (tmp_path / "notes.txt").read_text()
        assert text == text[: len(text) // 10_000] * 10_000
    with atomic_directory(tmp_path / "model") as folder:
        (folder / "last.bin").write_bytes(b"last")
    assert names(tmp_path) == ["model", "notes.txt"]  # the leftovers of all killed writers are gone
    assert names(tmp_path / "model") == ["last.bin", MANIFEST]


@pytest.mark.parametrize("stage", ["moved aside", "replaced"])
def test_the_two_moments_of_a_replacement(tmp_path, stage):
    with atomic_directory(tmp_path / "model") as folder:
        (folder / "a").write_text("old")
    (tmp_path / "model").rename(tmp_path / ".old-model")
    if stage == "replaced":
        (tmp_path / "model").mkdir()
        (tmp_path / "model" / "a").write_text("new")
        write_manifest(tmp_path / "model")
    recover_directory(tmp_path / "model")
    assert (tmp_path / "model" / "a").read_text() == ("old" if stage == "moved aside" else "new")
    with atomic_directory(tmp_path / "model") as folder:
        (folder / "a").write_text("newest")
    assert (tmp_path / "model" / "a").read_text() == "newest" and names(tmp_path) == ["model"]


def test_a_writer_that_fails_after_an_interrupted_one_keeps_the_old_version(tmp_path):
    with atomic_directory(tmp_path / "model") as folder:
        (folder / "a").write_text("old")
    (tmp_path / "model").rename(tmp_path / ".old-model")
    with pytest.raises(ZeroDivisionError), atomic_directory(tmp_path / "model"):
        _ = 1 / 0
    verify_manifest(tmp_path / "model")
    assert names(tmp_path) == ["model"]


def test_an_error_in_the_block_leaves_nothing_new(tmp_path):
    with pytest.raises(ValueError, match="stop"), atomic_directory(tmp_path / "deep" / "model") as folder:
        (folder / "a").write_text("half")
        raise ValueError("stop")
    assert names(tmp_path / "deep") == []


def test_only_dead_writers_are_cleaned_up_after(tmp_path):
    foreign = tmp_path / ".tmp-somebody-else"
    foreign.mkdir()
    dead = tmp_path / f".tmp-{'0' * 32}-model"
    dead.mkdir()
    (tmp_path / f".tmp-{'1' * 32}-notes.txt").write_text("half")
    with atomic_directory(tmp_path / "other") as living:
        (living / "a").write_text("in work")
        remove_leftovers(tmp_path)
        assert living.exists() and foreign.exists() and not dead.exists()
    assert names(tmp_path) == [foreign.name, "other"]


def test_write_atomic_replaces_and_cleans_up(tmp_path):
    path = tmp_path / "notes.txt"
    write_atomic(path, "grüße")
    write_atomic(path, b"\x00\x01")
    assert path.read_bytes() == b"\x00\x01" and names(tmp_path) == ["notes.txt"]
    write_json(path, {"b": [1], "a": "é"})
    assert path.read_text(encoding="utf-8") == '{\n  "a": "é",\n  "b": [\n    1\n  ]\n}\n'
    assert read_json(path) == {"a": "é", "b": [1]}


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000, b"9" * 5000])
def test_bad_json_names_the_file(tmp_path, content):
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(PmpguardError, match=r"bad\.json: not valid JSON"):
        read_json(path)
    with pytest.raises(PmpguardError, match=r"absent\.json: file not found"):
        read_json(tmp_path / "absent.json")


FILL_THE_DISK = """
import resource, sys
from pathlib import Path
from pmpguard.errors import FullDiskError
from pmpguard.files import atomic_directory, write_atomic
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
root = Path(sys.argv[1])
for write in ("directory", "file"):
    try:
        if write == "file":
            write_atomic(root / "notes.txt", "new" * 20_000)
        else:
            with atomic_directory(root / "model") as folder:
                (folder / "a").write_bytes(b"new" * 20_000)
    except FullDiskError as error:
        print(error.message.replace(str(root), ""))
"""


def test_a_full_disk_keeps_the_previous_version(tmp_path):
    with atomic_directory(tmp_path / "model") as folder:
        (folder / "a").write_text("old")
    write_atomic(tmp_path / "notes.txt", "old")
    code, output = finish(start(FILL_THE_DISK, tmp_path))
    said = "could not be written (File too large)"
    assert (code, output) == (0, f"/model: {said}\n/notes.txt: {said}\n")
    verify_manifest(tmp_path / "model")
    assert (tmp_path / "model" / "a").read_text() == (tmp_path / "notes.txt").read_text() == "old"
    assert names(tmp_path) == ["model", "notes.txt"]


def test_verify_names_the_flipped_or_missing_file(tmp_path):
    target = tmp_path / "model"
    with atomic_directory(target) as folder:
        (folder / "deep").mkdir()
        for name in ("a.bin", "deep/b.bin", f"deep/{MANIFEST}"):
            (folder / name).write_bytes(bytes(range(256)))
    verify_manifest(target)
    assert read_json(target / MANIFEST)["sha256"]["a.bin"] == sha256_file(target / "a.bin")
    for name in ("a.bin", "deep/b.bin", f"deep/{MANIFEST}"):
        path = target / name
        content = bytearray(path.read_bytes())
        content[100] ^= 1
        path.write_bytes(content)
        with pytest.raises(PmpguardError, match=f"{name}: content differs"):
            verify_manifest(target)
        path.unlink()
        with pytest.raises(PmpguardError, match=f"{name}: listed in {MANIFEST} but missing"):
            verify_manifest(target)
        path.write_bytes(bytes(range(256)))
    verify_manifest(target)


def test_any_flipped_byte_of_the_manifest_is_an_error_of_ours(tmp_path):
    with atomic_directory(tmp_path / "model") as folder:
        (folder / "a").write_text("content")
    path = tmp_path / "model" / MANIFEST
    good = path.read_bytes()
    for place in range(len(good)):
        for bit in range(8):
            path.write_bytes(good[:place] + bytes([good[place] ^ 1 << bit]) + good[place + 1 :])
            try:
                verify_manifest(tmp_path / "model")
            except PmpguardError as error:
                assert str(tmp_path / "model") in str(error)
            else:
                assert json.loads(good) == json.loads(path.read_bytes())  # white space


HOLD_THE_LOCK = """
import sys, time
from pathlib import Path
from pmpguard.files import writer_lock
with writer_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused_and_a_dead_one_taken_over(tmp_path):
    process = start(HOLD_THE_LOCK, tmp_path / "index")
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        with (
            pytest.raises(PmpguardError, match=f"is being written by process {process.pid}"),
            writer_lock(tmp_path / "index"),
        ):
            pass
    finally:
        process.kill()
        finish(process)
    with writer_lock(tmp_path / "index"):
        assert (tmp_path / "index" / ".lock").read_text() == str(os.getpid())
        with pytest.raises(PmpguardError, match="being written"), writer_lock(tmp_path / "index"):
            pass
    with writer_lock(tmp_path / "index"):
        pass


def test_an_output_is_whole_or_absent(tmp_path):
    path = tmp_path / "new" / "pairs.csv"
    with atomic_output(path) as stream:
        stream.write(b"whole")
    with pytest.raises(ValueError, match="stopped"), atomic_output(path) as stream:
        stream.write(b"half")
        raise ValueError("stopped")
    assert path.read_bytes() == b"whole" and names(path.parent) == ["pairs.csv"]


def test_a_new_directory_never_replaces_one_in_use(tmp_path):
    with new_directory(tmp_path / "a") as folder:
        (folder / "1.png").write_bytes(b"1")
    assert names(tmp_path / "a") == ["1.png"]
    with pytest.raises(DataError, match="exists already"), new_directory(tmp_path / "a"):
        pass
    with pytest.raises(ValueError, match="stopped"), new_directory(tmp_path / "b") as folder:
        (folder / "1.png").write_bytes(b"1")
        raise ValueError("stopped")
    assert names(tmp_path) == ["a"]


def test_a_discarded_directory_is_gone_at_once(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    discard(tmp_path / "a")
    assert names(tmp_path) == []


def test_plain_values_are_json():
    values = {"a": np.float32(0.5), "b": [np.nan, np.arange(2)], "c": {1: float("inf")}, "d": Path("x")}
    assert json.loads(json.dumps(plain_value(values), allow_nan=False)) == {
        "a": 0.5,
        "b": [None, [0, 1]],
        "c": {"1": None},
        "d": "x",
    }


def test_file_names_of_different_texts_differ():
    texts = ["a", "a/b", "a-b", "../a", "", "ä", "x" * 500, "x" * 501, "\udcff"]
    made = [file_name_of(text) for text in texts]
    assert len(set(made)) == len(texts) and made[0] == "a" and made[2] == "a-b"
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,120}", name) and name.strip(".") == name for name in made)


def test_a_writer_that_counts_its_bytes_says_which_file(tmp_path):
    """numpy's `tofile` on a full disk: an OSError without number or name."""
    said = r"a\.npy: could not be written \(409600 requested"
    with pytest.raises(FullDiskError, match=said), atomic_output(tmp_path / "a.npy"):
        raise OSError("409600 requested and 178112 written")
    with pytest.raises(OSError, match="something else"), atomic_output(tmp_path / "a.npy"):
        raise OSError("something else")  # not for want of space


def test_an_error_of_another_library_about_a_full_disk_is_ours(tmp_path):
    """safetensors on a full disk raises what is no OSError."""
    said = "Error while serializing: I/O error: No space left on device (os error 28)"
    with pytest.raises(FullDiskError, match="model: could not be written"), new_directory(tmp_path / "model"):
        raise RuntimeError(said)
    with pytest.raises(RuntimeError, match="other"), new_directory(tmp_path / "model"):
        raise RuntimeError("other")


def test_files_that_belong_together_are_all_there_or_none(tmp_path):
    target, changes = tmp_path / "a.csv", tmp_path / "a.diff"
    with pytest.raises(KeyError), new_together(target, changes):
        write_atomic(changes, "1")
        raise KeyError
    assert names(tmp_path) == []
    with new_together(target, changes):
        said = r"a\.csv is being written by another process"
        with pytest.raises(DataError, match=said), new_together(target, changes):
            pytest.fail("two writers")
        write_atomic(changes, "1")
        write_atomic(target, "2")
    assert names(tmp_path) == ["a.csv", "a.diff"]
    for path in (target, changes):
        path.unlink()
        with pytest.raises(DataError, match="exists already"), new_together(target, changes):
            pytest.fail("would overwrite")
        assert len(names(tmp_path)) == 1
        write_atomic(path, "again")


def test_whoever_writes_files_that_belong_together_may_be_killed_and_begins_again(tmp_path):
    """At every change of a file: the dataset is there with its lists, or the next writer makes them anew."""

    def write(folder: Path) -> None:
        with new_together(folder / "clean.csv", folder / "clean.diff"):
            write_atomic(folder / "clean.diff", "what changed")
            write_atomic(folder / "clean.csv", "pairs")

    whole, kills = ["clean.csv", "clean.diff"], 0
    for event in range(1, 30):
        folder = tmp_path / str(event)
        if not killed_at(event, write, folder):
            break
        kills += 1
        if folder.is_dir() and not (folder / "clean.csv").exists():  # what a user puts there then stays
            (folder / "clean.csv").write_text("mine")
            with pytest.raises(DataError, match=r"clean\.csv: exists already"):
                write(folder)
            assert (folder / "clean.csv").read_text() == "mine"
            (folder / "clean.csv").unlink()
        with contextlib.suppress(DataError):  # it was killed after all was done
            write(folder)
        assert [name for name in names(folder) if not name.startswith(".")] == whole
        with pytest.raises(DataError, match=r"clean\.csv: exists already"):
            write(folder)
        assert names(folder) == whole
    assert kills > 4 and names(folder) == whole


def test_what_a_user_writes_meanwhile_is_not_removed_with_the_writer_s(tmp_path):
    changes, target = tmp_path / "a.diff", tmp_path / "a"
    with pytest.raises(DataError, match="exists already"), new_together(target, changes):
        write_atomic(changes, "1")
        target.write_text("mine")
        with new_directory(target):
            pytest.fail("would overwrite")
    assert names(tmp_path) == ["a"] and target.read_text() == "mine"


@pytest.mark.parametrize("name", ["../evil", "/etc/evil", "a/../../evil", "", "a\0b"])
def test_a_manifest_names_files_of_its_folder_only(tmp_path, name):
    """An index is made of an embedding by copying what its manifest lists."""
    write_json(tmp_path / MANIFEST, {"sha256": {name: "0" * 64}})
    for read in (read_manifest, verify_manifest):
        with pytest.raises(PmpguardError, match="no file of this folder"):
            read(tmp_path)


@pytest.mark.parametrize("content", [[], {"sha256": []}, {"sha256": {"a": 1}}, {}])
def test_a_manifest_of_another_form_is_refused(tmp_path, content):
    write_json(tmp_path / MANIFEST, content)
    with pytest.raises(PmpguardError, match=MANIFEST):
        read_manifest(tmp_path)


def test_an_artefact_never_takes_the_place_of_something_else(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.jpg").write_text("mine")
    with pytest.raises(DataError, match="holds something else"), atomic_directory(tmp_path / "photos"):
        pytest.fail("would be deleted")
    assert names(tmp_path / "photos") == ["a.jpg"]


def test_what_a_killed_writer_of_one_file_left_goes_with_the_next(tmp_path):
    left = tmp_path / f".tmp-{'0' * 32}-noise.json"
    left.write_text("half")
    write_atomic(tmp_path / "noise.json", "whole")
    assert [path.name for path in tmp_path.iterdir()] == ["noise.json"]


@pytest.mark.parametrize("make", [atomic_directory, atomic_output])
def test_a_writer_whose_new_file_is_swept_before_it_is_locked_begins_again(tmp_path, monkeypatch, make):
    swept = []

    def lock(descriptor: int | None) -> bool:
        if not swept:
            swept.append(descriptor)
            (leftover,) = tmp_path.glob(".tmp-*")
            shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        return True

    monkeypatch.setattr(locked_files, "lock", lock)
    with make(tmp_path / "a") as it:
        it.write(b"1") if make is atomic_output else (it / "b").write_text("1")
    assert swept and names(tmp_path) == ["a"]


def test_new_folders_are_synced_into_those_above_them(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(files, "sync", synced.append)
    make_folder(tmp_path / "a" / "b")
    assert set(synced) == {tmp_path, tmp_path / "a"}
    make_folder(tmp_path / "a" / "b")
    assert len(synced) == 2


def test_the_second_of_two_writers_of_a_folder_is_told_so(tmp_path):
    with pytest.raises(DataError, match="exists already"), new_directory(tmp_path / "a") as folder:
        (folder / "b").write_text("1")
        (tmp_path / "a").mkdir()  # by the other one, after this one has looked
        (tmp_path / "a" / "c").write_text("2")
    assert names(tmp_path) == ["a"] and names(tmp_path / "a") == ["c"]
