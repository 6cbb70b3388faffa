"""Generated requests: whatever is sent, the answer is one the OpenAPI announces."""

from __future__ import annotations

from collections import Counter

import jsonschema
import pytest
from helpers.app_clients import client_of
from helpers.fake_searcher import FakeSearcher
from helpers.running_server import running_server
from hypothesis import HealthCheck, Phase, given, settings

from pmpguard.serving.app import create_app
from pmpguard.serving.config import ServerConfig

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
    """All there are, by the path. Of a search no schema can say what is accepted: one of text, id, image and
    place, columns that this index has, times in their order, images that can be decoded.
    """
    schemathesis.checks.load_all_checks()
    names = set(schemathesis.checks.CHECKS.get_all_names())
    assert len(names) >= 14 and "positive_data_acceptance" in names
    return lambda path: schemathesis.checks.CHECKS.get_by_names(
        sorted(names - {"positive_data_acceptance"} if path == "/search" else names)
    )


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
        case.call_and_validate(checks=checks(path))

    ask()


@pytest.mark.slow
def test_what_a_search_finds_can_be_asked_for(api, checks):
    """Chains of requests along the links of the document: the first hit's image, and its words."""
    answered: Counter[str] = Counter()

    class Chains(api.as_state_machine()):
        def before_call(self, case):
            if case.path == "/search" and case.method.upper() == "GET":
                case.query = {"text": "a pond"}  # a chain begins with hits

        def validate_response(self, response, case, *arguments, **options):
            answered[f"{case.operation.label} {response.status_code}"] += 1
            case.validate_response(response, checks=checks("/search"))

    bounds = settings(max_examples=12, stateful_step_count=4, deadline=None, derandomize=True, database=None)
    Chains.run(settings=settings(bounds, suppress_health_check=list(HealthCheck)))
    assert answered["GET /images/{id} 200"] and answered["GET /explain 200"], answered


TOKEN = {"Authorization": "Bearer s3cret"}
LARGE = b"x" * 2_000
JSON = {**TOKEN, "Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("GET", "/info", {}, 401),
        ("GET", "/metrics", {}, 401),
        ("POST", "/search", {}, 401),
        ("GET", "/explain", {"headers": {"Authorization": "Bearer wrong"}}, 429),
        ("GET", "/images/{id}", {"headers": {"Host": "evil.example"}}, 421),
        ("GET", "/healthz", {"headers": {"Host": "evil.example"}}, 421),
        ("POST", "/search", {"headers": {"Sec-Fetch-Site": "cross-site"}}, 403),
        ("GET", "/healthz", {"content": LARGE}, 413),
        ("GET", "/search", {"headers": TOKEN, "content": LARGE}, 413),
        ("POST", "/search", {"headers": TOKEN, "content": LARGE}, 413),
        ("GET", "/info", {"headers": {**TOKEN, "Content-Length": "1", "Transfer-Encoding": "chunked"}}, 400),
        ("POST", "/search", {"headers": JSON, "content": b"{"}, 400),
        ("POST", "/search", {"headers": TOKEN, "content": b"a"}, 415),
        ("POST", "/search", {"headers": JSON, "content": b'{"like": "nobody"}'}, 404),
        ("GET", "/search", {"headers": TOKEN}, 422),
        ("GET", "/search", {"headers": TOKEN, "params": {"text": "a", "box": "1,2,3"}}, 422),
        ("GET", "/images/{id}", {"headers": TOKEN}, 404),
        ("GET", "/explain", {"headers": TOKEN, "params": {"id": "nobody", "text": "a"}}, 404),
    ],
)
def test_every_error_is_announced_with_the_form_it_has(method, path, options, status):
    guesses = 0 if status == 429 else 8
    config = ServerConfig(body_bytes=1_000, token_guesses=guesses)
    hosts = frozenset({"127.0.0.1"})
    with client_of(FakeSearcher(), token="s3cret", hosts=hosts, config=config) as client:
        headers = {"Host": "127.0.0.1", **options.pop("headers", {})}
        response = client.request(method, path, headers=headers, **options)
        assert response.status_code == status
    with client_of(FakeSearcher(), token="s3cret") as client:
        document = client.get("/openapi.json", headers=TOKEN).json()
    content = document["paths"][path][method.lower()]["responses"][str(status)]["content"]
    assert content == {"application/json": {"schema": {"$ref": "#/components/schemas/ErrorResponse"}}}
    jsonschema.validate(response.json(), document["components"]["schemas"]["ErrorResponse"])


def test_the_document_says_where_a_token_is_needed_and_holds_all_it_refers_to():
    with client_of(FakeSearcher(), token="s3cret") as client:
        response = client.get("/openapi.json", headers=TOKEN)
    document = response.json()
    secured = {path for path, _ in OPERATIONS if "security" in next(iter(document["paths"][path].values()))}
    assert secured == {path for path, _ in OPERATIONS} - {"/healthz"}
    names = {part.split('"')[0] for part in response.text.split("#/components/schemas/")[1:]}
    assert names and names <= set(document["components"]["schemas"])
    image = document["paths"]["/images/{id}"]["get"]["responses"]
    assert set(image["200"]["content"]) == {"image/jpeg"} and "content" not in image["304"]
    with client_of(FakeSearcher()) as client:
        document = client.get("/openapi.json").json()
    assert "429" not in document["paths"]["/info"]["get"]["responses"]
