"""Random draws that stay the same for ever: they depend on the key alone, not on numpy's version.

numpy promises the raw 64-bit output of `PCG64` for a given seed, but not what `Generator.permutation` or
`Generator.integers` make of it. Training orders and noise files must be the same on every machine and in
every year, so both are made here from the raw output.
"""

from __future__ import annotations

import hashlib

import numpy as np

from pmpguard.errors import ConfigError


class StableRandom:
    """A stream of draws named by its purpose and non-negative numbers, such as a seed and an epoch.

    The purpose keeps streams apart that have the same seed: if noise and batches shared one, the pairs chosen
    to be wrong would also come first in the epoch.

    >>> Draws("example", 3, 0).order(5).tolist() == Draws("example", 3, 0).order(5).tolist()
    True
    """

    def __init__(self, purpose: str, *key: int) -> None:
        for number in key:
            if number < 0:
                raise ConfigError(
                    f"a seed cannot be negative, got {number}", fix="use 0 or a positive number"
                )
        name = " ".join([purpose, *map(str, key)])
        entropy = int.from_bytes(hashlib.sha256(name.encode()).digest(), "little")
        self._bits = np.random.PCG64(np.random.SeedSequence(entropy))

    def order(self, count: int) -> np.ndarray:
        """(count,) int64: the numbers 0 .. count-1 in random order.

        Sorts random words whose low bits hold the number itself: no ties, and several times faster than an
        argsort.
        """
        low = np.uint64((1 << max(count - 1, 1).bit_length()) - 1)
        words = np.asarray(self._bits.random_raw(count), dtype=np.uint64) & ~low
        words |= np.arange(count, dtype=np.uint64)
        words.sort()
        return (words & low).astype(np.int64)

    def below(self, limit: int, count: int) -> np.ndarray:
        """(count,) int64: independent draws from 0 .. limit-1."""
        raw = np.asarray(self._bits.random_raw(count), dtype=np.uint64)
        return (raw % np.uint64(limit)).astype(np.int64)
