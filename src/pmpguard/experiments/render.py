"""Summaries as Markdown, CSV and LaTeX, with the paper's printed rows beside ours and marked as such."""

from __future__ import annotations

import csv
import io
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass

from pmpguard.evaluation.recall import recall_names
from pmpguard.experiments.paper_reference import PaperRow, find_paper_row
from pmpguard.experiments.rows import Statistic, Summary

RECALLS = tuple(recall_names())
DETECTION_METRICS = ("detection_auroc", "detection_estimated_rate", "detection_residual_rate")
COSTS = ("models_trained", "train_seconds", "peak_memory_gb")
TITLES = {
    "i2t_r1": "i2t R@1", "i2t_r5": "R@5", "i2t_r10": "R@10",
    "t2i_r1": "t2i R@1", "t2i_r5": "R@5", "t2i_r10": "R@10",
    "mr": "mR", "detection_auroc": "AUROC", "detection_estimated_rate": "est. rate",
    "detection_residual_rate": "residual", "models_trained": "models", "train_seconds": "s",
    "peak_memory_gb": "GB",
}  # fmt: skip
TOLD = "ours, told the labels"
RECALLED = (
    "Recalls in percent, mean ± standard deviation over seeds; mR is their mean, of one seed with its 95 % "
    "interval from resampled images."
)
SHARES = frozenset(DETECTION_METRICS)  # in [0, 1], shown with three decimals
WHOLE = frozenset({"models_trained", "train_seconds"})  # shown without decimals or deviation


@dataclass(frozen=True)
class Line:
    """One line of a table: a summary of ours, or a printed row."""

    method: str
    source: str  # "ours", "ours, told the labels" or "printed, table 1"
    seeds: int
    metrics: dict[str, Statistic]

    @property
    def printed(self) -> bool:
        return self.source.startswith("printed")


@dataclass(frozen=True)
class Section:
    """The lines that may be compared: same dataset, encoder, noise level and rate."""

    dataset: str
    encoder: str
    level: str
    rate: float
    lines: tuple[Line, ...]

    @property
    def title(self) -> str:
        return f"{self.dataset}, {self.rate:.0%} mismatched ({self.level} level), {self.encoder}"


def make_sections(
    summaries: Iterable[Summary],
    paper_table: int | None = None,
    paper_dataset: str = "",
    told: Container[str] = (),
) -> list[Section]:
    """Group summaries by setting, each followed by its namesake's printed row; other printed rows come last.

    `paper_table` chooses the paper's table; its dataset is ours unless `paper_dataset` names another. The
    paper does not say at which level it corrupts, so its rows stand beside either. Methods among `told` know
    which pairs are wrong and are no competitors.
    """
    grouped: dict[tuple[str, str, str, float], list[Summary]] = {}
    for summary in summaries:
        key = (summary.dataset, summary.encoder, summary.level, summary.rate)
        grouped.setdefault(key, []).append(summary)
    sections = []
    for (dataset, encoder, level, rate), members in sorted(grouped.items()):
        printed: list[PaperRow] = []
        if paper_table is not None:
            printed = find_paper_row(paper_table, paper_dataset or dataset, rate)
        lines = []
        for summary in members:
            source = TOLD if summary.method in told else "ours"
            lines.append(Line(summary.method, source, len(summary.seeds), summary.metrics))
            namesakes = [row for row in printed if same_method(row.method, summary.method)]
            lines += [_paper_line(row) for row in namesakes]
            printed = [row for row in printed if row not in namesakes]
        lines += [_paper_line(row) for row in printed]
        sections.append(Section(dataset, encoder, level, rate, tuple(lines)))
    return sections


def same_method(printed: str, ours: str) -> bool:
    """
    >>> same_method("PMPGuard-Geo", "pmpguard"), same_method("HarMA-Vit", "harma"), same_method("PIR", "swan")
    (True, True, False)
    """
    return printed.lower().removesuffix("-geo").removesuffix("-vit") == ours.lower()


def to_markdown(sections: Sequence[Section], title: str = "Results") -> str:
    """Readable tables, the best mR of ours in bold."""
    parts = [f"# {title}", "", RECALLED]
    for section in sections:
        names = _columns(section)
        heads = ["method", "source", "seeds", *(TITLES[name] for name in names)]
        best = _best_mr(section)
        parts += ["", f"## {section.title}", "", _markdown_row(heads), _markdown_row(["---"] * len(heads))]
        for line in section.lines:
            cells = [_cell(line, name) for name in names]
            if line is best:
                cells[names.index("mr")] = f"**{cells[names.index('mr')]}**"
            method = line.method.replace("|", "\\|")
            parts.append(_markdown_row([method, line.source, str(line.seeds or "–"), *cells]))
    if _has_paper_row(sections):
        parts += ["", "Rows marked *printed* are the paper's recalls; their mR is recomputed from them."]
    return "\n".join(parts) + "\n"


def to_csv(sections: Sequence[Section]) -> str:
    """One line per method and setting with every metric's mean and deviation."""
    names = list(
        dict.fromkeys(name for section in sections for line in section.lines for name in line.metrics)
    )
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    settings = ["dataset", "encoder", "level", "rate", "method", "source", "seeds"]
    writer.writerow([*settings, *(f"{name}_{kind}" for name in names for kind in ("mean", "std"))])
    for section in sections:
        for line in section.lines:
            values: list[object] = [section.dataset, section.encoder, section.level, section.rate]
            if line.printed:
                values[1:3] = "", ""  # the paper's own encoder and level
            values += [line.method, line.source, line.seeds or ""]
            for name in names:
                statistic = line.metrics.get(name)
                pair = (None, None) if statistic is None else (statistic.mean, statistic.std)
                values += ["" if value is None else round(value, 6) for value in pair]
            writer.writerow(values)
    return stream.getvalue()


def to_latex(sections: Sequence[Section], title: str = "Results") -> str:
    """One booktabs table per section; printed rows are set in italics and marked."""
    parts = ["% needs \\usepackage{booktabs}"]
    for section in sections:
        names = _columns(section)
        best = _best_mr(section)
        heads = ["Method", "Seeds", *(_escape(TITLES[name]) for name in names)]
        parts += [
            "\\begin{table}",
            f"\\caption{{{_escape(title)}: {_escape(section.title)}.}}",
            f"\\begin{{tabular}}{{lr{'r' * len(names)}}}",
            "\\toprule",
            " & ".join(heads) + " \\\\",
            "\\midrule",
        ]
        for line in section.lines:
            cells = [_cell(line, name, "$\\pm$", "--") for name in names]
            if line is best:
                cells[names.index("mr")] = f"\\textbf{{{cells[names.index('mr')]}}}"
            method = _escape(line.method)
            if line.printed:
                method = f"\\textit{{{method} ({line.source})}}"
            parts.append(" & ".join([method, str(line.seeds or "--"), *cells]) + " \\\\")
        parts += ["\\bottomrule", "\\end{tabular}", "\\end{table}", ""]
    return "\n".join(parts)


def _paper_line(row: PaperRow) -> Line:
    metrics = {name: Statistic(value, None, 1) for name, value in row.metrics.items()}
    return Line(row.method, f"printed, table {row.table}", 0, metrics)


def _columns(section: Section) -> list[str]:
    """The recalls, and where any line has them what detection reached and what the training cost."""
    further = (*DETECTION_METRICS, *COSTS)
    return [*RECALLS, *(name for name in further if any(name in line.metrics for line in section.lines))]


def _best_mr(section: Section) -> Line | None:
    ours = [line for line in section.lines if line.source == "ours" and "mr" in line.metrics]
    return max(ours, key=lambda line: line.metrics["mr"].mean, default=None)


def _has_paper_row(sections: Sequence[Section]) -> bool:
    return any(line.printed for section in sections for line in section.lines)


def _cell(line: Line, name: str, plus_minus: str = "±", missing: str = "–") -> str:
    statistic = line.metrics.get(name)
    if statistic is None:
        return missing
    if name in WHOLE:
        return f"{statistic.mean:.0f}"
    digits = 3 if name in SHARES else 2
    mean = f"{statistic.mean:.{digits}f}"
    if statistic.std is not None:
        return f"{mean} {plus_minus} {statistic.std:.{digits}f}"
    low, high = (line.metrics.get(f"{name}_{end}") for end in ("low", "high"))
    return mean if low is None or high is None else f"{mean} ({low.mean:.2f} to {high.mean:.2f})"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Text with LaTeX's special characters made harmless."""
    replaced = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    return "".join(replaced.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)
