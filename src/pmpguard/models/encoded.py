"""Encoded: what an encoder makes of a batch of images or captions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from pmpguard.errors import ModelError


@dataclass(frozen=True, repr=False)
class Encoded:
    """Unit vectors of N items: one per item and one per fragment (word or region).

    `mask` is true at real fragments. Nothing is promised about the vectors of the others: everything that
    reads fragments must read the mask too.

    >>> items = Encoded(torch.ones(2, 4) / 2, torch.ones(2, 3, 4) / 2, torch.ones(2, 3, dtype=torch.bool))
    >>> len(items), len(items[1:]), Encoded.cat([items, items]).fragments.shape
    (2, 1, torch.Size([4, 3, 4]))
    """

    pooled: Tensor  # (N, d)
    fragments: Tensor  # (N, n, d)
    mask: Tensor  # (N, n) bool

    def __post_init__(self) -> None:
        pooled, fragments, mask = self.pooled.shape, self.fragments.shape, self.mask.shape
        if len(pooled) != 2 or len(fragments) != 3 or fragments[:2] != mask or fragments[::2] != pooled:
            raise ModelError(
                f"shapes do not agree: pooled {list(pooled)}, fragments {list(fragments)}, mask {list(mask)}",
                fix="give pooled (N, d), fragments (N, n, d) and mask (N, n)",
            )
        if self.mask.dtype != torch.bool:
            raise ModelError(
                f"mask holds {self.mask.dtype}", fix="give a bool tensor, true at real fragments"
            )

    def __repr__(self) -> str:
        count, most, dim = self.fragments.shape
        kind = f"{self.pooled.dtype} on {self.pooled.device}"
        return f"Encoded({count} item{'' if count == 1 else 's'} of up to {most} fragments, {dim}-d {kind})"

    def __len__(self) -> int:
        return len(self.pooled)

    def __getitem__(self, rows: slice | Tensor | Sequence[int]) -> Encoded:
        """Some of the items, in the given order."""
        if not isinstance(rows, slice | Tensor):
            rows = torch.as_tensor(rows, dtype=torch.long)
        return Encoded(self.pooled[rows], self.fragments[rows], self.mask[rows])

    def chosen(self, rows: Tensor) -> Encoded:
        """The items with the given numbers (K,); several may be the same one, and its gradients add up."""
        return Encoded(*(part.index_select(0, rows) for part in (self.pooled, self.fragments, self.mask)))

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Encoded:
        """Move to a device and/or change the vectors' number type; the mask stays bool."""
        return Encoded(
            self.pooled.to(device=device, dtype=dtype),
            self.fragments.to(device=device, dtype=dtype),
            self.mask.to(device=device),
        )

    def detach(self) -> Encoded:
        """The same vectors, cut off from the gradient."""
        return Encoded(self.pooled.detach(), self.fragments.detach(), self.mask)

    @classmethod
    def cat(cls, parts: Sequence[Encoded]) -> Encoded:
        """One after another; shorter fragment lists are padded with masked zeros."""
        if not parts:
            raise ModelError("nothing to join", fix="give at least one Encoded")
        longest = max(part.fragments.shape[1] for part in parts)
        missing = [longest - part.fragments.shape[1] for part in parts]
        return cls(
            torch.cat([part.pooled for part in parts]),
            torch.cat([pad(part.fragments, (0, 0, 0, k)) for part, k in zip(parts, missing, strict=True)]),
            torch.cat([pad(part.mask, (0, k)) for part, k in zip(parts, missing, strict=True)]),
        )

    @classmethod
    def filled(cls, parts: Iterable[Encoded], count: int) -> Encoded:
        """What `cat` gives of parts of `count` items in all, without holding them twice."""
        whole: Encoded | None = None
        start = 0
        for part in parts:
            longest = part.fragments.shape[1]
            if whole is None:
                whole = cls(
                    part.pooled.new_empty(count, part.pooled.shape[1]),
                    part.fragments.new_zeros(count, *part.fragments.shape[1:]),
                    part.mask.new_zeros(count, longest),
                )
            elif longest > whole.fragments.shape[1]:
                more = longest - whole.fragments.shape[1]
                whole = cls(whole.pooled, pad(whole.fragments, (0, 0, 0, more)), pad(whole.mask, (0, more)))
            here = slice(start, start + len(part))
            whole.pooled[here], whole.fragments[here, :longest] = part.pooled, part.fragments
            whole.mask[here, :longest] = part.mask
            start += len(part)
        if whole is None or start != count:
            raise ModelError(f"{start} items to join, {count} expected", fix="give them all")
        return whole
