"""Counters, gauges and histograms in the text format Prometheus reads."""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence

Labels = tuple[tuple[str, str], ...]


class Counter:
    """A number per set of labels that only grows."""

    kind = "counter"

    def __init__(self) -> None:
        self.values: defaultdict[Labels, float] = defaultdict(float)

    def add(self, amount: float = 1, **labels: str) -> None:
        self.values[tuple(labels.items())] += amount

    def lines(self, name: str) -> list[str]:
        return [sample(name, labels, value) for labels, value in sorted(self.values.items())]


class Histogram:
    """How many observations were at most each bound, per set of labels."""

    kind = "histogram"

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = (*bounds, math.inf)
        self.counts: defaultdict[Labels, list[int]] = defaultdict(lambda: [0] * len(self.bounds))
        self.sums: defaultdict[Labels, float] = defaultdict(float)

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(labels.items())
        self.counts[key][bisect_left(self.bounds, value)] += 1
        self.sums[key] += value

    def lines(self, name: str) -> list[str]:
        lines = []
        for labels, counts in sorted(self.counts.items()):
            total = 0
            for bound, count in zip(self.bounds, counts, strict=True):
                total += count
                lines.append(sample(f"{name}_bucket", (*labels, ("le", number(bound))), total))
            lines.append(sample(f"{name}_sum", labels, self.sums[labels]))
            lines.append(sample(f"{name}_count", labels, total))
        return lines


class Metrics:
    """What the server counts of itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests = Counter()
        self._seconds = Histogram((0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10))
        self._batches = Histogram((1, 2, 4, 8, 16, 32))
        self._swaps = Counter()

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        with self._lock:
            self._requests.add(route=route, method=method, status=str(status))
            self._seconds.observe(seconds, route=route)

    def batch(self, size: int) -> None:
        with self._lock:
            self._batches.observe(size)

    def refresh(self, result: str) -> None:
        """`result` is "swapped" or "failed"."""
        with self._lock:
            self._swaps.add(result=result)

    def text(self, gauges: Mapping[str, tuple[str, Labels, float]]) -> str:
        """The whole page; `gauges` maps a name to its help, labels and present value."""
        with self._lock:
            families: list[tuple[str, str, Counter | Histogram]] = [
                ("pmpguard_requests_total", "Requests by route, method and status.", self._requests),
                ("pmpguard_request_seconds", "Time to answer a request.", self._seconds),
                ("pmpguard_batch_size", "Queries answered in one call of the index.", self._batches),
                ("pmpguard_index_refreshes_total", "Looks at the index that found news.", self._swaps),
            ]
            lines = []
            for name, meaning, family in families:
                lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {family.kind}", *family.lines(name)]
        for name, (meaning, labels, value) in gauges.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", sample(name, labels, value)]
        return "\n".join(lines) + "\n"


def sample(name: str, labels: Labels, value: float) -> str:
    r"""One line of the format.

    >>> sample("hits", (("route", 'a"b'),), 3.0)
    'hits{route="a\\"b"} 3'
    """
    written = ",".join(f'{key}="{escape(text)}"' for key, text in labels)
    return f"{name}{{{written}}} {number(value)}" if written else f"{name} {number(value)}"


def escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def number(value: float) -> str:
    """
    >>> number(math.inf), number(2.0), number(0.25)
    ('+Inf', '2', '0.25')
    """
    if value == math.inf:
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
