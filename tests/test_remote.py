"""Addresses: what lies there is read as if it lay here; faults are tried again, and then named."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import format_examples
from helpers.s3_server import BUCKET, FaultyServer, s3_server

from pmpguard import remote
from pmpguard.data.formats import read_pairs, write_pairs
from pmpguard.data.formats.embeddings import read_clip_embeddings
from pmpguard.data.images.decode import load_pair_image
from pmpguard.data.shards import read_member
from pmpguard.errors import DataError
from pmpguard.remote import local_file, output_folder
from pmpguard.search.sources import open_source


@pytest.fixture(scope="module")
def running() -> Iterator[FaultyServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        with s3_server() as faults:
            faults.client().create_bucket(Bucket=BUCKET)
            yield faults


@pytest.fixture
def server(running: FaultyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FaultyServer:
    """With an empty cache folder, no faults, and libraries that try once, so that our own tries are seen."""
    import s3fs

    monkeypatch.setenv("PMPGUARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_ENDPOINT_URL", running.url)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(remote, "PAUSE", 0.0)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    s3fs.S3FileSystem.clear_instance_cache()
    remote.filesystem.cache_clear()
    remote.forget_versions()
    running.fail = running.cut = 0
    return running


def put(server: FaultyServer, name: str, content: bytes) -> str:
    server.client().put_object(Bucket=BUCKET, Key=name, Body=content, ACL="public-read")
    return f"s3://{BUCKET}/{name}"


def shard(keys: range, extra: int = 0) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        for key in keys:
            format_examples.add_member(tar, f"{key}.png", format_examples.image(key))
            format_examples.add_member(tar, f"{key}.txt", f"a pond number {key}".encode())
            format_examples.add_member(tar, f"{key}.bin", bytes(extra))
    return stream.getvalue()


def test_shards_are_read_where_they_lie(server: FaultyServer, tmp_path: Path) -> None:
    for number, keys in enumerate((range(4), range(4, 8))):
        content = shard(keys, extra=200_000)
        put(server, f"shards/train-{number}.tar", content)
        (tmp_path / f"train-{number}.tar").write_bytes(content)
    table = read_pairs(f"s3://{BUCKET}/shards/train-{{0..1}}.tar")
    here = read_pairs(tmp_path / "train-{0..1}.tar")
    assert table.arrow.equals(here.arrow) and table.fingerprint == here.fingerprint
    assert read_pairs(f"s3://{BUCKET}/shards").arrow.equals(here.arrow)
    load_pair_image(table, 0)  # finds the positions of all members
    before = server.sent
    for row in range(4):
        assert load_pair_image(table, row).tobytes() == load_pair_image(here, row).tobytes()
    assert server.sent - before < 20_000  # of 800,000: the members asked for and no others
    assert open_source(Path(f"s3://{BUCKET}/shards")).ids == open_source(tmp_path / "train-{0..1}.tar").ids
    assert len(read_pairs(f"{server.url}/{BUCKET}/shards/train-0.tar")) == 4  # by http, too


@pytest.mark.parametrize("fault", ["fail", "cut"])
def test_faults_are_tried_again_and_then_named(server: FaultyServer, fault: str) -> None:
    address = put(server, "faulty.tar", shard(range(3)))
    setattr(server, fault, 2)
    assert read_member(Path(address), "1.png") == format_examples.image(1)
    assert getattr(server, fault) == 0
    setattr(server, fault, 100)
    asked = server.asked
    with pytest.raises(DataError, match=rf"{address}: failed 4 times.*\nFix: .*run this again"):
        read_member(Path(address), "2.png")
    assert server.asked - asked == 4


def test_a_copy_that_was_broken_off_goes_on_where_it_stopped(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BLOCK", 1000)
    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    content = np.random.default_rng(0).bytes(5500)
    address = Path(put(server, "table.csv", content))
    read = remote.Source.read_range

    def dropped(self: remote.Source, start: int, stop: int) -> bytes:
        if start >= 3000:
            server.fail = 1
        return read(self, start, stop)

    with monkeypatch.context() as patch:
        patch.setattr(remote.Source, "read_range", dropped)
        with pytest.raises(DataError, match=r"table\.csv: failed"):
            local_file(address)
    before = server.sent
    assert local_file(address).read_bytes() == content
    assert server.sent - before == 2500
    assert local_file(address).read_bytes() == content and server.sent - before == 2500
    put(server, "table.csv", b"another")
    remote.forget_versions()
    assert local_file(address).read_bytes() == b"another"


def test_a_shard_written_anew_at_its_address_is_read_anew(server: FaultyServer) -> None:
    address = Path(put(server, "again.tar", shard(range(3))))
    read_member(address, "2.png")
    put(server, "again.tar", shard(range(7), extra=999))
    assert read_member(address, "2.png") == format_examples.image(2)


def test_a_table_with_images_beside_it(server: FaultyServer, tmp_path: Path) -> None:
    for number in range(3):
        put(server, f"set/images/{number}.png", format_examples.image(number))
    put(server, "set/captions.csv", b"image,caption\n0.png,a pond\n1.png,a road\n2.png,a field\n")
    for table in (read_pairs(f"s3://{BUCKET}/set"), read_pairs(f"s3://{BUCKET}/set/captions.csv")):
        assert table.captions == ["a pond", "a road", "a field"]
        assert load_pair_image(table, 1).getpixel((0, 0)) == (1, 80, 40)
    write_pairs(table, tmp_path / "kept.parquet", "parquet")
    assert load_pair_image(read_pairs(tmp_path / "kept.parquet"), 2).getpixel((0, 0)) == (2, 80, 40)
    (tmp_path / "captions.csv").write_text("image,caption\n0.png,a pond\n")
    with_images = read_pairs(tmp_path / "captions.csv", images=Path(f"s3://{BUCKET}/set/images"))
    assert load_pair_image(with_images, 0).getpixel((0, 0)) == (0, 80, 40)


def test_embeddings_and_reports(server: FaultyServer, tmp_path: Path, monkeypatch) -> None:
    def folder_at(address: Path) -> None:
        with output_folder(address) as folder:
            for kind in ("img_emb", "text_emb", "metadata"):
                (folder / kind).mkdir(parents=True, exist_ok=True)
            for kind, vectors in (("img_emb", np.eye(3)), ("text_emb", np.ones((3, 3)))):
                np.save(folder / kind / f"{kind}_0.npy", vectors)
            pq.write_table(
                pa.table({"image_path": list("abc"), "caption": ["a x", "a y", "a z"]}),
                folder / "metadata/metadata_0.parquet",
            )

    address = Path(f"s3://{BUCKET}/emb")
    server.fail = 10**6
    with pytest.raises(DataError, match="failed 4 times"):
        folder_at(address)
    kept = list((tmp_path / "cache/outputs").rglob("*.npy"))
    assert len(kept) == 2  # nothing of the work is lost
    server.fail = 0
    folder_at(address)
    assert not any((tmp_path / "cache/outputs").rglob("*.npy"))
    stored = read_clip_embeddings(address)
    assert stored.table.captions == ["a x", "a y", "a z"] and np.array_equal(stored.images, np.eye(3))


def test_missing_credentials_and_files_are_named(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=f"s3://{BUCKET}/nothing.tar: not found"):
        read_pairs(f"s3://{BUCKET}/nothing.tar")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()
    remote.filesystem.cache_clear()
    with pytest.raises(DataError, match=r"no credentials .*\nFix: set AWS_ACCESS_KEY_ID"):
        read_pairs(f"s3://{BUCKET}/shards/train-0.tar")


def test_a_file_address_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a b.tar").write_bytes(shard(range(2)))
    assert len(read_pairs(f"file://{tmp_path}/a%20b.tar")) == 2
