"""The most suspicious pairs of a dataset as published, as an image to look at and as a list.

    pmpguard audit DATASET --out REPORT
    python benchmarks/audit_natural.py REPORT --name NAME [--count 50] [--words A B --outside CLASS]

Writes results/audit_natural_NAME.json and docs/images/natural-NAME.jpg. A person then looks at each pair and
writes results/audit_natural_NAME_reading.csv (`rank,verdict,note`; verdict wrong, doubtful or right); with it
there, the file also says how many of the listed pairs are really wrong. What a reading suggests can be
followed up: `--words` counts the captions with one of these words on images outside a class, and says
where the audit had ranked each of those images.
"""

from __future__ import annotations

import argparse
import collections
import csv
import textwrap
import time
from pathlib import Path
from typing import Any

from audit_data import RESULTS, record
from PIL import Image, ImageDraw, ImageFont

from pmpguard.audit.issues import ISSUES, PAIRS, SUMMARY, read_issues, read_summary
from pmpguard.audit.rows import AuditRow
from pmpguard.data.formats import read_pairs
from pmpguard.data.images.decode import load_pair_image
from pmpguard.data.pairs import PairTable

DOCS = Path(__file__).parent.parent / "docs" / "images"
COLUMNS, SIDE, GAP, LINE, LINES = 5, 208, 12, 15, 7
VERDICTS = ("wrong", "doubtful", "right")


def draw_sheet(table: PairTable, rows: list[AuditRow], out: Path) -> None:
    """Images in a grid, each with its rank, p(match) and caption under it."""
    place = {pair: row for row, pair in enumerate(table.column("pair_id"))}
    font = ImageFont.load_default(13)
    width, height = SIDE + GAP, SIDE + LINES * LINE + GAP
    sheet = Image.new("RGB", (COLUMNS * width + GAP, -(-len(rows) // COLUMNS) * height + GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for number, row in enumerate(rows):
        left, top = GAP + number % COLUMNS * width, GAP + number // COLUMNS * height
        image = load_pair_image(table, place[row.pair_id]).resize((SIDE, SIDE))
        sheet.paste(image, (left, top))
        title = f"{row.rank}. {row.label or row.image}, p = {row.p_match:.2g}"
        lines = [title, *textwrap.wrap(row.caption, 33)][:LINES]
        pen.multiline_text((left, top + SIDE + 2), "\n".join(lines), "black", font, spacing=2)
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out, quality=72, optimize=True)


def read_verdicts(path: Path, rows: list[AuditRow]) -> dict[int, dict[str, str]]:
    """What a person found, by rank; every listed pair must have been looked at."""
    if not path.is_file():
        return {}
    with path.open(newline="") as stream:
        found = {int(line["rank"]): line for line in csv.DictReader(stream)}
    bad = [rank for rank, line in found.items() if line["verdict"] not in VERDICTS]
    missing = [row.rank for row in rows if row.rank not in found]
    if bad or missing:
        raise SystemExit(f"{path}: ranks {bad or missing} have no verdict of {', '.join(VERDICTS)}")
    return found


def followed_up(rows: list[AuditRow], words: list[str], label: str) -> dict[str, Any]:
    """Captions with one of the words on images of other classes, and the best rank of each image."""
    best: dict[str, int] = {}
    found = [row for row in rows if row.label != label and set(words) & set(row.caption.split())]
    for row in found:
        best[row.image] = min(row.rank, best.get(row.image, row.rank))
    return {
        "words": words, "outside": label, "images": len(best), "captions": len(found),
        "best_rank_by_image": dict(sorted(best.items(), key=lambda item: item[1])),
    }  # fmt: skip


def listed(row: AuditRow, verdict: dict[str, str] | None) -> dict[str, Any]:
    best = row.proposals[0].caption if row.proposals else None
    wrong = [row.caption[word.start : word.stop] for word in row.words if word.wrong]
    line = {
        "rank": row.rank, "pair_id": row.pair_id, "image": row.image, "label": row.label,
        "caption": row.caption, "p_match": row.p_match, "wrong_words": wrong, "best_proposal": best,
    }  # fmt: skip
    return line if verdict is None else {**line, "verdict": verdict["verdict"], "note": verdict["note"]}


def main() -> None:
    started = time.perf_counter()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("--name", required=True, help="of the dataset, for the files")
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--words", nargs="+", help="to follow up in all captions")
    parser.add_argument("--outside", default="", help="the class these words belong to")
    options = parser.parse_args()
    table, summary = read_pairs(options.report / PAIRS), read_summary(options.report / SUMMARY)
    judged = sorted(read_issues(options.report / ISSUES), key=lambda row: row.rank)
    rows = judged[: options.count]
    name = options.name
    verdicts = read_verdicts(RESULTS / f"audit_natural_{name}_reading.csv", rows)
    draw_sheet(table, rows, DOCS / f"natural-{name}.jpg")
    found = collections.Counter(line["verdict"] for line in verdicts.values())
    row = {
        "dataset": name,
        "pairs": summary.pairs,
        "images": summary.images,
        "judged_by": summary.model,
        "mismatch_rate": summary.mismatch_rate,
        "mismatch_interval": summary.mismatch_interval,
        "flagged": summary.flagged,
        "duplicate_pairs": summary.duplicate_pairs,
        "warnings": summary.warnings,
        "reading": {verdict: found[verdict] for verdict in VERDICTS} if verdicts else None,
        "followed_up": followed_up(judged, options.words, options.outside) if options.words else None,
        "most_suspicious": [listed(row, verdicts.get(row.rank)) for row in rows],
    }
    record(RESULTS / f"audit_natural_{name}.json", row, "cpu", started)


if __name__ == "__main__":
    main()
