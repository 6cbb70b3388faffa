"""Requests are checked field by field, and whatever is wrong is named."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmpguard.errors import ConfigError
from pmpguard.search.query import Condition, Filters
from pmpguard.serving.config import MAX_HITS
from pmpguard.serving.errors import RequestError

pytest.importorskip("pydantic", reason="the extra serve is not installed")
models = pytest.importorskip("pmpguard.serving.models")


def check(body: object, *, has_image: bool = False) -> tuple[Any, Filters]:
    """A JSON body as the server checks it."""
    checked = models.validated(models.SearchBody, body)
    checked.require_query(has_image=has_image)
    return checked, checked.to_filters()


def check_flat(pairs: list[tuple[str, str]]) -> tuple[Any, Filters]:
    """An address or a form as the server checks it."""
    checked = models.validated(models.SearchQuery, models.single_values(pairs))
    checked.require_query()
    return checked, checked.to_filters()


def fields_of(request: Any) -> tuple[object, ...]:
    names = ("text", "like", "kind", "k", "shortlist", "text_weight")
    return tuple(getattr(request, name) for name in names)


def test_a_full_request():
    body = {
        "text": "  planes\tbeside \n a building ",
        "like": "a/b.png",
        "kind": "caption",
        "k": 5,
        "shortlist": 50.0,
        "text_weight": 1,
        "filters": {
            "box": [170, -1, -170, 1],
            "start": "2024",
            "stop": "2024-05-01T00:00:00Z",
            "columns": {"class": ["odd"], "eo:cloud": ["7"]},
            "near": [179, -0.5],
            "radius": 20,
        },
    }
    filters = Filters(
        (170.0, -1.0, -170.0, 1.0),
        "2024",
        "2024-05-01T00:00:00Z",
        {"class": ("odd",), "eo:cloud": ("7",)},
        near=(179.0, -0.5, 179.0, -0.5),
        radius=20.0,
    )
    request, found = check(body)
    assert fields_of(request) == ("planes beside a building", "a/b.png", "caption", 5, 50, 1.0)
    assert found == filters and isinstance(request.shortlist, int)


def test_what_is_left_out_is_as_usual():
    request, filters = check({"text": "a"})
    assert fields_of(request) == ("a", None, "image", 20, 100, 0.5) and filters == Filters()
    request, filters = check({"text": None, "filters": None}, has_image=True)
    assert fields_of(request) == (None, None, "image", 20, 100, 0.5) and filters == Filters()


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ([], "body"),
        ("text", "body"),
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": " \n"}, "text"),
        ({"text": 7}, "text"),
        ({"text": "a", "filters": {"where": "cover<20"}}, "where"),
        ({"text": "a", "filters": {"where": [20]}}, "where"),
        ({"text": "a", "filters": {"where": ["cover<nan"]}}, "condition 'cover<nan'"),
        ({"text": "a", "filters": {"where": ["a<1"] * 101}}, "where"),
        ({"text": "a" * 10_000}, "text"),
        ({"text": "a\0b"}, "text"),
        ({"text": "a\x1bb"}, "text"),
        ({"text": "a\ud800"}, "text"),
        ({"txt": "a"}, "txt"),
        ({"text": "a", "like": ""}, "like"),
        ({"text": "a", "like": "x" * 501}, "like"),
        ({"text": "a", "kind": "video"}, "kind"),
        ({"text": "a", "kind": ["image"]}, "kind"),
        ({"text": "a", "k": 0}, "k"),
        ({"text": "a", "k": 201}, "k"),
        ({"text": "a", "k": True}, "k"),
        ({"text": "a", "k": "5"}, "k"),
        ({"text": "a", "k": 10**400}, "k"),
        ({"text": "a", "k": float("nan")}, "k"),
        ({"text": "a", "shortlist": 1e9}, "shortlist"),
        ({"text": "a", "text_weight": float("nan")}, "text_weight"),
        ({"text": "a", "text_weight": 1.1}, "text_weight"),
        ({"text": "a", "filters": []}, "filters"),
        ({"text": "a", "filters": {"area": 1}}, "area"),
        ({"text": "a", "filters": {"box": [1, 2, 3]}}, "box"),
        ({"text": "a", "filters": {"box": [1, 2, 3, "4"]}}, "box"),
        ({"text": "a", "filters": {"box": [1, 2, 3, float("inf")]}}, "box"),
        ({"text": "a", "filters": {"box": [1, 2, 3, 10**400]}}, "box"),
        ({"text": "a", "filters": {"box": [1, 20, 3, 10]}}, "box"),
        ({"filters": {"near": [1, 2, 3]}}, "box"),
        ({"filters": {"near": [1]}}, "near"),
        ({"filters": {"near": [1, 2], "radius": -1}}, "radius"),
        ({"text": "a", "filters": {"start": "yesterday"}}, "time"),
        ({"text": "a", "filters": {"start": 2024}}, "start"),
        ({"text": "a", "filters": {"start": "2025", "stop": "2024"}}, "time"),
        ({"text": "a", "filters": {"columns": ["class"]}}, "columns"),
        ({"text": "a", "filters": {"columns": {"": ["red"]}}}, "column"),
        ({"text": "a", "filters": {"columns": {"class": "odd"}}}, "class"),
        ({"text": "a", "filters": {"columns": {"class": []}}}, "class"),
        ({"text": "a", "filters": {"columns": {"class": ["a"] * 101}}}, "class"),
        ({"text": "a", "filters": {"columns": {"class": [1]}}}, "column"),
    ],
)
def test_what_is_wrong_is_named(body, named):
    with pytest.raises((RequestError, ConfigError)) as refused:
        check(body)
    assert getattr(refused.value, "status", 422) == 422  # the server makes one of every ConfigError
    assert named in refused.value.message
    assert refused.value.fix
    assert len(refused.value.message.encode()) < 300


def test_a_image_and_the_id_of_one_contradict_each_other():
    with pytest.raises(RequestError, match="like: is given beside an image"):
        check({"like": "a"}, has_image=True)


def test_a_place_is_enough_to_ask_for():
    _, filters = check({"filters": {"near": [7.5, 46.9]}})
    assert filters.near == (7.5, 46.9, 7.5, 46.9) and filters.radius is None
    assert check_flat([("near", "7.5,46.9")])[1] == filters
    with pytest.raises(RequestError, match="or a place as 'near'"):
        check({"filters": {"box": [1, 2, 3, 4]}})


def test_addresses_and_bodies_say_the_same():
    flat = [
        *(("text", "a pond"), ("k", "5"), ("shortlist", "50"), ("text_weight", "0.25"), ("kind", "caption")),
        *(("box", "1,2,3.5,4"), ("start", "2024-01"), ("stop", ""), ("like", "")),
        *(("where", "class=odd"), ("where", "eo:cloud=a=b"), ("where", "class=even")),
        *(("where", "cover<20"), ("where", "cover >= -5"), ("near", "1,2,3,4"), ("radius", "1.5")),
    ]
    nested = {
        "text": "a pond",
        "k": 5,
        "shortlist": 50,
        "text_weight": 0.25,
        "kind": "caption",
        "filters": {
            "box": [1, 2, 3.5, 4],
            "start": "2024-01",
            "columns": {"class": ["odd", "even"], "eo:cloud": ["a=b"]},
            "where": ["cover<20", "cover>=-5"],
            "near": [1, 2, 3, 4],
            "radius": 1.5,
        },
    }
    request, filters = check(nested)
    assert filters.conditions == (Condition("cover", "<", ("20",)), Condition("cover", ">=", ("-5",)))
    flat_request, flat_filters = check_flat(flat)
    assert fields_of(flat_request) == fields_of(request) and flat_filters == filters


@pytest.mark.parametrize(
    ("flat", "named"),
    [
        ([("text", "a"), ("text", "b")], "text: is given twice"),
        ([("box", "1,2,3,4"), ("box", "1,2,3,4")], "box: is given twice"),
        ([("text", "a"), ("q", "a")], "q: is not known"),
        ([("text", "a"), ("k", "five")], "k: input should be a valid integer"),
        ([("text", "a"), ("k", "1.5")], "k: input should be a valid integer"),
        ([("text", "a"), ("box", "1,2,,4")], "box '1,2,,4': not four numbers"),
        ([("text", "a"), ("where", "class")], "condition 'class' has no column"),
        ([("text", "a"), ("where", "cover<high")], "condition 'cover<high'"),
        ([("text", "a"), ("where", "c\0=1")], "columns"),
        ([("text", ""), ("like", "a")], "text: is empty"),
    ],
)
def test_a_wrong_address_is_named(flat, named):
    with pytest.raises((RequestError, ConfigError)) as refused:
        check_flat(flat)
    assert refused.value.message.startswith(named)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
bodies = json_values | st.dictionaries(
    st.sampled_from(["text", "like", "kind", "k", "shortlist", "text_weight", "filters"]), json_values
)


@given(bodies)
def test_any_json_is_a_request_or_a_refusal(body):
    try:
        request, _ = check(body)
    except RequestError as error:
        assert error.status == 422
    except ConfigError as error:
        assert error.fix
    else:
        assert request.text or request.like
        assert 1 <= request.k <= MAX_HITS and 0 <= request.text_weight <= 1


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), max_size=5))
def test_any_address_is_a_request_or_a_refusal(pairs):
    try:
        check_flat(pairs)
    except RequestError as error:
        assert error.status == 422
    except ConfigError as error:
        assert error.fix


def test_names_are_short_and_printable():
    assert models.validated(models.ExplainQuery, {"id": "../a b/ü", "text": "a  b"}).text == "a b"
    for id in ("", "a\0", "x" * 501, "a\ud800"):
        with pytest.raises(RequestError, match="id"):
            models.validated(models.ExplainQuery, {"id": id, "text": "a"})


@pytest.mark.parametrize("size", ["0", "-1", "10001", "abc"])
def test_a_size_is_a_whole_number_from_1(size):
    assert models.validated(models.ImageQuery, {"size": "64"}).size == 64
    with pytest.raises(RequestError, match="size"):
        models.validated(models.ImageQuery, {"size": size})
