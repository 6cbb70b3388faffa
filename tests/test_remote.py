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
from helpers.search_examples import save_model

from pmpguard import remote, remote_outputs
from pmpguard.cli.main import main
from pmpguard.data.formats import read_pairs, write_pairs
from pmpguard.data.formats.embeddings import read_clip_embeddings
from pmpguard.data.images.decode import load_pair_image
from pmpguard.data.shards import read_member
from pmpguard.errors import DataError, PmpguardError
from pmpguard.experiments.downloads import missing_dataset, require_dataset
from pmpguard.experiments.run import ExperimentConfig, read_dataset
from pmpguard.remote import local_file, local_folder_of
from pmpguard.remote_outputs import output_folder
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
    before = server.sent  # the positions of all members are known from the first reading
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
    assert local_file(address).read_bytes() == b"another"


def test_a_table_that_changes_while_it_is_copied_is_not_stitched_together(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "BLOCK", 1000)
    address = Path(put(server, "moving.csv", b"a" * 2500))
    read = remote.Source.read_range

    def changed_after(self: remote.Source, start: int, stop: int) -> bytes:
        data = read(self, start, stop)
        if start == 0:
            put(server, "moving.csv", b"b" * 2500)
        return data

    with monkeypatch.context() as patch:
        patch.setattr(remote.Source, "read_range", changed_after)
        with pytest.raises(DataError, match=r"moving\.csv: changed while it was read"):
            local_file(address)
    assert local_file(address).read_bytes() == b"b" * 2500


def test_a_shard_written_anew_at_its_address_is_read_anew(server: FaultyServer) -> None:
    address = Path(put(server, "again.tar", shard(range(3))))
    read_member(address, "2.png")
    put(server, "again.tar", shard(range(7), extra=999))
    assert read_member(address, "2.png") == format_examples.image(2)


def test_a_shard_that_changes_while_it_is_read_is_named(
    server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = put(server, "moving.tar", shard(range(3)))
    read = remote.Source.read_range

    def changed_after(self: remote.Source, start: int, stop: int) -> bytes:
        data = read(self, start, stop)
        put(server, "moving.tar", shard(range(4)))
        return data

    with monkeypatch.context() as patch:
        patch.setattr(remote.Source, "read_range", changed_after)
        with pytest.raises(DataError, match=r"moving\.tar: changed while it was read"):
            read_pairs(address)
    assert len(read_pairs(address)) == 4


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


def write_at(
    address: Path, files: dict[str, str], mark: str = "model.json", *, goes_on: bool = False
) -> None:
    with output_folder(address, mark, "manifest.json", goes_on=goes_on) as folder:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)


def names_at(server: FaultyServer, folder: str) -> list[str]:
    listed = server.client().list_objects_v2(Bucket=BUCKET, Prefix=f"{folder}/").get("Contents", [])
    return [entry["Key"].removeprefix(f"{folder}/") for entry in listed]


def test_an_output_takes_the_place_of_the_one_before_and_is_whole_last(server: FaultyServer) -> None:
    address = Path(f"s3://{BUCKET}/out")
    write_at(address, {"model.json": "a", "parts/0": "0", "parts/1": "1", "manifest.json": "2 parts"})
    put(server, "out/notes.txt", b"somebody's own")
    assert sorted(path.name for path in local_folder_of(address).glob("parts/*")) == ["0", "1"]
    server.log.clear()
    write_at(address, {"model.json": "b", "parts/0": "0b", "manifest.json": "1 part"})
    assert names_at(server, "out") == ["manifest.json", "model.json", "notes.txt", "parts/0"]
    changes = [(how, path.rpartition("/")[2]) for how, path in server.log if how in ("PUT", "DELETE")]
    assert changes == [
        ("PUT", ".pmpguard"), ("DELETE", ".pmpguard"), ("DELETE", "manifest.json"), ("PUT", "model.json"),
        ("PUT", "0"), ("DELETE", "1"), ("PUT", "manifest.json"),
    ]  # fmt: skip
    copied = local_folder_of(address)
    assert [path.read_text() for path in copied.glob("parts/*")] == ["0b"]


def test_an_output_that_goes_on_keeps_what_is_there_and_sends_what_is_new(server: FaultyServer) -> None:
    address = Path(f"s3://{BUCKET}/grown")
    write_at(address, {"model.json": "a", "parts/0": "0", "manifest.json": "1 part"}, goes_on=True)
    server.log.clear()
    write_at(address, {"parts/1": "1", "manifest.json": "2 parts"}, goes_on=True)
    assert names_at(server, "grown") == ["manifest.json", "model.json", "parts/0", "parts/1"]
    sent = [path.rpartition("/")[2] for method, path in server.log if method == "PUT"]
    assert sent == [".pmpguard", "1", "manifest.json"]


def test_outputs_that_cannot_be_written_are_refused_before_the_work(server: FaultyServer) -> None:
    put(server, "other/data.csv", b"a,b")
    address = Path(f"s3://{BUCKET}/other")
    with pytest.raises(DataError, match=r"other: holds data\.csv and no model\.json"):
        write_at(address, {"model.json": "a"})
    for name, why in (("s3://no-such-bucket/out", "not found"), (f"{server.url}/x", "cannot be written to")):
        with pytest.raises(PmpguardError, match=why), output_folder(Path(name), "a", "b", goes_on=False):
            raise AssertionError("the work began")
    begun = Path(f"s3://{BUCKET}/begun")
    with pytest.raises(KeyboardInterrupt), output_folder(begun, "a", "b", goes_on=True) as folder:
        folder.mkdir(parents=True)
        (folder / "a").write_text("ours")
        raise KeyboardInterrupt
    put(server, "begun/a", b"another's")
    with pytest.raises(DataError, match="begun: a is not the one of the work begun in"):
        write_at(begun, {}, "a", goes_on=True)


@pytest.mark.slow
def test_commands_take_addresses(
    server: FaultyServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    address = put(server, "cli/train-0.tar", shard(range(4)))
    assert main(["data", "convert", address, "pairs.parquet"]) == 0
    assert main(["data", "convert", f"file://{tmp_path}/pairs.parquet", "pairs.csv"]) == 0
    table = put(server, "cli2/pairs.parquet", (tmp_path / "pairs.parquet").read_bytes())
    for dataset in (address, table, f"s3://{BUCKET}/cli2", f"file://{tmp_path}/pairs.parquet"):
        assert len(read_dataset(ExperimentConfig(dataset=dataset))) == 4
    for dataset in (address, table, f"s3://{BUCKET}/cli2"):
        assert missing_dataset(dataset) is None
        require_dataset(Path(dataset))
    put(server, "cli2/stand-in.json", b'{"for": "RS5M"}')
    assert read_dataset(ExperimentConfig(dataset=f"s3://{BUCKET}/cli2")).name == "RS5M stand-in"
    model, out = str(save_model(tmp_path / "model", ["a pond"])), f"s3://{BUCKET}/embedded"
    for embedded in (4, 0):  # the second goes on with what is there
        assert main(["embed", address, "--out", out, "--model", model, "--threads", "0"]) == 0
        assert f"{out}: 4 images and 4 captions, {embedded} images" in capsys.readouterr().out
    assert "manifest.json" in names_at(server, "embedded")
    assert main(["index", "build", "index", "--embeddings", out]) == 0
    assert not (tmp_path / "s3:").exists()


def test_embeddings_and_reports(server: FaultyServer, tmp_path: Path, monkeypatch) -> None:
    def folder_at(address: Path) -> None:
        with output_folder(address, "manifest.json", "manifest.json", goes_on=True) as folder:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "manifest.json").write_text("{}")
            for kind in ("img_emb", "text_emb", "metadata"):
                (folder / kind).mkdir(parents=True, exist_ok=True)
            for kind, vectors in (("img_emb", np.eye(3)), ("text_emb", np.ones((3, 3)))):
                np.save(folder / kind / f"{kind}_0.npy", vectors)
            pq.write_table(
                pa.table({"image_path": list("abc"), "caption": ["a x", "a y", "a z"]}),
                folder / "metadata/metadata_0.parquet",
            )

    address = Path(f"s3://{BUCKET}/emb")
    with monkeypatch.context() as patch, pytest.raises(DataError, match="failed 4 times"):
        patch.setattr(remote_outputs, "require_writable_address", lambda url: setattr(server, "fail", 10**6))
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
