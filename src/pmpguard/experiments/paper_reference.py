"""The recalls printed in the paper's four tables, for comparison only.

The file holds the six recalls of each row. The printed mR is left out: most of those cells are not the mean
of their own row, so mR is always recomputed here.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources

from pmpguard.evaluation.recall import recall_names


@dataclass(frozen=True)
class PaperRow:
    """One printed row: table 1 Swin-T + BERT, 2 GeoRSCLIP, 3 RS5M, 4 ablation; `rate` is None in table 3."""

    table: int
    dataset: str
    rate: float | None
    method: str
    recalls: tuple[float, ...]  # i2t R@1, 5, 10, t2i R@1, 5, 10

    @property
    def mr(self) -> float:
        return sum(self.recalls) / len(self.recalls)

    @property
    def metrics(self) -> dict[str, float]:
        return dict(zip(recall_names(), (*self.recalls, self.mr), strict=True))


@cache
def paper_rows() -> tuple[PaperRow, ...]:
    """All printed rows.

    >>> len(paper_rows()), round(paper_rows()[0].mr, 2)
    (123, 14.31)
    """
    source = resources.files("pmpguard.experiments") / "paper_reference.csv"
    names = recall_names()[:-1]
    with source.open(encoding="utf-8") as stream:
        return tuple(
            PaperRow(
                table=int(row["table"]),
                dataset=row["dataset"],
                rate=float(row["mrate"]) if row["mrate"] else None,
                method=row["method"],
                recalls=tuple(float(row[name]) for name in names),
            )
            for row in csv.DictReader(stream)
        )


def find_paper_row(table: int, dataset: str, rate: float | None = None) -> list[PaperRow]:
    """The rows of one table and dataset (any case), at one rate where given.

    Table 3 names no rate: its rows stand beside any.
    """
    return [
        row
        for row in paper_rows()
        if row.table == table
        and row.dataset.lower() == dataset.lower()
        and (rate is None or row.rate is None or abs(row.rate - rate) < 1e-9)
    ]
