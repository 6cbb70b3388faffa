"""`pmpguard figure`: mismatched captions and what they were rematched with, as an image."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pmpguard.audit.audit import thumbnail_loader
from pmpguard.audit.issues import ISSUES, PAIRS, read_issues
from pmpguard.audit.rematch_figure import chosen_rows, draw_rematches
from pmpguard.data.formats import read_pairs
from pmpguard.errors import ConfigError, DataError


@dataclass(frozen=True)
class FigureReport:
    """The figure that was drawn."""

    out: Path
    pairs: tuple[str, ...]

    def as_text(self) -> str:
        return f"{len(self.pairs)} pair{'s' if len(self.pairs) != 1 else ''} drawn in {self.out}"


def figure(
    report: Path,
    out: Path = Path("rematched.png"),
    pairs: str | None = None,
    count: int = 4,
    images: Path | None = None,
) -> FigureReport:
    """Draw audited pairs: the image, its caption with unsupported words in red, the rematched one in green.

    Args:
        report: folder that `pmpguard audit` wrote.
        out: the image to write, .png, .svg or .pdf; it must not exist yet.
        pairs: ids of the pairs to draw, separated by commas; by default the most suspicious ones that have a
            proposal.
        count: how many pairs to draw, where no ids are given.
        images: the folder that holds the images, when they have moved since the audit.
    """
    if count < 1:
        raise ConfigError(f"count: {count} is too few", fix="draw at least 1 pair")
    if out.exists():
        raise DataError(f"{out}: exists already", fix="choose a new name or remove it first")
    rows = read_issues(report / ISSUES)
    if pairs is None:
        chosen = [row for row in rows if row.flag and row.proposals][:count]
    else:
        chosen = chosen_rows(rows, [pair.strip() for pair in pairs.split(",") if pair.strip()])
    table = read_pairs(report / PAIRS, format="parquet", images=images)
    draw_rematches(out, chosen, thumbnail_loader(table))
    return FigureReport(out, tuple(row.pair_id for row in chosen))
