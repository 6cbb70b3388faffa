"""Requests are checked field by field, and whatever is wrong is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmpguard.search.query import Condition, Filters
from pmpguard.serving.errors import RequestError
from pmpguard.serving.middleware import Limits
from pmpguard.serving.search_request import SearchRequest, check_request, name_field, unflatten, whole_number

LIMITS = Limits()


def check(body: object, **options: bool) -> SearchRequest:
    return check_request(body, limits=LIMITS, **options)


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
        },
    }
    filters = Filters(
        (170.0, -1.0, -170.0, 1.0),
        "2024",
        "2024-05-01T00:00:00Z",
        {"class": ("odd",), "eo:cloud": ("7",)},
    )
    expected = SearchRequest("planes beside a building", "a/b.png", "caption", 5, 50, 1.0, filters)
    assert check(body) == expected


def test_what_is_left_out_is_as_usual():
    assert check({"text": "a"}) == SearchRequest("a", None, "image", 20, 100, 0.5, Filters())
    assert check({"text": None, "filters": None}, has_image=True) == SearchRequest()


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
        ({"text": "a", "filters": {"where": ["cover<nan"]}}, "where"),
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
    with pytest.raises(RequestError) as flagged:
        check(body)
    assert flagged.value.status == 422
    assert named in flagged.value.message
    assert flagged.value.fix
    assert len(flagged.value.message.encode()) < 300


def test_a_image_and_the_id_of_one_contradict_each_other():
    with pytest.raises(RequestError, match="like: is given beside a image"):
        check({"like": "a"}, has_image=True)


def test_addresses_and_bodies_say_the_same():
    flat = [
        *(("text", "a pond"), ("k", "5"), ("shortlist", "50"), ("text_weight", "0.25"), ("kind", "caption")),
        *(("box", "1,2,3.5,4"), ("start", "2024-01"), ("stop", ""), ("like", "")),
        *(("where", "class=odd"), ("where", "eo:cloud=a=b"), ("where", "class=even")),
        *(("where", "cover<20"), ("where", "cover >= -5")),
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
        },
    }
    conditions = check(nested).filters.conditions
    assert conditions == (Condition("cover", "<", ("20",)), Condition("cover", ">=", ("-5",)))
    assert check(unflatten(flat)) == check(nested)


@pytest.mark.parametrize(
    ("flat", "named"),
    [
        ([("text", "a"), ("text", "b")], "text: is given twice"),
        ([("box", "1,2,3,4"), ("box", "1,2,3,4")], "box: is given twice"),
        ([("q", "a")], "q: is not known"),
        ([("k", "five")], "k: is 'five'"),
        ([("k", "1.5")], "k: is '1.5'"),
        ([("box", "1,2,,4")], "box: is ''"),
        ([("where", "class")], "where: is 'class'"),
        ([("where", "cover<high")], "where: is 'cover<high'"),
    ],
)
def test_a_wrong_address_is_named(flat, named):
    with pytest.raises(RequestError) as flagged:
        unflatten(flat)
    assert flagged.value.message == named


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
        request = check(body)
    except RequestError as refusal:
        assert refusal.status == 422
    else:
        assert request.text or request.like
        assert 1 <= request.k <= LIMITS.hits and 0 <= request.text_weight <= 1


@given(st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12)), max_size=5))
def test_any_address_is_a_request_or_a_refusal(pairs):
    try:
        check(unflatten(pairs))
    except RequestError as refusal:
        assert refusal.status == 422


def test_names_and_numbers():
    assert name_field("id", "../a b/ü") == "../a b/ü"
    assert whole_number("size", "64", 100) == 64
    with pytest.raises(RequestError, match="id"):
        name_field("id", "a\0")
    with pytest.raises(RequestError, match="size"):
        whole_number("size", "-1", 100)
