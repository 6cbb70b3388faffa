"""Which columns of a table or fields of a record are the image, its captions and the other standard columns.

Columns may be named: `image=Image,caption=caption_1+caption_2` on the command line, a mapping in Python.
Those that are not named are looked for under their usual names, in any case; numbered captions belong
together.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from pmpguard.errors import ConfigError, DataError

STANDARD = ("pair_id", "image", "caption", "split", "image_id", "label")
FURTHER = ("lon", "lat", "time")
IMAGE_NAMES = (
    "image", "filepath", "file_name", "filename", "image_path", "path", "img_name", "name", "image_name",
    "image_file", "img_path", "img", "url", "image_url",
)  # fmt: skip
CAPTION_NAMES = (
    "caption", "title", "text", "sentence", "raw", "captions", "sentences", "comment",
)  # fmt: skip
_NUMBERED_CAPTION = re.compile(r"(caption|title|text|sentence|sent|raw|comment)[ _.-]?\d+", re.IGNORECASE)
OPTION = "--columns image=COLUMN,caption=COLUMN (several caption columns: caption=A+B)"

Columns = Mapping[str, str | Sequence[str]]


@dataclass(frozen=True)
class Fields:
    """The columns that were found: `standard` maps the name of a standard column to the one that holds it."""

    image: str
    captions: tuple[str, ...]
    standard: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ColumnNames:
    """What a user said about columns; nothing by default.

    >>> names = ColumnNames.of("image=Image,caption=c1+c2")
    >>> names.find(["Image", "c1", "c2", "Split"], "pairs.csv")
    Fields(image='Image', captions=('c1', 'c2'), standard={'split': 'Split'})
    """

    given: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def of(cls, columns: str | Columns | None) -> ColumnNames:
        """From an option's text or a mapping, where several caption columns may be a list."""
        if not columns:
            return cls()
        if not isinstance(columns, str | Mapping):
            raise ConfigError(
                f"columns is a {type(columns).__name__}", fix='give {"image": ..., "caption": ...}'
            )
        pairs = (
            [part.partition("=")[::2] for part in columns.split(",")]
            if isinstance(columns, str)
            else list(columns.items())
        )
        given: dict[str, tuple[str, ...]] = {}
        for name, value in pairs:
            several = value.split("+") if isinstance(value, str) else value
            wanted = tuple(column.strip() for column in several)
            known = name.strip()
            if known not in (*STANDARD, *FURTHER):
                raise ConfigError(
                    f"columns: {known!r} is no column of pairs",
                    fix=f"write {OPTION}; further ones: {', '.join((*STANDARD, *FURTHER))}",
                )
            if not wanted or not all(wanted) or (len(wanted) != 1 and known != "caption"):
                raise ConfigError(f"columns: {known} is {value!r}", fix=f"write {OPTION}")
            given[known] = wanted
        return cls(tuple(given.items()))

    def __bool__(self) -> bool:
        return bool(self.given)

    def find(self, found: Sequence[str], where: str) -> Fields:
        """The fields among the columns `found`, or an error that lists them and the option."""
        try:
            return _find(self, tuple(map(str, found)))
        except DataError as error:
            raise DataError(f"{where}: {error.message}", fix=error.fix) from error

    def fit(self, found: Sequence[str]) -> bool:
        """Whether image and caption are among the columns."""
        try:
            self.find(found, "")
        except DataError:
            return False
        return True


@lru_cache(maxsize=4096)
def _find(names: ColumnNames, found: tuple[str, ...]) -> Fields:
    given = dict(names.given)
    missing = [column for columns in given.values() for column in columns if column not in found]
    if missing:
        raise DataError(f"no column {missing[0]!r}", fix=f"found {_listed(found)}")
    taken = {column for columns in given.values() for column in columns}
    by_name = {column.strip().lower(): column for column in reversed(found) if column not in taken}
    image = given.get("image") or _first(by_name, found, IMAGE_NAMES)
    captions = given.get("caption") or _captions(by_name, found)
    for what, columns in (("image", image), ("caption", captions)):
        if not columns:
            raise DataError(f"no column for the {what}", fix=f"found {_listed(found)}; name it with {OPTION}")
    standard = {
        name: given[name][0] if name in given else by_name[name]
        for name in (*STANDARD, *FURTHER)
        if name not in ("image", "caption") and (name in given or name in by_name)
    }
    return Fields(image[0], tuple(captions), standard)


def _first(by_name: Mapping[str, str], found: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    name = next((name for name in known if name in by_name), None)
    return () if name is None else (by_name[name],)


def _captions(by_name: Mapping[str, str], found: Sequence[str]) -> tuple[str, ...]:
    """The column of captions and those numbered like it: `raw`, `raw_1`; `caption_1`, `caption_2`."""
    plain = _first(by_name, found, CAPTION_NAMES)
    numbered = [column for column in found if _NUMBERED_CAPTION.fullmatch(column.strip())]
    stems = {re.sub(r"[ _.-]?\d+$", "", column.strip().lower()) for column in numbered}
    if plain:
        return (*plain, *(name for name in numbered if name.lower().startswith(plain[0].strip().lower())))
    return tuple(numbered) if len(stems) == 1 else ()


def _listed(found: Sequence[str]) -> str:
    return ", ".join(found) or "nothing"
