"""Modules beside the tests are importable; a real browser for the page, skipped where there is none."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)

from report_pages import grey, small_audit  # noqa: E402

from pmpguard.audit.report import write_report  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class PageOpener:
    """Opens reports from disk; `requests` are all addresses asked for, `errors` what pages complained of."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.contexts: list[Any] = []
        self.requests: list[str] = []
        self.errors: list[str] = []

    def __call__(self, path: Path, **options: Any) -> Any:
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(10_000)
        context.set_offline(True)
        self.contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda said: self.errors.append(said.text) if said.type == "error" else None)
        page.goto(path.as_uri())
        page.wait_for_selector(".row, #nothing:visible")
        return page


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("the page's tests need chromium")
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[PageOpener]:
    """Any error of a page, and any request that leaves the disk, fails the test."""
    opener = PageOpener(browser)
    yield opener
    for context in opener.contexts:
        context.close()
    assert opener.errors == []
    assert [url for url in opener.requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.fixture(scope="session")
def small_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows, summary = small_audit()
    return write_report(tmp_path_factory.mktemp("report"), rows, summary, grey)
