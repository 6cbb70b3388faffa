"""Result rows on disk, their summaries, and how they are shown."""

from __future__ import annotations

import csv
import io
import statistics
from dataclasses import replace

import pytest

from pmpguard.errors import DataError
from pmpguard.evaluation.recall import recall_names
from pmpguard.experiments import plots
from pmpguard.experiments.paper_reference import find_paper_row, paper_rows
from pmpguard.experiments.plots import plot_mr
from pmpguard.experiments.render import make_sections, to_csv, to_latex, to_markdown
from pmpguard.experiments.rows import ResultRow, append_row, read_rows, summarise


def row(method="infonce", rate=0.4, seed=0, mr=20.0, **changes):
    metrics = dict.fromkeys(recall_names()[:-1], mr) | {"mr": mr}
    plain = ResultRow(
        "RSICD", method, "caption", rate, seed, "swin+bert", "val", metrics, {"preset": "paper"}
    )
    return replace(plain, **changes)


def test_rows_come_back_as_written(tmp_path):
    path = tmp_path / "results" / "rows.jsonl"
    rows = [row(seed=0, seconds=3.5, fingerprint="a"), row(seed=1, hardware="2 cores é")]
    for each in rows:
        append_row(path, each)
    assert read_rows(path) == rows


def test_any_torn_last_line_is_ignored_and_then_replaced(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_row(path, row(seed=0))
    first = path.read_bytes()
    append_row(path, row(seed=1))
    whole = path.read_bytes()
    for end in (*range(len(first), len(whole) - 1, 11), len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        complete = end == len(whole) - 1  # only the line end is missing
        assert read_rows(path) == [row(seed=0), row(seed=1)][: 1 + complete]
        append_row(path, row(seed=2))
        assert [each.seed for each in read_rows(path)] == ([0, 1, 2] if complete else [0, 2])


def test_torn_only_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"dataset": "RS')
    assert read_rows(path) == []
    append_row(path, row())
    assert read_rows(path) == [row()]


def test_bad_rows_are_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    append_row(path, row())
    good = path.read_text()
    path.write_text(good + "oops\n" + good)
    with pytest.raises(DataError, match="line 2: not a result row"):
        read_rows(path)
    for bad in (good.replace("infonce", "\\ud800"), "[" * 100_000):  # half a character, nested without end
        path.write_text(bad + "\n" + good)
        with pytest.raises(DataError, match="line 1: not a result row"):
            read_rows(path)
    path.write_text(good.replace('"seed"', '"sed"') + good)
    with pytest.raises(DataError, match=r"line 1.*sed: unknown"):
        read_rows(path)
    with pytest.raises(DataError, match="not found"):
        read_rows(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match="'mr' of infonce is nan"):
        append_row(path, row(metrics={"mr": float("nan")}))


def test_summaries_over_seeds():
    rows = [row(seed=seed, mr=value) for seed, value in enumerate((20.0, 23.0, 29.0))]
    rows += [row("pmpguard", mr=1.0), row("pmpguard", mr=25.0)]  # the same seed again: the later one counts
    first, second = summarise(rows)
    assert (first.method, first.seeds, second.method, second.seeds) == (
        "infonce",
        (0, 1, 2),
        "pmpguard",
        (0,),
    )
    assert first.metrics["mr"].mean == 24
    assert first.metrics["mr"].std == pytest.approx(statistics.stdev((20, 23, 29)))
    assert (second.metrics["mr"].mean, second.metrics["mr"].std) == (25, None)


def test_settings_are_never_mixed():
    rows = [row(), row(rate=0.2), row(level="image"), row(encoder="clip"), row(dataset="UCM")]
    assert len(summarise(rows)) == len(make_sections(summarise(rows))) == 5


def test_a_line_has_one_set_of_settings_but_for_its_seeds():
    def of(seed, lr, mr, **changes):
        settings = {"train": {"seed": seed, "lr": lr}, "noise": {"seed": seed}}
        return row(seed=seed, mr=mr, settings=settings, **changes)

    rows = [of(0, 1e-3, 10.0), of(1, 1e-3, 12.0), of(0, 1e-4, 30.0)]
    rows += [row(seed=2, mr=14.0, settings={"train": {"seed": 2}}, settings_known="given")]
    rows += [row(seed=3, mr=50.0, settings={"train": {"lr": 1e-5}}, settings_known="given")]
    found = summarise(rows)
    assert [each.seeds for each in found] == [(0, 1, 2), (0,), (3,)]  # the fourth contradicts no line
    assert [each.metrics["mr"].mean for each in found] == [12, 30, 50]


def test_printed_values():
    assert len(paper_rows()) == 123
    (found,) = [each for each in find_paper_row(1, "rsicd", 0.4) if each.method == "PMPGuard"]
    assert found.recalls == (10.38, 25.77, 36.90, 7.44, 22.92, 40.18)
    assert found.mr == pytest.approx(sum(found.recalls) / 6) and round(found.mr, 2) == 23.93
    assert {each.table for each in paper_rows()} == {1, 2, 3, 4}
    assert all(each.rate is None for each in find_paper_row(3, "RS5M")) and find_paper_row(1, "scenes") == []


@pytest.fixture
def sections():
    flagged = {**row(mr=27.0).metrics, "detection_auroc": 0.97, "detection_estimated_rate": 0.41}
    rows = [
        row(seed=0, mr=20.0),
        row(seed=1, mr=22.0),
        row("pmpguard", metrics=flagged),
        row("a_b|c", mr=3.0),
    ]
    return make_sections(summarise(rows), paper_table=1)


def test_markdown(sections):
    text = to_markdown(sections, "Grid")
    lines = [
        [cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    assert text.startswith("# Grid") and "## RSICD, 40% mismatched (caption level), swin+bert" in text
    names = [line[1] for line in lines[2:]]
    assert names[:3] == ["infonce", "pmpguard", "PMPGuard"] and "DOVE" in names
    ours, best, printed = lines[2:5]
    assert ours[2:5] == ["ours", "2", "21.00 ± 1.41"]
    assert best[10:13] == ["**27.00**", "0.970", "0.410"]
    assert printed[2] == "printed, table 1" and printed[10] == "23.93"
    assert text.count("**") == 2 and "recomputed" in text


def test_a_single_seed_shows_its_interval_and_several_their_deviation():
    interval = {"mr_low": 18.25, "mr_high": 22.0}
    one, two = (row(seed=seed, metrics={**row(mr=20.0).metrics, **interval}) for seed in (0, 1))
    for rows, mr in (
        ([one], "20.00 (18.25 to 22.00)"),
        ([one, two], "20.00 ± 0.00"),
        ([row(mr=20.0)], "20.00"),
    ):
        sections = make_sections(summarise(rows))
        assert f"**{mr}**" in to_markdown(sections) and mr.replace("±", "$\\pm$") in to_latex(sections)


def test_csv(sections):
    lines = list(csv.DictReader(io.StringIO(to_csv(sections))))
    assert (lines[0]["mr_mean"], lines[0]["source"], lines[0]["seeds"]) == ("21.0", "ours", "2")
    assert float(lines[0]["mr_std"]) == pytest.approx(2**0.5, abs=1e-6)
    printed = [line for line in lines if line["source"] != "ours"]
    assert len(printed) == 6
    assert all(line["mr_std"] == line["encoder"] == line["detection_auroc_mean"] == "" for line in printed)


def test_latex(sections):
    text = to_latex(sections)
    assert "a\\_b|c & 1 & 3.00" in text and "40\\% mismatched" in text
    assert "\\textit{PMPGuard (printed, table 1)}" in text and "\\textbf{27.00}" in text
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 1


def test_no_printed_rows_unless_asked():
    sections = make_sections(summarise([row()]))
    assert "printed" not in to_markdown(sections) + to_csv(sections) + to_latex(sections)


def test_plot(tmp_path, monkeypatch):
    rows = [row(rate=rate, seed=seed, mr=30 - 20 * rate + seed) for rate in (0, 0.4, 0.8) for seed in (0, 1)]
    rows += [row("pmpguard", rate=rate, mr=28.0) for rate in (0, 0.8)]
    plot_mr(summarise(rows), tmp_path / "out" / "mr.svg", paper_table=1)
    text = (tmp_path / "out" / "mr.svg").read_text()
    assert "<svg" in text
    plot_mr(summarise(rows), tmp_path / "mr.png")
    assert (tmp_path / "mr.png").read_bytes().startswith(b"\x89PNG")
    drawn = []
    monkeypatch.setattr(
        plots, "_draw_ours", lambda axis, members, methods: drawn.append((len(members), methods))
    )
    plot_mr(summarise([*rows, row(level="image")]), tmp_path / "two.png")
    assert drawn == [(5, ["infonce", "pmpguard"]), (1, ["infonce", "pmpguard"])]
    with pytest.raises(DataError, match="no mR to plot"):
        plot_mr([], tmp_path / "none.png")


def test_who_is_told_the_labels_is_no_competitor():
    summaries = summarise([row("pmpguard", mr=20.0), row("oracle", mr=30.0)])
    sections = make_sections(summaries, told={"oracle"})
    assert "| oracle | ours, told the labels |" in to_markdown(sections)
    for render, best in ((to_markdown, "**20.00**"), (to_latex, "\\textbf{20.00}")):
        assert best in render(sections)
        assert best not in render(make_sections(summaries))


def test_no_two_methods_look_alike():
    looks = [tuple(plots._look(number).items()) for number in range(16)]
    assert len(set(looks)) == 16
