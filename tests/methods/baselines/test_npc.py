"""NPC: the virtual step and the weights against a plain computation, the contract, and what it learns."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from helpers.feature_world import build_method, learn, make_world
from helpers.robust_examples import example_batch, keeps_the_contract
from torch.nn.functional import cross_entropy, normalize

from pmpguard.losses.infonce import infonce_terms
from pmpguard.losses.positives import positive_targets
from pmpguard.methods.baselines.npc import Npc, harm_weight, moved, virtual_step
from pmpguard.methods.method import EncodedBatch


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


def test_the_virtual_step_against_differences() -> None:
    """Minus the gradient of the batch's loss by each number of the two maps, as long as the rate says."""
    batch, rate = example_batch(epoch=5), 1e-3
    texts, images = batch.texts.pooled.double(), batch.images.pooled.double()

    def loss(maps: list[torch.Tensor]) -> float:
        sides = [normalize(x + x @ change, dim=1) for x, change in zip((texts, images), maps, strict=True)]
        logits = sides[0] @ sides[1].T / 0.07
        return float(infonce_terms(logits, batch.targets.double(), batch.image_of).mean())

    for side, found in enumerate(virtual_step(batch, torch.tensor(0.07), rate)):
        slopes = torch.zeros(8, 8, dtype=torch.float64)
        for place in range(64):
            both = []
            for sign in (1, -1):
                maps = [torch.zeros(8, 8, dtype=torch.float64) for _ in "ti"]
                maps[side].view(-1)[place] = sign * 1e-5
                both.append(loss(maps))
            slopes.view(-1)[place] = (both[0] - both[1]) / 2e-5
        expected = -rate * slopes / slopes.square().mean().sqrt()
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-7)


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


def test_the_memorys_loss_is_that_of_remembered_pairs_among_themselves() -> None:
    method, _ = remembering()
    batch = example_batch(epoch=5)
    assert bool((method.losses(batch)["memory"] == 0).all())  # none of the batch is remembered
    kept = torch.tensor([0, 1, 3, 4, 6])
    method.remembered[batch.rows[kept]] = True
    images, own = batch.image_of[kept].unique(return_inverse=True)
    logits = batch.texts.pooled[kept] @ batch.images.pooled[images].T / method.temperature
    targets = positive_targets(own, batch.image_keys[images], batch.caption_keys[kept])
    expected = infonce_terms(logits, targets, own)
    found = method.losses(batch)["memory"]
    torch.testing.assert_close(found[kept], expected * 7 / 5, rtol=1e-4, atol=1e-5)
    assert found.mean().item() == pytest.approx(expected.mean().item(), rel=1e-4)
    method.settings = replace(method.settings, memory_weight=0.0)
    assert set(method.losses(batch)) == {"infonce"}


@pytest.mark.parametrize("epoch", [0, 50])
def test_contract(epoch: int) -> None:
    keeps_the_contract(remembering()[0], epoch)


@pytest.mark.slow
def test_wrong_pairs_count_less_and_it_learns_more_than_infonce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its weights it stays below InfoNCE, without its memory wrong pairs are told far worse."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    weigh = Npc.weigh

    def noted(self: Npc, batch: EncodedBatch) -> torch.Tensor:
        seen.append((batch.rows, weigh(self, batch)))
        return seen[-1][1]

    monkeypatch.setattr(Npc, "weigh", noted)
    gains = []
    for seed in range(3):
        seen.clear()
        robust = learn("npc", 0.4, seed, epochs=12, dim=32, warmup_epochs=2)
        rows, weights = (torch.cat(parts) for parts in zip(*seen, strict=True))
        wrong = torch.from_numpy(make_world(0.4, seed).is_mismatched)[rows]
        assert weights[wrong].mean() < weights[~wrong].mean() - 0.02
        assert robust.auroc is not None and robust.auroc > 0.77
        gains.append(robust.mr - learn("infonce", 0.4, seed, epochs=12).mr)
    assert sum(gains) / 3 > 0
