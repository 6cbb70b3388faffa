"""Random draws that stay the same for ever: they depend on the key alone, not on numpy's version.

numpy promises the raw 64-bit output of `PCG64` for a given seed, but not what `Generator.permutation`,
`Generator.integers` or `Generator.normal` make of it. Training orders, noise files, folds, null pairs and
bootstraps must be the same on every machine and in every year, so all are made here from the raw output: by
integers, and by additions, multiplications, divisions and square roots, which IEEE 754 defines to the last
bit.
"""

from __future__ import annotations

import hashlib

import numpy as np

from pmpguard.errors import ConfigError


class StableRandom:
    """A stream of draws named by its purpose and non-negative numbers, such as a seed and an epoch.

    The purpose keeps streams apart that have the same seed: if noise and batches shared one, the pairs chosen
    to be mismatched would also come first in the epoch. Each call goes on where the one before stopped.

    >>> StableRandom("example", 3, 0).order(5).tolist() == StableRandom("example", 3, 0).order(5).tolist()
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

    def _words(self, count: int) -> np.ndarray:
        return np.asarray(self._bits.random_raw(count), dtype=np.uint64)  # (count,)

    def order(self, count: int) -> np.ndarray:
        """(count,) int64: the numbers 0 .. count-1 in random order.

        Sorts random words whose low bits hold the number itself: no ties, and several times faster than an
        argsort.
        """
        low = np.uint64((1 << max(count - 1, 1).bit_length()) - 1)
        words = self._words(count) & ~low
        words |= np.arange(count, dtype=np.uint64)
        words.sort()
        return (words & low).astype(np.int64)

    def choice(self, limit: int, count: int) -> np.ndarray:
        """(count,) int64: different numbers of 0 .. limit-1, all when there are fewer, in random order.

        The first `count` of `order(limit)`, so a larger choice of one stream begins with a smaller one.
        """
        return self.order(limit)[:count]

    def below(self, limit: int, count: int) -> np.ndarray:
        """(count,) int64: independent draws from 0 .. limit-1, as a bootstrap or folds want them.

        A word modulo `limit`: for limits below 2^32 no number is favoured by more than one part in 2^32.
        """
        if limit < 1 and count:
            raise ConfigError(f"cannot draw from {limit} numbers", fix="give at least one")
        return (self._words(count) % np.uint64(max(limit, 1))).astype(np.int64)

    def uniform(self, count: int) -> np.ndarray:
        """(count,) float64 in [0, 1): multiples of 2^-53."""
        return (self._words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def normal(self, count: int) -> np.ndarray:
        """(count,) float64 of mean 0 and variance 1, by Marsaglia's polar method."""
        parts = [np.zeros(0)]
        missing = count
        while missing > 0:
            pairs = 2.0 * self.uniform(2 * missing).reshape(-1, 2) - 1.0  # (missing, 2) in the square
            squares = pairs[:, 0] * pairs[:, 0] + pairs[:, 1] * pairs[:, 1]
            inside = (squares > 0) & (squares < 1)  # of the circle, about 79 in 100
            pairs, squares = pairs[inside], squares[inside]
            parts.append((pairs * np.sqrt(-2.0 * _log(squares) / squares)[:, None]).ravel())
            missing -= 2 * len(pairs)
        return np.concatenate(parts)[:count]

    def counts(self, total: int, shares: np.ndarray, replicates: int) -> np.ndarray:
        """(replicates, K) int64: how `total` draws fall among K kinds of these shares (K,): multinomial.

        All kinds are halved, the draws divided among the halves, and so on. What it costs does not depend on
        `total`.
        """
        kinds = len(shares)
        masses = np.zeros(1 << max(kinds - 1, 0).bit_length())  # (a power of two,)
        masses[:kinds] = shares
        counts = np.full((replicates, 1), total, dtype=np.int64)
        while counts.shape[1] < len(masses):
            halves = masses.reshape(counts.shape[1], 2, -1).sum(2)  # (nodes, 2)
            left = self._divided(counts, halves[:, 0] / np.maximum(halves.sum(1), 1e-300))
            counts = np.stack([left, counts - left], axis=2).reshape(replicates, -1)
        return counts[:, :kinds]

    def _divided(self, counts: np.ndarray, shares: np.ndarray) -> np.ndarray:
        """How many of `counts` (R, n) uniform numbers are below `shares` (n,): binomial, bit by bit."""
        below, undecided, rest = np.zeros_like(counts), counts, shares
        for _ in range(53):
            rest = 2 * rest
            bit = rest >= 1
            rest = rest - bit
            zeros = self._coins(undecided)  # of the undecided numbers, those whose next bit is 0
            below = below + np.where(bit, zeros, 0)
            undecided = np.where(bit, undecided - zeros, zeros)
            if not undecided.any():
                break
        return below

    def _coins(self, counts: np.ndarray) -> np.ndarray:
        """How many of `counts` coins show heads: bits of a word, or for more of them a rounded normal draw.

        From 64 coins on its probabilities are off by less than one part in a thousand, and by less the more
        coins there are.
        """
        words = self._words(counts.size).reshape(counts.shape)
        few = counts <= 64
        kept = np.where(few, 64 - counts, 0).astype(np.uint64)
        heads = np.bitwise_count(np.where(kept < 64, words >> np.minimum(kept, np.uint64(63)), 0))
        heads = heads.astype(np.int64)
        many = counts[~few]
        drawn = np.rint(many / 2 + np.sqrt(many) / 2 * self.normal(many.size))
        heads[~few] = np.clip(drawn, 0, many).astype(np.int64)
        return heads


def _log(values: np.ndarray) -> np.ndarray:
    """Natural logarithm of positive numbers, the same on every machine, which the C library's is not.

    Twice the series of the inverse hyperbolic tangent, of mantissas between 0.7 and 1.4.
    """
    mantissa, exponent = np.frexp(values)  # values = mantissa * 2^exponent, mantissa in [0.5, 1)
    small = mantissa < 0.7071067811865476
    mantissa, exponent = np.where(small, 2 * mantissa, mantissa), exponent - small
    ratio = (mantissa - 1) / (mantissa + 1)  # at most 0.172 either way
    square = ratio * ratio
    series = np.zeros_like(ratio)
    for power in range(25, 0, -2):
        series = series * square + 1.0 / power
    logarithm: np.ndarray = exponent * 0.6931471805599453 + 2 * ratio * series
    return logarithm
