"""How the default head is fitted: ridge regression in closed form, then contrastive tuning of both maps.

Images are mapped into the space of captions, which are whitened in part. A labelled image is fitted to its
captions and, with a small share, to the name of its class: plain names are what is asked for later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pmpguard.data.pairs import PairTable
from pmpguard.losses.infonce import infonce_terms
from pmpguard.models.encoders.projection import unit

FLOOR = 0.02  # of the spread that whitening divides by, as a share of the largest
SEED, BATCH, TEMPERATURE, DROPOUT = 0, 1024, 0.07, 0.2
RATE, KEPT = 0.01, 0.95  # the step, as a share of the mean weight; what the running mean keeps at each


@dataclass(frozen=True)
class Features:
    """Pairs and what the frozen encoders made of them, before the last linear layers."""

    table: PairTable
    captions: Tensor  # (C, c) of each distinct caption by code
    images: Tensor  # (I, e) of each distinct image by code

    @property
    def labels(self) -> list[str]:
        """The class of each image; "" where there is none."""
        named = self.table.column("label")
        return [named[row] or "" for row in self.table.first_rows]

    def split(self, name: str) -> Features:
        return self.filter(np.array(self.table.column("split"), dtype=object) == name)

    def filter(self, kept: Any) -> Features:
        table = self.table.filter(kept)
        firsts = np.unique(table.caption_codes, return_index=True)[1]
        rows = np.flatnonzero(kept)
        return Features(
            table,
            self.captions[self.table.caption_codes[rows[firsts]]],
            self.images[self.table.image_codes[rows[table.first_rows]]],
        )


@dataclass(frozen=True)
class LinearMap:
    """x -> x W + b."""

    weight: Tensor  # (c, d)
    bias: Tensor  # (d,)

    def __call__(self, rows: Tensor) -> Tensor:
        return rows @ self.weight + self.bias

    def double(self) -> LinearMap:
        return LinearMap(self.weight.double(), self.bias.double())


Maps = tuple[LinearMap, LinearMap]  # of captions and of images


@dataclass(frozen=True)
class Choice:
    """What is chosen on validation."""

    ridge: float  # strength
    whitening: float  # how much of the captions' spread is taken out: 0 none, 1 all
    names: float  # the share of its class's name in what an image is fitted to
    epochs: int = 0  # of contrastive tuning


@dataclass(frozen=True)
class Standard:
    """The mean and spread of each feature."""

    mean: Tensor  # (c,)
    spread: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> Standard:
        return cls(rows.mean(0), rows.std(0, correction=0).clamp_min(1e-6))

    def __call__(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) / self.spread

    def inside(self, given: LinearMap) -> LinearMap:
        """The same map, for standardised rows."""
        return LinearMap(given.weight * self.spread[:, None], given(self.mean))

    def outside(self, given: LinearMap) -> LinearMap:
        """A map of standardised rows, for rows as they are."""
        weight = given.weight / self.spread[:, None]
        return LinearMap(weight, given.bias - self.mean @ weight)


@dataclass(frozen=True)
class Lessons:
    """What the maps are fitted to, in double precision."""

    images: Tensor  # (I, e)
    texts: Tensor  # (C + K, c): captions, then names of classes
    pairs: tuple[Tensor, Tensor]  # (P,) image and caption of each pair
    named: Tensor  # (I,) the text that names an image's class, -1 for none

    @classmethod
    def of(cls, train: Features, names: Mapping[str, Tensor]) -> Lessons:
        places = {name: len(train.captions) + number for number, name in enumerate(names)}
        return cls(
            train.images.double(),
            torch.cat([train.captions, *(row[None] for row in names.values())]).double(),
            (torch.from_numpy(train.table.image_codes), torch.from_numpy(train.table.caption_codes)),
            torch.tensor([places.get(label, -1) for label in train.labels]),
        )

    def draw(self, share: float, chance: torch.Generator) -> Tensor:
        """(I,) a text of each image: one of its captions or, with probability `share`, its class's name."""
        order = torch.randperm(len(self.pairs[0]), generator=chance)
        firsts = np.unique(self.pairs[0][order].numpy(), return_index=True)[1]
        captions = self.pairs[1][order[torch.from_numpy(firsts)]]
        by_name = (torch.rand(len(captions), generator=chance) < share) & (self.named >= 0)
        return torch.where(by_name, self.named, captions)


@dataclass(frozen=True)
class Tuned:
    """A map in training, in single precision, and its running mean."""

    now: LinearMap
    mean: LinearMap

    @classmethod
    def of(cls, given: LinearMap) -> Tuned:
        start = given.weight.float(), given.bias.float()
        now = LinearMap(*(tensor.clone().requires_grad_() for tensor in start))
        return cls(now, LinearMap(*start))

    def groups(self) -> list[dict[str, Any]]:
        """For the optimiser: a step is in proportion to the mean weight."""
        rate = RATE * float(self.mean.weight.abs().mean())
        return [{"params": [self.now.weight, self.now.bias], "lr": rate}]

    @torch.no_grad()
    def remember(self) -> None:
        self.mean.weight.lerp_(self.now.weight, 1 - KEPT)
        self.mean.bias.lerp_(self.now.bias, 1 - KEPT)


def whitener(rows: Tensor, power: float, floor: float = FLOOR) -> LinearMap:
    """Centres rows (N, c) and divides each principal direction by its standard deviation to the `power`."""
    mean = rows.mean(0)
    centred = rows - mean
    values, directions = torch.linalg.eigh(centred.T @ centred / len(rows))
    weight = directions * (values.clamp_min(0) + floor * values.max()) ** (-power / 2)
    return LinearMap(weight, -mean @ weight)


def ridge_map(inputs: Tensor, targets: Tensor, strength: float) -> LinearMap:
    """The map (N, e) -> (N, d) of least squares over standardised inputs; `strength` is that of one row."""
    standard, goal = Standard.of(inputs), targets.mean(0)
    rows = standard(inputs)
    gram = rows.T @ rows + strength * len(rows) * torch.eye(rows.shape[1], dtype=rows.dtype)
    return standard.outside(LinearMap(torch.linalg.solve(gram, rows.T @ (targets - goal)), goal))


def fitted(train: Features, names: Mapping[str, Tensor], choice: Choice) -> Maps:
    """The maps of captions and of images; every image counts once, whatever its captions."""
    return fitted_after(train, names, choice, (choice.epochs,))[choice.epochs]


def fitted_after(
    train: Features, names: Mapping[str, Tensor], choice: Choice, epochs: Sequence[int]
) -> dict[int, Maps]:
    """The maps after each of these numbers of epochs of tuning, in place of the number in `choice`."""
    lessons = Lessons.of(train, names)
    maps = closed_form(lessons, choice, captions=len(train.captions))
    after = enumerate(chain([maps], tuned(maps, lessons, choice.names)))
    return {epoch: maps for epoch, maps in islice(after, max(epochs) + 1) if epoch in epochs}


def closed_form(lessons: Lessons, choice: Choice, captions: int) -> Maps:
    """The whitening of captions, and the ridge regression of images onto the mean of theirs and a name."""
    texts = whitener(lessons.texts[:captions], choice.whitening)
    vectors, (images, own) = texts(lessons.texts), lessons.pairs
    total = torch.zeros(len(lessons.images), vectors.shape[1], dtype=vectors.dtype)
    mean = total.index_add(0, images, vectors[own]) / torch.bincount(images)[:, None]
    share = choice.names * (lessons.named >= 0)[:, None]
    targets = (1 - share) * mean + share * vectors[lessons.named]
    return texts, ridge_map(lessons.images, targets, choice.ridge)


def tuned(maps: Maps, lessons: Lessons, names: float) -> Iterator[Maps]:
    """After each epoch, the running mean of maps that learn to tell an image's text from a batch's others.

    `names` is the share of images that draw the name of their class in place of a caption.
    """
    chance = torch.Generator().manual_seed(SEED)
    rows = lessons.texts, lessons.images
    standards = [Standard.of(side) for side in rows]
    texts, images = [standard(side).float() for standard, side in zip(standards, rows, strict=True)]
    sides = [Tuned.of(standard.inside(given)) for standard, given in zip(standards, maps, strict=True)]
    steps = torch.optim.Adam([group for side in sides for group in side.groups()])
    while True:
        drawn = lessons.draw(names, chance)
        for batch in torch.randperm(len(images), generator=chance).tensor_split(-(-len(images) // BATCH)):
            kept = torch.rand(len(batch), images.shape[1], generator=chance) >= DROPOUT
            asked = unit(sides[0].now(texts[drawn[batch]]))
            found = unit(sides[1].now(images[batch] * kept / (1 - DROPOUT)))
            fits = positives(drawn[batch], lessons.named[batch])
            terms = infonce_terms(asked @ found.T / TEMPERATURE, fits, torch.arange(len(batch)))
            steps.zero_grad()
            terms.mean().backward()  # type: ignore[no-untyped-call]
            steps.step()
            for side in sides:
                side.remember()
        captions, pictures = (
            standard.outside(side.mean.double()) for standard, side in zip(standards, sides, strict=True)
        )
        yield captions, pictures


def positives(drawn: Tensor, named: Tensor) -> Tensor:
    """(B, B) 1 where a drawn text, by row, fits an image: it is the image's own or the name of its class."""
    return ((drawn[:, None] == drawn[None]) | (drawn[:, None] == named[None])).float()
