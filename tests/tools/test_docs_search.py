"""Tables on search say what their files say."""

from __future__ import annotations

from pathlib import Path

from pmpguard.files import write_json
from tools.docs_search import codecs_table, large_table, load_table, stores_table


def test_codecs_stand_from_the_largest_with_their_distance_from_float16(tmp_path: Path) -> None:
    float16 = {"codec": "float16", "image_bytes": 52_273, "all": {"mr": 20.0}, "shortlist": {"mr": 19.5}}
    coded = {
        "codec": "4bit", "image_bytes": 1_234, "agreement": 0.9123, "same_best": 0.5, "all": {"mr": 19.9},
        "shortlist": {"mr": 19.6}, "within": {"all": -0.1, "shortlist": 0.1},
    }  # fmt: skip
    write_json(tmp_path / "search_codecs.json", {"codecs": [coded, float16]})
    lines = codecs_table(tmp_path).splitlines()
    assert lines[2] == "| `float16` | 52,273 | – | – | 20.00 | 19.50 |"
    assert lines[3] == "| `4bit` | 1,234 | 0.912 | 0.500 | 19.90 (-0.10) | 19.60 (+0.10) |"


def test_a_store_that_was_not_asked_has_a_dash(tmp_path: Path) -> None:
    one, other = ({"recall_at_10": recall, "p50_ms": 2.04, "p95_ms": 9} for recall in (1.0, 0.9876))
    filters = {
        "none": {"passing": 1000, "exact": one, "usearch_f16": other},
        "1 %": {"passing": 10, "exact": one},
    }
    write_json(tmp_path / "postgres_store.json", {"filters": filters})
    lines = stores_table(tmp_path).splitlines()
    assert lines[0] == "| filter | rows that pass | exact | usearch, half floats |"
    assert lines[2:] == [
        "| none | 1,000 | 1.000, 2.0 ms | 0.988, 2.0 ms |",
        "| 1 % | 10 | 1.000, 2.0 ms | – |",
    ]


def test_large_indexes_are_named_by_their_vectors_and_store(tmp_path: Path) -> None:
    times = [{"p50": float(first), "p95": float(first + 10)} for first in range(5)]
    cold, warm, ivf_cold, exact, ivf = times
    disk = {"segments": 2000.0, "versions": 40.0}
    write_json(
        tmp_path / "search_large.json",
        {
            "codec": "4bit",
            "disk_mb": dict.fromkeys(("float16", "large", "ivf"), disk),
            "beside": {
                "items": 1000,
                "warm_ms": {"float16": warm},
                "cold": {"float16": {"text_query_ms": cold, "memory_mb": 700}},
            },
            "large": {
                "items": 20_000,
                "exact": {"text_query_ms": exact, "memory_mb": 1500, "first_stage_ms": warm},
                "ivf": {
                    "text_query_ms": ivf,
                    "memory_mb": 1600,
                    "first_stage_ms": warm,
                    "recall_at_10": 0.99,
                },
                "ivf_cold": {"text_query_ms": ivf_cold},
            },
        },
    )
    assert large_table(tmp_path).splitlines()[2:] == [
        "| 1,000, float16, exact | 2.04 GB | 0.70 GB | 1, 11 ms | 0, 10 ms | – | – |",
        "| 20,000, 4bit, exact | 2.04 GB | 1.50 GB | 3, 13 ms | – | 1, 11 ms | – |",
        "| 20,000, 4bit, IVF | 2.04 GB | 1.60 GB | 4, 14 ms | 2, 12 ms | 1, 11 ms | 0.990 |",
    ]


def test_servers_under_load_have_a_line_for_one_client_and_for_all(tmp_path: Path) -> None:
    one, many = (
        {
            "clients": clients,
            "answers_per_second": 12.4,
            "search_ms": {"p50": 80.2, "p95": 120.6},
            "errors": errors,
        }
        for clients, errors in ((1, {}), (32, {"503": 2, "lost": 1}))
    )
    found = {"items": 2000, "one_client": one, "all_clients": many, "server_memory_mb": {"own": 1672}}
    for file in ("serve_load_million", "serve_load_postgres"):
        write_json(tmp_path / f"{file}.json", found)
    assert load_table(tmp_path).splitlines()[2:] == [
        f"| 2,000, {store} | {clients} | 12 | 80, 121 ms | {errors} | 1.67 GB |"
        for store in ("IVF", "PostgreSQL") for clients, errors in ((1, 0), (32, 3))
    ]  # fmt: skip
