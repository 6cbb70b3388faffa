"""Tables of the documents on search, from the JSON files that benchmarks wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pmpguard.files import read_json
from tools.docs_audit import markdown_table

STORES = {
    "exact": "exact", "postgres": "PostgreSQL", "faiss_ivf": "FAISS IVF", "faiss_hnsw": "FAISS HNSW",
    "usearch_f16": "usearch, half floats", "usearch_i8": "usearch, bytes",
}  # fmt: skip


LOADS = {"serve_load_million": "IVF", "serve_load_postgres": "PostgreSQL"}
NAMED = {"float16": "float16, exact", "coded": "{codec}, exact", "exact": "{codec}, exact"}
NAMED |= {"ivf": "{codec}, IVF"}


def large_table(results: Path) -> str:
    """Bytes, memory and times of large indexes; warm ones beside each other, then each in a fresh process."""
    found = read_json(results / "search_large.json")

    def line(items: int, what: str, one: dict[str, Any], warm: Any, cold: Any) -> list[str]:
        megabytes = sum(found["disk_mb"]["large" if what == "exact" else what].values())
        first = one.get("first_stage_ms")
        return [
            f"{items:,}, {NAMED[what].format(codec=found['codec'])}",
            f"{megabytes / 1000:.2f} GB",
            f"{one['memory_mb'] / 1000:.2f} GB",
            _times(warm),
            "–" if cold is None else _times(cold),
            "–" if first is None else _times(first),
            f"{one['recall_at_10']:.3f}" if "recall_at_10" in one else "–",
        ]

    rows, beside, large = [], found.get("beside"), found.get("large")
    for what, one in beside["cold"].items() if beside else ():
        rows.append(line(beside["items"], what, one, beside["warm_ms"][what], one["text_query_ms"]))
    for what, cold in (("exact", None), ("ivf", large["ivf_cold"]["text_query_ms"])) if large else ():
        rows.append(line(large["items"], what, large[what], large[what]["text_query_ms"], cold))
    heads = (
        "images, vectors, store", "on disk", "memory of its own", "text query, p50 and p95", "from disk",
        "first stage", "its recall@10",
    )  # fmt: skip
    return markdown_table(heads, rows)


def _times(row: dict[str, float]) -> str:
    return f"{row['p50']:.0f}, {row['p95']:.0f} ms"


def codecs_table(results: Path) -> str:
    """Bytes, agreement and recalls of every codec, the largest first."""
    found = sorted(read_json(results / "search_codecs.json")["codecs"], key=lambda row: -row["image_bytes"])
    rows = [
        [
            f"`{row['codec']}`",
            f"{row['image_bytes']:,}",
            *(f"{row[kind]:.3f}" if kind in row else "–" for kind in ("agreement", "same_best")),
            *(
                f"{row[kind]['mr']:.2f}" + (f" ({row['within'][kind]:+.2f})" if "within" in row else "")
                for kind in ("all", "shortlist")
            ),
        ]
        for row in found
    ]
    heads = (
        "codec",
        "bytes an image",
        "agreement",
        "same first hit",
        "mR, all pairs",
        "mR, shortlist of 100",
    )
    return markdown_table(heads, rows)


def stores_table(results: Path) -> str:
    """Recall and time of every store without and with filters; a dash where one cannot filter."""
    found = read_json(results / "postgres_store.json")["filters"]
    named = [(key, name) for key, name in STORES.items() if key in found["none"]]

    def cell(row: dict[str, float] | None) -> str:
        return "–" if row is None else f"{row['recall_at_10']:.3f}, {row['p50_ms']:.1f} ms"

    rows = [
        [filters, f"{row['passing']:,}", *(cell(row.get(key)) for key, _ in named)]
        for filters, row in sorted(found.items(), key=lambda item: -item[1]["passing"])
    ]
    return markdown_table(["filter", "rows that pass", *(name for _, name in named)], rows)


def load_table(results: Path) -> str:
    """Responses, times and errors of servers under load, and their memory."""
    rows = []
    for file, store in LOADS.items():
        found = read_json(results / f"{file}.json")
        for name in ("one_client", "all_clients"):
            part = found[name]
            rows.append(
                [
                    f"{found['items']:,}, {store}",
                    f"{part['clients']}",
                    f"{part['answers_per_second']:.0f}",
                    _times(part["search_ms"]),
                    f"{sum(part['errors'].values())}",
                    f"{found['server_memory_mb']['own'] / 1000:.2f} GB",
                ]
            )
    heads = (
        "images, store",
        "clients",
        "responses a second",
        "search, p50 and p95",
        "errors",
        "memory of its own",
    )
    return markdown_table(heads, rows)


def default_head_table(results: Path) -> str:
    """The default model on what it was fitted beside and on what it never saw."""
    found = read_json(results / "default_head.json")
    test, unseen = found["rsicd_test"], found["unseen_all"]
    rows = [
        ["RSICD test, mR", f"{test['mr']:.2f}"],
        ["RSICD test, names of its classes: precision at 10", f"{test['class_precision_at_10']:.2f}"],
        ["UCM, names of its classes: precision at 10", f"{unseen['class_precision_at_10']:.2f}"],
        ["UCM test, mR", f"{found['unseen_test']['mr']:.2f}"],
    ]
    return markdown_table(["", "measured"], rows)
