"""Fragments in few bytes: regions pooled, projected, rotated, and quantised to 2, 4 or 8 bit.

The steps, each of them optional but the last:

* similar regions of an image are merged (Ward's clustering, as token pooling of late-interaction models does)
  and share one vector;
* PCA, fitted on fragments of the user's own, keeps the directions in which they differ;
* a random rotation, made from a seed, gives all coordinates nearly the same normal distribution;
* every coordinate becomes the nearest of the levels that lose least of a normal distribution (Lloyd, 1982;
  Max, 1960), times a scale of the vector's own. With 8 bit the levels are evenly spaced.

Projection and rotation are one matrix. What is decoded has unit length and stands where it stood, so that
scores, heat maps and masks read it like the original.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.errors import ConfigError, DataError
from pmpguard.models.encoded import Encoded
from pmpguard.stable_random import StableRandom

Floats = npt.NDArray[np.float32]
Records = npt.NDArray[np.void]
NAME = re.compile(r"(?:(int8)|([24])bit)(?:-(\d+)d)?(?:-(\d+)r)?")
NO_GROUP = {np.dtype(np.uint8): 255, np.dtype(np.uint16): 65535}  # of a masked fragment
ITEMS_AT_ONCE = 256


@dataclass(frozen=True)
class CodecSpec:
    """What a codec does to a fragment. `float16` is no codec: fragments stay as they were embedded.

    >>> CodecSpec.parse("4bit-96d-16r")
    CodecSpec(bits=4, dims=96, regions=16)
    >>> CodecSpec.parse("int8").name
    'int8'
    """

    bits: int  # of a coordinate: 2, 4 or 8
    dims: int | None = None  # kept by PCA; None for all, and nothing is fitted
    regions: int | None = None  # of an image, at most; None for all

    @classmethod
    def parse(cls, name: str) -> CodecSpec:
        found = NAME.fullmatch(name)
        if found is None or "0" in (found[3], found[4]):
            fix = "float16, or such as int8, 4bit, 4bit-128d, 2bit-128d, 4bit-96d-16r (dimensions, regions)"
            raise ConfigError(f"codec {name!r} is unknown", fix=fix)
        dims, regions = (None if part is None else int(part) for part in (found[3], found[4]))
        return cls(8 if found[1] else int(found[2]), dims, regions)

    @property
    def name(self) -> str:
        parts = ["int8" if self.bits == 8 else f"{self.bits}bit"]
        parts += [f"{self.dims}d"] if self.dims else []
        parts += [f"{self.regions}r"] if self.regions else []
        return "-".join(parts)

    @property
    def for_captions(self) -> CodecSpec:
        """Words are few, and none of them is merged."""
        return CodecSpec(self.bits, self.dims)


@dataclass(frozen=True, eq=False)
class FragmentCodec:
    """A codec ready for use: what it does and, unless it keeps all coordinates as they are, its matrix."""

    spec: CodecSpec
    dim: int
    seed: int
    fitted_on: int  # fragments
    basis: Floats | None  # (d, kept) with orthonormal columns

    @cached_property
    def matrix(self) -> Tensor | None:
        return None if self.basis is None else torch.from_numpy(self.basis)

    @property
    def kept(self) -> int:
        """Numbers of a coded fragment."""
        return self.dim if self.basis is None else int(self.basis.shape[1])

    def record(self, fragments: int) -> np.dtype[np.void]:
        """The type of a coded item of so many fragments."""
        groups = min(fragments, self.spec.regions or fragments)
        group = np.uint8 if groups < 255 else np.uint16
        row = math.ceil(self.kept * self.spec.bits / 8)
        return np.dtype(
            [("group", group, (fragments,)), ("scale", "<f2", (groups,)), ("codes", "u1", (groups, row))]
        )

    def encode(self, items: Encoded) -> Records:
        """(N,) records of the items' fragments."""
        records = np.zeros(len(items), self.record(items.mask.shape[1]))
        for start in range(0, len(items), ITEMS_AT_ONCE):
            stop = start + ITEMS_AT_ONCE
            fragments, mask = items.fragments[start:stop].float(), items.mask[start:stop]
            group, pooled = pool_regions(fragments, mask, records["scale"].shape[1])
            numbers = pooled if self.matrix is None else pooled @ self.matrix  # (n, groups, kept)
            codes, scale = quantise(numbers.numpy(), self.spec.bits)
            some = records[start:stop]
            some["codes"], some["scale"] = pack(codes, self.spec.bits), scale
            some["group"] = np.where(group < 0, NO_GROUP[some["group"].dtype], group)
        return records

    def decode(self, records: Records) -> tuple[Tensor, Tensor]:
        """Fragments (N, f, d) of unit length, masked ones 0, and the mask (N, f)."""
        levels = unpack(records["codes"], self.spec.bits, self.kept)  # (N, groups, kept)
        numbers = torch.from_numpy(levels * records["scale"].astype(np.float32)[..., None])
        vectors = normalize(numbers if self.matrix is None else numbers @ self.matrix.T, dim=-1)
        group = records["group"].astype(np.int64)  # (N, f)
        real = torch.from_numpy(group != NO_GROUP[records["group"].dtype])
        place = torch.from_numpy(group).masked_fill(~real, 0)
        rows = place + torch.arange(len(records))[:, None] * vectors.shape[1]
        fragments = vectors.flatten(0, 1)[rows.flatten()].reshape(*rows.shape, self.dim)
        return fragments.masked_fill_(~real[..., None], 0.0) if not real.all() else fragments, real

    def described(self) -> dict[str, Any]:
        """What a reader needs beside the matrix."""
        return {"name": self.spec.name, "dim": self.dim, "seed": self.seed, "fitted_on": self.fitted_on}


def fit_codec(spec: CodecSpec, fragments: Floats, seed: int = 0) -> FragmentCodec:
    """A codec for vectors like `fragments` (F, d); only one that projects reads them."""
    dim = fragments.shape[1]
    if spec.dims is not None and spec.dims >= dim:
        raise ConfigError(f"codec {spec.name}: vectors have {dim} dimensions", fix="keep fewer of them")
    if spec.bits == 8 and spec.dims is None:
        return FragmentCodec(spec, dim, seed, 0, None)
    basis = random_rotation(spec.dims or dim, seed)
    if spec.dims is not None:
        basis = principal_directions(fragments, spec.dims) @ basis
    fitted_on = 0 if spec.dims is None else len(fragments)
    return FragmentCodec(spec, dim, seed, fitted_on, np.ascontiguousarray(basis, np.float32))


def random_rotation(dim: int, seed: int) -> npt.NDArray[np.float64]:
    """(d, d) a rotation or reflection, every one of them equally likely (Haar measure)."""
    q, r = np.linalg.qr(StableRandom("rotation", seed).normal(dim * dim).reshape(dim, dim))
    rotation: npt.NDArray[np.float64] = q * np.sign(np.diag(r))
    return rotation


def principal_directions(vectors: Floats, count: int) -> npt.NDArray[np.float64]:
    """(d, count) the directions that keep most of the vectors' length. The mean stays: cosines need it."""
    if not len(vectors):
        raise DataError(
            "no fragments to fit a projection to", fix="choose a codec without dimensions, such as 4bit"
        )
    wide = vectors.astype(np.float64)
    _, directions = np.linalg.eigh(wide.T @ wide)  # from the least
    found: npt.NDArray[np.float64] = directions[:, ::-1][:, :count]
    return found


def pool_regions(fragments: Tensor, mask: Tensor, count: int) -> tuple[npt.NDArray[np.int64], Tensor]:
    """Merge the fragments (N, f, d) of each item, the most alike first, until `count` groups are left.

    Returns the group of every fragment (N, f), -1 where it is masked, and the groups' directions (N, count,
    d). Ward's criterion, by the update of Lance and Williams on squared distances. Groups are numbered in the
    order of their first fragments.
    """
    most = mask.shape[1]
    label = np.where(mask.numpy(), np.arange(most), -1)  # (N, f), the first fragment of the group
    if most > count:
        _merge(label, fragments, mask, count)
    is_first = label == np.arange(most)  # (N, f)
    number = np.cumsum(is_first, 1) - 1
    group = np.where(label < 0, -1, np.take_along_axis(number, np.maximum(label, 0), 1))  # (N, f)
    belongs = torch.from_numpy(group[:, None] == np.arange(count)[:, None]).float()  # (N, count, f)
    zeroed = fragments.masked_fill(~mask[..., None], 0.0)
    return group.astype(np.int64), normalize(belongs @ zeroed, dim=-1)


def _merge(label: npt.NDArray[np.int64], fragments: Tensor, mask: Tensor, count: int) -> None:
    """Change the labels (N, f) of what is merged."""
    items, most = mask.shape
    gram = fragments @ fragments.mT
    length = gram.diagonal(dim1=1, dim2=2)  # (N, f)
    apart = (length[:, :, None] + length[:, None] - 2 * gram).numpy()  # (N, f, f)
    off = ~mask.numpy()
    apart[off[:, :, None] | off[:, None] | np.eye(most, dtype=bool)] = np.inf
    size = np.ones((items, most), np.float32)
    left = mask.sum(1).numpy()
    while (rows := np.flatnonzero(left > count)).size:
        first, second = np.divmod(apart[rows].reshape(len(rows), -1).argmin(1), most)  # (R,), first < second
        a, b = size[rows, first, None], size[rows, second, None]  # (R, 1)
        c, between = size[rows], apart[rows, first, second][:, None]
        joined = ((a + c) * apart[rows, first] + (b + c) * apart[rows, second] - c * between) / (a + b + c)
        joined[np.arange(len(rows)), first] = np.inf
        apart[rows, first], apart[rows, :, first] = joined, joined
        apart[rows, second], apart[rows, :, second] = np.inf, np.inf
        size[rows, first] += size[rows, second]
        some = label[rows]
        label[rows] = np.where(some == second[:, None], first[:, None], some)
        left[rows] -= 1


def quantise(vectors: Floats, bits: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16]]:
    """Codes (..., d) of vectors (..., d) and the scale (...) that brings the levels back nearest to them."""
    levels = quantiser_levels(bits)
    if bits == 8:
        spread = np.abs(vectors).max(-1, keepdims=True)
    else:
        spread = np.sqrt((vectors.astype(np.float64) ** 2).mean(-1, keepdims=True))
    unit = vectors / np.where(spread > 0, spread, 1)
    codes = np.searchsorted((levels[1:] + levels[:-1]) / 2, unit.astype(np.float32)).astype(np.uint8)
    back = levels[codes]
    scale = (vectors * back).sum(-1) / np.maximum((back**2).sum(-1), np.finfo(np.float32).tiny)
    return codes, scale.astype(np.float16)


@lru_cache
def quantiser_levels(bits: int) -> Floats:
    """(2^bits,) values that codes stand for; of a standard normal distribution, or even steps in [-1, 1].

    >>> [round(float(level), 4) for level in quantiser_levels(2)]
    [-1.5104, -0.4528, 0.4528, 1.5104]
    """
    if bits == 8:
        return np.linspace(-1, 1, 2**bits, dtype=np.float32)
    levels = np.linspace(-2, 2, 2**bits)  # which only have to be in order
    while True:  # every level becomes the mean of what is nearest to it
        edges = np.concatenate([[-np.inf], (levels[1:] + levels[:-1]) / 2, [np.inf]])
        density = np.exp(-(edges**2) / 2) / math.sqrt(2 * math.pi)
        below = np.array([(1 + math.erf(edge / math.sqrt(2))) / 2 for edge in edges])
        better = (density[:-1] - density[1:]) / (below[1:] - below[:-1])
        if np.abs(better - levels).max() < 1e-10:
            break
        levels = better
    found: Floats = levels.astype(np.float32)
    return found


def pack(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """(..., bytes) codes side by side in bytes, the first in the lowest bits."""
    each = 8 // bits
    short = -codes.shape[-1] % each
    padded = np.concatenate([codes, np.zeros((*codes.shape[:-1], short), np.uint8)], -1)
    packed = np.zeros((*codes.shape[:-1], padded.shape[-1] // each), np.uint8)
    for place in range(each):
        packed |= padded[..., place::each] << np.uint8(place * bits)
    return packed


def unpack(packed: npt.NDArray[np.uint8], bits: int, count: int) -> Floats:
    """(..., count) the levels that packed codes stand for."""
    levels: Floats = _levels_of_bytes(bits)[packed]  # (..., bytes, codes of a byte)
    return levels.reshape(*packed.shape[:-1], -1)[..., :count]


@lru_cache
def _levels_of_bytes(bits: int) -> Floats:
    """(256, 8 / bits)"""
    shifts = np.arange(0, 8, bits)
    levels: Floats = quantiser_levels(bits)[(np.arange(256)[:, None] >> shifts) & (2**bits - 1)]
    return levels
