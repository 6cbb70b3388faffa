"""A worker process: one JSON line with a call in, one line with what it raised out, until the input ends."""

from __future__ import annotations

import json
import os
import signal
import sys

from pmpguard.engine.parts import attempt


def main() -> None:
    """Answer on what was standard output; whatever the calls print goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever started this process ends it
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for line in sys.stdin:
            asked = json.loads(line)
            print(json.dumps(attempt(asked["function"], asked["arguments"])), file=answers, flush=True)


if __name__ == "__main__":
    main()
