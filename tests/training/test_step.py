"""One optimiser step: accumulated gradients, rates, sums and the watch over the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from helpers.small_runs import coloured_squares, small_config, training_data
from torch import Tensor

from pmpguard.errors import TrainingError
from pmpguard.methods.infonce import InfoNce
from pmpguard.methods.method import EncodedBatch
from pmpguard.models.encoders.image import ImageArchitecture, ImageEncoder
from pmpguard.training.batch_sampler import PairSampler
from pmpguard.training.config import TrainConfig
from pmpguard.training.distributed import World
from pmpguard.training.ema import AveragedWeights
from pmpguard.training.loader import BatchLoader, DeviceBatch, TokenTable
from pmpguard.training.loop import build_method
from pmpguard.training.parameter_groups import build_optimiser
from pmpguard.training.step import StepRunner

CPU = torch.device("cpu")
DATA = training_data(*coloured_squares(copies=3))


def build(config: TrainConfig) -> tuple[StepRunner, list[DeviceBatch]]:
    """A runner with fresh weights, and the batches of the first epoch."""
    method = build_method(config, len(DATA.train), DATA.train.captions)
    optimiser = build_optimiser(method, config, CPU)
    sampler = PairSampler(DATA.train.image_codes, DATA.train.caption_codes, config.batch_size, 0)
    tokens = TokenTable.of(DATA.train, method.retriever, CPU)
    loader = BatchLoader(DATA.train, DATA.train_images, tokens, sampler, config.augmentation, 0, CPU, World())
    runner = StepRunner(method, optimiser, AveragedWeights(method, config.ema), config, CPU, World())
    return runner, list(loader.batches(0, 0))


def gradients(runner: StepRunner) -> dict[str, Tensor]:
    named = runner.method.named_parameters()
    return {name: value.grad.clone() for name, value in named if value.grad is not None}


def test_accumulated_batches_give_the_mean_of_their_gradients() -> None:
    config = small_config()
    alone = []
    for number in range(2):
        runner, batches = build(config)
        runner.differentiate(batches[number], 0, 1.0)
        alone.append(gradients(runner))
    runner, batches = build(config)
    for batch in batches[:2]:
        runner.differentiate(batch, 0, 0.5)
    together = gradients(runner)
    assert together.keys() == alone[0].keys()
    for name, gradient in together.items():
        torch.testing.assert_close(gradient, (alone[0][name] + alone[1][name]) / 2, rtol=1e-4, atol=1e-6)


def test_gradients_are_clipped_and_the_factor_scales_every_rate() -> None:
    config = small_config(optimiser=replace(small_config().optimiser, max_grad_norm=1e-3, head_lr=0.5))
    runner, batches = build(config)
    runner.step(batches[:1], 0, 0, 0.25)
    total = torch.stack([gradient.norm() for gradient in gradients(runner).values()]).norm()
    assert float(total) == pytest.approx(1e-3, rel=1e-3)
    assert {group["lr"] for group in runner.optimiser.param_groups} == {0.25 * 0.5}


def test_biases_norms_and_the_temperature_do_not_decay() -> None:
    method = build_method(small_config(), len(DATA.train), DATA.train.captions)
    groups = build_optimiser(method, small_config(), CPU).param_groups
    decay = {id(value): group["weight_decay"] for group in groups for value in group["params"]}
    for name, value in method.named_parameters():
        assert decay[id(value)] == (small_config().optimiser.weight_decay if value.ndim > 1 else 0), name


def test_pretrained_encoders_and_new_layers_have_their_own_rates() -> None:
    config = small_config(optimiser=replace(small_config().optimiser, encoder_lr=1e-4, head_lr=5e-4))
    method = build_method(config, len(DATA.train), DATA.train.captions)
    pretrained = ImageEncoder(ImageArchitecture("mobilenet-v2", {}, 32), method.retriever.config.dim)
    method.retriever.image_encoder = pretrained
    groups = build_optimiser(method, config, CPU).param_groups
    rate = {id(value): group["lr"] for group in groups for value in group["params"]}
    assert {rate[id(value)] for value in pretrained.backbone.parameters()} == {1e-4}
    assert {rate[id(value)] for value in pretrained.projection.parameters()} == {5e-4}
    assert {rate[id(value)] for value in method.retriever.text_encoder.parameters()} == {5e-4}


def test_the_report_is_the_mean_over_steps_and_starts_again() -> None:
    runner, batches = build(small_config())
    seen = []
    original = runner.update

    def update(*arguments: object) -> dict[str, Tensor]:
        reported = original(*arguments)  # type: ignore[arg-type]
        seen.append(float(reported["loss"]))
        return reported

    runner.update = update  # type: ignore[method-assign]
    for step, batch in enumerate(batches[:3]):
        runner.step([batch], 0, step, 1.0)
    logged = runner.drain()
    assert logged["loss"] == pytest.approx(sum(seen) / 3) and logged["infonce"] == pytest.approx(
        logged["loss"]
    )
    assert logged["lr"] == small_config().optimiser.head_lr
    runner.step(batches[3:4], 0, 3, 1.0)
    assert runner.drain()["loss"] == pytest.approx(seen[3])


class Poisoned(InfoNce):
    """Not a number in the second batch only."""

    seen = 0

    def losses(self, batch: EncodedBatch) -> dict[str, Tensor]:
        Poisoned.seen += 1
        factor = float("inf") if Poisoned.seen == 2 else 1.0
        return {name: value * factor for name, value in super().losses(batch).items()}


def test_the_first_bad_step_is_remembered_and_named_later() -> None:
    Poisoned.seen = 0
    runner, batches = build(small_config(method=f"{__name__}:Poisoned"))
    runner.step(batches[:1], 0, 0, 1.0)
    runner.check_finite(lambda step: "never asked")
    for step in (1, 2):
        runner.step(batches[step : step + 1], 0, step, 1.0)
    with pytest.raises(TrainingError, match="at step 1 is not finite; its batch holds pairs of 1"):
        runner.check_finite(lambda step: f"of {step}")


def test_a_step_is_captured_once_for_each_kind_of_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bounds on lengths are fixed in a captured step, so they are part of its kind."""
    captured: list[DeviceBatch] = []

    class Recorded:
        def __init__(
            self, update: Callable[[DeviceBatch], dict[str, Tensor]], example: DeviceBatch, pool: object
        ) -> None:
            captured.append(example)
            self.update = update

        def replay(self, batch: DeviceBatch) -> dict[str, Tensor]:
            return self.update(batch)

    monkeypatch.setattr("pmpguard.training.step.CapturedStep", Recorded)
    runner, batches = build(small_config())
    runner.capturing = True
    bounds = [((8, 3), (16, 1)), ((8, 3), (16, 2))]
    kinds = [replace(batches[0], longer_than=longer_than) for longer_than in (*bounds, None)]
    for number, batch in enumerate([*kinds, *kinds, *kinds]):
        runner.step([batch], 0, number, 1.0)
    assert [batch.longer_than for batch in captured] == [*bounds, None]
    seen = [runner.encode(batch, 0).longer_than for batch in kinds]
    assert seen == [*bounds, None]


def test_averaged_weights_follow_every_step() -> None:
    runner, batches = build(small_config(ema=0.5))
    start = {name: value.clone() for name, value in runner.averaged.tensors.items()}
    runner.step(batches[:1], 0, 0, 1.0)
    live = dict(runner.method.named_parameters())
    for name, value in runner.averaged.tensors.items():
        expected = 0.1 * start[name] + 0.9 * live[name].detach()  # the first decay is 1/10
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7)
