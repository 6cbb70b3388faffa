"""Choosing the smallest codec that still answers as float16 does, measured on an index's own queries.

A query is asked as a search asks it: the nearest images by pooled vectors, of all images, then the best ten
of those by the model's own score; where that reads no fragments, they count beside it. *Agreement* is the
share of the ten best by float16 that are among the ten best by the codec, on average over the queries.
Queries are captions of the index; where it has none, images take their place: some regions of an image stand
for the words of a caption, and it does not count itself.

Half of the queries choose and the other half measure, so that the agreement on record is not the one that was
selected for. A codec is chosen when the 95 % lower confidence bound of its agreement in the first half
(bootstrap over the queries) reaches the target.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.errors import ConfigError, DataError
from pmpguard.models.config import Ranking
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.progress import progress_bar
from pmpguard.search.codec import CodecSpec
from pmpguard.search.index.coded_files import Codecs, code_pooled, decode_pooled
from pmpguard.search.index.coding import fit_codecs, sample_fragments
from pmpguard.search.index.stored_vectors import StoredVectors
from pmpguard.search.query import Kind
from pmpguard.stable_random import StableRandom

UNCODED = "float16"
AUTO = "auto"
AGREEMENT = 0.9  # asked for by default
HITS, SHORTLIST = 10, 100
QUERIES = 200
MAX_SEARCHED = 200_000  # images whose pooled vectors a query is compared with
WORDS = 8  # regions of an image that stand for a caption
ROWS_AT_ONCE = 256
RESAMPLES, LOWER = 2000, 0.05
BITS = ((8, 1), (4, 1), (4, 2), (4, 4), (2, 4))  # and the part of the dimensions that is kept
REGIONS = (None, 25, 16, 9)


@dataclass(frozen=True)
class Measured:
    """A codec beside float16."""

    codec: str
    image_bytes: int  # pooled vector and fragments
    low: float  # lower confidence bound of the agreement in the half that chooses
    agreement: float  # in the half that measures
    same_best: float  # share of its queries with the same first hit


@dataclass(frozen=True)
class CodecChoice:
    """The codec to use, and what it was chosen from."""

    codec: str
    target: float
    queries: Literal["captions", "images"]
    query_count: int
    images: int
    seed: int
    table: tuple[Measured, ...]

    @property
    def chosen(self) -> Measured:
        return next(row for row in self.table if row.codec == self.codec)

    def described(self) -> dict[str, Any]:
        """What the version records."""
        row = asdict(self.chosen)
        name = row.pop("codec")
        measured = {"queries": self.queries, "query_count": self.query_count, "searched": self.images}
        return {"name": name, "seed": self.seed, "target": self.target, **row, **measured}

    def as_text(self) -> str:
        lines = [f"{'codec':<16} {'bytes an image':>14} {'agreement':>10} {'at least':>9} {'same best':>10}"]
        for row in self.table:
            mark = " <-" if row.codec == self.codec else ""
            lines.append(
                f"{row.codec:<16} {row.image_bytes:>14,} {row.agreement:>10.3f} {row.low:>9.3f} "
                f"{row.same_best:>10.3f}{mark}"
            )
        what = "captions of the index" if self.queries == "captions" else "images in place of captions"
        return "\n".join(
            [
                *lines,
                f"{self.query_count} queries ({what}) over {self.images:,} images, target {self.target:g}",
            ]
        )


def ladder(dim: int, regions: int) -> list[CodecSpec]:
    """Codecs worth trying for vectors of this dimension and images of so many regions."""
    return [
        CodecSpec(bits, None if part == 1 else dim // part, count)
        for bits, part in BITS
        for count in (REGIONS if part > 1 else (None,))
        if count is None or count < regions
    ]


def choose_codec(
    model: Retriever,
    vectors: Mapping[Kind, StoredVectors],
    rows: Mapping[Kind, npt.NDArray[np.int64]],
    *,
    names: Sequence[str] = (),
    target: float = AGREEMENT,
    seed: int = 0,
    progress: bool = False,
) -> tuple[CodecChoice, Codecs]:
    """Measure codecs on the given rows of an uncoded embedding; the smallest that reaches the target.

    `names` says which, by default the ladder; one name alone is measured and chosen whatever comes out. Where
    none reaches the target the choice is float16, and there are no codecs.
    """
    if not 0 < target <= 1:
        raise ConfigError(f"agreement {target} is no share", fix="give one above 0 and up to 1, such as 0.9")
    images = vectors["image"]
    if images.codec is not None:
        fix = "build the index again from its embeddings, with another --codec"
        raise DataError("the index is coded already, and float16 is gone", fix=fix)
    if not len(rows["image"]):
        raise DataError("no images to measure codecs on", fix="embed some first")
    specs = [CodecSpec.parse(name) for name in names]
    specs = specs or ladder(images.dim, images.fragments[0].shape[1])
    samples: dict[Kind, Any] = {kind: sample_fragments(stored) for kind, stored in vectors.items()}
    codecs = {spec.name: fit_codecs(spec, samples, seed) for spec in specs}
    table, count, searched = _measured(model, vectors, rows, codecs, seed, progress)
    fits = [row for row in table if row.low >= target or len(names) == 1]
    best = min((row for row in fits if row.codec in codecs), key=lambda row: row.image_bytes, default=None)
    name = UNCODED if best is None else best.codec
    queries: Literal["captions", "images"] = "captions" if len(rows["caption"]) else "images"
    choice = CodecChoice(name, target, queries, count, searched, seed, tuple(table))
    return choice, codecs.get(name, {})


def _measured(
    model: Retriever,
    vectors: Mapping[Kind, StoredVectors],
    rows: Mapping[Kind, npt.NDArray[np.int64]],
    codecs: Mapping[str, Codecs],
    seed: int,
    progress: bool,
) -> tuple[list[Measured], int, int]:
    """A row for float16 and every codec, the number of queries and of images."""
    images, draws = vectors["image"], StableRandom("codec queries", seed)
    searched = np.sort(rows["image"][draws.choice(len(rows["image"]), MAX_SEARCHED)])
    queries, own = _queries(vectors, rows, searched, draws)
    pooled = torch.from_numpy(images.all_pooled()[searched])  # (S, d)
    coded = torch.from_numpy(decode_pooled(code_pooled(pooled)))
    near = {True: _nearest(queries, coded, own), False: _nearest(queries, pooled, own)}  # (Q, K) of S each
    wanted = np.unique(torch.cat(list(near.values()), 1).numpy())  # (U,) of S
    ranking: Ranking | None = "pooled+awareness" if is_blind(model) else None
    scores = {name: torch.empty(len(queries), len(wanted)) for name in (UNCODED, *codecs)}
    bar = progress_bar(len(wanted) * len(scores), 0, "measuring codecs", unit=" images", active=progress)
    for start in range(0, len(wanted), ROWS_AT_ONCE):
        items = images.take(searched[wanted[start : start + ROWS_AT_ONCE]])
        span = slice(start, start + len(items))
        for name in scores:
            shown = items if name == UNCODED else _through(items, codecs[name])
            some = model.score(queries.to(model.device), shown.to(model.device), ranking)
            scores[name][:, span] = some.cpu()
            bar.update(len(items))
    bar.close()
    best = {name: _best(found, wanted, near[name != UNCODED]) for name, found in scores.items()}
    order = torch.from_numpy(draws.order(len(queries)))
    halves = order.tensor_split(2) if len(order) > 1 else (order, order)
    table = []
    for name, found in best.items():
        shared = (found[:, :, None] == best[UNCODED][:, None]).any(2).double().mean(1)  # (Q,)
        same = (found[:, 0] == best[UNCODED][:, 0]).double()
        table.append(
            Measured(
                name,
                round(images.item_bytes if name == UNCODED else _image_bytes(codecs[name], images)),
                round(_lower_bound(shared[halves[0]].numpy(), draws), 4),
                round(float(shared[halves[1]].mean()), 4),
                round(float(same[halves[1]].mean()), 4),
            )
        )
    return sorted(table, key=lambda row: -row.image_bytes), len(queries), len(searched)


def is_blind(model: Retriever) -> bool:
    """Whether the model's own score would find all codecs of fragments alike, though words are explained."""
    return model.config.ranking == "pooled" and model.reads_texts


def _queries(
    vectors: Mapping[Kind, StoredVectors],
    rows: Mapping[Kind, npt.NDArray[np.int64]],
    searched: npt.NDArray[np.int64],
    draws: StableRandom,
) -> tuple[Encoded, npt.NDArray[np.int64] | None]:
    """Captions, or images as if they were captions with the places (Q,) of their own among the searched."""
    if len(rows["caption"]):
        chosen = draws.choice(len(rows["caption"]), QUERIES)
        return vectors["caption"].take(rows["caption"][chosen]), None
    own = draws.choice(len(searched), QUERIES)
    items = vectors["image"].take(searched[own])
    chance = torch.from_numpy(draws.uniform(items.mask.numel()).reshape(items.mask.shape))
    words = chance.masked_fill(~items.mask, -1).topk(min(WORDS, items.mask.shape[1]), dim=1).indices  # (Q, w)
    fragments = items.fragments.gather(1, words[..., None].expand(-1, -1, items.fragments.shape[2]))
    mask = items.mask.gather(1, words)
    pooled = normalize((fragments * mask[..., None]).sum(1), dim=-1)
    return Encoded(pooled, fragments, mask), own


def _nearest(queries: Encoded, pooled: Tensor, own: npt.NDArray[np.int64] | None) -> Tensor:
    """(Q, K) places of the shortlist of every query, without its own image."""
    cosines = queries.pooled @ pooled.T  # (Q, S)
    if own is not None and len(pooled) > 1:
        cosines[torch.arange(len(queries)), torch.from_numpy(own)] = -torch.inf
    left = len(pooled) - (own is not None and len(pooled) > 1)
    return cosines.topk(min(SHORTLIST, left), dim=1).indices


def _through(items: Encoded, codecs: Codecs) -> Encoded:
    """Coded and back."""
    fragments, mask = codecs["image"].decode(codecs["image"].encode(items))
    return Encoded(torch.from_numpy(decode_pooled(code_pooled(items.pooled))), fragments, mask)


def _best(scores: Tensor, wanted: npt.NDArray[np.int64], near: Tensor) -> Tensor:
    """(Q, 10) places of the best of every query's shortlist, from the scores (Q, U) of the wanted places."""
    place = torch.from_numpy(np.searchsorted(wanted, near.numpy()))  # (Q, K) of U
    order = scores.gather(1, place).topk(min(HITS, near.shape[1]), dim=1).indices
    return near.gather(1, order)


def _image_bytes(codecs: Codecs, images: StoredVectors) -> float:
    """Of an image on average: partitions may differ in their number of regions."""
    counts = [(len(array), array.shape[1]) for array in images.fragments]
    total = sum(count * codecs["image"].record(regions).itemsize for count, regions in counts)
    return images.dim + total / max(1, len(images))


def _lower_bound(shared: npt.NDArray[np.float64], draws: StableRandom) -> float:
    """The 5 % quantile of the mean of resampled queries."""
    drawn = draws.below(len(shared), RESAMPLES * len(shared)).reshape(RESAMPLES, -1)
    means = shared[drawn].mean(1)
    return float(np.quantile(means, LOWER))
