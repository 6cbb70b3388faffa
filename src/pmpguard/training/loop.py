"""The training loop: one loop, whatever the method."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import numpy as np
import torch

from pmpguard.config import to_dict
from pmpguard.data.images.sources import ImageSource
from pmpguard.data.pairs import PairTable, image_label_codes
from pmpguard.device import pick_device
from pmpguard.errors import CheckpointError, ConfigError, DataError
from pmpguard.evaluation.evaluate import Gallery, evaluate_scores
from pmpguard.files import write_json
from pmpguard.methods.method import Method, TrainingView
from pmpguard.methods.registry import find_method
from pmpguard.models.retriever import Retriever
from pmpguard.training.batch_sampler import PairSampler
from pmpguard.training.checkpoint import (
    Position,
    RunIdentity,
    latest_checkpoint,
    load_checkpoint,
    optimiser_tensors,
    restore_optimiser,
    save_checkpoint,
)
from pmpguard.training.config import TrainConfig
from pmpguard.training.distributed import World, any_rank, barrier, broadcast_state
from pmpguard.training.ema import AveragedWeights
from pmpguard.training.encode import Split
from pmpguard.training.feature_cache import can_cache, weights_fingerprint
from pmpguard.training.loader import BatchLoader, batch_names
from pmpguard.training.parameter_groups import parameter_groups
from pmpguard.training.schedule import rate_factor, step_seed
from pmpguard.training.step import StepRunner, captures
from pmpguard.training.tracking import Tracker, progress_bar, write_environment

_LOG_EVERY = 10


@dataclass(frozen=True)
class TrainingData:
    """What a run may see. The test split and the injected labels are not among it."""

    train: PairTable  # as trained on, wrong captions included
    train_images: ImageSource
    validation: Gallery
    dataset: str  # fingerprint of the pairs before corruption
    noise: str = ""  # fingerprint of the corruption
    known: np.ndarray | None = None  # (N,) bool, which pairs are right: for the oracle alone


@dataclass(frozen=True)
class TrainResult:
    """What a finished run tells."""

    retriever: Retriever
    method: Method
    best_epoch: int
    best_mr: float
    seconds: float  # since this process began or continued it, of both models where there are two
    pairs_per_second: float  # over whole epochs, augmentation and detection included, validation not
    steps: int
    model_kept: int = 1  # 2: a second model, taught by the first
    models_trained: int = 1  # how many were trained


class Interrupted(KeyboardInterrupt):
    """Ctrl-C after a checkpoint was saved."""


# Called at the start of every epoch with p(match) of each training pair; what it returns is only logged.
Observer = Callable[[int, np.ndarray], dict[str, float]]


def build_method(config: TrainConfig, pairs: int, captions: list[str]) -> Method:
    """The method with freshly initialised weights; equal seeds give equal weights."""
    kind = find_method(config.method)
    settings = kind.read_settings(config.preset, config.settings)
    torch.manual_seed(config.seed)
    retriever = Retriever.create(kind.model_config(config.model, settings), captions)
    return kind(retriever, settings, pairs)


def build_optimiser(method: Method, config: TrainConfig, device: torch.device) -> torch.optim.AdamW:
    """AdamW over encoder and new parameters; biases, norms and temperatures do not decay."""
    groups = parameter_groups(method.retriever)
    known = {id(parameter) for group in groups.values() for parameter in group}
    for parameter in method.parameters():  # what the method adds to the model
        if parameter.requires_grad and id(parameter) not in known:
            groups["new" if parameter.ndim > 1 else "new_no_decay"].append(parameter)
    rates = {"encoder": config.optimiser.encoder_lr, "new": config.optimiser.head_lr}
    described = [
        {"params": group, "lr": rates[name.removesuffix("_no_decay")],
         "weight_decay": 0.0 if name.endswith("_no_decay") else config.optimiser.weight_decay}
        for name, group in groups.items() if group
    ]  # fmt: skip
    on_gpu = device.type == "cuda"
    return torch.optim.AdamW(
        described,
        betas=config.optimiser.betas,
        fused=on_gpu or None,
        capturable=on_gpu and config.cuda_graphs,
    )


def train(
    config: TrainConfig,
    data: TrainingData,
    run: Path,
    *,
    resume: bool = True,
    observe: Observer | None = None,
    teacher: Retriever | None = None,
) -> TrainResult:
    """Train to the end, continuing from the newest checkpoint in `run` if there is one.

    A `teacher` sees every batch, too, and the method learns from what it believes.

    The weights that validate best become `run/model`. Ctrl-C saves a checkpoint and raises `Interrupted`.
    """
    world, device = World.current(), pick_device(config.device)
    if data.train.image_codes.max(initial=0) < 1:
        raise DataError(
            "the training split has one image only", fix="contrastive training needs at least two"
        )
    method = build_method(config, len(data.train), data.train.captions).to(device)
    if device.type == "cuda":
        method = method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if teacher is not None:
        if not method.can_distill:
            raise ConfigError(f"{config.method} cannot learn from a teacher")
        teacher = teacher.to(device).eval()
    if data.known is not None:
        method.trust(torch.from_numpy(data.known))
    broadcast_state(method, world)
    optimiser = build_optimiser(method, config, device)
    names = {parameter: name for name, parameter in method.named_parameters() if parameter.requires_grad}
    averaged = AveragedWeights(method, config.ema)
    sampler = PairSampler(
        data.train.image_codes,
        data.train.caption_codes,
        config.batch_size,
        config.seed,
        captions_per_image=config.captions_per_image,
    )
    seen, gallery = (
        open_split(table, images, method.retriever, config)
        for table, images in (
            (data.train, data.train_images),
            (data.validation.table, data.validation.images),
        )
    )
    loader = BatchLoader(
        seen.table, seen.images, seen.tokens, sampler, config.augmentation, config.seed, device, world,
        same_shapes=captures(config, device, world),
    )  # fmt: skip
    grad_accumulation = config.optimiser.grad_accumulation
    steps_per_epoch = sampler.steps_per_epoch // grad_accumulation
    if steps_per_epoch < 1:
        raise DataError(
            f"{sampler.steps_per_epoch} batches an epoch, optimiser.grad_accumulation {grad_accumulation}",
            fix="lower optimiser.grad_accumulation or batch_size",
        )
    steps = config.epochs * steps_per_epoch
    identity = RunIdentity(
        to_dict(config), data.dataset, data.validation.table.fingerprint, data.noise, world.size,
        teacher="" if teacher is None else weights_fingerprint(teacher),
    )  # fmt: skip
    position, best, sums = Position(), {}, {}
    checkpoint = latest_checkpoint(run)
    if checkpoint is not None:
        if not resume:
            raise CheckpointError(f"{run} already holds a run", fix="choose another folder, or resume it")
        position, tensors = load_checkpoint(checkpoint, identity)
        method.load_state_dict(tensors["method"])
        restore_optimiser(optimiser, names, tensors["optimiser"])
        averaged.load(tensors.get("averaged", {}))
        best, sums = tensors.get("best", {}), tensors.get("sums", {})
    elif world.is_main:
        run.mkdir(parents=True, exist_ok=True)
        write_json(run / "config.json", to_dict(config))
        write_environment(run, device)
    barrier(world)  # all have seen the same checkpoints before one of them writes the next
    runner = StepRunner(method, optimiser, averaged, config, device, world, teacher)
    runner.sums, runner.counted = {name: value.to(device) for name, value in sums.items()}, position.counted

    def save(now: Position) -> None:
        runner.check_finite(lambda step: batch_names(data.train, rows_of(step)))
        if world.is_main:
            tensors = {
                "method": method.state_dict(),
                "optimiser": optimiser_tensors(optimiser, names),
                "averaged": averaged.tensors,
                "best": best,
                "sums": runner.sums,
            }
            now = replace(now, metrics_bytes=tracker.bytes_written, counted=runner.counted)
            save_checkpoint(run, identity, now, tensors, config.keep_checkpoints)
        barrier(world)

    def rows_of(step: int) -> np.ndarray:
        epoch, within = divmod(step, steps_per_epoch)
        return sampler.batch_rows(epoch, within * grad_accumulation)

    title = config.method if teacher is None else f"{config.method}, taught"
    started, trained_seconds, first_step = time.perf_counter(), 0.0, position.step
    with (
        Tracker(run, active=world.is_main, keep_bytes=position.metrics_bytes, step=position.step) as tracker,
        _interrupt_flag() as interrupted,
        progress_bar(steps, position.step, title, active=world.is_main) as bar,
    ):
        for epoch in range(position.finished_epochs, config.epochs):
            epoch_started = time.perf_counter()
            if position.begun_epoch < epoch:
                values = begin_epoch(method, averaged, seen, epoch, config, device, world)
                if observe is not None and method.p_match is not None:
                    values |= observe(epoch, method.p_match.detach().float().cpu().numpy())
                if values:
                    tracker.log("detection", position.step, {"epoch": epoch, **values})
                position = replace(position, begun_epoch=epoch)
                if config.checkpoint_every > 0:
                    save(position)
            if method.paired_image is not None and int(method.paired_image.max()) >= 0:
                loader.pair_with(method.paired_image.cpu().numpy())
            if method.repeats is not None:
                sampler.visit(method.repeats.cpu().numpy())
            method.train()
            done = position.step - epoch * steps_per_epoch
            batches = loader.batches(epoch, done * grad_accumulation)
            for step in range(position.step, (epoch + 1) * steps_per_epoch):
                factor = rate_factor(step, steps, config.optimiser.warmup_ratio, config.optimiser.schedule)
                torch.manual_seed(step_seed(config.seed, step))
                runner.step([next(batches) for _ in range(grad_accumulation)], epoch, step, factor)
                position = replace(position, step=step + 1)
                bar.update()
                if (step + 1) % _LOG_EVERY == 0 or step + 1 == steps:
                    runner.check_finite(lambda bad: batch_names(data.train, rows_of(bad)))
                    logged = runner.drain()
                    tracker.log("step", step + 1, logged)
                    speed = (bar.format_dict["rate"] or 0.0) * config.batch_size * grad_accumulation
                    shown = {name: f"{value:.3f}" for name, value in logged.items()}
                    bar.set_postfix({"pairs/s": f"{speed:.0f}", **shown})
                if any_rank(interrupted(), device, world):
                    save(position)
                    raise Interrupted(
                        f"stopped at step {position.step} of {steps}; run the same command again to continue"
                    )
                if config.checkpoint_every > 0 and position.step % config.checkpoint_every == 0:
                    save(position)
            runner.check_finite(lambda bad: batch_names(data.train, rows_of(bad)))
            trained_seconds += time.perf_counter() - epoch_started
            if (epoch + 1) % config.evaluate_every == 0 or epoch + 1 == config.epochs:
                recall = validate(method, averaged, gallery, world)
                tracker.log("validation", position.step, {"epoch": epoch, **recall})
                if recall["mr"] > position.best_score:
                    position = replace(position, best_epoch=epoch, best_score=recall["mr"])
                    with averaged.in_place(method):
                        best = {name: value.detach().cpu().clone() for name, value in
                                method.retriever.state_dict().items()}  # fmt: skip
            position = replace(position, finished_epochs=epoch + 1)
            # a teacher is kept whatever else is: stopped, its pupil can only go on with the very same
            teaches = epoch + 1 == config.epochs and method.wants_distillation()
            if config.checkpoint_every >= 0 or teaches:
                save(position)
        seconds = time.perf_counter() - started
        method.retriever.load_state_dict(best)
        if world.is_main:
            method.retriever.save(run / "model")
        if any_rank(interrupted(), device, world):  # during the last look at the validation split
            save(position)
            raise Interrupted(
                f"stopped after the last step; its model is in {run / 'model'}, "
                "run the same command again to finish"
            )
        barrier(world)
    method.zero_grad(set_to_none=True)  # a second model's training needs the memory
    trained_pairs = (steps - first_step) * config.batch_size * grad_accumulation
    return TrainResult(
        method.retriever, method, position.best_epoch, position.best_score, seconds,
        trained_pairs / trained_seconds if trained_seconds else 0.0, steps,
    )  # fmt: skip


def begin_epoch(
    method: Method,
    averaged: AveragedWeights,
    seen: Split,
    epoch: int,
    config: TrainConfig,
    device: torch.device,
    world: World,
) -> dict[str, float]:
    """Offer the method its look at the training set; every rank ends with rank 0's verdicts."""
    view = TrainingView(
        lambda: seen.encode(method.retriever, world),
        seen.caption_of,
        torch.from_numpy(seen.table.image_codes).to(device),
        epoch,
        config.seed,
        image_labels=torch.from_numpy(image_label_codes(seen.table)).to(device),
        is_last=epoch + 1 == config.epochs,
        read_tokens=lambda: seen.pooled_features(method.retriever, world),
    )
    method.eval()
    with torch.no_grad(), averaged.in_place(method):
        values = method.begin_epoch(view)
    for buffer in method.buffers(recurse=False):
        if world.size > 1:
            torch.distributed.broadcast(buffer, src=0)
    return values


def open_split(table: PairTable, images: ImageSource, retriever: Retriever, config: TrainConfig) -> Split:
    """A split as the run reads it; features of frozen backbones are cached."""
    how = Split.cached if can_cache(retriever, config.augmentation) else Split.open
    return how(table, images, retriever, batch=config.batch_size, precision=config.precision)


def validate(method: Method, averaged: AveragedWeights, gallery: Split, world: World) -> dict[str, float]:
    """Recalls on the validation split, by the method's own score and the averaged weights."""
    method.eval()
    with torch.no_grad(), averaged.in_place(method):
        captions, images = gallery.encode(method.retriever, world)
        scores = method.score(captions[gallery.caption_of], images)  # a row per pair
    return evaluate_scores(scores, gallery.table).as_dict()


@contextlib.contextmanager
def _interrupt_flag() -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a flag the loop reads between steps; the second one stops at once."""
    asked = False

    def remember(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True

    try:
        previous = signal.signal(signal.SIGINT, remember)
    except ValueError:  # not in the main thread
        yield lambda: False
        return
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, previous)
