"""Bars on stderr, drawn on a terminal or where PMPGUARD_PROGRESS is 1; elsewhere long work says how long."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from tqdm import tqdm

WARM_UP, MEASURED = 3.0, 10.0  # seconds that start the work up, and those that tell its pace
WORTH_SAYING = 60.0  # seconds of work left
Item = TypeVar("Item")


def progress_wanted() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr.isatty() or os.environ.get("PMPGUARD_PROGRESS") == "1"


class Bar(tqdm):  # type: ignore[type-arg]
    """A bar that, where it is not drawn, says once how long the rest of its work takes.

    The pace is that of the first batches, without what starts the work up.
    """

    said = False
    first: tuple[float, int] | None = None  # when, and how many items there were

    def __init__(self, *arguments: Any, says: bool = False, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.says, self.began, self.counted = says, time.monotonic(), int(options.get("initial", 0))
        self.items, self.work = int(options.get("total") or 0), options.get("desc")

    def update(self, n: float | None = 1) -> bool | None:
        if self.says and self.items:
            self.counted += int(n or 0)
            self._pace(time.monotonic())
        return super().update(n)

    def _pace(self, now: float) -> None:
        if self.first is None:
            self.first = (now, self.counted) if now - self.began >= WARM_UP else None
        elif now - self.first[0] >= MEASURED and self.counted > self.first[1]:
            self.says = False
            left = (self.items - self.counted) * (now - self.first[0]) / (self.counted - self.first[1])
            if left >= WORTH_SAYING:
                text = f"{self.work}: {self.counted:,} of {self.items:,}, the rest takes {spoken(left)}"
                print(text, file=sys.stderr, flush=True)


def progress_bar(
    total: int | None, done: int, text: str, *, active: bool = True, unit: str = "step", leave: bool = True
) -> Bar:
    """A bar on stderr where somebody watches it, else a line after the first batches of long work."""
    shown = progress_wanted()
    return Bar(
        total=total,
        initial=done,
        desc=text,
        unit=unit,
        disable=not (active and shown) or total == 0,
        says=active and not shown,
        leave=leave,
        file=sys.stderr,
        dynamic_ncols=True,
    )


def watched(
    items: Iterable[Item], total: int | None, text: str, *, unit: str, active: bool = True
) -> Iterator[Item]:
    """The items one by one, under such a bar."""
    with progress_bar(total, 0, text, active=active, unit=unit) as bar:
        for item in items:
            yield item
            bar.update()


def spoken(seconds: float) -> str:
    """
    >>> spoken(40), spoken(600), spoken(20_000)
    ('less than a minute', 'about 10 minutes', 'about 5.6 hours')
    """
    if seconds < 60:
        return "less than a minute"
    if seconds < 90:
        return "about a minute"
    return f"about {seconds / 60:.0f} minutes" if seconds < 7200 else f"about {seconds / 3600:.1f} hours"
