"""Shards: the same members as a general tar reader, every sample once, and nothing unsafe."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from helpers import format_examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpguard.data import shards
from pmpguard.data.formats import read_pairs
from pmpguard.data.formats.shards import image_bytes
from pmpguard.errors import DataError

names = st.lists(
    st.text(st.characters(codec="utf-8", exclude_characters="/\\\0", exclude_categories=["Cs"]), min_size=1)
    .map(lambda part: part[:40])
    .filter(lambda part: part.strip(".")),
    min_size=1,
    max_size=6,
).map("/".join)


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(names, st.binary(max_size=1500), min_size=1, max_size=8),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_members_equal_those_of_the_standard_tar_reader(content: dict[str, bytes], kind: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tar"
        with tarfile.open(path, "w", format=kind) as tar:
            for name, data in content.items():
                format_examples.add_member(tar, name, data)
        with tarfile.open(path) as tar:
            expected = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
        with path.open("rb") as stream:
            found = [member.name for member in shards.iter_members(stream, "a.tar")]
        assert found == list(expected)
        assert {name: shards.read_member(path, name, 2000) for name in found} == expected


def test_ustar_prefix_and_folders(tmp_path: Path) -> None:
    name = "/".join(["deep" * 10] * 4) + "/a.png"
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        format_examples.add_member(tar, name, b"x")
    with (tmp_path / "a.tar").open("rb") as stream:
        assert [member.name for member in shards.iter_members(stream, "a.tar")] == [name]


@pytest.mark.parametrize("name", ["../evil.png", "a/../../evil.png", "/etc/evil.png", "a\\..\\evil.png"])
def test_names_that_leave_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        format_examples.add_member(tar, "fine.png", b"x")
        format_examples.add_member(tar, name, b"x")
    with pytest.raises(DataError, match="leaves the folder") as flagged:
        read_pairs(path, format="webdataset")
    assert repr(name) in str(flagged.value)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (tarfile.SYMTYPE, "symbolic link"),
        (tarfile.LNKTYPE, "hard link"),
        (tarfile.CHRTYPE, "device"),
        (tarfile.BLKTYPE, "device"),
        (tarfile.FIFOTYPE, "pipe"),
        (tarfile.GNUTYPE_SPARSE, "unknown type"),
    ],
)
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes, message: str) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        format_examples.add_member(tar, "odd.png", b"", type=kind, linkname="/etc/passwd")
    with path.open("rb") as stream, pytest.raises(DataError, match=message) as flagged:
        list(shards.iter_members(stream, "a.tar"))
    assert "odd.png" in str(flagged.value)


def test_huge_member_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    member = tarfile.TarInfo("zeros.png")
    member.size = 1 << 30
    with path.open("wb") as stream:
        stream.write(member.tobuf())
        stream.truncate((1 << 30) + 2048)  # a hole: a gigabyte of zeros that takes no room
    tracemalloc.start()
    with pytest.raises(DataError, match=r"zeros\.png.*1,073,741,824 bytes"):
        read_pairs(path, format="webdataset")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50_000_000  # bytes


def test_read_member_has_its_own_limit(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        format_examples.add_member(tar, "a.png", b"x" * 100)
    with pytest.raises(DataError, match=r"a\.png.*100 bytes, over 99"):
        shards.read_member(tmp_path / "a.tar", "a.png", max_bytes=99)
    assert shards.read_member(tmp_path / "a.tar", "a.png", max_bytes=100) == b"x" * 100
    with pytest.raises(DataError, match=r"no member 'b\.png'"):
        shards.read_member(tmp_path / "a.tar", "b.png", max_bytes=100)
    with pytest.raises(DataError, match="shard not found"):
        shards.read_member(tmp_path / "b.tar", "b.png", max_bytes=100)


def test_too_many_members_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shards.MAX_MEMBERS < 1_000_000
    monkeypatch.setattr(shards, "MAX_MEMBERS", 1000)
    block = tarfile.TarInfo("many.png").tobuf()
    with pytest.raises(DataError, match=r"many\.png.*over 1,000 members"):
        list(shards.iter_members(io.BytesIO(block * 1002), "a.tar"))


def test_huge_extended_header_is_refused() -> None:
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, 1 << 20
    with pytest.raises(DataError, match="over 65,536"):
        list(shards.iter_members(io.BytesIO(header.tobuf() + bytes(2 << 20)), "a.tar"))


def test_sizes_in_extended_headers() -> None:
    def tar_with_size(digits: str) -> io.BytesIO:
        member = tarfile.TarInfo("a.png")
        member.pax_headers = {"size": digits}
        return io.BytesIO(member.tobuf(tarfile.PAX_FORMAT) + bytes(2048))

    assert [member.size for member in shards.iter_members(tar_with_size("100"), "a.tar")] == [100]
    with pytest.raises(DataError, match=r"'a\.png': 9,999,999,999 bytes, over"):
        list(shards.iter_members(tar_with_size("9" * 10), "a.tar"))
    with pytest.raises(DataError, match="over 65,536"):
        list(shards.iter_members(tar_with_size("9" * 70_000), "a.tar"))


@pytest.mark.parametrize("data", [b"\x1f\x8b" + bytes(600), b"no tar at all" * 100, b"short"])
def test_what_is_no_tar_is_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="not a plain tar file"):
        list(shards.iter_members(io.BytesIO(data), "a.tar"))


def test_cut_off_shard_is_refused(tmp_path: Path) -> None:
    path = format_examples.webdataset(tmp_path) / "fake-train-0000.tar"
    data = path.read_bytes()
    first = data.index(b".txt")
    path.write_bytes(data[: first + 520])
    with pytest.raises(DataError, match="cut off"):
        read_pairs(path, format="webdataset")


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2000), st.integers(0, 1600))
def test_damaged_bytes_give_only_our_errors(noise: bytes, place: int) -> None:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        format_examples.add_member(tar, "a.png", b"x" * 600)
        format_examples.add_member(tar, "é" * 90, b"y")
    data = stream.getvalue()
    damaged = io.BytesIO(data[:place] + noise + data[place + len(noise) :])
    try:
        members = list(shards.iter_members(damaged, "a.tar"))
    except DataError:
        return
    assert all(member.data + member.size <= len(damaged.getvalue()) for member in members)


def test_index_follows_a_changed_shard(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for data in (b"old", b"newer"):
        with tarfile.open(path, "w") as tar:
            format_examples.add_member(tar, "pad.png", b"x" * (600 if data == b"old" else 1600))
            format_examples.add_member(tar, "a.png", data)
        assert shards.read_member(path, "a.png", 100) == data


def make_shards(folder: Path, counts: list[int]) -> tuple[list[Path], list[str]]:
    paths, keys = [], []
    for shard, count in enumerate(counts):
        paths.append(folder / f"s-{shard}.tar")
        with tarfile.open(paths[-1], "w") as tar:
            for number in range(count):
                keys.append(f"{shard}-{number}")
                format_examples.add_member(tar, f"{keys[-1]}.png", keys[-1].encode())
                format_examples.add_member(tar, f"{keys[-1]}.txt", b"a pond")
    return paths, keys


def test_sample_errors_name_the_sample(tmp_path: Path) -> None:
    cases = {
        "no caption": [("a.png", b"x")],
        "0 images": [("a.txt", b"x")],
        "2 images": [("a.png", b"x"), ("a.jpg", b"x"), ("a.txt", b"x")],
        "two members end in .txt": [("a.png", b"x"), ("a.txt", b"x"), ("a.txt", b"x")],
        "not valid UTF-8": [("a.png", b"x"), ("a.txt", b"\xff\xfe")],
        "not valid JSON": [("a.png", b"x"), ("a.json", b"{")],
        "pairs is no object": [("a.png", b"x"), ("a.json", b'{"caption": "x", "pairs": 3}')],
        "pairs.pair_id does not match 1 captions": [
            ("a.png", b"x"),
            ("a.json", b'{"caption": "x", "pairs": {"pair_id": ["1", "2"]}}'),
        ],
        "caption is 7, not text": [("a.png", b"x"), ("a.json", b'{"caption": 7}')],
        "its .json is no object": [("a.png", b"x"), ("a.json", b"[1]")],
        "characters, over 10,000": [("a.png", b"x"), ("a.txt", b"x" * 20_000)],
        "over 1,048,576": [("a.png", b"x"), ("a.txt", b"x" * 1_100_000)],
    }
    for message, members in cases.items():
        with tarfile.open(tmp_path / "a.tar", "w") as tar:
            for name, data in members:
                format_examples.add_member(tar, name, data)
        with pytest.raises(DataError, match=message) as flagged:
            read_pairs(tmp_path / "a.tar", format="webdataset")
        assert "a.tar" in str(flagged.value)


def test_pickles_in_shards_are_never_loaded(tmp_path: Path) -> None:
    class Canary:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "canary"),)

    planted = pickle.dumps(Canary())
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        format_examples.add_member(tar, "a.png", planted)
        format_examples.add_member(tar, "a.txt", b"a pond")
        for ending in ("pyd", "pkl", "pickle", "pth"):
            format_examples.add_member(tar, f"a.{ending}", planted)
    table = read_pairs(tmp_path / "a.tar")
    assert table.captions == ["a pond"]
    assert shards.read_member(tmp_path / "a.tar", "a.png") == planted
    assert not (tmp_path / "canary").exists()


def test_patterns(tmp_path: Path) -> None:
    paths, _ = make_shards(tmp_path, [1, 1, 1])
    assert shards.expand_pattern(f"{tmp_path}/s-{{0..2}}.tar") == paths
    assert shards.expand_pattern(f"{tmp_path}/s-{{0,2}}.tar") == [paths[0], paths[2]]
    assert shards.expand_pattern(f"{tmp_path}/s-*.tar") == paths
    assert len(read_pairs(tmp_path / "s-{0..2}.tar")) == 3
    with pytest.raises(DataError, match=r"s-3\.tar: shard not found \(1 of 4 missing\)"):
        shards.expand_pattern(f"{tmp_path}/s-{{0..3}}.tar")
    with pytest.raises(DataError, match="no range"):
        shards.expand_pattern(f"{tmp_path}/s-{{0..9999999}}.tar")
    with pytest.raises(DataError, match="shard not found"):
        shards.expand_pattern(f"{tmp_path}/nothing-*.tar")


def test_metadata_reaches_the_sample(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        format_examples.add_member(tar, "x/a.jpeg", b"1")
        format_examples.add_member(tar, "x/a.json", json.dumps({"caption": "a pond", "gsd": 0.5}).encode())
    (row,) = read_pairs(tmp_path / "a.tar")
    assert (row.image, row.caption, row.extra) == ("a.tar#x/a.jpeg", "a pond", {"gsd": 0.5})


@pytest.mark.parametrize(
    ("members", "captions"),
    [
        ({"json": b'{"text": "one", "key": "1"}'}, ["one"]),
        ({"json": b'{"caption": ["one", "two"]}', "txt": b"one"}, ["one", "two"]),
        ({"caption.txt": b"one"}, ["one"]),
        ({"caption.txt": b"one", "json": b'{"text": "kept"}'}, ["one"]),
        ({"txt": b"one", "json": b'{"caption": "other"}'}, ["one"]),
    ],
)
@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz"])
def test_captions_as_others_write_them(
    tmp_path: Path, members: dict[str, bytes], captions: list[str], ending: str
) -> None:
    path = tmp_path / f"train-0.{ending}"
    with tarfile.open(path, "w" if ending == "tar" else "w:gz") as tar:
        format_examples.add_member(tar, "0001.jpg", b"BM image")
        for name, data in members.items():
            format_examples.add_member(tar, f"0001.{name}", data)
    table = read_pairs(tmp_path)
    assert table.captions == captions and table.column("image")[0] == f"train-0.{ending}#0001.jpg"
    assert image_bytes(table, table.column("image")[0]) == b"BM image"


def test_a_field_of_several_kinds_is_left_out_with_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for key, field in (("1", "7"), ("2", '"x"')):
            format_examples.add_member(tar, f"{key}.jpg", b"x")
            format_examples.add_member(tar, f"{key}.json", f'{{"text": "a", "gsd": {field}}}'.encode())
    with caplog.at_level("WARNING"):
        table = read_pairs(tmp_path / "a.tar")
    assert len(table) == 2 and "gsd" not in table.arrow.column_names
    assert "field 'gsd' is left out, it mixes kinds of values" in caplog.text


def test_a_shard_without_captions_lists_its_members(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        format_examples.add_member(tar, "1.jpg", b"x")
        format_examples.add_member(tar, "1.cls", b"3")
    with pytest.raises(DataError, match=r"a\.tar holds members \.cls, \.jpg"):
        read_pairs(tmp_path / "a.tar")


def test_a_damaged_compressed_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"\x1f\x8b nothing")
    with pytest.raises(DataError, match=r"a\.tar\.gz: cannot be unpacked"):
        read_pairs(tmp_path / "a.tar.gz")
