"""The synthetic scenes: worlds, splits, files on disk, and that the same seed gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError
from pmpguard.files import verify_manifest
from pmpguard.synthetic.scenes import SyntheticScenes, draw_scene, synthetic_scenes, write_world


@pytest.fixture(scope="module")
def world() -> SyntheticScenes:
    return synthetic_scenes(40, seed=5)


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(world: SyntheticScenes) -> None:
    again = synthetic_scenes(40, seed=5)
    assert again.images.numpy().tobytes() == world.images.numpy().tobytes()
    assert again.table.fingerprint == world.table.fingerprint
    assert again.scenes == world.scenes
    other = synthetic_scenes(40, seed=6)
    assert not np.array_equal(other.images.numpy(), world.images.numpy())
    assert other.table.fingerprint != world.table.fingerprint


def test_a_larger_world_begins_with_the_smaller_one(world: SyntheticScenes) -> None:
    larger = synthetic_scenes(60, seed=5)
    assert larger.scenes[:40] == world.scenes
    assert np.array_equal(larger.images[:40].numpy(), world.images.numpy())


def test_truth_and_captions_do_not_depend_on_pixel_size(world: SyntheticScenes) -> None:
    sharper = synthetic_scenes(40, seed=5, size=128)
    assert sharper.scenes == world.scenes
    assert sharper.table.fingerprint == world.table.fingerprint
    assert tuple(sharper.images.shape) == (40, 3, 128, 128)


def test_images_scenes_and_rows_belong_together(world: SyntheticScenes) -> None:
    table = world.table
    assert len(table) == 40 * 5
    assert table.image_codes.tolist() == [code for code in range(40) for _ in range(5)]
    assert table.column("label")[::5] == [scene.label for scene in world.scenes]
    assert table.row(7).image == "scene-000001.png"
    assert table.row(7).image_id == "scene-000001"
    assert world.scenes[3] == draw_scene(5, 3)


def test_splits_are_by_scene(world: SyntheticScenes) -> None:
    assert world.table.splits() == {"train": 160, "val": 20, "test": 20}
    images = [set(world.table.split(name).column("image_id")) for name in ("train", "val", "test")]
    assert len(set.union(*images)) == sum(map(len, images)) == 40
    halves = synthetic_scenes(10, val=0.2, test=0.3, captions=2)
    assert halves.table.splits() == {"train": 10, "val": 4, "test": 6}


def test_no_two_images_are_equal(world: SyntheticScenes) -> None:
    assert len({image.numpy().tobytes() for image in world.images}) == 40


@pytest.mark.slow
def test_more_processes_make_the_same_world() -> None:
    alone, shared = synthetic_scenes(120, seed=2), synthetic_scenes(120, seed=2, processes=2)
    assert np.array_equal(alone.images.numpy(), shared.images.numpy())
    assert alone.scenes == shared.scenes
    assert alone.table.fingerprint == shared.table.fingerprint


def test_written_world_reads_back(world: SyntheticScenes, tmp_path: Path) -> None:
    placed = write_world(world, tmp_path / "world")
    assert sorted(p.name for p in (tmp_path / "world").iterdir()) == [
        "images",
        "manifest.json",
        "pairs.parquet",
    ]
    verify_manifest(tmp_path / "world")
    for row in (0, 77, 199):
        image = np.asarray(Image.open(placed.image_path(row)))
        assert np.array_equal(image, world.images[row // 5].permute(1, 2, 0).numpy())
    import pyarrow.parquet as pq

    back = PairTable.from_columns(pq.read_table(tmp_path / "world" / "pairs.parquet"))
    assert back.fingerprint == world.table.fingerprint == placed.fingerprint


def test_a_failed_write_leaves_the_previous_world(
    world: SyntheticScenes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_world(world, tmp_path / "world")

    def full_disk(self: PairTable, path: Path) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(PairTable, "write_parquet", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_world(synthetic_scenes(3), tmp_path / "world")
    verify_manifest(tmp_path / "world")
    assert len(list((tmp_path / "world" / "images").iterdir())) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["world"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"count": 0}, "count is 0"),
        ({"count": 3, "captions": 6}, "captions per scene is 6"),
        ({"count": 3, "val": 0.6, "test": 0.4}, "val 0.6"),
        ({"count": 3, "val": -0.1}, "val -0.1"),
        ({"count": 3, "size": 8}, "size is 8"),
        ({"count": 3, "processes": 0}, "process count is 0"),
    ],
)
def test_bad_settings_are_named(options: dict[str, float], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        synthetic_scenes(**options)  # type: ignore[arg-type]
