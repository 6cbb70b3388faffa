"""Rows of a file that may change at any time: the right ones, or an error."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pmpguard.errors import DataError, PmpguardError
from pmpguard.search.index.stored_array import StoredArray


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(0).random((50, 3, 4)).astype(np.float16)


@pytest.fixture
def path(values: np.ndarray, tmp_path: Path) -> Path:
    np.save(tmp_path / "a.npy", values)
    return tmp_path / "a.npy"


def test_rows_are_those_of_the_array(values, path):
    stored = StoredArray(path)
    assert (len(stored), stored.shape, stored.dtype) == (50, (50, 3, 4), np.float16)
    for wanted in ([7, 0, 7, 49], [], range(50)):
        rows = np.array(wanted, np.int64)
        assert np.array_equal(stored.rows(rows), values[rows])
    for first in (0, 13, 50, 60):
        assert np.array_equal(stored.rows_from(first), values[first:])


@pytest.fixture(params=["kept open", "opened for every read"])
def opened(request, monkeypatch) -> str:
    if request.param != "kept open":
        monkeypatch.setattr("pmpguard.search.index.stored_array.MAX_KEPT_DESCRIPTORS", 0)
    return request.param


def test_no_descriptor_outlives_its_array(path, opened):
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208

    before = count()
    stored = [StoredArray(path) for _ in range(20)]
    assert all(len(one.rows(np.array([1]))) for one in stored)
    assert count() - before == (20 if opened == "kept open" else 0)
    del stored
    assert count() == before


def test_a_deleted_or_replaced_file_that_is_open_is_read_to_the_end(values, path):
    deleted, replaced = StoredArray(path), StoredArray(path)
    replace(path)
    path.unlink()
    for stored in (deleted, replaced):
        assert np.array_equal(stored.rows_from(0), values)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 100)


def overwrite(path: Path) -> None:
    np.save(path, np.zeros((50, 3, 4), np.float16))


def replace(path: Path) -> None:
    np.save(path.with_name("b.npy"), np.ones((50, 3, 4), np.float16))
    path.with_name("b.npy").replace(path)


@pytest.mark.parametrize("change", [cut, overwrite, replace, Path.unlink])
def test_a_file_that_changed_is_an_error_that_names_it(path, change, opened):
    stored = StoredArray(path)
    change(path)
    if opened == "kept open" and change in (replace, Path.unlink):
        return
    for read in (lambda: stored.rows(np.array([3])), lambda: stored.rows_from(0)):
        with pytest.raises(PmpguardError, match=r"a\.npy: .*while the index was in use") as error:
            read()
        assert not isinstance(error.value, DataError)  # the request was right


def test_a_file_that_is_cut_while_it_is_read_is_an_error(path, monkeypatch):
    stored = StoredArray(path)
    monkeypatch.setattr("pmpguard.search.index.stored_array._identity", lambda descriptor: stored._identity)
    os.truncate(path, 200)
    with pytest.raises(PmpguardError, match="cut short"):
        stored.rows(np.array([49]))


@pytest.mark.parametrize("damage", ["cut", "columns", "objects", "number", "text"])
def test_what_is_no_array_of_plain_rows_is_refused(values, path, damage):
    if damage == "cut":
        cut(path)
    elif damage == "columns":
        np.save(path, np.asfortranarray(values[:, 0]))
    elif damage == "objects":
        np.save(path, np.array([{}, []], object))
    elif damage == "number":
        np.save(path, np.float32(3))
    else:
        path.write_text("not an array")
    with pytest.raises(DataError, match=r"a\.npy"):
        StoredArray(path)
