"""Arrays in files, and disks that are full."""

import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pmpguard
from pmpguard.data.arrays import load_array, save_array

ROOM = """
import resource, signal, sys
def make_room(size):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
"""
NUMPY = """
import numpy
make_room(2870)
with open(sys.argv[1], "wb") as stream:
    save(stream, numpy.ones((25, 32), "float32"))
"""
FAISS = """
import faiss, numpy
from pathlib import Path
from pmpguard.search.stores import new_index
index = new_index("hnsw", 32)
index.add([str(number) for number in range(20)], numpy.eye(20, 32, dtype="float32"))
folder = Path(sys.argv[1])
index.save(folder)
size = (folder / index.file_name).stat().st_size
(folder / index.file_name).unlink()
make_room(size - 100)
index.save(folder)
"""


@pytest.mark.parametrize(
    "array",
    [np.arange(12.0).reshape(3, 4), np.zeros((0, 5), np.float16), np.ones((4, 3)).T, np.array(True)],
    ids=["plain", "empty", "turned", "scalar"],
)
def test_the_file_is_that_of_numpy(array: np.ndarray, tmp_path: Path) -> None:
    expected, stream = io.BytesIO(), io.BytesIO()
    np.save(expected, array, allow_pickle=False)
    save_array(stream, array)
    assert stream.getvalue() == expected.getvalue()
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        save_array(file, array)
    assert np.array_equal(load_array(path, "save it again"), array)


def told(script: str, path: Path) -> str:
    """What a process complains of whose files may not be as large as they have to be."""
    done = subprocess.run(
        [sys.executable, "-c", ROOM + script, str(path)], capture_output=True, text=True, check=False
    )
    return done.stderr


def test_a_full_disk_is_noticed(tmp_path: Path) -> None:
    ours = "from pmpguard.data.arrays import save_array as save\n"
    assert "File too large" in told(ours + NUMPY, tmp_path / "x.npy")


def test_a_full_disk_is_noticed_by_faiss_as_well(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    assert "could not be written" in told(FAISS, tmp_path)


def test_nothing_else_in_the_package_writes_arrays_past_their_stream() -> None:
    package = Path(pmpguard.__file__).parent
    others = [path for path in package.rglob("*.py") if path.name != "arrays.py"]
    assert len(others) > 100
    assert [path for path in others if re.search(r"\.tofile\(|^\s*np\.save\(", path.read_text(), re.M)] == []
