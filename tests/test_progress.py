"""Bars where somebody watches; elsewhere one line on how long the rest takes."""

from __future__ import annotations

import pytest

from pmpguard import progress
from pmpguard.progress import progress_bar, watched


def test_the_bar_is_silent_without_a_terminal_and_shown_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PMPGUARD_PROGRESS", raising=False)
    with progress_bar(3, 1, "quiet") as bar:
        bar.update()
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("PMPGUARD_PROGRESS", "1")
    with progress_bar(3, 1, "loud") as bar:
        bar.update(2)
    captured = capsys.readouterr()
    assert "loud" in captured.err and "3/3" in captured.err and captured.out == ""


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass as a test says."""
    monkeypatch.delenv("PMPGUARD_PROGRESS", raising=False)
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("total", "said"),
    [(2000, "embedding: 80 of 2,000, the rest takes about 5 minutes\n"), (300, ""), (None, "")],
)
def test_unwatched_work_says_once_how_long_it_takes(
    total: int | None, said: str, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar(total, 0, "embedding") as bar:
        clock[0] += 30  # starting up is no measure of the rest
        for _ in range(20):  # ten items in 1.5 seconds
            bar.update(10)
            clock[0] += 1.5
    assert capsys.readouterr().err == said


def test_what_is_not_active_says_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    for _ in watched(range(100), 100, "tiles", unit="tile", active=False):
        clock[0] += 20
    assert capsys.readouterr().err == ""
    for _ in watched(range(100), 100, "tiles", unit="tile"):
        clock[0] += 20
    assert capsys.readouterr().err == "tiles: 2 of 100, the rest takes about 33 minutes\n"
