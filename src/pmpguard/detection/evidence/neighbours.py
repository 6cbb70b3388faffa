"""Fourth evidence that a caption belongs to its image: what is known of neighbours speaks for the pair.

A caption should say what is said of images like its own (`neighbour_text`), and its image should look like
the images that captions like it are said of (`neighbour_image`). Every pair speaks as loud as it is trusted,
so verdicts spread from pairs that are certain to those around them: before any training, a few rounds of
judging and listening again turn a weak look into a good one.

Neighbours of a image are other images and those of a caption other sentences, so no pair judges itself.
That makes this evidence hard to learn by heart: a mismatched pair that the model remembers scores well
itself, but its neighbours still speak against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from pmpguard.detection.evidence.witnesses import centred, nearest_others
from pmpguard.detection.null_pairs import NullPairs, Part

MOST = {"cuda": 100_000, "cpu": 20_000}  # captions or images: the work grows with the square
NEAREST = 30
CHUNK = 4096
QUIET = 1e-4  # of voices that neighbours bring to about 1; below it there is little but rounding
TEMPERATURE = 0.05  # cosines are divided by it: nearer ones are heard more


@dataclass(frozen=True)
class NeighbourGraph:
    """Captions or images, and for each the others most like it."""

    vectors: Tensor  # (n, d) unit, centred
    numbers: Tensor  # (n, k)
    cosines: Tensor  # (n, k)
    shares: Tensor  # (n, k) how much each of them is heard, 1 in all


@dataclass(frozen=True)
class Neighbourhoods:
    captions: NeighbourGraph
    images: NeighbourGraph


@torch.no_grad()
def find_neighbourhoods(captions: Tensor, images: Tensor, nearest: int = NEAREST) -> Neighbourhoods | None:
    """The neighbours among captions (C, d) and images (I, e); None where there are too many, or only one."""
    most, fewest = max(len(captions), len(images)), min(len(captions), len(images))
    if most > MOST.get(captions.device.type, MOST["cpu"]) or fewest < 2:
        return None
    return Neighbourhoods(_side(captions, nearest), _side(images, nearest))


def _side(embedded: Tensor, nearest: int) -> NeighbourGraph:
    vectors = centred(embedded.float())
    cosines, numbers = nearest_others(vectors, nearest)
    return NeighbourGraph(vectors, numbers, cosines, torch.softmax(cosines / TEMPERATURE, dim=1))


class NeighbourVotes:
    """What neighbours say of any pair, each heard as far as it is trusted; trust (N,) in [0, 1]."""

    @torch.no_grad()
    def __init__(
        self, neighbourhoods: Neighbourhoods, caption_of: Tensor, image_of: Tensor, clean_probability: Tensor
    ) -> None:
        self.captions, self.images = neighbourhoods.captions.vectors, neighbourhoods.images.vectors
        self.by_image = collect_votes(
            neighbourhoods.images, self.captions, image_of, caption_of, clean_probability
        )  # (I, d)
        self.by_caption = collect_votes(
            neighbourhoods.captions, self.images, caption_of, image_of, clean_probability
        )  # (C, e)
        self.own = _OwnVotes(neighbourhoods, caption_of, image_of, clean_probability)

    @torch.no_grad()
    def neighbour_text(self, captions: Tensor, images: Tensor) -> Tensor:
        """(Q,): whether captions of images that look like the image say what the caption says."""
        found = [_agreeing(self.by_image[i], self.captions[c]) for c, i in _chunks(captions, images)]
        return torch.cat(found)

    @torch.no_grad()
    def neighbour_image(self, captions: Tensor, images: Tensor) -> Tensor:
        """(Q,): whether images of captions that read like the caption look like the image.

        What the image's own captions are like does not count: those of an exchanged image would vouch for
        each other.
        """
        return torch.cat([self._shown(*some) for some in _chunks(captions, images)])

    def _shown(self, captions: Tensor, images: Tensor) -> Tensor:
        looks = self.images[images]  # (Q, e)
        others = self.by_caption[captions] - self.own(captions, images)[:, None] * looks
        return _agreeing(others, looks)


def neighbour_evidence(
    neighbourhoods: Neighbourhoods,
    caption_of: Tensor,
    image_of: Tensor,
    wrong: NullPairs,
    clean_probability: Tensor,
) -> dict[str, Part]:
    """`neighbour_text` and `neighbour_image` of the labelled and the null pairs."""
    votes = NeighbourVotes(neighbourhoods, caption_of, image_of, clean_probability)
    return {
        name: Part(ask(caption_of, image_of), ask(wrong.captions, wrong.images))
        for name, ask in (("said", votes.neighbour_text), ("shown", votes.neighbour_image))
    }


def _agreeing(votes: Tensor, vectors: Tensor) -> Tensor:
    """(Q,): cosines of voices (Q, e) with unit vectors (Q, e), 0 where hardly anything is heard."""
    loud = votes.norm(dim=1) > QUIET
    return torch.where(loud, (normalize(votes, dim=1) * vectors).sum(1), 0.0)


def collect_votes(
    side: NeighbourGraph, others: Tensor, own_of: Tensor, other_of: Tensor, clean_probability: Tensor
) -> Tensor:
    """(n, e): what the neighbours of each of the side's n are paired with, added up by how they are trusted.

    Row r pairs `own_of[r]` of the side with `other_of[r]` of the others (m, e).
    """
    paired = others.new_zeros(len(side.vectors), others.shape[1])  # (n, e)
    paired.index_add_(0, own_of, others[other_of] * clean_probability[:, None].to(others))
    return embedding_bag(side.numbers, paired, per_sample_weights=side.shares.to(paired), mode="sum")


class _OwnVotes:
    """How much of what is heard about a caption comes from pairs of one given image."""

    def __init__(
        self, neighbourhoods: Neighbourhoods, caption_of: Tensor, image_of: Tensor, clean_probability: Tensor
    ) -> None:
        self.captions, self.images = neighbourhoods.captions, len(neighbourhoods.images.vectors)
        self.keys, row = torch.unique(caption_of * self.images + image_of, return_inverse=True)  # (P,)
        self.clean_probability = torch.zeros(len(self.keys), dtype=torch.float32, device=self.keys.device)
        self.clean_probability.index_add_(0, row, clean_probability.float())

    def __call__(self, of_caption: Tensor, of_image: Tensor) -> Tensor:
        """(Q,)"""
        wanted = self.captions.numbers[of_caption] * self.images + of_image[:, None]  # (Q, k)
        place = torch.searchsorted(self.keys, wanted).clamp(max=len(self.keys) - 1)
        found = torch.where(self.keys[place] == wanted, self.clean_probability[place], 0.0)
        return (found * self.captions.shares[of_caption]).sum(1)


def _chunks(first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(first, CHUNK), torch.split(second, CHUNK), strict=True)
