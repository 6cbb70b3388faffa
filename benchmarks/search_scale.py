"""Searching many images on two cores: text queries, the first stage beside FAISS, memory, adding.

    python benchmarks/search_scale.py [--items 100000] [--threads 2] [--keep FOLDER] [--out FILE.json]

Makes an index of synthetic items below a temporary folder (49 fragments of dimension 512 each: 5 GB for
100,000) with the `light` encoders, whose weights are needed (`pip install 'pmpguard[weights]'`). A fresh
process then opens it and answers text queries end to end: encode the text, compare it with all pooled
vectors, read and re-rank 100 candidates, describe 20 hits. Fragments stay on disk, mapped; they are counted
apart from the memory the process needs. The same queries are asked again after the files were dropped from
the page cache. Then the index grows: by embedded items, and by images of the synthetic scenes, written as PNG
files, whose embedding and adding are timed apart. `--keep` leaves the index, as FOLDER/index, to
`serve_load.py --index`.
Processor time is given beside the clock's: on a busy machine only the former says anything.

Threads of the measured process wait without spinning (OMP_WAIT_POLICY=PASSIVE), as those of `pmpguard search`
and `pmpguard serve` do: spinning threads slow queries down as soon as anything else wants one of two cores.
Answering every query with one thread is measured too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pair_table_scale import commit, hardware
from PIL import Image
from torch.nn.functional import normalize

from pmpguard.models.config import preset
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.search.embed import embed_source
from pmpguard.search.index.changes import add_to_index, build_index
from pmpguard.search.index.embedding_files import EmbeddingSettings, write_embedding_manifest, write_partition
from pmpguard.search.index.model_identity import identify_model
from pmpguard.search.query import Filters, Query
from pmpguard.search.searcher import Searcher
from pmpguard.search.sources import open_source
from pmpguard.synthetic.scenes import synthetic_scenes

REGIONS, PARTITION = 49, 1000
PIXELS = 256  # a side of a drawn image
SHORTLIST, HITS = 100, 20
LABELS = ("airport", "harbour", "farmland", "forest", "river", "stadium", "parking", "beach")
WHAT = ("planes", "ships", "houses", "trees", "cars", "storage tanks", "tennis courts", "ponds", "roads")
HOW = ("many", "two", "some green", "several white", "a row of", "a few small", "dense")
WHERE = (
    "beside a long building",
    "near a river",
    "in the middle of a field",
    "around a square",
    "by the sea",
)


def texts(count: int) -> list[str]:
    """Different queries of five to ten words."""
    every = [f"{how} {what} {where}" for how in HOW for what in WHAT for where in WHERE]
    order = np.random.default_rng(0).permutation(len(every))
    return [every[place] for place in order[:count]]


def write_synthetic(folder: Path, model: Path, first: int, count: int, dim: int) -> None:
    """An embedding of random items, as `pmpguard embed` would write it."""
    folder.mkdir()
    EmbeddingSettings(identify_model(model), str(model), "/synthetic").write(folder)
    generator = torch.Generator().manual_seed(first)
    topics = torch.randn(200, dim, generator=generator)
    for number, start in enumerate(range(first, first + count, PARTITION)):
        size = min(PARTITION, first + count - start)
        fragments = torch.randn(size, REGIONS, dim, generator=generator)
        fragments += topics[torch.randint(200, (size, 1), generator=generator)]
        fragments = normalize(fragments, dim=-1)  # (n, regions, d)
        pooled = normalize(fragments.mean(1), dim=-1)  # (n, d)
        places = range(start, start + size)
        metadata = pa.table(
            {
                "id": [f"tile-{place:07d}" for place in places],
                "image": [f"tile-{place:07d}.png" for place in places],
                "caption": pa.nulls(size, pa.string()),
                "label": [LABELS[place % len(LABELS)] for place in places],
                "west": [place % 360 - 180.0 for place in places],
                "south": [place % 170 - 85.0 for place in places],
                "east": [place % 360 - 179.0 for place in places],
                "north": [place % 170 - 84.0 for place in places],
            }
        )
        encoded = Encoded(pooled, fragments, torch.ones(size, REGIONS, dtype=torch.bool))
        write_partition(folder, number, {"image": (encoded, metadata)}, [])
    write_embedding_manifest(folder)


def milliseconds(work: Callable[[Any], Any], inputs: list[Any]) -> dict[str, float]:
    """Middle and slow end of how long single calls take, and the processors' time on average."""
    taken = []
    processor = time.process_time()
    for value in inputs:
        started = time.perf_counter()
        work(value)
        taken.append(1000 * (time.perf_counter() - started))
    processor = time.process_time() - processor
    return {
        "p50": round(float(np.median(taken)), 1),
        "p95": round(float(np.quantile(taken, 0.95)), 1),
        "mean_processor": round(1000 * processor / len(taken), 1),
        "calls": len(taken),
    }


def memory_mb() -> dict[str, float]:
    """What the process holds itself, and what of mapped files happens to be in memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) / 1000 for line in lines if line.startswith("Rss")}
    return {"own": round(found["RssAnon"]), "mapped_files": round(found["RssFile"])}


def drop_from_cache(folder: Path) -> None:
    for path in folder.rglob("*.npy"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure(index: Path, threads: int) -> dict[str, Any]:
    """Open the index in this process and ask."""
    torch.set_num_threads(threads)
    started = time.perf_counter()
    searcher = Searcher.open(index)
    opened = time.perf_counter() - started
    asked = texts(220)

    def ask(text: str) -> None:
        found = searcher.search(Query(text), HITS, SHORTLIST)
        assert len(found) == HITS

    milliseconds(ask, asked[:20])
    row: dict[str, Any] = {"open_seconds": round(opened, 2), "text_query_ms": milliseconds(ask, asked[20:])}
    row["memory_mb_after_queries"] = memory_mb()
    torch.set_num_threads(1)
    row["text_query_one_thread_ms"] = milliseconds(ask, asked[20:])
    torch.set_num_threads(threads)
    row["text_query_with_filters_ms"] = milliseconds(
        lambda text: searcher.search(
            Query(text),
            HITS,
            SHORTLIST,
            Filters(box=(0, -40, 90, 60), columns={"label": ("harbour", "river")}),
        ),
        asked[20:80],
    )
    batches = [[Query(text) for text in asked[start : start + 16]] for start in range(0, 96, 16)]
    row["batch_of_16_ms"] = milliseconds(lambda batch: searcher.search_many(batch, HITS, SHORTLIST), batches)
    encoded = [searcher.encode_query(Query(text)).vector[None] for text in asked]
    row["encode_text_ms"] = milliseconds(lambda text: searcher.encode_query(Query(text)), asked[20:80])
    images = searcher.opened.version.images
    exact = searcher.opened.version.vector_index("image")
    row["first_stage_ms"] = milliseconds(lambda query: exact.search(query, SHORTLIST), encoded[20:80])
    row["faiss_flat"] = against_faiss(exact, encoded, images.vectors.all_pooled(), threads)
    return row


def measure_cold(index: Path, threads: int) -> dict[str, Any]:
    """Ask with the fragments on disk only; page faults that had to wait for it say that they were."""
    torch.set_num_threads(threads)
    searcher = Searcher.open(index)
    asked = texts(120)
    for text in asked[:20]:
        searcher.encode_query(Query(text))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
    row = milliseconds(lambda text: searcher.search(Query(text), HITS, SHORTLIST), asked[20:])
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before
    return {**row, "waits_for_the_disk_per_query": round(faults / 100, 1)}


def against_faiss(exact: Any, queries: list[Any], vectors: Any, threads: int) -> dict[str, Any] | str:
    """The first stage beside FAISS Flat, taking turns, one query and 32 at a time."""
    try:
        import faiss
    except ImportError:
        return "faiss is not installed"
    faiss.omp_set_num_threads(threads)
    flat = faiss.IndexFlatIP(vectors.shape[1])
    flat.add(vectors)
    result: dict[str, Any] = {}
    for size in (1, 32):
        ours, theirs, same = [], [], []
        for start in range(0, 6 * 32, max(size, 8)):
            some = np.concatenate(queries[start : start + size])
            begun = time.perf_counter()
            found = exact.search(some, SHORTLIST)
            middle = time.perf_counter()
            _, rows = flat.search(some, SHORTLIST)
            ours.append(1000 * (middle - begun))
            theirs.append(1000 * (time.perf_counter() - middle))
            same += [
                len(set(a) & set(b)) / SHORTLIST
                for a, b in zip(found.rows.tolist(), rows.tolist(), strict=True)
            ]
        result[f"queries_{size}"] = {
            "exact_ms": round(float(np.median(ours)), 1),
            "faiss_flat_ms": round(float(np.median(theirs)), 1),
            "faiss_over_exact": round(float(np.median(np.array(theirs) / np.array(ours))), 2),
            "shared_hits": round(float(np.mean(same)), 5),
        }
    return result


def add_images(folder: Path, index: Path, model: Path, count: int) -> dict[str, Any]:
    """Draw images, write them as PNG files, embed them and add them to the index, as `index add` does."""
    images = folder / "images"
    images.mkdir()
    for number, image in enumerate(synthetic_scenes(count, size=PIXELS).images):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(images / f"scene-{number:06d}.png")
    started = time.perf_counter()
    report = embed_source(open_source(images), model, folder / "drawn", progress=False)
    embedded = time.perf_counter()
    change = add_to_index(index, folder / "drawn")
    added = time.perf_counter()
    assert report.images == change.added == count and not report.problems
    return {
        "images": count,
        "pixels_a_side": PIXELS,
        "embed_seconds": round(embedded - started, 2),
        "add_seconds": round(added - embedded, 2),
        "items_afterwards": change.count,
    }


@contextmanager
def workplace(keep: Path | None, parent: Path | None) -> Iterator[Path]:
    """The folder to keep, in which there must be no index yet, or one that goes when all is done."""
    if keep is None:
        with tempfile.TemporaryDirectory(dir=parent) as name:
            yield Path(name)
        return
    if keep.exists() and any(keep.iterdir()):
        raise SystemExit(f"{keep} is not empty: choose another folder")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep
    for name in ("emb", "more", "drawn", "images", "model"):  # the index has its own copies
        shutil.rmtree(keep / name)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--added", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--images", type=int, default=1000, help="to embed and add")
    parser.add_argument("--keep", type=Path, help="a new folder for the index, which then stays")
    parser.add_argument("--folder", type=Path, help="where to make the index; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "search_scale.json")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--cold", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        work = measure_cold if options.cold else measure
        print(json.dumps(work(options.measure, options.threads)))
        return
    torch.set_num_threads(options.threads)
    with workplace(options.keep, options.folder) as folder:
        model, config = folder / "model", preset("light")
        Retriever.create(config).save(model)
        write_synthetic(folder / "emb", model, 0, options.items, config.dim)
        started = time.perf_counter()
        build_index(folder / "index", folder / "emb")
        build_seconds = time.perf_counter() - started
        command = [
            sys.executable,
            __file__,
            "--measure",
            str(folder / "index"),
            "--threads",
            str(options.threads),
        ]
        calm = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=calm)
        drop_from_cache(folder / "index")  # which nobody maps now
        cold = subprocess.run([*command, "--cold"], stdout=subprocess.PIPE, text=True, check=True, env=calm)
        write_synthetic(folder / "more", model, options.items, options.added, config.dim)
        started = time.perf_counter()
        add_to_index(folder / "index", folder / "more")
        add_seconds = time.perf_counter() - started
        drawn = add_images(folder, folder / "index", model, options.images)
    measured = json.loads(done.stdout)
    measured["text_query_fragments_not_in_memory_ms"] = json.loads(cold.stdout)
    row = {
        "items": options.items,
        "regions": REGIONS,
        "dim": config.dim,
        "fragments_gb_on_disk": round(options.items * REGIONS * config.dim * 2 / 1e9, 2),
        "encoders": "light",
        "re_ranked": SHORTLIST,
        **measured,
        "build_index_seconds": round(build_seconds, 2),
        "add_embedded_items": options.added,
        "add_seconds": round(add_seconds, 2),
        "add_images": drawn,
        "aim": "text query under 150 ms at p95, under 1500 MB of own memory",
        "met": measured["text_query_ms"]["p95"] < 150 and measured["memory_mb_after_queries"]["own"] < 1500,
        "threads": options.threads,
        "torch": torch.__version__,
        "load_at_end": list(os.getloadavg()),
        "commit": commit(),
        "hardware": hardware(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(row, indent=2) + "\n")
    print(json.dumps(row, indent=2))


if __name__ == "__main__":
    main()
