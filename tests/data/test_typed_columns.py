"""Columns of texts that are numbers or times."""

from __future__ import annotations

import pyarrow as pa
import pytest

from pmpguard.data.typed_columns import typed


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-20", None], pa.int64()),
        (["1", "2.5", "1e3", ".5"], pa.float64()),
        (["1", "007"], pa.string()),
        (["1", "x"], pa.string()),
        (["", None], pa.string()),
        (["12345678901234567890", "1"], pa.float64()),
        (["2024-02-29", "NA"], pa.date32()),
        (["2023-02-29", "2024-01-01"], pa.string()),
        (["2024-02-29T10:00:00Z", "2024-02-29T10:00:00+02:00"], pa.timestamp("us", "UTC")),
        (["2024-02-29 10:00", "2024-02-29T10:00:01.5"], pa.timestamp("us")),
        (["2024-02-29 10:00", "2024-02-29T10:00:01Z"], pa.string()),
        (["e5", "."], pa.string()),
    ],
)
def test_types_of_texts(texts, kind):
    column = typed(pa.chunked_array([pa.array(texts, pa.string())]))
    assert column.type == kind
    if kind != pa.string():
        assert column.null_count == sum(text in (None, "", "NA") for text in texts)
