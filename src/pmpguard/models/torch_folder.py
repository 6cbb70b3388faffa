"""A CLIP or SigLIP folder in Hugging Face's form, with weights in torch's files: tensors alone are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from pmpguard.errors import ModelError
from pmpguard.files import read_json
from pmpguard.models.checkpoints import Weights, load_exactly, read_foreign_weights
from pmpguard.models.clip_folder import (
    SPECIAL_TOKENS,
    TORCH_INDEX,
    TORCH_WEIGHTS,
    WEIGHTS,
    WEIGHTS_INDEX,
    is_hugging_face,
    parts_of,
)


def is_clip_folder(source: Path) -> bool:
    """Whether a folder holds a CLIP or SigLIP under Hugging Face's names."""
    if not (source / "config.json").is_file():
        return False
    stored = read_json(source / "config.json")
    return is_hugging_face(stored) and stored["model_type"] in SPECIAL_TOKENS


def read_clip_folder(source: Path) -> tuple[Any, dict[str, Any]]:
    """The whole model in float32 and its settings; a tensor that is missing or unknown is named."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(source, local_files_only=True)
    model = transformers.AutoModel.from_config(config, dtype=torch.float32)
    load_exactly(model, folder_weights(source), str(source))
    return model, read_json(source / "config.json")


def folder_weights(source: Path) -> Weights:
    """All tensors of a folder, from one file or from the parts that an index lists."""
    for name, index in ((WEIGHTS, WEIGHTS_INDEX), (TORCH_WEIGHTS, TORCH_INDEX)):
        if (source / name).is_file() or (source / index).is_file():
            files = [name] if (source / name).is_file() else parts_of(source / index)
            weights: Weights = {}
            for file in files:
                weights |= read_foreign_weights(source / file)
            # older versions stored the places 0, 1, 2 ... beside the weights
            return {name: value.float() for name, value in weights.items() if "position_ids" not in name}
    raise ModelError(
        f"{source}: holds no {WEIGHTS} and no {TORCH_WEIGHTS}", fix="download the whole folder again"
    )
