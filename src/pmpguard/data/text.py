"""Captions as text: one normal form, and whether a caption names a direction."""

from __future__ import annotations

import re
import unicodedata

# Joiners carry meaning in Persian and Indic scripts and in emoji; every other invisible character goes.
_KEPT_INVISIBLE = "\u200c\u200d"

# Directions in the plane of the image. Words for height ("above", "below", "under", "high") are not here:
# seen from overhead, a bridge above a river stays above it however the image is turned.
_DIRECTION = re.compile(
    r"""\b(?:
        (?:left|right)(?:most|wards?|hand|side)?
      | (?:top|bottom|upper|lower)(?:most)?
      | upside | upwards? | downwards?
      | (?:north|south)(?:[ -]?(?:east|west))?(?:ern(?:most)?|erly|bound|wards?)?
      | (?:east|west)(?:ern(?:most)?|erly|bound|wards?)?
      | (?:anti|counter)?-?clockwise
      | horizontal(?:ly)? | vertical(?:ly)?
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)

# Where those words mean something else. "On top of the hill" is height, "on top of the image" is not.
_NO_DIRECTION = re.compile(
    r"""\b(?:
        right[ -](?:angles?|angled|triangles?|of[ -]way|next|beside|behind|now|away|after)
      | top[ -](?:views?|down)
      | on[ ]top[ ]of(?![ ](?:the[ ]|this[ ])?(?:image|image|photo|figure|scene))
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)


def normalise_caption(caption: str) -> str:
    """Unicode NFC, no control or invisible characters, single spaces, nothing at the ends.

    Case is kept: text encoders fold it themselves.

    >>> normalise_caption("  a\\tlarge\\u200b  pond\\r\\n")
    'a large pond'
    """
    plain = caption.isascii() and caption.isprintable()  # almost every caption, and much faster
    visible = caption if plain else "".join(map(_visible, caption))
    return " ".join(unicodedata.normalize("NFC", visible).split())


def _visible(character: str) -> str:
    """The character, a space for a line break or tab, nothing for other control characters."""
    category = unicodedata.category(character)
    if character.isspace() or category in ("Zl", "Zp"):
        return " "
    if category in ("Cc", "Cs") or (category == "Cf" and character not in _KEPT_INVISIBLE):
        return ""
    return character


def names_direction(caption: str) -> bool:
    """Whether flipping or turning the image would make the caption wrong.

    In doubt the answer is yes: a false yes only costs some augmentation of one image, a false no teaches a
    mismatched pair. So "vertical" and "east" always count, while "right angle", "right next to", "top view"
    and "on top of" do not.

    >>> names_direction("a pond in the top left corner"), names_direction("two roads cross at a right angle")
    (True, False)
    """
    return _DIRECTION.search(_NO_DIRECTION.sub(" ", caption)) is not None


def has_words(caption: str) -> bool:
    """Whether a caption holds a letter or a digit.

    >>> has_words("a pond"), has_words(" ... ")
    (True, False)
    """
    return any(map(str.isalnum, caption))
