"""The picture of a report shows the pair that was asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers.report_pages import grey, small_audit
from PIL import ImageChops

from pmpguard.audit.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.slow
def test_each_rank_has_its_picture(tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("the picture needs chromium")
    from tools.report_picture import SIZE, photograph

    page = write_report(tmp_path, *small_audit(), grey)
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        first, again, third = (photograph(browser, page.parent, rank) for rank in (1, 1, 3))
        browser.close()
    assert first.size == (SIZE["width"], SIZE["height"])
    assert ImageChops.difference(first, again).getbbox() is None
    assert ImageChops.difference(first, third).getbbox() is not None
