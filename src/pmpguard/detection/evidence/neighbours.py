"""Fourth evidence that a caption belongs to its image: what is known of look-alikes speaks for the pair.

A caption should say what is said of pictures like its own (`said`), and its picture should look like the
pictures that captions like it are said of (`shown`). Every pair speaks as loud as it is trusted, so verdicts
spread from pairs that are certain to those around them: before any training, a few rounds of judging and
listening again turn a weak look into a good one.

Neighbours of a picture are other pictures and those of a caption other sentences, so no pair judges itself.
That makes this evidence hard to learn by heart: a wrong pair that the model remembers scores well itself, but
its look-alikes still speak against it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag, normalize

from pmpguard.detection.evidence.witnesses import centred, nearest_others
from pmpguard.detection.null_pairs import Part, WrongPairs

MOST = {"cuda": 100_000, "cpu": 20_000}  # captions or pictures: the work grows with the square
NEAREST = 30
CHUNK = 4096
QUIET = 1e-4  # of voices that look-alikes bring to about 1; below it there is little but rounding
TEMPERATURE = 0.05  # cosines are divided by it: nearer ones are heard more


@dataclass(frozen=True)
class Side:
    """Captions or pictures, and for each the others most like it."""

    vectors: Tensor  # (n, d) unit, centred
    numbers: Tensor  # (n, k)
    cosines: Tensor  # (n, k)
    shares: Tensor  # (n, k) how much each of them is heard, 1 in all


@dataclass(frozen=True)
class Surroundings:
    captions: Side
    images: Side


@torch.no_grad()
def find_surroundings(captions: Tensor, images: Tensor, nearest: int = NEAREST) -> Surroundings | None:
    """The look-alikes among captions (C, d) and images (I, e); None where there are too many, or only one."""
    most, fewest = max(len(captions), len(images)), min(len(captions), len(images))
    if most > MOST.get(captions.device.type, MOST["cpu"]) or fewest < 2:
        return None
    return Surroundings(_side(captions, nearest), _side(images, nearest))


def _side(embedded: Tensor, nearest: int) -> Side:
    vectors = centred(embedded.float())
    cosines, numbers = nearest_others(vectors, nearest)
    return Side(vectors, numbers, cosines, torch.softmax(cosines / TEMPERATURE, dim=1))


class Voices:
    """What look-alikes say of any pair, each heard as far as it is trusted; trust (N,) in [0, 1]."""

    @torch.no_grad()
    def __init__(self, around: Surroundings, caption_of: Tensor, image_of: Tensor, trust: Tensor) -> None:
        self.captions, self.images = around.captions.vectors, around.images.vectors
        self.by_image = heard(around.images, self.captions, image_of, caption_of, trust)  # (I, d)
        self.by_caption = heard(around.captions, self.images, caption_of, image_of, trust)  # (C, e)
        self.own = _OwnVoices(around, caption_of, image_of, trust)

    @torch.no_grad()
    def said(self, captions: Tensor, images: Tensor) -> Tensor:
        """(Q,): whether captions of pictures that look like the image say what the caption says."""
        found = [_agreeing(self.by_image[i], self.captions[c]) for c, i in _chunks(captions, images)]
        return torch.cat(found)

    @torch.no_grad()
    def shown(self, captions: Tensor, images: Tensor) -> Tensor:
        """(Q,): whether pictures of captions that read like the caption look like the image.

        What the image's own captions are like does not count: those of an exchanged picture would vouch for
        each other.
        """
        return torch.cat([self._shown(*some) for some in _chunks(captions, images)])

    def _shown(self, captions: Tensor, images: Tensor) -> Tensor:
        looks = self.images[images]  # (Q, e)
        others = self.by_caption[captions] - self.own(captions, images)[:, None] * looks
        return _agreeing(others, looks)


def surrounding_parts(
    around: Surroundings, caption_of: Tensor, image_of: Tensor, wrong: WrongPairs, trust: Tensor
) -> dict[str, Part]:
    """`said` and `shown` of the labelled pairs (N,) and of the wrong ones; trust (N,) in [0, 1]."""
    voices = Voices(around, caption_of, image_of, trust)
    return {
        name: Part(ask(caption_of, image_of), ask(wrong.captions, wrong.images))
        for name, ask in (("said", voices.said), ("shown", voices.shown))
    }


def _agreeing(voices: Tensor, vectors: Tensor) -> Tensor:
    """(Q,): cosines of voices (Q, e) with unit vectors (Q, e), 0 where hardly anything is heard."""
    loud = voices.norm(dim=1) > QUIET
    return torch.where(loud, (normalize(voices, dim=1) * vectors).sum(1), 0.0)


def heard(side: Side, others: Tensor, own_of: Tensor, other_of: Tensor, trust: Tensor) -> Tensor:
    """(n, e): what the look-alikes of each of the side's n are paired with, added up by how they are trusted.

    Row r pairs `own_of[r]` of the side with `other_of[r]` of the others (m, e).
    """
    paired = others.new_zeros(len(side.vectors), others.shape[1])  # (n, e)
    paired.index_add_(0, own_of, others[other_of] * trust[:, None].to(others))
    return embedding_bag(side.numbers, paired, per_sample_weights=side.shares.to(paired), mode="sum")


class _OwnVoices:
    """How much of what is heard about a caption comes from pairs of one given image."""

    def __init__(self, around: Surroundings, caption_of: Tensor, image_of: Tensor, trust: Tensor) -> None:
        self.captions, self.images = around.captions, len(around.images.vectors)
        self.keys, row = torch.unique(caption_of * self.images + image_of, return_inverse=True)  # (P,)
        self.trust = torch.zeros(len(self.keys), dtype=torch.float32, device=self.keys.device)
        self.trust.index_add_(0, row, trust.float())

    def __call__(self, of_caption: Tensor, of_image: Tensor) -> Tensor:
        """(Q,)"""
        wanted = self.captions.numbers[of_caption] * self.images + of_image[:, None]  # (Q, k)
        place = torch.searchsorted(self.keys, wanted).clamp(max=len(self.keys) - 1)
        found = torch.where(self.keys[place] == wanted, self.trust[place], 0.0)
        return (found * self.captions.shares[of_caption]).sum(1)


def _chunks(first: Tensor, second: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(first, CHUNK), torch.split(second, CHUNK), strict=True)
