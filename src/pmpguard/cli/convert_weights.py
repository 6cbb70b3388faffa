"""`pmpguard convert`: an OpenCLIP or OpenAI checkpoint as a Hugging Face CLIP folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pmpguard.errors import ModelError

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
)


@dataclass(frozen=True)
class Conversion:
    """Where the folder is, what it holds, and what is still missing from it."""

    folder: str
    parameters: int
    image_size: int
    patch_size: int
    dim: int
    has_tokenizer: bool

    def as_text(self) -> str:
        text = (
            f"{self.folder}: CLIP with {self.parameters:,} parameters, {self.image_size} px in patches of "
            f"{self.patch_size}, embeddings of {self.dim}"
        )
        if not self.has_tokenizer:
            text += (
                "\nTokenizer files are missing: copy tokenizer.json (or vocab.json and merges.txt) of "
                "openai/clip-vit-base-patch32 into the folder; all CLIPs of this kind share them"
            )
        return text


def convert(
    source: Path,
    out: Path,
    activation: Literal["quick_gelu", "gelu"] = "quick_gelu",
    head_width: int = 64,
    text_head_width: int = 64,
    tokenizer: Path | None = None,
) -> Conversion:
    """Convert the weights of GeoRSCLIP, RemoteCLIP, OpenCLIP or OpenAI (ViT) for use as `vision` and `text`.

    Args:
        source: a .pt, .bin or .safetensors file holding a state dict
        out: the folder to write
        activation: quick_gelu for OpenAI's weights and those tuned from them, gelu for OpenCLIP's own
        head_width: channels per attention head of the vision tower: 64, but 80 for ViT-H
        text_head_width: the same for the text tower
        tokenizer: a folder with CLIP's tokenizer files, copied into the result
    """
    import transformers

    from pmpguard.files import atomic_directory, write_json
    from pmpguard.models.checkpoints import convert_openclip, load_exactly, read_foreign_weights
    from pmpguard.models.encoders.pretrained import CLIP_MEAN, CLIP_STD

    copied = (
        [tokenizer / name for name in TOKENIZER_FILES if (tokenizer / name).is_file()] if tokenizer else []
    )
    if tokenizer and not copied:
        raise ModelError(
            f"{tokenizer}: no tokenizer files", fix=f"it should hold {' or '.join(TOKENIZER_FILES[:2])}"
        )
    clip = convert_openclip(
        read_foreign_weights(source),
        activation=activation,
        head_width=head_width,
        text_head_width=text_head_width,
    )
    config = transformers.CLIPConfig(**clip.settings)
    model = transformers.CLIPModel(config)
    load_exactly(model, clip.weights, str(source))
    size = config.vision_config.image_size
    with atomic_directory(out) as folder:
        model.save_pretrained(folder)
        write_json(
            folder / "preprocessor_config.json",
            {"image_mean": list(CLIP_MEAN), "image_std": list(CLIP_STD), "size": size},
        )
        for path in copied:
            shutil.copyfile(path, folder / path.name)
    return Conversion(
        folder=str(out),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        image_size=size,
        patch_size=config.vision_config.patch_size,
        dim=config.projection_dim,
        has_tokenizer=bool(copied),
    )
