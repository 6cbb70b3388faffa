"""Which columns are the image and the captions: named by the user, or under their usual names."""

from __future__ import annotations

import pytest

from pmpguard.data.column_names import ColumnNames
from pmpguard.errors import ConfigError, DataError


@pytest.mark.parametrize(
    ("option", "found", "image", "captions"),
    [
        ("", ["caption", "image"], "image", ("caption",)),
        ("", ["IMAGE", "Title"], "IMAGE", ("Title",)),
        ("", ["path", "file_name", "text", "caption"], "file_name", ("caption",)),  # the more usual name
        ("", ["img", "sentence 1", "sentence 2"], "img", ("sentence 1", "sentence 2")),
        ("", ["img", "raw", "raw_1", "text_1"], "img", ("raw", "raw_1")),
        ("image=url", ["url", "image", "text"], "url", ("text",)),
        ("caption=b+a", ["image", "a", "b"], "image", ("b", "a")),
        (" image = x , caption = y ", ["x", "y"], "x", ("y",)),
    ],
)
def test_fields(option: str, found: list[str], image: str, captions: tuple[str, ...]) -> None:
    fields = ColumnNames.of(option).find(found, "here")
    assert (fields.image, fields.captions) == (image, captions)
    assert ColumnNames.of(option).fit(found)


def test_other_standard_columns() -> None:
    names = ColumnNames.of({"image": "a", "caption": ["b"], "split": "set"})
    assert names.find(["a", "b", "set", "split", "Label", "LON"], "").standard == {
        "split": "set",
        "label": "Label",
        "lon": "LON",
    }


@pytest.mark.parametrize(
    ("option", "found", "message"),
    [
        ("", ["a", "b"], r"here: no column for the image\nFix: found a, b; name it with --columns image="),
        ("image=a", ["a", "b"], r"here: no column for the caption\nFix: found a, b; name it"),
        ("image=c", ["a", "b"], r"here: no column 'c'\nFix: found a, b"),
        ("", ["image", "text_1", "raw_1"], "no column for the caption"),  # of which of the two?
        ("", [], "Fix: found nothing"),
    ],
)
def test_what_is_missing_is_said_with_what_is_there(option: str, found: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        ColumnNames.of(option).find(found, "here")
    assert not ColumnNames.of(option).fit(found)


def test_columns_of_another_type() -> None:
    with pytest.raises(ConfigError, match=r"columns is a list\nFix: give \{"):
        ColumnNames.of(["image", "caption"])


@pytest.mark.parametrize("columns", ["image", "picture=a", "image=a+b", "caption=", {"caption": []}])
def test_options_that_say_nothing(columns: object) -> None:
    with pytest.raises(ConfigError, match="write --columns image=COLUMN"):
        ColumnNames.of(columns).find(["a"], "here")
