"""`pmpguard convert`: an OpenCLIP or OpenAI checkpoint as a Hugging Face CLIP folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pmpguard.errors import ModelError
from pmpguard.models.clip_folder import TOKENIZER_FILES, TOKENIZER_FIX, has_tokenizer


@dataclass(frozen=True)
class Conversion:
    """Where the folder is, what it holds, and what is still missing from it."""

    folder: str
    parameters: int
    image_size: int
    patch_size: int
    dim: int
    heads: int
    activation: str
    max_tokens: int
    has_tokenizer: bool

    def as_text(self) -> str:
        text = (
            f"{self.folder}: CLIP with {self.parameters:,} parameters, {self.image_size} px in patches of "
            f"{self.patch_size}, embeddings of {self.dim}, {self.heads} attention heads, {self.activation}, "
            f"at most {self.max_tokens} tokens"
        )
        if not self.has_tokenizer:
            return f"{text}\nTokenizer files are missing: {TOKENIZER_FIX}"
        return f"{text}\nuse it as it is (--model {self.folder}), or train from it (--model.vision and .text)"


def convert(
    source: Path,
    out: Path,
    activation: Literal["quick_gelu", "gelu"] | None = None,
    head_width: int | None = None,
    text_head_width: int | None = None,
    tokenizer: Path | None = None,
) -> Conversion:
    """Convert the weights of GeoRSCLIP, RemoteCLIP, OpenCLIP or OpenAI (ViT): to rank with, or to train from.

    What the weights do not tell is read from an open_clip_config.json beside them, where there is one.

    Args:
        source: a .pt, .bin or .safetensors file holding a state dict, or a folder with one
        out: the folder to write
        activation: quick_gelu for OpenAI's weights and those tuned from them, gelu for OpenCLIP's own
        head_width: channels per attention head of the vision tower, where its width is none of the usual
        text_head_width: the same for the text tower
        tokenizer: a folder with CLIP's tokenizer files, copied into the result
    """
    import transformers

    from pmpguard.files import atomic_directory, write_json
    from pmpguard.models.checkpoints import load_exactly, read_foreign_weights
    from pmpguard.models.openclip import convert_openclip, read_openclip_config, weights_file

    path = weights_file(source)
    given = read_openclip_config(path.parent)
    if tokenizer and not has_tokenizer(tokenizer):
        raise ModelError(
            f"{tokenizer}: no tokenizer files",
            fix="it should hold tokenizer.json, or vocab.json and merges.txt",
        )
    words = tokenizer or (path.parent if has_tokenizer(path.parent) else None)
    clip = convert_openclip(
        read_foreign_weights(path),
        activation=activation or given.activation,
        head_width=head_width or given.head_width,
        text_head_width=text_head_width or given.text_head_width,
    )
    config = transformers.CLIPConfig(**clip.settings)
    model = transformers.CLIPModel(config)
    load_exactly(model, clip.weights, str(path))
    vision, size = config.vision_config, config.vision_config.image_size
    with atomic_directory(out) as folder:
        model.save_pretrained(folder, max_shard_size="100GB")  # one file, which is what a model folder has
        write_json(folder / "preprocessor_config.json", preprocessing(size, given.mean, given.std))
        if words is not None:
            copy_tokenizer(words, folder)
    return Conversion(
        folder=str(out),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        image_size=size,
        patch_size=vision.patch_size,
        dim=config.projection_dim,
        heads=vision.num_attention_heads,
        activation=vision.hidden_act,
        max_tokens=config.text_config.max_position_embeddings - 2,
        has_tokenizer=words is not None,
    )


def preprocessing(size: int, mean: tuple[float, ...], std: tuple[float, ...]) -> dict[str, Any]:
    """`preprocessor_config.json` as CLIP's own: the shorter side to `size`, then the centre."""
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": size},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(std),
        "do_convert_rgb": True,
    }


def copy_tokenizer(source: Path, folder: Path) -> None:
    """CLIP's tokenizer files; tokenizer.json is made of the others where it is missing."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    if not (folder / "tokenizer.json").is_file():
        from pmpguard.models.encoders.pretrained import load_tokenizer

        (folder / "tokenizer.json").write_text(load_tokenizer(str(folder)).to_json(), encoding="utf-8")
