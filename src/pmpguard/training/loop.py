"""The training loop: one loop, whatever the method."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from pmpguard.config import to_dict
from pmpguard.data.images.sources import ImageSource
from pmpguard.data.pairs import PairTable
from pmpguard.device import device_failures, on_host, pick_device
from pmpguard.errors import CheckpointError, ConfigError, DataError, damage_named
from pmpguard.evaluation.evaluate import Gallery
from pmpguard.files import remove_leftovers, write_json
from pmpguard.methods.method import EpochPlan, Method
from pmpguard.methods.registry import find_method
from pmpguard.models.checkpoints import weights_fingerprint
from pmpguard.models.retriever import Retriever
from pmpguard.training.batch_sampler import PairSampler
from pmpguard.training.checkpoint import (
    ANOTHER,
    Position,
    RunIdentity,
    latest_checkpoint,
    load_checkpoint,
    optimiser_tensors,
    refuse_foreign,
    restore_optimiser,
    save_checkpoint,
    write_identity,
)
from pmpguard.training.config import TrainConfig, resolve
from pmpguard.training.distributed import World, any_rank, barrier, broadcast_state, writing_right
from pmpguard.training.ema import AveragedWeights
from pmpguard.training.encode import Split
from pmpguard.training.epoch import open_split, plan_epoch, validate
from pmpguard.training.interrupt import Interrupted, StopRequest, stop_requests
from pmpguard.training.loader import BatchLoader, batch_names
from pmpguard.training.outside_judge import JudgeVectors
from pmpguard.training.parameter_groups import build_optimiser
from pmpguard.training.schedule import rate_factor, step_seed
from pmpguard.training.seen_vectors import SeenVectors
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
    judge: JudgeVectors | None = None  # of the training pairs, by a model from outside
    # writes what else belongs into the run's folder; called in the main process once that is ours
    record: Callable[[], None] | None = None


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
    model_kept: int = 1  # 2: a student, where the first model was its teacher
    models_trained: int = 1  # how many were trained


# Called at the start of every epoch with p(match) of each training pair; what it returns is only logged.
Observer = Callable[[int, np.ndarray], dict[str, float]]


@dataclass
class RunState:
    """A run between two steps: what is fixed by its set-up, and what changes."""

    config: TrainConfig
    data: TrainingData
    folder: Path
    world: World
    device: torch.device
    identity: RunIdentity
    method: Method
    optimiser: torch.optim.AdamW
    averaged: AveragedWeights
    sampler: PairSampler
    loader: BatchLoader
    train_split: Split
    validation_split: Split
    runner: StepRunner
    observe: Observer | None = None

    position: Position = field(default_factory=Position)
    plan: EpochPlan = field(default_factory=EpochPlan)  # of the epoch begun last
    best: dict[str, Tensor] = field(default_factory=dict)  # the retriever that validated best
    trained_steps: int = 0  # by this process
    trained_seconds: float = 0.0

    @property
    def steps_per_epoch(self) -> int:
        return self.sampler.steps_per_epoch // self.config.optimiser.grad_accumulation

    @property
    def steps(self) -> int:
        return self.config.epochs * self.steps_per_epoch

    @property
    def parameter_names(self) -> dict[torch.nn.Parameter, str]:
        return {value: name for name, value in self.method.named_parameters() if value.requires_grad}


@dataclass(frozen=True)
class Watch:
    """Who follows a run: its record, its bar, and whoever may ask it to stop."""

    tracker: Tracker
    bar: tqdm[Any]
    stop: StopRequest


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

    A `teacher` encodes every batch, too, and the method learns from its soft targets. The weights that
    validate best become `run/model`. Ctrl-C or SIGTERM saves a checkpoint and raises `Interrupted`. A run
    that is refused, being another one's continuation or at work in another process, writes nothing.
    """
    config, world = resolve(config), World.current()
    identity = run_identity(config, data, world, teacher)
    refuse_foreign(run, identity, resume)
    with device_failures(), stop_requests() as stop, writing_right(run, world):
        refuse_foreign(run, identity, resume)  # whoever had the right just before may have begun another run
        state = set_up(config, data, run, identity, teacher)
        state.observe = observe
        restore(state)
        with watched(state, stop) as watch:
            started = time.perf_counter()
            for epoch in range(state.position.finished_epochs, config.epochs):
                run_epoch(state, epoch, watch)
            return finish(state, watch, time.perf_counter() - started)


def build_method(config: TrainConfig, pairs: int, captions: list[str]) -> Method:
    """The method with freshly initialised weights; equal seeds give equal weights."""
    kind = find_method(config.method)
    settings = kind.read_settings(config.preset, config.settings)
    torch.manual_seed(config.seed)
    retriever = Retriever.create(kind.model_config(config.model, settings), captions)
    return kind(retriever, settings, pairs)


def run_identity(
    config: TrainConfig, data: TrainingData, world: World, teacher: Retriever | None
) -> RunIdentity:
    """What decides a run; no other may continue it."""
    return RunIdentity(
        to_dict(config), data.dataset, data.validation.table.fingerprint, data.noise, world.size,
        teacher="" if teacher is None else weights_fingerprint(teacher),
    )  # fmt: skip


def set_up(
    config: TrainConfig, data: TrainingData, folder: Path, identity: RunIdentity, teacher: Retriever | None
) -> RunState:
    """A run before its first step."""
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
        method.set_clean_mask(torch.from_numpy(data.known))
    if data.judge is not None:
        method.set_judge(data.judge.measure())
    broadcast_state(method, world)
    optimiser = build_optimiser(method, config, device)
    averaged = AveragedWeights(method, config.ema)
    codes, together = (data.train.image_codes, data.train.caption_codes), config.captions_per_image
    sampler = PairSampler(*codes, config.batch_size, config.seed, captions_per_image=together)
    if sampler.steps_per_epoch < config.optimiser.grad_accumulation:
        raise DataError(
            f"{sampler.steps_per_epoch} batches an epoch, "
            f"optimiser.grad_accumulation {config.optimiser.grad_accumulation}",
            fix="lower optimiser.grad_accumulation or batch_size",
        )
    sides = (data.train, data.train_images), (data.validation.table, data.validation.images)
    train_split, held_out = (open_split(*side, method.retriever, config) for side in sides)
    loader = BatchLoader(
        train_split.table, train_split.images, train_split.tokens, sampler, config.augmentation, config.seed,
        device, world, same_shapes=captures(config, device, world),
    )  # fmt: skip
    seen = None if config.look == "anew" else SeenVectors(train_split, method.retriever.config.dim, device)
    runner = StepRunner(method, optimiser, averaged, config, device, world, teacher, seen)
    return RunState(
        config, data, folder, world, device, identity, method, optimiser, averaged, sampler, loader,
        train_split, held_out, runner,
    )  # fmt: skip


def restore(state: RunState) -> None:
    """Go on from the newest checkpoint; without one, begin the run's records."""
    checkpoint = latest_checkpoint(state.folder)
    if state.world.is_main:
        remove_leftovers(state.folder / "checkpoints")
    if state.world.is_main and state.data.record is not None:
        state.data.record()
    if checkpoint is not None:
        state.position, tensors = load_checkpoint(checkpoint, state.identity)
        with damage_named(checkpoint, ANOTHER, CheckpointError):
            state.method.load_state_dict(tensors["method"])
            restore_optimiser(state.optimiser, state.parameter_names, tensors["optimiser"])
            state.averaged.load(tensors.get("averaged", {}))
            state.best = tensors.get("best", {})
            state.plan = EpochPlan.of(tensors["plan"])
            if state.runner.seen is not None:
                state.runner.seen.load(tensors["seen"])
        state.runner.sums = {name: one.to(state.device) for name, one in tensors.get("sums", {}).items()}
        state.runner.counted = state.position.counted
    elif state.world.is_main:
        write_identity(state.folder, state.identity)
        write_json(state.folder / "config.json", to_dict(state.config))
        write_environment(state.folder, state.device)
    barrier(state.world)  # all have seen the same checkpoints before one of them writes the next


@contextlib.contextmanager
def watched(state: RunState, stop: StopRequest) -> Iterator[Watch]:
    """With a record and a bar; from here on a request to stop waits for the next checkpoint."""
    position, active = state.position, state.world.is_main
    name = state.config.method + ("" if state.runner.teacher is None else ", student")
    with (
        Tracker(
            state.folder, active=active, keep_bytes=position.metrics_bytes, step=position.step
        ) as tracker,
        progress_bar(state.steps, position.step, name, active=active) as bar,
    ):
        stop.deferred = True
        yield Watch(tracker, bar, stop)


def run_epoch(state: RunState, epoch: int, watch: Watch) -> None:
    """Plan an epoch, take its steps, validate; stops where it is asked to, after saving a checkpoint."""
    started, first = time.perf_counter(), state.position.step
    if state.position.begun_epoch < epoch:
        begin_epoch(state, epoch, watch)
    state.loader.pair_with(on_host(state.plan.partners))
    state.sampler.visit(on_host(state.plan.repeats))
    state.runner.weigh(state.plan.weights)
    state.method.train()
    take_steps(state, epoch, watch)
    check_losses(state)
    state.trained_seconds += time.perf_counter() - started
    state.trained_steps += state.position.step - first
    config, last = state.config, epoch + 1 == state.config.epochs
    if (epoch + 1) % config.evaluate_every == 0 or last:
        recall = validate(state.method, state.averaged, state.validation_split, state.world)
        watch.tracker.log("validation", state.position.step, {"epoch": epoch, **recall})
        keep_best(state, epoch, recall["mr"])
    state.position = replace(state.position, finished_epochs=epoch + 1)
    # a teacher is kept whatever else is: stopped, its student can only go on with the very same
    if config.checkpoint_every >= 0 or (last and state.method.wants_distillation()):
        save(state, watch.tracker)
    if not last:
        stop_if_asked(state, watch)


def begin_epoch(state: RunState, epoch: int, watch: Watch) -> None:
    """Let the method plan the epoch."""
    read = state.config, state.world, state.runner.seen
    state.plan = plan_epoch(state.method, state.averaged, state.train_split, epoch, *read)
    log, p_match = dict(state.plan.log), state.method.p_match
    if state.observe is not None and p_match is not None:
        log |= state.observe(epoch, p_match.detach().float().cpu().numpy())
    if log:
        watch.tracker.log("detection", state.position.step, {"epoch": epoch, **log})
    state.position = replace(state.position, begun_epoch=epoch)
    if state.config.checkpoint_every > 0:
        save(state, watch.tracker)
    stop_if_asked(state, watch)


def take_steps(state: RunState, epoch: int, watch: Watch) -> None:
    """The epoch's steps from the present position on."""
    config, runner, per_step = state.config, state.runner, state.config.optimiser.grad_accumulation
    watch.bar.unpause()  # detection came before, which is no time of steps
    batches = state.loader.batches(epoch, (state.position.step - epoch * state.steps_per_epoch) * per_step)
    for step in range(state.position.step, (epoch + 1) * state.steps_per_epoch):
        factor = rate_factor(step, state.steps, config.optimiser.warmup_ratio, config.optimiser.schedule)
        torch.manual_seed(step_seed(config.seed, step))
        runner.step([next(batches) for _ in range(per_step)], epoch, step, factor)
        state.position = replace(state.position, step=step + 1)
        watch.bar.update()
        if (step + 1) % _LOG_EVERY == 0 or step + 1 == state.steps:
            check_losses(state)
            logged = runner.drain()
            watch.tracker.log("step", step + 1, logged)
            speed = (watch.bar.format_dict["rate"] or 0.0) * config.batch_size * per_step
            values = {name: f"{value:.3f}" for name, value in logged.items()}
            watch.bar.set_postfix({"pairs/s": f"{speed:.0f}", **values})
        stop_if_asked(state, watch)
        if config.checkpoint_every > 0 and state.position.step % config.checkpoint_every == 0:
            save(state, watch.tracker)


def check_losses(state: RunState) -> None:
    """Stop the run if a loss was not finite, naming the pairs of that batch."""

    def pairs_of(step: int) -> str:
        epoch, within = divmod(step, state.steps_per_epoch)
        rows = state.sampler.batch_rows(epoch, within * state.config.optimiser.grad_accumulation)
        return batch_names(state.data.train, rows)

    state.runner.check_finite(pairs_of)


def keep_best(state: RunState, epoch: int, score: float) -> None:
    """Remember the weights that validate best."""
    if score > state.position.best_score:
        state.position = replace(state.position, best_epoch=epoch, best_score=score)
        with state.averaged.in_place(state.method):
            weights = state.method.retriever.state_dict()
            state.best = {name: value.detach().cpu().clone() for name, value in weights.items()}


def stop_if_asked(state: RunState, watch: Watch, where: str = "") -> None:
    if any_rank(watch.stop.asked, state.device, state.world):
        save(state, watch.tracker)
        where = where or f"at step {state.position.step} of {state.steps}"
        raise Interrupted(f"stopped {where}; run the same command again to continue")


def save(state: RunState, tracker: Tracker) -> None:
    """Write a checkpoint of this position."""
    check_losses(state)
    if state.world.is_main:
        tensors = {
            "method": state.method.state_dict(),
            "optimiser": optimiser_tensors(state.optimiser, state.parameter_names),
            "averaged": state.averaged.tensors,
            "best": state.best,
            "sums": state.runner.sums,
            "plan": state.plan.tensors(),
            "seen": {} if state.runner.seen is None else state.runner.seen.tensors(),
        }
        now = replace(state.position, metrics_bytes=tracker.synced_bytes(), counted=state.runner.counted)
        save_checkpoint(state.folder, state.identity, now, tensors, state.config.keep_checkpoints)
    barrier(state.world)


def finish(state: RunState, watch: Watch, seconds: float) -> TrainResult:
    """Write the model that validated best."""
    method, position, config = state.method, state.position, state.config
    method.retriever.load_state_dict(state.best)
    if state.world.is_main:
        method.retriever.save(state.folder / "model")
    # during the last validation
    stop_if_asked(state, watch, f"after the last step; its model is in {state.folder / 'model'}")
    barrier(state.world)
    method.zero_grad(set_to_none=True)  # a student's training needs the memory
    pairs = state.trained_steps * config.batch_size * config.optimiser.grad_accumulation
    return TrainResult(
        method.retriever, method, position.best_epoch, position.best_score, seconds,
        pairs / state.trained_seconds if state.trained_seconds else 0.0, state.steps,
    )  # fmt: skip
