"""What a client may ask, checked field by field.

JSON bodies nest their filters; addresses and forms are flat, with the same names: `box=W,S,E,N`, `start`,
`stop`, and `where=COLUMN=VALUE` or `where=COLUMN<NUMBER` as often as needed. Both become one `SearchRequest`,
or a refusal that names the field.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pmpguard.errors import ConfigError
from pmpguard.geo.footprints import Box, checked_box, parse_time_range
from pmpguard.search.filters import parse_condition
from pmpguard.search.query import NO_FILTERS, Condition, Filters, Kind
from pmpguard.serving.errors import RequestError
from pmpguard.serving.middleware import Limits

FIELDS = ("text", "like", "kind", "k", "shortlist", "text_weight", "filters")
FILTER_FIELDS = ("box", "start", "stop", "columns", "where")
FLAT_FIELDS = ("text", "like", "kind", "k", "shortlist", "text_weight", "box", "start", "stop", "where")
LONGEST_NAME = 500  # characters of an id, a column's name or one of its values


@dataclass(frozen=True)
class SearchRequest:
    """A checked question: a text, the id of an indexed image to search by (`like`), or both."""

    text: str | None = None
    like: str | None = None
    kind: Kind = "image"
    k: int = 20
    shortlist: int = 100
    text_weight: float = 0.5
    filters: Filters = NO_FILTERS


def unflatten(pairs: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The fields of an address or a form in the shape of a JSON body; empty ones count as left out.

    >>> unflatten([("text", "a pond"), ("k", "5"), ("where", "class=park"), ("where", "class=port")])
    {'text': 'a pond', 'k': 5, 'filters': {'columns': {'class': ['park', 'port']}}}
    """
    body: dict[str, object] = {}
    filters: dict[str, object] = {}
    columns: dict[str, list[str]] = {}
    where: list[str] = []
    for name, value in pairs:
        if name not in FLAT_FIELDS:
            raise wrong(name, "is not known", f"use one of {', '.join(FLAT_FIELDS)}")
        if not value:
            if name == "text":
                body[name] = value
            continue
        if name != "where" and (name in body or name in filters):
            raise wrong(name, "is given twice", "give it once")
        if name == "where":
            condition = _condition(value)
            if condition.comparison == "=":  # values of one column are alternatives
                columns.setdefault(condition.column, []).extend(condition.values)
            else:
                where.append(value)
        elif name == "box":
            filters[name] = [_number(name, part, float) for part in value.split(",")]
        elif name in ("start", "stop"):
            filters[name] = value
        elif name in ("k", "shortlist"):
            body[name] = _number(name, value, int)
        else:
            body[name] = _number(name, value, float) if name == "text_weight" else value
    if columns:
        filters["columns"] = columns
    if where:
        filters["where"] = where
    if filters:
        body["filters"] = filters
    return body


def check_request(body: object, *, limits: Limits, has_image: bool = False) -> SearchRequest:
    """Turn a JSON body into a request."""
    fields = _object("body", body, FIELDS)
    request = SearchRequest(
        text=_text(fields.get("text"), limits) if fields.get("text") is not None else None,
        like=name_field("like", fields["like"]) if fields.get("like") is not None else None,
        kind=_kind(fields.get("kind", "image")),
        k=_whole("k", fields.get("k", 20), limits.hits),
        shortlist=_whole("shortlist", fields.get("shortlist", 100), limits.shortlist),
        text_weight=_weight(fields.get("text_weight", 0.5)),
        filters=_filters(fields.get("filters"), limits),
    )
    if request.like is not None and has_image:
        raise wrong("like", "is given beside a image", "send one of the two")
    if request.text is None and request.like is None and not has_image:
        raise wrong("text", "is missing", "send a text, a image, or the id of one as 'like'")
    return request


def checked_text(value: object, limits: Limits) -> str:
    """A text that can be searched for or explained."""
    return _text(value, limits)


def name_field(field: str, value: object) -> str:
    """An id, a column's name or one of its values: a short text without control characters."""
    if not isinstance(value, str):
        raise wrong(field, f"is {shown(value)}", "give a text")
    if not 0 < len(value) <= LONGEST_NAME:
        raise wrong(field, f"has {len(value)} characters", f"use 1 to {LONGEST_NAME}")
    _printable(field, value)
    return value


def whole_number(field: str, text: str, largest: int) -> int:
    """A whole number from an address."""
    return _whole(field, _number(field, text, int), largest)


def wrong(field: str, what: str, fix: str) -> RequestError:
    return RequestError(422, f"{field}: {what}", fix=fix)


def shown(value: object) -> str:
    """A foreign value in a message: short, and printable as ASCII."""
    written = ascii(value)
    return written if len(written) <= 60 else f"{written[:60]}..."


def _object(field: str, value: object, known: tuple[str, ...]) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise wrong(field, f"is {shown(value)}", "send a JSON object")
    for name in value:
        if name not in known:
            raise wrong(shown(name), f"is not a field of {field}", f"use one of {', '.join(known)}")
    return value


def _text(value: object, limits: Limits) -> str:
    if not isinstance(value, str):
        raise wrong("text", f"is {shown(value)}", "give a text")
    if not value.strip():
        raise wrong("text", "is empty", "say what to look for")
    if len(value) > limits.text_characters:
        fix = f"use at most {limits.text_characters}; a sentence is enough"
        raise wrong("text", f"has {len(value)} characters", fix)
    _printable("text", value)
    return " ".join(value.split())


def _printable(field: str, value: str) -> None:
    for character in value:
        category = unicodedata.category(character)
        if category == "Cs" or (category == "Cc" and not character.isspace()):
            raise wrong(field, f"contains the character {character!a}", "leave it out")


def _kind(value: object) -> Kind:
    if value not in get_args(Kind):
        raise wrong("kind", f"is {shown(value)}", f"use one of {', '.join(get_args(Kind))}")
    return value  # type: ignore[return-value]  # checked in the line above


def _whole(field: str, value: object, largest: int) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= largest:
        raise wrong(field, f"is {shown(value)}", f"use a whole number from 1 to {largest}")
    return value


def _weight(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise wrong("text_weight", f"is {shown(value)}", "use a number from 0 to 1")
    return float(value)


def _filters(value: object, limits: Limits) -> Filters:
    if value is None:
        return NO_FILTERS
    fields = _object("filters", value, FILTER_FIELDS)
    box = _box(fields["box"]) if fields.get("box") is not None else None
    start, stop = (
        None if fields.get(name) is None else name_field(name, fields[name]) for name in ("start", "stop")
    )
    try:
        parse_time_range(start, stop)
    except ConfigError as error:
        raise RequestError(422, error.message, fix=error.fix) from error
    columns = _columns(fields.get("columns") or {}, limits)
    return Filters(box, start, stop, columns, _where(fields.get("where") or [], limits))


def _box(value: object) -> Box:
    if not isinstance(value, list) or len(value) != 4 or not {type(part) for part in value} <= {int, float}:
        raise wrong("box", f"is {shown(value)}", "give west, south, east and north in degrees")
    try:
        west, south, east, north = map(float, value)
        return checked_box((west, south, east, north))
    except OverflowError:
        raise wrong("box", f"is {shown(value)}", "give degrees") from None
    except ConfigError as error:
        raise RequestError(422, error.message, fix=error.fix) from error


def _columns(value: object, limits: Limits) -> dict[str, tuple[str, ...]]:
    """Names and the values allowed; which columns there are only the index knows."""
    if not isinstance(value, Mapping):
        raise wrong("columns", f"is {shown(value)}", "send an object of lists")
    chosen = {}
    for name, values in value.items():
        if not isinstance(values, list) or not 1 <= len(values) <= limits.filter_values:
            fix = f"give a list of 1 to {limits.filter_values} values"
            raise wrong(f"column {shown(name)}", f"is {shown(values)}", fix)
        chosen[name_field("column", name)] = tuple(name_field("column", wanted) for wanted in values)
    return chosen


def _where(value: object, limits: Limits) -> tuple[Condition, ...]:
    """Further conditions, each as a text."""
    if not isinstance(value, list) or len(value) > limits.filter_values:
        fix = f"give a list of at most {limits.filter_values} conditions, such as cloud_cover<20"
        raise wrong("where", f"is {shown(value)}", fix)
    return tuple(_condition(name_field("where", text)) for text in value)


def _condition(text: str) -> Condition:
    try:
        return parse_condition(text)
    except ConfigError as error:
        raise wrong("where", f"is {shown(text)}", error.fix) from error


def _number(field: str, text: str, kind: type[int] | type[float]) -> int | float:
    try:
        return kind(text)
    except ValueError:
        raise wrong(field, f"is {shown(text)}", "use a number") from None
