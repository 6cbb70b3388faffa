"""Photograph an audit's report for README and the documentation.

    pmpguard audit ucm/ --out report
    python -m tools.report_picture report docs/images/audit-report.jpg [--rank 2]

The report is opened in Chromium as a reviewer sees it first, at the pair of that rank; the pointer is on its
first red word, where there is one.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

SIZE = {"width": 1280, "height": 800}
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def photograph(browser: Any, report: Path, rank: int) -> Image.Image:
    """The page of a report with the pair of a rank selected."""
    page = browser.new_page(viewport=SIZE)
    page.goto((report / "index.html").resolve().as_uri())
    page.wait_for_selector(".row")
    for _ in range(rank - 1):
        page.keyboard.press("j")
    page.wait_for_function(f"document.querySelector('#place').textContent.startsWith('Rank {rank} ')")
    red = page.locator("#caption .wrong")
    if red.count():
        red.first.hover()
    page.wait_for_timeout(1000)  # for images of the list to be decoded and drawn
    picture = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    page.close()
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--rank", type=int, default=1)
    options = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, CHROMIUM)), None)
    if chromium is None:
        parser.error("there is no Chromium on this machine")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        photograph(browser, options.report, options.rank).save(options.out, quality=88, optimize=True)
        browser.close()


if __name__ == "__main__":
    main()
