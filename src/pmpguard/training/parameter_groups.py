"""Which parameters learn at which rate, and which are not pulled towards zero."""

from __future__ import annotations

import torch
from torch.nn import Parameter

from pmpguard.methods.method import Method
from pmpguard.models.retriever import Retriever
from pmpguard.training.config import TrainConfig


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


def parameter_groups(retriever: Retriever) -> dict[str, list[Parameter]]:
    """Trainable parameters as "encoder" (pretrained backbones) and "new" (all that starts untrained).

    Each has a companion "..._no_decay": vectors and scalars, that is biases, norms and the temperature.
    A tiny backbone has no pretrained weights to protect, so it counts as new.
    """
    groups: dict[str, list[Parameter]] = {
        name: [] for name in ("encoder", "encoder_no_decay", "new", "new_no_decay")
    }
    pretrained = {
        id(parameter)
        for encoder in (retriever.image_encoder, retriever.text_encoder)
        if encoder.architecture.family != "tiny"
        for parameter in encoder.backbone.parameters()
    }
    for parameter in retriever.parameters():
        if parameter.requires_grad:
            name = "encoder" if id(parameter) in pretrained else "new"
            groups[name if parameter.ndim > 1 else f"{name}_no_decay"].append(parameter)
    return groups
