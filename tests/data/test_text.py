import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pmpguard.data.text import names_direction, normalise_caption


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("  many   planes \n are\tparked ", "many planes are parked"),
        ("cafe\u0301", "caf\u00e9"),
        ("\ufeffa pond", "a pond"),
        ("a\u200bpond\x00", "apond"),
        ("a\u00a0pond\u2028here", "a pond here"),
        ("\u202eabc\u202c", "abc"),
        (
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
            "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        ),
        ("bad \ud800 surrogate", "bad surrogate"),
        ("", ""),
    ],
)
def test_normal_form(raw, expected):
    assert normalise_caption(raw) == expected


def test_case_is_kept():
    assert normalise_caption("A Pond") == "A Pond"


@given(st.text())
def test_normalising_twice_changes_nothing_and_leaves_no_control_characters(text):
    once = normalise_caption(text)
    assert normalise_caption(once) == once
    assert unicodedata.is_normalized("NFC", once)
    assert not any(unicodedata.category(character) in ("Cc", "Cs") for character in once)
    assert "  " not in once and once == once.strip()


@pytest.mark.parametrize(
    "caption",
    [
        "a pond on the left side of the road",
        "a building at the right .",
        "trees in the Top-Left corner",
        "a river runs at the bottom of the image",
        "a lake in the upper part",
        "the lower half is forest",
        "several ships in the north-east",
        "the southwestern part is desert",
        "NORTH of the harbour",
        "cars drive clockwise",
        "a counter-clockwise loop",
        "horizontal stripes of green",
        "roads cross vertically",
        "the leftmost tank is white",
        "a car park right of the stadium",
        "a pool on top of the image",
        "a right angle on the left",
    ],
)
def test_directions_are_found(caption):
    assert names_direction(caption)


@pytest.mark.parametrize(
    "caption",
    [
        "two roads meet at a right angle",
        "two roads meet at right angles .",
        "a right-angled corner",
        "a car park right next to the stadium",
        "the right-of-way is clear",
        "a top view of a harbour",
        "a top-down image of tanks",
        "a helicopter pad on top of a building",
        "solar panels on the rooftop",
        "a bridge above the river",
        "cars stop under the overpass",
        "a bright pond",
        "tables and tops",
        "a playground is made up of several parts",
        "the least built area",
    ],
)
def test_other_meanings_are_not_directions(caption):
    assert not names_direction(caption)
