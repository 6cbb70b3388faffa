"""A world of feature vectors in which a method trains for hundreds of steps within a second or two.

Every item has a hidden vector. Image and caption features are two nonlinear, noisy views of it; captions of
some pairs belong to other items. Two small networks with room enough to memorise the mismatched pairs are
trained as the loop would train encoders: losses, once per epoch a look at the training set, AdamW.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

from pmpguard.detection.evidence.similarity import Measure
from pmpguard.evaluation.detection import auroc
from pmpguard.evaluation.recall import retrieval_recall
from pmpguard.methods.method import EncodedBatch, Method, TrainingView
from pmpguard.methods.registry import find_method
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever

TRAIN, TEST, HIDDEN, FEATURES = 1000, 200, 12, 48


@dataclass(frozen=True)
class World:
    """Features of images and captions; training pair r has image r and the caption of item `owner[r]`."""

    images: Tensor  # (TRAIN + TEST, FEATURES)
    captions: Tensor  # (TRAIN + TEST, FEATURES)
    owner: Tensor  # (TRAIN,) int64

    @property
    def is_mismatched(self) -> np.ndarray:
        return (self.owner != torch.arange(TRAIN)).numpy()


def make_world(rate: float, seed: int) -> World:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    hidden = normal(TRAIN + TEST, HIDDEN)

    def features() -> Tensor:
        mixed = hidden @ normal(HIDDEN, FEATURES) / HIDDEN**0.5
        return torch.tanh(mixed) + 0.3 * normal(TRAIN + TEST, FEATURES)

    wrong = torch.randperm(TRAIN, generator=generator)[: round(rate * TRAIN)]
    owner = torch.arange(TRAIN)
    owner[wrong] = wrong.roll(1)  # every chosen pair gets the next one's caption
    return World(features(), features(), owner)


def build_method(name: str, pairs: int = TRAIN, seed: int = 0, dim: int = 16, **settings: object) -> Method:
    """A method around a tiny model, whose vectors have `dim` numbers."""
    kind = find_method(name)
    read = kind.read_settings("recommended", dict(settings))
    config = RetrieverConfig(vision="tiny", text="tiny", dim=dim, image_size=32)
    torch.manual_seed(seed)
    return kind(Retriever.create(kind.model_config(config, read), ["red", "roof"]), read, pairs)


@dataclass(frozen=True)
class Learned:
    """What came of a training: recall on unseen items, and how well p(match) tells mismatched pairs."""

    mr: float
    auroc: float | None
    method: Method


def learn(
    name: str, rate: float, seed: int, epochs: int = 30, batch: int = 100, judge: Measure | None = None,
    **settings: object,
) -> Learned:  # fmt: skip
    """Train a method in the world of this seed and rate, with a judge from outside where it asks one."""
    world, method = make_world(rate, seed), build_method(name, seed=seed, **settings)
    if judge is not None:
        method.set_judge(judge)
    networks = [
        nn.Sequential(nn.Linear(FEATURES, 256), nn.ReLU(), nn.Linear(256, 32)) for _ in ("images", "captions")
    ]
    parameters = [*networks[0].parameters(), *networks[1].parameters(), *method.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=2e-3)

    def encode(number: int, features: Tensor) -> Encoded:
        pooled = nn.functional.normalize(networks[number](features), dim=1)
        return Encoded(pooled, pooled[:, None], torch.ones(len(pooled), 1, dtype=torch.bool))

    everything = torch.arange(TRAIN)
    for epoch in range(epochs):
        with torch.no_grad():
            view = TrainingView(
                lambda: (encode(1, world.captions[:TRAIN]), encode(0, world.images[:TRAIN])),
                world.owner, everything, epoch, seed,
            )  # fmt: skip
            plan = method.begin_epoch(view)
        generator = torch.Generator().manual_seed(seed * 1000 + epoch)
        for rows in torch.randperm(TRAIN, generator=generator).split(batch):
            texts, images = encode(1, world.captions[world.owner[rows]]), encode(0, world.images[rows])
            weights = None if plan.weights is None else plan.weights[rows]
            given = EncodedBatch(
                texts, images, torch.arange(len(rows)), rows, world.owner[rows], rows, epoch, weights=weights
            )
            optimiser.zero_grad()
            sum(term.mean() for term in method.losses(given).values()).backward()  # type: ignore[union-attr]
            optimiser.step()
    with torch.no_grad():
        scores = encode(1, world.captions[TRAIN:]).pooled @ encode(0, world.images[TRAIN:]).pooled.T
    found = None
    if method.p_match is not None and world.is_mismatched.any():
        found = auroc(-method.p_match.double().numpy(), world.is_mismatched)
    return Learned(retrieval_recall(scores, torch.arange(TEST)).mr, found, method)


@cache
def learn_infonce(rate: float) -> Learned:
    """What robust methods are compared with: plain InfoNCE, as many epochs as they have."""
    return learn("infonce", rate, 0, epochs=15)
