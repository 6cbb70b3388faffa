"""A browser on the page, and what the tests ask of it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def opened(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """A page whose errors and requests to anywhere else fail the test."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
    context.set_default_timeout(20_000)
    page = context.new_page()
    errors: list[str] = []
    outside: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on(
        "request",
        lambda request: None if request.url.startswith((address, "blob:")) else outside.append(request.url),
    )
    yield page
    context.close()
    assert errors == [] and outside == []


def search(page: Any, address: str, text: str = "white storage tanks") -> None:
    page.goto(address)
    page.fill("#text", text)
    page.press("#text", "Enter")
    page.wait_for_selector(".card")


def until(page: Any, condition: str) -> None:
    """Wait for a condition; asked from here, for the page's own policy forbids evaluating text in it."""
    deadline = time.monotonic() + 20
    while not page.evaluate(condition):
        assert time.monotonic() < deadline, condition
        page.wait_for_timeout(20)


def until_answered(page: Any, condition: str) -> None:
    """Wait for an address that a click led to, and then for its answer: the address is written first."""
    until(page, condition)
    until(page, "!document.body.classList.contains('busy')")


def until_first(page: Any, id: str) -> None:
    until(page, f"document.querySelector('.card img')?.src.includes(encodeURIComponent({json.dumps(id)}))")


def ids(page: Any) -> list[str]:
    return page.eval_on_selector_all(
        ".card img",
        "images => images.map(image => decodeURIComponent(image.src.split('/images/')[1].split('?')[0]))",
    )


def brightest(page: Any, selector: str) -> tuple[float, float]:
    """Where a heat map is lightest, as shares of its width and height, from the least shaded pixel."""
    return page.eval_on_selector(
        selector,
        """canvas => {
            const { width, height } = canvas;
            const pixels = canvas.getContext("2d").getImageData(0, 0, width, height).data;
            let best = 0;
            for (let place = 0; place < width * height; place += 1)
                if (pixels[4 * place] > pixels[4 * best]) best = place;
            return [(best % width) / width, Math.floor(best / width) / height];
        }""",
    )
