"""A small audit with ordinary and hostile pairs, and how its page is used and read in a browser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from pmpguard.audit.rows import AuditRow, AuditSummary, Proposal, WordVerdict

FINGERPRINT = "5e" * 32
NASTY = [
    "<script>window.hacked = 1</script>",
    "</script><img src=x onerror='window.hacked = 1'>",
    "\"quotes\" 'and' `ticks` & &amp; <b>bold</b>",
    "line\u2028and\u2029paragraph separators",
    "نهر بجانب غابة خضراء",
    "🛩️ planes at 🚢 the pier 👩‍🚀",
]


def words_of(caption: str, wrong: str = "", grid: tuple[int, int] = (2, 2)) -> tuple[WordVerdict, ...]:
    """Every word of a caption; a found word is at the top left, a wrong one nowhere."""
    verdicts, at = [], 0
    nowhere, top_left = (0.0,) * 4, (1.0, 0.0, 0.0, 0.0)
    for word in caption.split():
        at = caption.index(word, at)
        is_mismatched = word == wrong
        regions = nowhere if is_mismatched else top_left
        verdicts.append(
            WordVerdict(at, at + len(word), 0.1 if is_mismatched else 0.9, is_mismatched, regions)
        )
        at += len(word)
    return tuple(verdicts)


def small_audit() -> tuple[list[AuditRow], AuditSummary]:
    """Twelve ordinary pairs, most suspicious first, then the hostile ones."""
    rows = []
    for number in range(12):
        caption = f"a {['pond', 'river', 'bridge'][number % 3]} number {12 - number}"
        proposals = (
            Proposal(f"the best for {number}", 0.9, "p11"),
            Proposal(f"second for {number}", 0.4, "p10"),
        )
        rows.append(
            AuditRow(
                pair_id=f"p{number}",
                image=f"{number // 2}.png",
                caption=caption,
                split=["train", "val"][number % 2],
                label=["water", "water", "traffic"][number % 3],
                p_match=round(0.05 + number * 0.08, 3),
                flag=number < 4,
                rank=number + 1,
                evidence={"cosine": number / 10, "neighbours": 1 - number / 10},
                words=words_of(caption, wrong="number"),
                grid=(2, 2),
                proposals=proposals if number != 2 else (),
            )
        )
    for number, text in enumerate(NASTY):
        rows.append(
            AuditRow(text, f"{text}.png", text, text, text, 0.99, False, 13 + number, {text: 0.1},
                     words_of(text), (2, 2), (Proposal(text, 0.5, text),))
        )  # fmt: skip
    summary = AuditSummary(
        pairs=18,
        images=12,
        flagged=4,
        mismatch_rate=0.231,
        mismatch_interval=(0.21, 0.254),
        duplicate_pairs=2,
        duplicate_images=1,
        unreadable=("<i>lost</i>.png",),
        warnings=("<b>few</b> pairs",),
        model="<u>m</u>",
        dataset=FINGERPRINT,
    )
    return rows, summary


def grey(name: str) -> Image.Image | None:
    return None if name == "5.png" else Image.new("RGB", (120, 120), (90, 90, 90))


class PageOpener:
    """Opens reports from disk with the network off.

    `requests` are all addresses asked for, `errors` what any page, or one it opened, complained of.
    """

    def __init__(self, browser: Any, wait_for: str = ".row, #nothing:visible") -> None:
        self.browser, self.wait_for = browser, wait_for
        self.contexts: list[Any] = []
        self.requests: list[str] = []
        self.errors: list[str] = []

    def __call__(self, path: Path, **options: Any) -> Any:
        context = self.browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})
        context.set_default_timeout(20_000)
        context.set_offline(True)
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("weberror", lambda error: self.errors.append(str(error.error)))
        context.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        self.contexts.append(context)
        page = context.new_page()
        page.goto(path.as_uri())
        page.wait_for_selector(self.wait_for)
        return page

    @property
    def requests_elsewhere(self) -> list[str]:
        """What was asked of anything but the disk and the page itself."""
        return [url for url in self.requests if not url.startswith(("file:", "data:", "blob:"))]

    def close(self) -> None:
        for context in self.contexts:
            context.close()


def press(page: Any, keys: str) -> None:
    for key in keys.split():
        page.keyboard.press(key)


def text(page: Any, selector: str) -> str:
    return page.locator(selector).inner_text()


def selected(page: Any) -> str:
    """The pair id of the selected row, by its rank."""
    return "p" + str(int(text(page, "#place").split()[1]) - 1)


def decisions(page: Any) -> dict[str, Any]:
    """What a click on the download button writes."""
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename == "decisions.json"
    content = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert set(content) == {"dataset", "decisions"} and content["dataset"] == FINGERPRINT
    return content["decisions"]


def shown_ranks(page: Any) -> list[int]:
    ranks, first = [], None
    for _ in range(500):  # the list is drawn with the next frame
        ranks = page.evaluate("[...view].map((row) => audit.rank[row])")
        first = int(page.locator("#row-0 .rank").inner_text()) if ranks else None
        if not ranks or first == ranks[0]:
            break
        page.wait_for_timeout(20)
    assert first == (ranks[0] if ranks else None)
    return ranks
