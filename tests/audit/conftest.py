"""Modules beside the tests are importable; a real browser for the page, skipped where there is none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

torch.set_num_threads(1)

from helpers.report_pages import PageOpener, grey, small_audit  # noqa: E402

from pmpguard.audit.report import write_report  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")  # no longer: while it runs, no other test could use asyncio
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
    opener.close()
    assert opener.requests  # it was listening
    assert opener.errors == []
    assert opener.requests_elsewhere == []


@pytest.fixture(scope="session")
def small_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows, summary = small_audit()
    return write_report(tmp_path_factory.mktemp("report"), rows, summary, grey)
