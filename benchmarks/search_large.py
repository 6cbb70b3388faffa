"""Large indexes on two cores: coded beside float16, and a million images first searched by FAISS.

    python benchmarks/search_large.py --model RUN/model --embedding FOLDER [--beside 100000] [--items 1000000]
    python benchmarks/search_large.py --model src/pmpguard/models/default --ranking pooled+awareness ...

FOLDER is what `pmpguard embed` made of a dataset with captions by that model, such as RSICD's test split. Its
images are what large indexes are made of: a pooled vector is a random mixture of those of two images and
noise; fragments are mixed likewise for at most 20,000, and every item has those of one of them. The
embedding's captions are the queries, asked as text, end to end: encode, first stage, read and decode 100
candidates, re-rank, describe 20 hits. The indexes hold no captions: FAISS measures on images how far to look;
captions, which lie elsewhere, make it look on. --ranking replaces the model's: the default model ranks by
pooled vectors alone, and then there is nothing to re-rank by.

First `--beside` images as float16 and by a codec, both with the exact store, taking turns in one process;
then each in a fresh process after its files were dropped from the page cache (posix_fadvise). Then `--items`
images by the codec with the exact store and with IVF: bytes on disk, memory of a fresh process, times, and
recall of the first stage beside exact. Processor time stands beside the clock's: on a busy machine only that
says anything.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from pair_table_scale import commit, hardware
from search_scale import drop_from_cache, memory_mb, milliseconds
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.files import read_json, sha256_file, write_json
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.search.codec import CodecSpec
from pmpguard.search.index.changes import build_index
from pmpguard.search.index.coded_files import CODE_FOLDERS, Codecs, code_pooled, save_codecs
from pmpguard.search.index.coding import fit_codecs, sample_fragments
from pmpguard.search.index.embedding_files import (
    FOLDERS,
    PARTITIONS,
    EmbeddingSettings,
    Partition,
    file_name,
    open_metadata,
    write_embedding_manifest,
)
from pmpguard.search.index.model_identity import identify_model
from pmpguard.search.index.stored_vectors import open_vectors
from pmpguard.search.query import Query
from pmpguard.search.searcher import Searcher
from pmpguard.search.stores.exact import ExactIndex

PARTITION, DISTINCT, AT_ONCE = 10_000, 20_000, 1000
NOISE = 0.4  # length, beside the 1 of a mixture
SHORTLIST, HITS, ASKED = 100, 20, 200


class Mixtures:
    """Items of any number made of the images of an embedding."""

    def __init__(self, embedding: Path, codecs: Codecs, distinct: int, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        stored = open_vectors(embedding, "image")
        self.images, self.codecs = stored.take(np.arange(len(stored))), codecs
        parts: list[list[npt.NDArray[Any]]] = []
        for _ in range(0, distinct, AT_ONCE):
            fragments = self._mixed(self.images.fragments, AT_ONCE)
            mask = torch.ones(fragments.shape[:2], dtype=torch.bool)
            records = codecs["image"].encode(Encoded(fragments[:, 0], fragments, mask))
            parts.append([fragments.half().numpy(), records])
        self.fragments, self.records = (np.concatenate(column) for column in zip(*parts, strict=True))

    def _mixed(self, vectors: Tensor, count: int) -> Tensor:
        """(count, ..., d) mixtures of two of the vectors each, and noise."""
        one, other = (torch.randint(len(vectors), (count,), generator=self.generator) for _ in range(2))
        share = torch.rand(count, *[1] * (vectors.dim() - 1), generator=self.generator)
        noise = torch.randn(count, *vectors.shape[1:], generator=self.generator)
        mixed = share * vectors[one] + (1 - share) * vectors[other]
        return normalize(mixed + NOISE / vectors.shape[-1] ** 0.5 * noise, dim=-1)

    def write(self, folder: Path, model: Path, count: int, coded: bool) -> None:
        """An embedding of items as `pmpguard embed` would write it, or as an index holds it when coded."""
        folder.mkdir()
        EmbeddingSettings(identify_model(model), str(model), "/synthetic").write(folder)
        emb, fragments, mask, table = FOLDERS["image"]
        (folder / PARTITIONS).mkdir()
        for number, start in enumerate(range(0, count, PARTITION)):
            size = min(PARTITION, count - start)
            pooled = self._mixed(self.images.pooled, size)
            rows = torch.randint(len(self.records), (size,), generator=self.generator).numpy()
            if coded:
                arrays = {emb: code_pooled(pooled), CODE_FOLDERS["image"]: self.records[rows]}
            else:
                shown = self.fragments[rows]
                arrays = {emb: pooled.numpy(), fragments: shown, mask: np.ones(shown.shape[:2], bool)}
            names = [f"tile-{place:08d}" for place in range(start, start + size)]
            metadata = pa.table({"id": names, "image": names, "caption": pa.nulls(size, pa.string())})
            files = [file_name(name, number) for name in arrays]
            for file, array in zip(files, arrays.values(), strict=True):
                (folder / file).parent.mkdir(exist_ok=True)
                np.save(folder / file, array, allow_pickle=False)
            files.append(file_name(table, number, "parquet"))
            (folder / files[-1]).parent.mkdir(exist_ok=True)
            pq.write_table(metadata, folder / files[-1], compression="zstd")
            receipt = Partition(number, size, 0, (), {file: sha256_file(folder / file) for file in files})
            write_json(folder / PARTITIONS / f"{number:04d}.json", asdict(receipt))
        if coded:
            save_codecs(self.codecs, folder)
        write_embedding_manifest(folder)


def ask(searcher: Searcher, text: str) -> None:
    assert len(searcher.search(Query(text), HITS, SHORTLIST)) == HITS


def alternate(indexes: list[Path], texts: list[str]) -> dict[str, Any]:
    """The same queries to several indexes in one process, taking turns; the first ones are not counted."""
    searchers = {path.name: Searcher.open(path) for path in indexes}
    taken: dict[str, list[float]] = {name: [] for name in searchers}
    processor: dict[str, list[float]] = {name: [] for name in searchers}
    for text in texts:
        for name, searcher in searchers.items():
            clocks = time.perf_counter(), time.process_time()
            ask(searcher, text)
            taken[name].append(1000 * (time.perf_counter() - clocks[0]))
            processor[name].append(1000 * (time.process_time() - clocks[1]))
    skipped = len(texts) // 10
    return {
        name: {
            **dict(
                zip(("p50", "p95"), np.quantile(taken[name][skipped:], (0.5, 0.95)).round(1), strict=True)
            ),
            "mean_processor": round(float(np.mean(processor[name][skipped:])), 1),
        }
        for name in searchers
    }


def fresh(index: Path, texts: list[str], first_stage: bool) -> dict[str, Any]:
    """In a process of its own: opening, the first queries, memory, and the first stage beside exact."""
    started = time.perf_counter()
    searcher = Searcher.open(index)
    row: dict[str, Any] = {"open_seconds": round(time.perf_counter() - started, 1)}
    for text in texts[:20]:
        searcher.encode_query(Query(text))
    row["text_query_ms"] = milliseconds(lambda text: ask(searcher, text), texts[20:])
    row["memory_mb"] = memory_mb()["own"]
    if first_stage:
        queries = [searcher.encode_query(Query(text)).vector[None] for text in texts[20:70]]
        store = searcher.opened.version.vector_index("image")
        row["first_stage_ms"] = milliseconds(lambda query: store.search(query, SHORTLIST), queries)
        if not isinstance(store, ExactIndex):
            exact = ExactIndex.load(searcher.opened.version.images.items(""))
            pairs = [
                (store.search(one, SHORTLIST).rows[0], exact.search(one, SHORTLIST).rows[0])
                for one in queries
            ]
            row["recall_at_10"] = float(np.mean([len(set(a[:10]) & set(b[:10])) / 10 for a, b in pairs]))
            row["recall_at_100"] = float(np.mean([len(set(a) & set(b)) / SHORTLIST for a, b in pairs]))
            row["exact_first_stage_ms"] = milliseconds(lambda query: exact.search(query, SHORTLIST), queries)
    return row


def apart(index: Path, embedding: Path, threads: int, *words: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--fresh", str(index), "--embedding", str(embedding)]
    calm = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE"}
    command += ["--model", "-", "--threads", str(threads), *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=calm)
    return dict(json.loads(done.stdout))


def disk_mb(index: Path) -> dict[str, float]:
    """Of the segments, and of what a store keeps beside them; the model is not counted."""
    found = {}
    for part in ("segments", "versions"):
        sizes = {
            (path.stat().st_ino, path.stat().st_size) for path in (index / part).rglob("*") if path.is_file()
        }
        found[part] = round(sum(size for _, size in sizes) / 1e6, 1)
    return found


def captions_of(embedding: Path) -> list[str]:
    """Different ones to ask with."""
    captions = sorted(set(open_metadata(embedding, "caption")["caption"].to_pylist()))
    return [captions[place] for place in np.random.default_rng(0).permutation(len(captions))[: ASKED + 20]]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--embedding", type=Path, required=True)
    parser.add_argument("--ranking", help="in place of the model's")
    parser.add_argument("--codec", default="4bit-128d-25r")
    parser.add_argument("--beside", type=int, default=100_000)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a new folder in which the large index with IVF stays")
    parser.add_argument("--folder", type=Path, help="where indexes are made; a temporary folder by default")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "search_large.json")
    parser.add_argument("--fresh", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--first-stage", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    texts = captions_of(options.embedding)
    if options.fresh:
        print(json.dumps(fresh(options.fresh, texts, options.first_stage)))
        return
    stored = {kind: open_vectors(options.embedding, kind) for kind in FOLDERS}
    codecs = fit_codecs(
        CodecSpec.parse(options.codec), {kind: sample_fragments(vectors) for kind, vectors in stored.items()}
    )
    retriever = Retriever.load(options.model)
    retriever.config = replace(retriever.config, ranking=options.ranking or retriever.config.ranking)
    row: dict[str, Any] = {"codec": options.codec, "seed": 0, "re_ranked": SHORTLIST, "queries": ASKED}
    row |= {name: getattr(retriever.config, name) for name in ("vision", "text", "dim", "ranking")}
    row |= {
        "threads": options.threads,
        "torch": torch.__version__,
        "commit": commit(),
        "hardware": hardware(),
    }

    def write() -> None:
        write_json(options.out, {**row, "load_at_end": list(os.getloadavg())})

    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        model = folder / "model"
        retriever.save(model)
        distinct = min(DISTINCT, max(options.beside, options.items))
        mixtures = Mixtures(options.embedding, codecs, distinct, 0)

        def make(count: int, called: str, coded: bool, backend: Any = "exact") -> Path:
            mixtures.write(folder / "emb", model, count, coded)
            started = time.perf_counter()
            build_index(folder / called, folder / "emb", model=model, backend=backend)
            shutil.rmtree(folder / "emb")
            row.setdefault("build_seconds", {})[called] = round(time.perf_counter() - started, 1)
            row.setdefault("disk_mb", {})[called] = disk_mb(folder / called)
            print(called, row["build_seconds"], row["disk_mb"], flush=True)
            return folder / called

        if options.beside:
            pair = [make(options.beside, "float16", False), make(options.beside, "coded", True)]
            row["beside"] = {"items": options.beside, "warm_ms": alternate(pair, texts), "cold": {}}
            for index in pair:
                drop_from_cache(index)
                row["beside"]["cold"][index.name] = apart(index, options.embedding, options.threads)
            write()
            shutil.rmtree(folder / "float16")
            shutil.rmtree(folder / "coded")
        if options.items:
            large = make(options.items, "large", True)
            first = ("--first-stage",)
            row["large"] = {"items": options.items}
            row["large"]["exact"] = apart(large, options.embedding, options.threads, *first)
            write()
            started = time.perf_counter()
            build_index(large, large / "segments/000001", model=model, backend="ivf")
            row["build_seconds"]["ivf"] = round(time.perf_counter() - started, 1)
            row["disk_mb"]["ivf"] = disk_mb(large)
            row["large"]["looks_at"] = read_json(next((large / "versions").glob("*/images.ivf.json")))
            row["large"]["ivf"] = apart(large, options.embedding, options.threads, *first)
            drop_from_cache(large)
            row["large"]["ivf_cold"] = apart(large, options.embedding, options.threads)
            write()
            if options.keep:
                shutil.move(large, options.keep)


if __name__ == "__main__":
    main()
