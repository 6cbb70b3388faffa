"""The metrics are what Prometheus reads."""

from __future__ import annotations

import re

from pmpguard.serving.metrics import Metrics

LINE = re.compile(r'[a-z_]+(\{([a-z]+="[^"\n]*",?)+\})? [0-9.e+-]+|\+Inf')


def samples(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            assert LINE.fullmatch(line), line
            name, _, value = line.rpartition(" ")
            assert name not in found, f"{name} twice"
            found[name] = float(value)
    return found


def test_requests_are_counted_and_timed():
    metrics = Metrics()
    for seconds in (0.004, 0.005, 0.2, 99.0):
        metrics.request("/search", "GET", 200, seconds)
    metrics.request("/search", "POST", 413, 0.01)
    found = samples(metrics.text({}))
    assert found['pmpguard_requests_total{route="/search",method="GET",status="200"}'] == 4
    assert found['pmpguard_requests_total{route="/search",method="POST",status="413"}'] == 1
    bucket = 'pmpguard_request_seconds_bucket{route="/search",le="%s"}'
    assert [found[bucket % bound] for bound in ("0.005", "0.01", "0.25", "10", "+Inf")] == [2, 3, 4, 4, 5]
    assert found['pmpguard_request_seconds_count{route="/search"}'] == 5
    assert abs(found['pmpguard_request_seconds_sum{route="/search"}'] - 99.219) < 1e-9


def test_batches_swaps_and_gauges():
    metrics = Metrics()
    metrics.batch(1)
    metrics.batch(20)
    metrics.refresh("failed")
    text = metrics.text({"pmpguard_index_info": ("The version.", (("version", "0007"),), 1)})
    found = samples(text)
    assert found['pmpguard_batch_size_bucket{le="16"}'] == 1
    assert found['pmpguard_batch_size_bucket{le="32"}'] == 2
    assert found["pmpguard_batch_size_sum"] == 21
    assert found['pmpguard_index_refreshes_total{result="failed"}'] == 1
    assert found['pmpguard_index_info{version="0007"}'] == 1
    assert "# TYPE pmpguard_batch_size histogram" in text and text.endswith("\n")
