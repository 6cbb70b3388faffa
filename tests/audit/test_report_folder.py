"""A report is written into a new folder or over another report, over nothing else."""

from __future__ import annotations

import pytest

from pmpguard.audit.report_folder import check_report_folder
from pmpguard.errors import ConfigError

REPORT = ("index.html", "issues.parquet", "pairs.parquet")


def folder_of(path, *names):
    path.mkdir()
    for name in names:
        (path / name).write_text("mine")
    return path


@pytest.mark.parametrize(
    "names",
    [
        (),
        (".DS_Store",),
        REPORT,  # without its summary: a new audit was stopped
        (*REPORT, "summary.json", ".lock", "decisions.json", "cleaned.parquet"),
        (".lock",),
        (".lock", "pairs.parquet"),
        (".lock", "folds"),
    ],
)
def test_new_folders_reports_and_begun_ones_will_do(tmp_path, names):
    check_report_folder(tmp_path / "new", tmp_path)
    check_report_folder(folder_of(tmp_path / "out", *names), tmp_path / "world")


@pytest.mark.parametrize(
    "names", [("notes.txt",), ("pairs.parquet",), (".lock", "notes.txt"), ("index.html", "pairs.parquet")]
)
def test_anything_else_is_refused(tmp_path, names):
    folder = folder_of(tmp_path / "out", *names)
    with pytest.raises(ConfigError, match=r"and no report\nFix: name a new or an empty folder"):
        check_report_folder(folder)


def test_the_dataset_is_refused_even_where_a_report_lies(tmp_path):
    folder = folder_of(tmp_path / "out", *REPORT, "other.parquet")
    for dataset in (folder, folder / "pairs.parquet", tmp_path / "out/../out"):
        with pytest.raises(ConfigError, match="the report would overwrite"):
            check_report_folder(folder, dataset)
    check_report_folder(folder, folder / "other.parquet")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(ConfigError, match="the report would overwrite"):
        check_report_folder(tmp_path / "link", folder)
