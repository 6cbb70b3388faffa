"""Ctrl-C and SIGTERM: a run stops where it can be continued."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """A run that was asked to stop has stopped where the same command continues it."""


class StopRequest:
    """Whether somebody asked the process to stop, by Ctrl-C or SIGTERM.

    While `deferred`, the first request waits until it is read; else, and the second time, it stops at once.
    """

    def __init__(self) -> None:
        self.asked = False
        self.deferred = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.asked or not self.deferred:
            raise Interrupted("stopped; run the same command again to continue")
        self.asked = True


@contextlib.contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Within the block both signals ask the run to stop; outside the main thread none arrives."""
    request = StopRequest()
    try:
        # who handles SIGTERM already, as the command line does, passes it on as Ctrl-C
        mine = [each for each in SIGNALS if each == signal.SIGINT or signal.getsignal(each) == signal.SIG_DFL]
        previous = {number: signal.signal(number, request) for number in mine}
    except ValueError:  # not in the main thread
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
