"""What the server counts of itself, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pmpguard.errors import require

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5, 10)
SIZES = (1, 2, 4, 8, 16, 32)


class Metrics:
    """The metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._prometheus: Any = require("prometheus_client", "serve")
        self._registry = self._prometheus.CollectorRegistry()
        self._requests = self._make(
            "Counter", "requests", "Requests by route, method and status.", ("route", "method", "status")
        )
        self._seconds = self._make(
            "Histogram", "request_seconds", "Time to answer a request.", ("route",), buckets=SECONDS
        )
        self._sizes = self._make(
            "Histogram", "batch_size", "Queries answered in one call of the index.", buckets=SIZES
        )
        self._refreshes = self._make(
            "Counter", "index_refreshes", "Looks at the index that found news.", ("result",)
        )
        self._index = self._make("Info", "index", "The index in use.")

    def _make(self, kind: str, name: str, meaning: str, labels: tuple[str, ...] = (), **options: Any) -> Any:
        create = getattr(self._prometheus, kind)
        return create(f"pmpguard_{name}", meaning, labels, registry=self._registry, **options)

    def gauge(self, name: str, meaning: str, read: Callable[[], float]) -> None:
        """A value that is read whenever the metrics are."""
        self._make("Gauge", name, meaning).set_function(read)

    def request(self, route: str, method: str, status: int, seconds: float) -> None:
        self._requests.labels(route, method, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def batch(self, size: int) -> None:
        self._sizes.observe(size)

    def refresh(self, result: str) -> None:
        """`result` is "swapped" or "failed"."""
        self._refreshes.labels(result).inc()

    def text(self, **index: str) -> bytes:
        """All of it in the text format, with what describes the index."""
        self._index.info(index)
        text: bytes = self._prometheus.generate_latest(self._registry)
        return text
