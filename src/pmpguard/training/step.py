"""One optimiser step: encode, gather, lose, differentiate, update.

On CUDA a step is hundreds of small kernels, and launching them one by one takes longer than running them. So
the second step of each shape is captured as a CUDA graph, and every further one replays it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pmpguard.device import encoder_precision
from pmpguard.errors import TrainingError
from pmpguard.methods.method import EncodedBatch, Method
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.training.config import TrainConfig
from pmpguard.training.distributed import World, average_gradients, gather_encoded
from pmpguard.training.ema import AveragedWeights
from pmpguard.training.feature_cache import encode_images, encode_texts
from pmpguard.training.loader import DeviceBatch, ImageInput
from pmpguard.training.seen_vectors import SeenVectors


def captures(config: TrainConfig, device: torch.device, world: World) -> bool:
    """Whether steps are captured as CUDA graphs."""
    return config.cuda_graphs and device.type == "cuda" and world.size == 1


class StepRunner:
    """Runs steps and keeps running sums of what they report, without waiting for the device."""

    def __init__(
        self,
        method: Method,
        optimiser: torch.optim.AdamW,
        averaged: AveragedWeights,
        config: TrainConfig,
        device: torch.device,
        world: World,
        teacher: Retriever | None = None,
        seen: SeenVectors | None = None,
    ) -> None:
        self.method, self.optimiser, self.averaged = method, optimiser, averaged
        self.seen = seen  # told of every batch
        self.config, self.device, self.world, self.teacher = config, device, world, teacher
        self.parameters = [value for value in method.parameters() if value.requires_grad]
        self.base_rates = [group["lr"] for group in optimiser.param_groups]
        self.sums: dict[str, Tensor] = {}
        self.counted = 0
        self.bad_step = torch.full((), -1, dtype=torch.int64, device=device)
        self.capturing = captures(config, device, world)
        self.cuda_graphs: dict[tuple[object, ...], CapturedStep | None] = {}
        self.weights: Tensor | None = None  # (N,) of the pairs, by the epoch's plan
        self.pool: Any = None  # memory that all graphs work in, one at a time
        if self.capturing:
            self.pool = torch.cuda.graph_pool_handle()
            for group in optimiser.param_groups:
                group["lr"] = torch.tensor(group["lr"], device=device)

    def weigh(self, weights: Tensor | None) -> None:
        """From now on pairs have these weights (N,); captured steps read them from the same memory."""
        if self.weights is None or weights is None:
            self.weights = None if weights is None else weights.to(self.device, copy=True)
        else:
            self.weights.copy_(weights)

    def step(self, batches: Sequence[DeviceBatch], epoch: int, step: int, factor: float) -> None:
        """Average the gradients of `batches`, clip, update weights and averages."""
        for group, base in zip(self.optimiser.param_groups, self.base_rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(base * factor)
            else:
                group["lr"] = base * factor
        if self.capturing and len(batches) == 1:
            reported = self._replayed(batches[0], epoch)
        else:
            reported = self.update(batches, epoch)
        self._remember(reported, step)
        self.averaged.update(step)

    def update(self, batches: Sequence[DeviceBatch], epoch: int) -> dict[str, Tensor]:
        """Gradients of all batches, then one AdamW step; reports means over the batches."""
        self.optimiser.zero_grad(set_to_none=True)
        reports = [self.differentiate(batch, epoch, 1 / len(batches)) for batch in batches]
        average_gradients(self.parameters, self.world)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.optimiser.max_grad_norm)
        self.optimiser.step()
        means = {name: torch.stack([report[name] for report in reports]).mean() for name in reports[0]}
        # weights are lost by a gradient that is not finite, whatever the loss was
        return means | {"loss": torch.where(norm.isfinite(), means["loss"], torch.nan)}

    def _replayed(self, batch: DeviceBatch, epoch: int) -> dict[str, Tensor]:
        """The first step of a kind runs as it is and warms up, the second is captured, the rest replay it."""
        key = self.method.phase(epoch), self.weights is None, *batch.kind
        if key not in self.cuda_graphs:
            self.cuda_graphs[key] = None
            return self.update([batch], epoch)
        captured = self.cuda_graphs[key]
        if captured is None:
            captured = CapturedStep(lambda static: self.update([static], epoch), batch, self.pool)
            self.cuda_graphs[key] = captured
        return captured.replay(batch)

    def differentiate(self, batch: DeviceBatch, epoch: int, share: float) -> dict[str, Tensor]:
        """Add the gradient of the batch's loss; report the loss, its terms and the method's scalars."""
        terms = self.method.losses(self.encode(batch, epoch))
        means = {name: term.mean() for name, term in terms.items()}
        loss = torch.stack(list(means.values())).sum()
        (loss * share).backward()  # type: ignore[no-untyped-call]
        return {"loss": loss.detach(), **{name: mean.detach() for name, mean in means.items()}}

    def encode(self, batch: DeviceBatch, epoch: int) -> EncodedBatch:
        """The whole global batch, encoded by all ranks together."""
        given = batch.images
        if isinstance(given, Tensor):
            given = self.method.retriever.normalise(given)
            if self.device.type == "cuda":
                given = given.contiguous(memory_format=torch.channels_last)
        texts, images = self._encoded_by(self.method.retriever, batch, given)
        encoded = EncodedBatch(
            texts,
            images,
            batch.image_of,
            batch.image_keys,
            batch.caption_keys,
            batch.rows,
            epoch,
            batch.longer_than,
            weights=None if self.weights is None else self.weights[batch.rows],
        )
        if self.seen is not None:
            self.seen.keep(encoded)
        if self.teacher is None:
            return encoded
        with torch.no_grad():
            texts, images = self._encoded_by(self.teacher, batch, given)
            scores = self.method.teacher_scores(self.teacher, replace(encoded, texts=texts, images=images))
        return replace(encoded, teacher_scores=scores)

    def _encoded_by(self, model: Retriever, batch: DeviceBatch, given: ImageInput) -> tuple[Encoded, Encoded]:
        """The global batch's captions and images as this model encodes them."""
        with encoder_precision(self.device, self.config.precision):
            images = encode_images(model, given)
            texts = encode_texts(model, batch.texts).chosen(batch.caption_of)
        return (
            gather_encoded(texts.to(dtype=torch.float32), len(batch.rows), self.world),
            gather_encoded(images.to(dtype=torch.float32), len(batch.image_keys), self.world),
        )

    def _remember(self, reported: dict[str, Tensor], step: int) -> None:
        broken = ~torch.isfinite(reported["loss"]) & (self.bad_step < 0)
        self.bad_step = torch.where(broken, step, self.bad_step)
        for name, value in reported.items():
            self.sums[name] = self.sums[name] + value if name in self.sums else value
        self.counted += 1

    def drain(self) -> dict[str, float]:
        """Means since the last call, plus the method's current scalars."""
        means = {name: float(value) / self.counted for name, value in sorted(self.sums.items())}
        self.sums, self.counted = {}, 0
        scalars = {name: float(value) for name, value in self.method.progress().items()}
        return {**means, **scalars, "lr": float(self.optimiser.param_groups[0]["lr"])}

    def check_finite(self, name_batch: Callable[[int], str]) -> None:
        """Stop the run if any loss so far was not finite."""
        step = int(self.bad_step)
        if step >= 0:
            raise TrainingError(
                f"the loss or its gradient at step {step} is not finite; "
                f"its batch holds pairs {name_batch(step)}",
                fix="lower the learning rates or use fp32; the last good checkpoint is kept",
            )


class CapturedStep:
    """A step recorded as a CUDA graph over fixed input tensors."""

    def __init__(
        self,
        update: Callable[[DeviceBatch], dict[str, Tensor]],
        example: DeviceBatch,
        pool: Any = None,
    ) -> None:
        self.inputs = example.cloned()
        self.graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, pool=pool):
            self.reported = update(self.inputs)

    def replay(self, batch: DeviceBatch) -> dict[str, Tensor]:
        for own, given in zip(self.inputs.tensors(), batch.tensors(), strict=True):
            own.copy_(given)
        self.graph.replay()
        return self.reported
