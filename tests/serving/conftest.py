"""Fixtures of the serving tests: a fake index, a client of it, a browser on its page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from helpers.app_clients import client_of
from helpers.fake_searcher import FakeSearcher
from helpers.page_browser import CHROMIUM, opened
from helpers.running_server import running_server

from pmpguard.serving.app import create_app


@pytest.fixture(scope="module")
def searcher() -> FakeSearcher:
    return FakeSearcher()


@pytest.fixture(scope="module")
def client(searcher: FakeSearcher) -> Iterator[Any]:
    with client_of(searcher) as client:
        yield client
    assert searcher.closed


@pytest.fixture(scope="module")
def address(searcher: FakeSearcher) -> Iterator[str]:
    with running_server(create_app(searcher, refresh_seconds=100)) as address:
        yield address


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("the page's tests need chromium")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    yield from opened(browser, address)
