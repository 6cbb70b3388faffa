"""Whether bars are drawn: on a terminal, or where PMPGUARD_PROGRESS is 1."""

from __future__ import annotations

import os
import sys


def progress_wanted() -> bool:
    """Whether somebody watches stderr."""
    return sys.stderr.isatty() or os.environ.get("PMPGUARD_PROGRESS") == "1"
