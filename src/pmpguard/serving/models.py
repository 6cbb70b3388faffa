"""What the API takes and gives, as pydantic models; /openapi.json is made of them.

JSON bodies nest their filters. Addresses and forms are flat, with the same names: `box=W,S,E,N`, `start`,
`stop`, and `where=COLUMN=VALUE` or `where=COLUMN<NUMBER` as often as needed. This module needs the extra
`serve`: it is imported where that has been made sure of.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from pmpguard.geo.distance import parse_place
from pmpguard.geo.footprints import checked_box, parse_box, parse_time_range
from pmpguard.search.filters import parse_condition
from pmpguard.search.query import Filters, Kind
from pmpguard.serving.config import (
    MAX_FILTER_VALUES,
    MAX_HITS,
    MAX_IMAGE_SIDE,
    MAX_NAME_CHARACTERS,
    MAX_SHORTLIST,
    MAX_TEXT_CHARACTERS,
)
from pmpguard.serving.downloads import DownloadFormat
from pmpguard.serving.errors import RequestError, invalid


def printable(value: str) -> str:
    for character in value:
        if unicodedata.category(character) == "Cc" and not character.isspace():
            raise ValueError(f"contains the character {character!a}")
    return value


def not_empty(value: object) -> object:
    if isinstance(value, str) and not value.strip():
        raise invalid("text", "is empty", "say what to look for")
    return value


def one_line(value: str) -> str:
    return " ".join(value.split())


def whole(value: object) -> object:
    """JSON knows one kind of number: 5.0 is an integer too."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


# What `printable` takes, and with `not_empty` besides, for those who read the document.
PRINTABLE = r"[^\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f]"
NOT_EMPTY = rf"^{PRINTABLE}*(?!\s){PRINTABLE}+$"
Name = Annotated[
    str,
    Field(min_length=1, max_length=MAX_NAME_CHARACTERS, json_schema_extra={"pattern": f"^{PRINTABLE}+$"}),
    AfterValidator(printable),
]
Text = Annotated[
    str,
    Field(min_length=1, max_length=MAX_TEXT_CHARACTERS, json_schema_extra={"pattern": NOT_EMPTY}),
    BeforeValidator(not_empty),
    AfterValidator(printable),
    AfterValidator(one_line),
]
Degrees = Annotated[float, Field(allow_inf_nan=False)]


class StrictModel(BaseModel):
    """All fields are known; in a schema too."""

    model_config = ConfigDict(extra="forbid")


# ------------------------------------------------------------------------------------------------ requests


class SearchFields(StrictModel):
    """What JSON bodies, addresses and forms have in common."""

    text: Text | None = None
    like: Name | None = Field(None, description="id of an indexed image to search by")
    kind: Kind = "image"
    k: Annotated[int, Field(ge=1, le=MAX_HITS), BeforeValidator(whole)] = 20
    shortlist: Annotated[int, Field(ge=1, le=MAX_SHORTLIST), BeforeValidator(whole)] = 100
    text_weight: float = Field(0.5, ge=0, le=1)
    format: DownloadFormat = Field(
        "json", description="all but json are files to keep, with a row for each hit"
    )

    def to_filters(self) -> Filters:
        return Filters()

    def require_query(self, *, has_image: bool = False) -> None:
        if self.like is not None and has_image:
            raise invalid("like", "is given beside an image", "send one of the two")
        if self.text is None and self.like is None and not has_image and self.to_filters().near is None:
            fix = "send a text, an image, the id of one as 'like', or a place as 'near'"
            raise invalid("text", "is missing", fix)


class SearchFilters(StrictModel):
    """Which items may be found; every condition must hold."""

    model_config = ConfigDict(strict=True)

    box: Annotated[list[Degrees], Field(min_length=4, max_length=4)] | None = Field(
        None, description="west, south, east, north in degrees"
    )
    start: Name | None = Field(None, description="ISO 8601, inclusive")
    stop: Name | None = Field(None, description="ISO 8601, inclusive")
    columns: dict[Name, Annotated[list[Name], Field(min_length=1, max_length=MAX_FILTER_VALUES)]] = Field(
        default={}, description="values allowed in a column"
    )
    where: list[Name] = Field(
        default=[], max_length=MAX_FILTER_VALUES, description="COLUMN<NUMBER or TIME, also <=, >, >= and ="
    )
    near: Annotated[list[Degrees], Field(min_length=2, max_length=4)] | None = Field(
        None, description="longitude, latitude; or west, south, east, north. Alone it finds what is nearest"
    )
    radius: float | None = Field(None, ge=0, allow_inf_nan=False, description="kilometres around `near`")

    def to_filters(self) -> Filters:
        parse_time_range(self.start, self.stop)
        return Filters(
            None if self.box is None else checked_box((self.box[0], self.box[1], self.box[2], self.box[3])),
            self.start,
            self.stop,
            {name: tuple(values) for name, values in self.columns.items()},
            tuple(map(parse_condition, self.where)),
            None if self.near is None else parse_place(",".join(map(repr, self.near))),
            self.radius,
        )


class SearchBody(SearchFields):
    """A search as JSON."""

    model_config = ConfigDict(strict=True)

    filters: SearchFilters | None = None

    def to_filters(self) -> Filters:
        return super().to_filters() if self.filters is None else self.filters.to_filters()


class SearchQuery(SearchFields):
    """A search as an address; empty fields count as left out."""

    box: str | None = Field(None, max_length=MAX_NAME_CHARACTERS, description="west,south,east,north")
    near: str | None = Field(
        None,
        max_length=MAX_NAME_CHARACTERS,
        description="longitude,latitude or west,south,east,north; alone it finds what is nearest",
    )
    radius: float | None = Field(None, ge=0, allow_inf_nan=False, description="kilometres around `near`")
    start: Name | None = Field(None, description="ISO 8601, inclusive")
    stop: Name | None = Field(None, description="ISO 8601, inclusive")
    where: list[Annotated[str, Field(max_length=2 * MAX_NAME_CHARACTERS)]] = Field(
        default=[],
        description="COLUMN=VALUE, alternatives if of one column; COLUMN<NUMBER or TIME, also <=, >, >=",
    )

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, values: Mapping[str, object]) -> dict[str, object]:
        return {name: value for name, value in values.items() if value != "" or name == "text"}

    def to_filters(self) -> Filters:
        columns: dict[str, list[str]] = {}
        where = []
        for text in filter(None, self.where):
            condition = parse_condition(text)
            if condition.comparison == "=":
                columns.setdefault(condition.column, []).extend(condition.values)
            else:
                where.append(text)
        box = None if self.box is None else list(parse_box(self.box))
        near = None if self.near is None else list(parse_place(self.near))
        fields = {
            "box": box, "start": self.start, "stop": self.stop, "columns": columns, "where": where,
            "near": near, "radius": self.radius,
        }  # fmt: skip
        return validated(SearchFilters, fields).to_filters()


class SearchForm(SearchQuery):
    """A search as a form: the fields of an address, and an image, which is read apart from them."""

    image: Annotated[bytes, WithJsonSchema({"type": "string", "format": "binary"})] = Field(
        b"", description="JPEG, PNG, TIFF, WEBP, BMP or GIF"
    )


class ImageQuery(StrictModel):
    """How long the longer side of an image shall be."""

    size: int | None = Field(None, ge=1, le=MAX_IMAGE_SIDE)


class ExplainQuery(StrictModel):
    """An image of the index and a text."""

    id: Name
    text: Text


Model = TypeVar("Model", bound=BaseModel)


def validated(model: type[Model], value: object) -> Model:
    """The value as a model, or the error a client is told."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise validation_error(error.errors(include_url=False, include_input=False)) from None


def validation_error(errors: Sequence[Any]) -> RequestError:
    """The first thing that is wrong, by the field's name."""
    first = errors[0]
    place = [str(part) for part in first["loc"] if part not in ("query", "path")]
    field = ascii(".".join(place))[1:-1][:80] or "body"
    if first["type"] == "extra_forbidden":
        return invalid(field, "is not known", "see /openapi.json for the fields")
    if first["type"] == "missing":
        return invalid(field, "is missing", "send it")
    what = first["msg"].removeprefix("Value error, ")
    return invalid(field, what[:1].lower() + what[1:], "see /openapi.json for what it may be")


def single_values(pairs: Iterable[tuple[str, str]]) -> dict[str, str | list[str]]:
    """The fields of an address or a form, each given once but `where`.

    >>> single_values([("text", "a pond"), ("where", "class=park"), ("where", "cover<20")])
    {'text': 'a pond', 'where': ['class=park', 'cover<20']}
    """
    fields: dict[str, str | list[str]] = {}
    where = []
    for name, value in pairs:
        if name == "where":
            where.append(value)
        elif name in fields:
            raise invalid(ascii(name[:60])[1:-1], "is given twice", "give it once")
        else:
            fields[name] = value
    return {**fields, "where": where} if where else fields


# ----------------------------------------------------------------------------------------------- responses


class ErrorResponse(StrictModel):
    """What went wrong and what to do about it."""

    error: str
    fix: str


class HitResponse(StrictModel):
    """One hit."""

    id: str
    image_id: str | None = Field(description="id to ask /images and /explain for")
    kind: Kind
    score: float | None
    probability: float | None = Field(ge=0, le=1, description="that it matches, where that is known")
    caption: str | None
    image: str | None = Field(description="name of the image as it was embedded")
    bounds: tuple[float, float, float, float] | None = Field(description="west, south, east, north")
    geometry: dict[str, Any] | None = Field(description="the bounds as GeoJSON")
    metadata: dict[str, Any]


class SearchResponse(StrictModel):
    """Hits, best first."""

    version: str
    fingerprint: str = Field(description="changes with the content of the index")
    count: int = Field(description="items of this kind in the index")
    milliseconds: float
    hits: list[HitResponse]


class WordResponse(StrictModel):
    """A word, its place in the text and its evidence, row by row from the top left."""

    word: str
    start: int
    stop: int
    positive: float | None
    negative: float | None
    regions: list[list[float | None]]


class ExplainResponse(StrictModel):
    """Word by word, where a text is found in an image."""

    id: str
    text: str
    score: float | None
    boundary: float | None
    words: list[WordResponse]


class RangeResponse(StrictModel):
    """The least and the greatest value of a column of numbers or times."""

    kind: Literal["integer", "number", "time"]
    least: float | str
    greatest: float | str


class InfoResponse(StrictModel):
    """The index and what it can be filtered by."""

    name: str = Field(description="of the index's folder")
    beside: str | None = Field(
        description="name of another index, of the same images, that is asked below /beside"
    )
    version: str
    fingerprint: str = Field(description="changes with the content of the index")
    count: int
    captions: int
    model: str
    columns: dict[str, list[str]] = Field(
        description="columns of words, with their values where they are few"
    )
    ranges: dict[str, RangeResponse] = Field(description="columns to compare with numbers or times")
    has_places: bool = Field(description="whether a box can find anything")
    has_times: bool = Field(description="whether start and stop can find anything")
    reads_texts: bool = Field(description="whether the model reads texts; else images find images")
    limits: dict[str, int]


class HealthResponse(StrictModel):
    """Whether the index on disk can be followed."""

    status: Literal["ok", "degraded"]
    version: str
    problem: str | None
