"""What can be asked of an index, and what comes back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from PIL.Image import Image

Kind = Literal["image", "caption"]
Comparison = Literal["=", "<", "<=", ">", ">="]


@dataclass(frozen=True)
class Condition:
    """What a metadata column must hold: one of several values, or a number or time before or after one."""

    column: str
    comparison: Comparison
    values: tuple[str, ...]
    spans: tuple[tuple[int, int], ...] = field(
        default=(), repr=False
    )  # of a column of times: microseconds allowed, first and last


@dataclass(frozen=True)
class Filters:
    """Which items may be found; every given condition must hold.

    `box` is (west, south, east, north) in degrees and keeps items whose bounds meet it. `start` and `stop`
    are ISO 8601 times, inclusive; items without a time fail. `columns` names metadata columns and the values
    allowed in them; `conditions` are further ones, of which every one must hold too. `near` is a place, a
    box or a point (longitude, latitude, longitude, latitude), and keeps what lies at most `radius` kilometres
    from it; a search for nothing else finds what is nearest to it, and then needs no radius.
    """

    box: tuple[float, float, float, float] | None = None
    start: str | None = None
    stop: str | None = None
    columns: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()
    near: tuple[float, float, float, float] | None = None
    radius: float | None = None  # km

    @property
    def all_conditions(self) -> tuple[Condition, ...]:
        """Those on columns, however they were given."""
        named = (Condition(name, "=", tuple(values)) for name, values in self.columns.items())
        return (*named, *self.conditions)


NO_FILTERS = Filters()


@dataclass(frozen=True)
class Query:
    """A text, an image, or both; `text_weight` in [0, 1] says how much the text counts then."""

    text: str | None = None
    image: Image | None = None
    text_weight: float = 0.5
    kind: Kind = "image"  # what to find

    @property
    def has_content(self) -> bool:
        """Whether it says what to look for, and not a place alone."""
        return self.text is not None or self.image is not None


@dataclass(frozen=True)
class SearchHit:
    """One answer. `score` orders the answers; `probability` that it matches, None when not calibrated."""

    id: str
    score: float
    probability: float | None
    kind: Kind
    caption: str | None  # of a caption hit, or of an indexed image that has one
    image: str | None  # reference of the image as it was embedded
    metadata: Mapping[str, object] = field(default_factory=dict)  # bounds, crs, time, any column
