"""Run by test_distributed in one or two processes: of each method the first gradients, then a short run.

In float64 throughout, so that the order of sums hides nothing: results must agree to many digits. The loop
itself rounds encoded vectors to float32; that is switched off here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.small_runs import coloured_squares, small_config, training_data

from pmpguard.models.encoded import Encoded
from pmpguard.training.batch_sampler import PairSampler
from pmpguard.training.config import TrainConfig
from pmpguard.training.distillation import train_with_distillation
from pmpguard.training.distributed import World, average_gradients
from pmpguard.training.ema import AveragedWeights
from pmpguard.training.loader import BatchLoader, TokenTable
from pmpguard.training.loop import TrainingData, build_method
from pmpguard.training.parameter_groups import build_optimiser
from pmpguard.training.step import StepRunner


def first_gradients(config: TrainConfig, data: TrainingData, world: World) -> dict[str, torch.Tensor]:
    """Loss and gradients of the first step."""
    device = torch.device("cpu")
    method = build_method(config, len(data.train), data.train.captions)
    optimiser = build_optimiser(method, config, device)
    sampler = PairSampler(
        data.train.image_codes, data.train.caption_codes, 30, 0, captions_per_image=config.captions_per_image
    )
    tokens = TokenTable.of(data.train, method.retriever, device)
    loader = BatchLoader(
        data.train, data.train_images, tokens, sampler, config.augmentation, 0, device, world
    )
    runner = StepRunner(method, optimiser, AveragedWeights(method, 0.0), config, device, world)
    reported = runner.differentiate(next(loader.batches(0, 0)), 0, 1.0)
    average_gradients(runner.parameters, world)
    found = {
        f"gradient {name}": torch.zeros_like(value) if value.grad is None else value.grad
        for name, value in method.named_parameters()
    }
    return found | {"loss": reported["loss"]}


def main(out: Path, methods: list[str]) -> None:
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    dist.init_process_group("gloo")
    for method in methods:
        compared(out / method, method, World.current())
    dist.destroy_process_group()


def compared(out: Path, method_name: str, world: World) -> None:
    method_name, _, how = method_name.partition(" ")
    settings = {"detect_from_epoch": 1} if method_name == "pmpguard" else {}
    if how == "twice":
        settings |= {"distill_above_rate": 0.0, "calibration_epochs": 1}
    config = small_config(method=method_name, settings=settings, batch_size=30)
    data = training_data(*coloured_squares(copies=3))
    with mock.patch.object(Encoded, "to", lambda encoded, **_: encoded):
        found = first_gradients(config, data, world)
        result = train_with_distillation(config, data, out / "run")
    assert result.models_trained == (2 if how == "twice" else 1)
    found |= {f"weight {name}": value for name, value in result.method.state_dict().items()}
    save_file(
        {name: value.detach().clone().contiguous() for name, value in found.items()},
        out / f"rank-{world.rank}.safetensors",
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
