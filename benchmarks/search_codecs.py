"""What a codec costs in recall: fragments coded and decoded, every image of a split ranked again.

    python benchmarks/search_codecs.py --model RUN/model --dataset DATA [--split test] [--codecs 4bit,...]

The split's images and captions are embedded as `pmpguard embed` writes them. Every codec is fitted on the
split's own fragments, as `pmpguard index build --codec` does; then all images go through it, pooled vectors
too, and are ranked for every caption, and captions for every image: by the model's score of all pairs, and
with a shortlist of 100. Captions stay as they were embedded. Beside the recalls stand the bytes an image
takes in the index (pooled vector, fragments), the agreement that `pmpguard index tune` measures on 200 of
the captions, and processor time of coding and decoding. `within` is how far mR lies from that of float16.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pair_table_scale import commit, hardware

from pmpguard.data.formats import read_pairs
from pmpguard.evaluation.evaluate import evaluate_scores
from pmpguard.files import write_json
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.search.codec import CodecSpec, FragmentCodec, fit_codec
from pmpguard.search.embed import embed_source
from pmpguard.search.index.coded_files import code_pooled, decode_pooled
from pmpguard.search.index.coding import sample_fragments
from pmpguard.search.index.stored_vectors import open_vectors
from pmpguard.search.index.tuning import choose_codec
from pmpguard.search.query import Kind
from pmpguard.search.sources import source_of_pairs

SHORTLIST = 100
CODECS = "4bit-128d-25r,2bit-128d-16r,4bit-96d-16r,4bit-128d,4bit,int8,4bit-64d"


def coded(codec: FragmentCodec, images: Encoded) -> tuple[Encoded, dict[str, float]]:
    """The images through the codec, and processor milliseconds of an image each way."""
    started = time.process_time()
    records = codec.encode(images)
    middle = time.process_time()
    fragments, mask = codec.decode(records)
    end = time.process_time()
    pooled = torch.from_numpy(decode_pooled(code_pooled(images.pooled)))
    taken = {"encode_ms": 1000 * (middle - started), "decode_ms": 1000 * (end - middle)}
    return Encoded(pooled, fragments, mask), {
        name: round(value / len(images), 3) for name, value in taken.items()
    }


def recalls(model: Retriever, texts: Encoded, images: Encoded, table: Any) -> dict[str, Any]:
    scores = model.score(texts, images)  # (T, I)
    short = with_shortlist(texts.pooled @ images.pooled.T, scores)
    found = {"all": evaluate_scores(scores, table), "shortlist": evaluate_scores(short, table)}
    return {
        name: {key: round(value, 3) for key, value in row.as_dict().items()} for name, row in found.items()
    }


def with_shortlist(pooled: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """(T, I): scores where either side's pooled shortlist holds the pair, pooled order below it elsewhere."""
    chosen = torch.zeros_like(pooled, dtype=torch.bool)
    for dim in (0, 1):
        chosen.scatter_(dim, pooled.topk(min(SHORTLIST, pooled.shape[dim]), dim=dim).indices, True)
    return torch.where(chosen, scores, scores[chosen].min() - 4 + pooled)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--split", default="test")
    parser.add_argument("--codecs", default=CODECS)
    parser.add_argument("--captions", type=int, help="of an image, the first ones; all by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--embedding", type=Path, help="the split's, where it is made already")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "search_codecs.json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = Retriever.load(options.model)
    table = read_pairs(options.dataset).split(options.split)
    every = np.arange(len(table))
    if options.captions:
        order = every - table.first_rows[table.image_codes]  # of a caption among its image's
        every = np.flatnonzero(order < options.captions)
    with tempfile.TemporaryDirectory() as place:
        embedding = options.embedding or Path(place) / "emb"
        embed_source(source_of_pairs(table), options.model, embedding, progress=False)
        kinds: tuple[Kind, ...] = ("image", "caption")
        vectors = {kind: open_vectors(embedding, kind) for kind in kinds}
        images = vectors["image"].take(np.arange(len(vectors["image"])))
        texts, shown_table = vectors["caption"].take(every), table.take(every.tolist())
        names = options.codecs.split(",")
        rows = {kind: np.arange(len(stored)) for kind, stored in vectors.items()}
        choice, _ = choose_codec(model, vectors, rows, names=names)
        sample = sample_fragments(vectors["image"])
    measured = {row.codec: row for row in choice.table}
    uncoded = recalls(model, texts, images, shown_table)
    found: list[dict[str, Any]] = [
        {"codec": "float16", "image_bytes": measured["float16"].image_bytes, **uncoded}
    ]
    result = {
        "dataset": table.name,
        "split": options.split,
        "images": len(images),
        "captions": len(texts),
        "regions": images.mask.shape[1],
        "dim": images.pooled.shape[1],
        "ranking": model.config.ranking,
        "vision": model.config.vision,
        "text": model.config.text,
        "re_ranked": SHORTLIST,
        "chosen_for_agreement": {"target": choice.target, "codec": choice.codec},
        "goals": "at most 3,500 bytes with mR within 0.2 of float16, at most 1,500 within 0.5",
        "seed": 0,
        "threads": options.threads,
        "torch": torch.__version__,
        "commit": commit(),
        "hardware": hardware(),
        "codecs": found,
    }
    for name in names:
        codec = fit_codec(CodecSpec.parse(name), sample)
        shown, taken = coded(codec, images)
        row = recalls(model, texts, shown, shown_table)
        within = {kind: round(row[kind]["mr"] - uncoded[kind]["mr"], 3) for kind in row}
        tuned = measured[name]
        found.append(
            {
                "codec": name, "image_bytes": tuned.image_bytes, "agreement": tuned.agreement,
                "agreement_at_least": tuned.low, "same_best": tuned.same_best, "within": within,
                **taken, **row,
            }
        )  # fmt: skip
        print(json.dumps(found[-1]), flush=True)
        write_json(options.out, {**result, "load_at_end": list(os.getloadavg())})


if __name__ == "__main__":
    main()
