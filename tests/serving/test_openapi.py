"""Generated requests: whatever is sent, the answer is one the OpenAPI announces."""

from __future__ import annotations

import pytest
from helpers.fake_searcher import FakeSearcher
from helpers.running_server import running_server
from hypothesis import HealthCheck, Phase, given, settings

from pmpguard.serving.app import create_app

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")
pytest.importorskip("fastapi", reason="the extra serve is not installed")

OPERATIONS = [
    *(("/search", "GET"), ("/search", "POST"), ("/images/{id}", "GET"), ("/explain", "GET")),
    *(("/info", "GET"), ("/healthz", "GET"), ("/metrics", "GET")),
]
TAKES_NOTHING = ("/info", "/healthz", "/metrics")


@pytest.fixture(scope="module")
def api():
    with running_server(create_app(FakeSearcher(), refresh_seconds=100)) as address:
        yield schemathesis.openapi.from_url(f"{address}/openapi.json")


@pytest.fixture(scope="module")
def checks():
    schemathesis.checks.load_all_checks()
    names = [
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_headers_conformance",
        "response_schema_conformance",
        "negative_data_rejection",
    ]
    return schemathesis.checks.CHECKS.get_by_names(names)


def test_all_operations_are_tried(api):
    found = [(result.ok().path, result.ok().method.upper()) for result in api.get_all_operations()]
    assert sorted(found) == sorted(OPERATIONS)


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_every_answer_is_announced(api, checks, path, method, mode):
    if mode == schemathesis.GenerationMode.NEGATIVE and path in TAKES_NOTHING:
        pytest.skip("there is nothing to get wrong")

    @settings(
        max_examples=3 if path in TAKES_NOTHING else 30,
        deadline=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=api[path][method].as_strategy(generation_mode=mode))
    def ask(case):
        case.call_and_validate(checks=checks)

    ask()
