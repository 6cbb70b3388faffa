"""Our noise in others' forms: read back it gives the same pairs, and NCR's own recipe reads as ours."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from helpers import format_examples as examples

from pmpguard.cli.corrupt import corrupt, export_noise, import_noise
from pmpguard.data.formats import read_pairs
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.noise.exported import to_image_index, to_permutation
from pmpguard.noise.imported import from_image_index, from_permutation
from pmpguard.noise.inject import corrupt_pairs


def pairs_of(table: PairTable) -> list[tuple[str, str]]:
    return list(zip(table.column("image"), table.captions, strict=True))


def many(images: int = 40) -> PairTable:
    """Five captions an image, some strings shared by images; validation rows between."""
    rows = [(image, view) for image in range(images) for view in range(5)]
    return PairTable.from_columns(
        {
            "image": [f"{image}.png" for image, _ in rows],
            "caption": [f"scene {image if view else image // 2} view {view}" for image, view in rows],
            "split": ["val" if image % 5 == 4 else "train" for image, _ in rows],
        }
    )


@pytest.mark.parametrize("level", ["caption", "image"])
@pytest.mark.parametrize("rate", [0.2, 0.8])
def test_an_index_of_ncr_holds_the_same_pairs(level: str, rate: float) -> None:
    table = many()
    made = corrupt_pairs(table, rate, 3, level, "permute")  # type: ignore[arg-type]
    index = to_image_index(made)
    train = table.split("train")
    images = list(dict.fromkeys(train.column("image")))
    naive = [(images[image], caption) for image, caption in zip(index, train.captions, strict=True)]
    assert Counter(naive) == Counter(pairs_of(made.table.split("train")))
    back = from_image_index(table, index)
    assert Counter(pairs_of(back.table)) == Counter(pairs_of(made.table))
    assert back.effective_rate == pytest.approx(made.effective_rate)
    assert pairs_of(from_permutation(table, to_permutation(made)).table) == pairs_of(made.table)


def test_noise_as_ncr_makes_it_is_read_as_it_trains_on_it() -> None:
    """NCR, data.py: `t2i[chosen] = shuffled t2i[chosen]`; a sample is (images[t2i[i]], captions[i])."""
    table = many()
    train = table.split("train")
    generator = np.random.RandomState(0)
    index = np.arange(len(train)) // 5
    chosen = np.arange(len(train))
    generator.shuffle(chosen)
    moved = index[chosen[: int(0.4 * len(train))]]
    generator.shuffle(moved)
    index[chosen[: int(0.4 * len(train))]] = moved
    images = list(dict.fromkeys(train.column("image")))
    trained_on = [(images[index[i]], caption) for i, caption in enumerate(train.captions)]
    read = from_image_index(table, index)
    assert Counter(pairs_of(read.table.split("train"))) == Counter(trained_on)
    own = {image: set() for image in images}  # type: dict[str, set[str]]
    for image, caption in pairs_of(train):
        own[image].add(caption)
    assert int(read.is_noisy.sum()) == sum(caption not in own[image] for image, caption in trained_on)


def test_captions_drawn_twice_do_not_fit_an_index() -> None:
    made = corrupt_pairs(many(), 0.6, 0)
    assert made.mode == "replace"
    with pytest.raises(DataError, match=r"used twice(?s:.)*--mode permute, or export a \.csv"):
        to_image_index(made)


def test_files_through_the_command_line(tmp_path: Path) -> None:
    """A folder of SCAN and NCR: noise out as `.npy`, and back; the same pairs as RRSITR's list."""
    data = examples.scan(tmp_path / "f30k_precomp")
    ours = tmp_path / "noise.json"
    corrupt(data, ours, 0.6, seed=1, mode="permute", write_pairs=tmp_path / "noisy.parquet")
    told = export_noise(data, ours, tmp_path / "0.6_noise.npy")
    index = np.load(tmp_path / "0.6_noise.npy", allow_pickle=False)
    assert index.dtype == np.int64 and len(index) == 15 and told.wrong == 9 and len(told.sha256) == 64
    written = tmp_path / "again.parquet"
    import_noise(data, tmp_path / "0.6_noise.npy", tmp_path / "again.json", write_pairs=written)
    noisy, again = (read_pairs(tmp_path / name) for name in ("noisy.parquet", "again.parquet"))
    assert Counter(pairs_of(noisy)) == Counter(pairs_of(again))

    named = examples.karpathy(tmp_path / "named")
    corrupt(named, ours, 0.6, write_pairs=tmp_path / "named.parquet")
    export_noise(named, ours, tmp_path / "FAKE-NC-06.csv")
    listed = read_pairs(tmp_path / "FAKE-NC-06.csv")
    assert pairs_of(listed) == pairs_of(read_pairs(tmp_path / "named.parquet").split("train"))
    with pytest.raises(ConfigError, match=r"neither \.npy nor \.csv"):
        export_noise(named, ours, tmp_path / "x.txt")
