"""What a coded embedding keeps in place of float32 vectors and float16 fragments.

::

    img_emb/img_emb_0000.npy        (n, d) int8, in the directions of the vectors
    img_codes/img_codes_0000.npy    (n,) records: group of every region, scale and codes of every group
    text_emb/ text_codes/           the same of the captions
    codec.json                      what was done, with which seed
    codec_image.npy                 (d, kept) projection and rotation in one, where there is one
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pmpguard.data.arrays import save_array
from pmpguard.errors import DataError
from pmpguard.files import read_json, sha256_file, write_json
from pmpguard.search.codec import CodecSpec, FragmentCodec
from pmpguard.search.query import Kind

CODECS = "codec.json"
CODE_FOLDERS: dict[Kind, str] = {"image": "img_codes", "caption": "text_codes"}
FORMAT = 1
STEPS = 127  # of an int8 on either side of 0
Codecs = Mapping[Kind, FragmentCodec]
NO_CODECS: Codecs = {}


def save_codecs(codecs: Codecs, folder: Path) -> None:
    """Write them into an existing folder; the description last, with the hashes of the matrices."""
    described = {}
    for kind, codec in codecs.items():
        described[kind] = codec.described()
        if codec.basis is not None:
            with matrix_file(folder, kind).open("wb") as stream:
                save_array(stream, codec.basis)
            described[kind]["matrix"] = sha256_file(matrix_file(folder, kind))
    write_json(folder / CODECS, {"format": FORMAT, "codecs": described})


def read_codecs(folder: Path) -> Codecs:
    """The codecs of a coded embedding; none where vectors are kept as they were embedded."""
    if not (folder / CODECS).is_file():
        return NO_CODECS
    stored = read_json(folder / CODECS)
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        fix = "build the index again with this version of pmpguard"
        raise DataError(f"{folder / CODECS}: not of format {FORMAT}", fix=fix)
    found: dict[Kind, FragmentCodec] = {}
    for kind in CODE_FOLDERS:
        if kind in stored["codecs"]:
            one = stored["codecs"][kind]
            matrix = _matrix(matrix_file(folder, kind), one["matrix"]) if "matrix" in one else b""
            found[kind] = _codec(one["name"], one["dim"], one["seed"], one["fitted_on"], matrix)
    return found


def matrix_file(folder: Path, kind: Kind) -> Path:
    return folder / f"codec_{kind}.npy"


def _matrix(path: Path, digest: str) -> bytes:
    matrix = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(matrix).hexdigest() != digest:
        fix = "restore it, or build the index again"
        raise DataError(f"{path}: missing, or not what it was", fix=fix)
    return matrix


@lru_cache(maxsize=8)
def _codec(name: str, dim: int, seed: int, fitted_on: int, matrix: bytes) -> FragmentCodec:
    """One object for all segments that share a codec."""
    basis = np.load(io.BytesIO(matrix), allow_pickle=False) if matrix else None
    return FragmentCodec(CodecSpec.parse(name), dim, seed, fitted_on, basis)


def code_pooled(pooled: Tensor) -> npt.NDArray[np.int8]:
    """(N, d) vectors as whole numbers, of which only the direction counts."""
    vectors = pooled.float().cpu().numpy()
    largest = np.abs(vectors).max(1, keepdims=True)
    steps: npt.NDArray[np.int8] = np.rint(vectors * (STEPS / np.where(largest > 0, largest, 1))).astype(
        np.int8
    )
    return steps


def decode_pooled(steps: npt.NDArray[np.int8]) -> npt.NDArray[np.float32]:
    """(N, d) unit vectors again."""
    vectors = steps.astype(np.float32)
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1)
    return vectors
