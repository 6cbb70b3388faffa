"""The metrics are what Prometheus reads."""

from __future__ import annotations

import pytest

from pmpguard.serving.metrics import Metrics

parser = pytest.importorskip("prometheus_client.parser", reason="the extra serve is not installed")


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels, in the order of their names."""
    families = parser.text_string_to_metric_families(text.decode())
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_requests_are_counted_and_timed():
    metrics = Metrics()
    for seconds in (0.004, 0.005, 0.2, 99.0):
        metrics.request("/search", "GET", 200, seconds)
    metrics.request("/search", "POST", 413, 0.01)
    found = samples(metrics.text())
    assert found["pmpguard_requests_total", "GET", "/search", "200"] == 4
    assert found["pmpguard_requests_total", "POST", "/search", "413"] == 1
    buckets = [
        found["pmpguard_request_seconds_bucket", bound, "/search"] for bound in ("0.005", "0.25", "+Inf")
    ]
    assert buckets == [2, 4, 5]
    assert found["pmpguard_request_seconds_count", "/search"] == 5
    assert found["pmpguard_request_seconds_sum", "/search"] == pytest.approx(99.219)


def test_batches_swaps_and_gauges():
    metrics, waiting = Metrics(), [3]
    metrics.gauge("waiting", "Queries.", lambda: waiting[0])
    metrics.batch(1)
    metrics.batch(20)
    metrics.refresh("failed")
    metrics.text(version="0006")
    waiting[0] = 7
    found = samples(metrics.text(version="0007", model='a "quoted" name'))
    assert found["pmpguard_batch_size_bucket", "16.0"] == 1
    assert found["pmpguard_batch_size_bucket", "32.0"] == 2
    assert found["pmpguard_batch_size_sum",] == 21
    assert found["pmpguard_index_refreshes_total", "failed"] == 1
    assert found["pmpguard_index_info", 'a "quoted" name', "0007"] == 1
    assert ("pmpguard_index_info", "0006") not in found
    assert found["pmpguard_waiting",] == 7


def test_servers_of_one_process_count_apart():
    first, second = Metrics(), Metrics()
    first.batch(1)
    assert samples(second.text())["pmpguard_batch_size_count",] == 0
