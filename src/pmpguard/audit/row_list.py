"""The rows of an audit in order of their ranks, each made when it is asked for: a million take no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from pmpguard.audit.rows import AuditRow

BLOCK = 20_000  # rows that are made at once


class AuditRows(Sequence[AuditRow]):
    """`make(place)` gives the row at each place; `table_rows` (N,) are its places in the judged table.

    `last` are further rows, after those; `evidence` are the names of the evidence that rows may have.
    """

    def __init__(
        self,
        table_rows: npt.NDArray[np.int64],
        make: Callable[[int], AuditRow],
        evidence: Sequence[str],
        last: Sequence[AuditRow] = (),
    ) -> None:
        self.table_rows, self.make, self.evidence, self.last = table_rows, make, tuple(evidence), tuple(last)

    def __len__(self) -> int:
        return len(self.table_rows) + len(self.last)

    @overload
    def __getitem__(self, place: int) -> AuditRow: ...
    @overload
    def __getitem__(self, place: slice) -> list[AuditRow]: ...
    def __getitem__(self, place: int | slice) -> AuditRow | list[AuditRow]:
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        number = range(len(self))[place]
        judged = len(self.table_rows)
        return self.make(number) if number < judged else self.last[number - judged]

    def __iter__(self) -> Iterator[AuditRow]:
        return (self[place] for place in range(len(self)))


def in_order(rows: Sequence[AuditRow]) -> Sequence[AuditRow]:
    """The rows by rank."""
    return rows if isinstance(rows, AuditRows) else sorted(rows, key=lambda row: row.rank)


def evidence_names(rows: Sequence[AuditRow]) -> list[str]:
    """The names of all evidence, in order of the alphabet."""
    if isinstance(rows, AuditRows):
        return sorted(rows.evidence)
    return sorted({name for row in rows for name in row.evidence})


def blocks(rows: Sequence[AuditRow]) -> Iterator[Sequence[AuditRow]]:
    """The rows a block at a time; at least one, which may be empty."""
    for start in range(0, max(len(rows), 1), BLOCK):
        yield rows[start : start + BLOCK]
