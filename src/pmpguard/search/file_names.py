"""File names made of ids and paths that nobody vouches for."""

from __future__ import annotations

import hashlib
import re

_LONGEST = 100


def file_name_of(text: str) -> str:
    """A name that is safe as one part of a path and in a web address; different texts get different names.

    Letters, digits and `._-` stay. A text that holds anything else, or is long, also gets its hash.

    >>> file_name_of("paris_2024.v2"), file_name_of("../paris")
    ('paris_2024.v2', 'paris-be5a6fc78f')
    """
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:_LONGEST]
    if readable == text and text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:10]
    return f"{readable}-{digest}" if readable else digest
