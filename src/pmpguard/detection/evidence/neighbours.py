"""Evidence that a text belongs to its image: what is known of their neighbours speaks for the pair.

Label propagation on k-nearest-neighbour graphs (Zhou et al., NeurIPS 2003). A text should say what is said of
images like its own (`neighbour_text`), and its image should look like the images that texts like it are
paired with (`neighbour_image`). Every pair votes as far as it is believed, by its clean probability, so
verdicts spread from pairs that are certain to those around them.

Neighbours of an image are other images and those of a text other texts, so no pair votes for itself. That
makes this evidence hard to learn by heart: a mismatched pair that a model remembers scores well itself, but
its neighbours still vote against it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from pmpguard.detection.evidence.nearest import MAX_EXACT_NEIGHBOURS, centred, full, nearest_others
from pmpguard.detection.evidence.similarity import Measure
from pmpguard.detection.vectors import LARGE_SET

NEIGHBOURS = 60
TEMPERATURE = 0.1  # cosines are divided by it: nearer ones count more
QUERIES_AT_ONCE = 8_192
MIN_VOTES = 1e-4  # of votes that add up to about 1; below it there is little but rounding


@dataclass(frozen=True)
class NeighbourGraph:
    """Texts or images, and for each the others most like it."""

    vectors: Tensor  # (n, d) unit, centred
    numbers: Tensor  # (n, k)
    cosines: Tensor  # (n, k)

    def shares_of(self, items: Tensor) -> Tensor:
        """(Q, k): of the votes on each of `items` (Q,) what every neighbour has, 1 in all.

        Those of all items at once would take as much memory as the cosines.
        """
        return torch.softmax(full(self.cosines[items]) / TEMPERATURE, dim=1)

    def nearest(self, count: int) -> NeighbourGraph:
        """The same with at most `count` neighbours."""
        return NeighbourGraph(self.vectors, self.numbers[:, :count].clone(), self.cosines[:, :count].clone())


@dataclass(frozen=True)
class Neighbourhoods:
    texts: NeighbourGraph
    images: NeighbourGraph


@torch.no_grad()
def find_neighbourhoods(
    texts: Tensor,
    images: Tensor,
    neighbours: int = NEIGHBOURS,
    exact_up_to: int = MAX_EXACT_NEIGHBOURS,
    *,
    already_centred: bool = False,
) -> Neighbourhoods | None:
    """The neighbours among texts (C, d) and among images (I, e); None where there is but one of either."""
    if min(len(texts), len(images)) < 2:
        return None
    text_graph, image_graph = (
        neighbour_graph(vectors, neighbours, exact_up_to, already_centred=already_centred)
        for vectors in (texts, images)
    )
    return Neighbourhoods(text_graph, image_graph)


def neighbour_graph(
    vectors: Tensor,
    neighbours: int = NEIGHBOURS,
    exact_up_to: int = MAX_EXACT_NEIGHBOURS,
    *,
    already_centred: bool = False,
) -> NeighbourGraph:
    """The graph of vectors (n, d) by cosine, once what they have in common is taken away.

    Unit vectors that are `already_centred` are kept as they are given, and no copy is made.
    """
    own = vectors if already_centred else centred(vectors)
    cosines, numbers = nearest_others(own, neighbours, exact_up_to)
    return NeighbourGraph(own, numbers, cosines)


def neighbour_measures(
    neighbourhoods: Neighbourhoods, text_of: Tensor, image_of: Tensor, clean_probability: Tensor
) -> dict[str, Measure]:
    """`neighbour_text` and `neighbour_image` of any pair; row r of N counts by its clean probability."""
    texts, images = neighbourhoods.texts, neighbourhoods.images
    own = _OwnVotes(texts, len(images.vectors), text_of, image_of, clean_probability)
    known: dict[str, Tensor] = {}  # of large sets one at a time: each takes as much memory as the vectors

    def paired(name: str) -> Tensor:
        if name not in known:
            if len(text_of) > LARGE_SET:
                known.clear()
            sides = (images, texts.vectors, image_of, text_of), (texts, images.vectors, text_of, image_of)
            known[name] = _paired(*sides[name == "images"], clean_probability)
        return known[name]

    def neighbour_text(of_text: Tensor, of_image: Tensor) -> Tensor:
        return _agreement(votes(images, paired("texts"), of_image), texts.vectors[of_text])

    def neighbour_image(of_text: Tensor, of_image: Tensor) -> Tensor:
        # votes by pairs of the asked image are taken out: its exchanged captions would vouch for each other
        looks = images.vectors[of_image]  # (Q, e)
        others = votes(texts, paired("images"), of_text) - own(of_text, of_image)[:, None] * looks
        return _agreement(others, looks)

    return {"neighbour_text": _in_chunks(neighbour_text), "neighbour_image": _in_chunks(neighbour_image)}


def votes(graph: NeighbourGraph, paired: Tensor, items: Tensor) -> Tensor:
    """(Q, e): what the neighbours of `items` (Q,) are paired with (n, e), added up by their shares."""
    shares = graph.shares_of(items).to(paired)
    return full(embedding_bag(graph.numbers[items], paired, per_sample_weights=shares, mode="sum"))


def _paired(
    graph: NeighbourGraph, others: Tensor, own_of: Tensor, other_of: Tensor, clean_probability: Tensor
) -> Tensor:
    """(n, e): what each item is paired with, by clean probability; row r pairs own and other."""
    paired = others.new_zeros(len(graph.vectors), others.shape[1])
    order = torch.argsort(own_of, stable=True)  # (N,) rows, item by item: many pairs of one add up in float32
    ends = torch.bincount(own_of, minlength=len(paired)).cumsum(0).tolist()
    for first in range(0, len(paired), QUERIES_AT_ONCE):
        last = min(first + QUERIES_AT_ONCE, len(paired))
        block = full(others[:0]).new_zeros(last - first, others.shape[1])
        here = order[ends[first - 1] if first else 0 : ends[last - 1]]
        for rows in torch.split(here, QUERIES_AT_ONCE):
            weighted = full(others[other_of[rows]]) * clean_probability[rows, None].to(block)
            block.index_add_(0, own_of[rows] - first, weighted)
        paired[first:last] = block.to(paired)
    return paired


def _agreement(voted: Tensor, vectors: Tensor) -> Tensor:
    """(Q,): cosines of votes (Q, e) with unit vectors (Q, e), 0 where hardly any vote is given."""
    given = voted.norm(dim=1) > MIN_VOTES
    return torch.where(given, (normalize(voted, dim=1) * vectors).sum(1), 0.0)


class _OwnVotes:
    """How many of the votes on a text come from pairs of one given image."""

    def __init__(
        self, texts: NeighbourGraph, images: int, text_of: Tensor, image_of: Tensor, clean_probability: Tensor
    ) -> None:
        self.texts, self.images = texts, images
        self.keys, row = torch.unique(text_of * images + image_of, return_inverse=True)  # (P,)
        self.totals = torch.zeros(len(self.keys), dtype=torch.float32, device=self.keys.device)
        self.totals.index_add_(0, row, clean_probability.float())
        of_text = self.keys // images  # (P,) rising
        counts = torch.bincount(of_text, minlength=len(texts.vectors))  # (C,) images of each text
        last = (counts.cumsum(0) - 1).clamp(min=0)
        self.last = torch.where(counts > 0, last, 0)  # (C,) place of a text's last pair
        self.only_image = torch.where(counts > 0, self.keys[self.last] % images, -1)  # (C,)
        self.several = counts > 1
        self.any_several = bool(self.several.any())

    def __call__(self, of_text: Tensor, of_image: Tensor) -> Tensor:
        """(Q,)"""
        numbers = self.texts.numbers[of_text].long()  # (Q, k)
        given = self.only_image[numbers] == of_image[:, None]
        votes_given = torch.zeros(numbers.shape, dtype=torch.float32, device=numbers.device)
        votes_given[given] = self.totals[self.last[numbers[given]]]
        if self.any_several:
            several = self.several[numbers]
            wanted = (numbers * self.images + of_image[:, None])[several]
            place = torch.searchsorted(self.keys, wanted).clamp(max=len(self.keys) - 1)
            votes_given[several] = torch.where(self.keys[place] == wanted, self.totals[place], 0.0)
        return (votes_given * self.texts.shares_of(of_text)).sum(1)


def _in_chunks(ask: object) -> Measure:
    def measure(of_text: Tensor, of_image: Tensor, _: Tensor) -> Tensor:
        if not len(of_text):
            return torch.zeros(0, device=of_text.device)
        chunks = zip(
            torch.split(of_text, QUERIES_AT_ONCE), torch.split(of_image, QUERIES_AT_ONCE), strict=True
        )
        return torch.cat([ask(*some) for some in chunks])  # type: ignore[operator]

    return measure
