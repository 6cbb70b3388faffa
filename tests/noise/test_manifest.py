"""Noise files: same bytes for the same seed, refused on other datasets and when damaged."""

from __future__ import annotations

import functools
import json

import numpy as np
import pytest
from helpers.noise_rules import make_table
from hypothesis import given, settings
from hypothesis import strategies as st

from pmpguard.errors import ConfigError, DataError
from pmpguard.files import sha256_file
from pmpguard.noise.imported import from_permutation
from pmpguard.noise.inject import corrupt_pairs, partial_corruption
from pmpguard.noise.manifest import FIELDS, _digest, apply_manifest, save_manifest


@functools.cache
def corruptions():
    clean = make_table(images=20, sentences=300)
    offers = [
        (row, f"{pair.caption}, née « wrong » \u2028")
        for row, pair in enumerate(clean)
        if pair.split == "train"
    ]
    order = np.random.default_rng(0).permutation(len(clean.split("train")))
    return clean, {
        "caption": corrupt_pairs(clean, 0.4, 3),
        "image": corrupt_pairs(clean, 0.4, 3, "image"),
        "permute": corrupt_pairs(clean, 0.4, 3, mode="permute"),
        "none": corrupt_pairs(clean, 0.0, 3),
        "all": corrupt_pairs(clean, 1.0, 3),
        "partial": partial_corruption(clean, offers, 0.4, 3),
        "imported": from_permutation(clean, order),
    }


@pytest.mark.parametrize("kind", ["caption", "image", "permute", "none", "all", "partial", "imported"])
def test_a_noise_file_repeats_the_corruption(kind, tmp_path):
    clean, made = corruptions()
    path = tmp_path / "new folder" / "noise.json"
    save_manifest(made[kind], path)
    again = apply_manifest(clean, path)
    for name in ("requested_rate", "effective_rate", "seed", "level", "mode", "split", "fingerprint"):
        assert getattr(again, name) == getattr(made[kind], name), name
    assert again.table.captions == made[kind].table.captions
    assert np.array_equal(again.is_noisy, made[kind].is_noisy)
    assert np.array_equal(again.source_rows, made[kind].source_rows)
    copy = tmp_path / "copy.json"
    save_manifest(again, copy)
    assert copy.read_bytes() == path.read_bytes()
    save_manifest(corruptions.__wrapped__()[1][kind], copy)
    assert copy.read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("kind", "sha256"),
    [
        ("caption", "b33931accb15190913c646de1801a84b712d836322fcc3c2f44a69add347f450"),
        ("image", "8fa00d1f84b67413014e34a23fc6aef6752d5011d7e9fe397565594fa72d2197"),
        ("permute", "00ecc35a1b2a14fc08c64bc8bf9b01f2396c20ceb44fe29bf38e7d2b9f05bce9"),
    ],
)
def test_noise_is_the_same_in_every_version(kind, sha256, tmp_path):
    """The protocol lists files by their hash: where one of these changes, that list is void."""
    save_manifest(corruptions()[1][kind], tmp_path / "noise.json")
    assert sha256_file(tmp_path / "noise.json") == sha256


def test_the_file_is_readable(tmp_path):
    clean, made = corruptions()
    save_manifest(made["caption"], tmp_path / "noise.json")
    text = (tmp_path / "noise.json").read_text()
    fields = json.loads(text)
    assert fields["seed"] == 3 and fields["requested_rate"] == 0.4 and fields["level"] == "caption"
    assert fields["fingerprint"] == clean.fingerprint
    assert len(fields["rows"]) == len(fields["source_rows"]) == round(0.4 * 80)
    assert len(text.splitlines()) == len(FIELDS) + 3  # a line per field, the hashes and the braces


def test_another_dataset_is_refused_with_both_fingerprints(tmp_path):
    clean, made = corruptions()
    save_manifest(made["caption"], tmp_path / "noise.json")
    captions = clean.captions
    captions[5] += " "
    other = clean.with_column("caption", captions)
    with pytest.raises(DataError) as flagged:
        apply_manifest(other, tmp_path / "noise.json")
    assert clean.fingerprint in flagged.value.message and other.fingerprint in flagged.value.message
    with pytest.raises(DataError, match="was made for dataset 'made up'"):
        apply_manifest(made["caption"].table, tmp_path / "noise.json")


@pytest.mark.parametrize("field", FIELDS)
def test_damage_names_the_field(field, tmp_path):
    clean, made = corruptions()
    path = tmp_path / "noise.json"
    save_manifest(made["caption"], path)
    fields = json.loads(path.read_text())
    value = fields[field]
    changed = (
        [*value, 0]
        if isinstance(value, list)
        else value + 1
        if isinstance(value, int | float)
        else value + "x"
    )
    path.write_text(json.dumps({**fields, field: changed}))
    with pytest.raises(DataError, match=field):
        apply_manifest(clean, path)
    del fields[field]
    path.write_text(json.dumps(fields))
    with pytest.raises(DataError, match=field):
        apply_manifest(clean, path)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_one_flipped_byte_never_passes_unseen(data, tmp_path_factory):
    """Either the file is refused or the byte changed nothing (white space, the case of an escape)."""
    clean, made = corruptions()
    path = tmp_path_factory.mktemp("noise") / "noise.json"
    save_manifest(made["image"], path)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(content)
    try:
        again = apply_manifest(clean, path)
    except DataError:
        return
    assert again.table.captions == made["image"].table.captions
    assert np.array_equal(again.is_noisy, made["image"].is_noisy)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[1, 2]", "not a noise file"),
        (b'{"rows": []}', "not a noise file"),
        (b'{"format": "pmpguard-noise", "version": 99}', "field 'version' is 99"),
        (b'{"format": "pmpguard-noise", "version": 1}', "field 'sha256'"),
    ],
)
def test_other_files_are_refused(content, message, tmp_path):
    clean, _ = corruptions()
    path = tmp_path / "noise.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        apply_manifest(clean, path)
    with pytest.raises(DataError, match="file not found"):
        apply_manifest(clean, tmp_path / "absent.json")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rows", [0, 10**30], "'rows' holds something"),
        ("rows", [3, 1], "'rows' is not in rising order"),
        ("rows", [1], "one row per row"),
        ("source_rows", [0.5, 1], "'source_rows' holds something"),
        ("source_rows", [-2, 1], "'source_rows' holds something"),
        ("source_rows", ["1", 2], "'source_rows' holds something"),
    ],
)
def test_forged_rows_with_valid_hashes_are_refused(field, value, message, tmp_path):
    clean, made = corruptions()
    path = tmp_path / "noise.json"
    save_manifest(made["caption"], path)
    fields = {**json.loads(path.read_text()), "rows": [1, 2], "source_rows": [30, 31], field: value}
    digests = {name: _digest(fields[name]) for name in FIELDS}
    path.write_text(json.dumps({**fields, "sha256": digests}))
    with pytest.raises(DataError, match=message):
        apply_manifest(clean, path)


def test_forged_settings_with_valid_hashes_are_refused(tmp_path):
    clean, made = corruptions()
    path = tmp_path / "noise.json"
    for forged, error, message in (
        ({"requested_rate": 7}, ConfigError, "rate is 7"),
        ({"rows": "all"}, DataError, "'rows' is damaged"),
        ({"more": 1}, DataError, "'more' is unknown"),
        ({"mode": "partial"}, DataError, "'captions' does not hold one text per row"),
        ({"split": "dev"}, DataError, "no split named 'dev'"),
    ):
        save_manifest(made["caption"], path)
        fields = {**json.loads(path.read_text()), **forged}
        fields["sha256"] = {name: _digest(fields[name]) for name in FIELDS}
        path.write_text(json.dumps(fields))
        with pytest.raises(error, match=message):
            apply_manifest(clean, path)


def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch):
    _, made = corruptions()
    path = tmp_path / "noise.json"
    save_manifest(made["caption"], path)
    before = path.read_bytes()

    def full(_):
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        save_manifest(made["image"], path)
    assert path.read_bytes() == before and [entry.name for entry in tmp_path.iterdir()] == ["noise.json"]
