"""Queries from strangers: what can be searched for, and errors that say why something cannot."""

from __future__ import annotations

import dataclasses

from pmpguard.data.text import normalise_caption
from pmpguard.errors import DataError
from pmpguard.search.query import NO_FILTERS, Filters, Query

LONGEST_TEXT = 2000  # characters; models read some fifty words


class QueryError(DataError):
    """A query that cannot be answered as it is."""


class UnknownIdError(DataError):
    """An id that is not in the index."""


def checked_query(query: Query, filters: Filters = NO_FILTERS) -> Query:
    """The query with its text in normal form, or an error that says what is wrong with it.

    A place to be near to, among the filters, is enough to ask for: what is nearest comes first.
    """
    text = query.text
    if text is not None:
        if len(text) > LONGEST_TEXT:
            raise QueryError(
                f"the query has {len(text):,} characters, more than {LONGEST_TEXT:,}", fix="shorten it"
            )
        text = normalise_caption(text)
        if not any(character.isalnum() for character in text):
            if text or query.image is None:
                raise QueryError("the query holds no word", fix="write what the image should show")
            text = None
    if text is None and query.image is None and filters.near is None:
        raise QueryError("the query is empty", fix="give a text, an image, or both")
    if (text is not None or query.image is not None) and filters.near is not None and filters.radius is None:
        fix = "say how many kilometres around it as its radius, or ask for the place alone"
        raise QueryError("words or an image near a place, but not how near", fix=fix)
    if not 0 <= query.text_weight <= 1:
        raise QueryError(f"text weight is {query.text_weight}", fix="give a number from 0 to 1")
    if query.kind not in ("image", "caption"):
        raise QueryError(f"kind {query.kind!r} cannot be searched for", fix="image or caption")
    return dataclasses.replace(query, text=text)
