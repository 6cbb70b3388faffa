"""Which parameters learn at which rate, and which are not pulled towards zero."""

from __future__ import annotations

from torch.nn import Parameter

from pmpguard.models.retriever import Retriever


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
