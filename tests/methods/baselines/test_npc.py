"""NPC: the virtual step and the weights against a plain computation, the contract, and what it learns."""

from __future__ import annotations

import pytest
import torch
from helpers.feature_world import build_method, learn
from helpers.robust_examples import example_batch, keeps_the_contract
from torch.nn.functional import cross_entropy, normalize

from pmpguard.losses.infonce import infonce_terms
from pmpguard.methods.baselines.npc import Npc, harm_weight, moved, virtual_step


def remembering(epoch: int = 5) -> tuple[Npc, torch.Tensor]:
    """A method whose memory holds 20 pairs, and (N,) entries."""
    method = build_method("npc", dim=8, memory=20)
    assert isinstance(method, Npc)
    generator = torch.Generator().manual_seed(3)
    method.memory.texts.copy_(normalize(torch.randn(20, 8, generator=generator), dim=1))
    method.memory.images.copy_(normalize(torch.randn(20, 8, generator=generator), dim=1))
    method.by_image.copy_(torch.randint(20, (method.pairs,), generator=generator))
    method.by_caption.copy_(torch.randint(20, (method.pairs,), generator=generator))
    return method, method.by_image


def test_the_virtual_step_goes_down_the_batch_loss() -> None:
    batch = example_batch(epoch=5)
    temperature = torch.tensor(0.07)

    def loss(maps: tuple[torch.Tensor, torch.Tensor]) -> float:
        logits = moved(batch.texts.pooled, maps[0]) @ moved(batch.images.pooled, maps[1]).T / temperature
        return float(infonce_terms(logits, batch.targets, batch.image_of).mean())

    step = virtual_step(batch, temperature, 1e-3)
    still = torch.zeros(8, 8)
    assert loss(step) < loss((still, still)) < loss((-step[0], -step[1]))
    for change in step:
        assert float(change.square().mean().sqrt()) == pytest.approx(1e-3, rel=1e-4)
    # against differences in one direction of one map
    probe = torch.zeros(8, 8)
    probe[2, 5] = 1e-2
    slope = (loss((probe, still)) - loss((-probe, still))) / 2e-2
    share = -step[0][2, 5] / step[0].abs().sum()
    assert float(share) * slope > 0


def test_weights_against_a_loop() -> None:
    method, _ = remembering()
    batch = example_batch(epoch=5)
    temperature = method.temperature.detach()
    maps = virtual_step(batch, temperature, method.settings.virtual_rate)

    def losses(entries: torch.Tensor, with_step: bool) -> torch.Tensor:
        texts, images = method.memory.texts[entries], method.memory.images[entries]
        if with_step:
            texts, images = moved(texts, maps[0]), moved(images, maps[1])
        logits, own = texts @ images.T / temperature, torch.arange(len(entries))
        both = cross_entropy(logits, own, reduction="none") + cross_entropy(logits.T, own, reduction="none")
        return both / 2

    entries = torch.tensor([0, 1, 2, 3, 4, 5, 6]), torch.tensor([7, 8, 9, 10, 11, 12, 13])
    method.by_image[batch.rows], method.by_caption[batch.rows] = entries
    ratio = sum(losses(some, False) / losses(some, True) for some in entries) / 2
    weight = torch.tensor([1.0 if float(r) >= 1 else float(r.tanh()) for r in ratio])
    logits = batch.texts.pooled @ batch.images.pooled.T / temperature
    expected = weight * infonce_terms(logits, batch.targets, batch.image_of)
    torch.testing.assert_close(method.losses(batch)["infonce"], expected, rtol=1e-4, atol=1e-5)
    assert bool((weight < 1).any()) and bool((weight == 1).any())
    assert harm_weight(torch.tensor([3.0])).item() == 1


@pytest.mark.parametrize("epoch", [0, 50])
def test_contract(epoch: int) -> None:
    keeps_the_contract(remembering()[0], epoch)


@pytest.mark.slow
def test_it_tells_wrong_pairs_and_holds_its_own_under_noise() -> None:
    """A harmful pair still counts more than half as often as not, and losses learned by heart tell little."""
    robust, plain = (
        learn("npc", 0.4, 0, epochs=12, dim=32, warmup_epochs=2),
        learn("infonce", 0.4, 0, epochs=12),
    )
    assert robust.auroc is not None and robust.auroc > 0.6
    assert robust.mr > plain.mr - 3
