"""Images of few scenes with five captions each, on which hardest negatives collapse an embedding."""

from __future__ import annotations

import torch
from helpers.feature_world import build_method
from torch import Tensor, nn

from pmpguard.methods.method import EncodedBatch, TrainingView
from pmpguard.models.encoded import Encoded

IMAGES, CAPTIONS, SCENES, FEATURES, BATCH = 320, 5, 8, 32, 64


def mean_cosine_after(name: str, epochs: int, seed: int = 0, **settings: object) -> float:
    """Train a method on right pairs; 1: every caption embedded like every image, 0: well spread.

    A caption tells its image's scene, and a little of what sets the image apart from its neighbours.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    scene = torch.randint(SCENES, (IMAGES,), generator=generator)
    images = normal(SCENES, FEATURES)[scene] + 0.5 * normal(IMAGES, FEATURES)
    image_of = torch.arange(IMAGES).repeat_interleave(CAPTIONS)
    captions = images[image_of] + 0.7 * normal(len(image_of), FEATURES)
    rows_of = torch.arange(len(image_of)).view(IMAGES, CAPTIONS)
    method = build_method(name, pairs=len(image_of), seed=seed, **settings)
    networks = nn.ModuleList(
        nn.Sequential(nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 32)) for _ in range(2)
    )
    optimiser = torch.optim.AdamW([*networks.parameters(), *method.parameters()], lr=2e-3)

    def encode(number: int, features: Tensor) -> Encoded:
        pooled = nn.functional.normalize(networks[number](features), dim=1)
        return Encoded(pooled, pooled[:, None], torch.ones(len(pooled), 1, dtype=torch.bool))

    def everything() -> tuple[Encoded, Encoded]:
        return encode(1, captions), encode(0, images)

    for epoch in range(epochs):
        with torch.no_grad():
            plan = method.begin_epoch(
                TrainingView(everything, torch.arange(len(image_of)), image_of, epoch, seed)
            )
        for chosen in torch.randperm(IMAGES, generator=generator).split(BATCH):
            rows = rows_of[chosen].flatten()
            own = torch.arange(len(chosen)).repeat_interleave(CAPTIONS)
            weights = None if plan.weights is None else plan.weights[rows]
            batch = EncodedBatch(
                encode(1, captions[rows]), encode(0, images[chosen]), own, chosen, rows, rows, epoch,
                weights=weights,
            )  # fmt: skip
            optimiser.zero_grad()
            sum(term.mean() for term in method.losses(batch).values()).backward()  # type: ignore[union-attr]
            optimiser.step()
    with torch.no_grad():
        of_captions, of_images = everything()
    return float((of_captions.pooled @ of_images.pooled.T).mean())
