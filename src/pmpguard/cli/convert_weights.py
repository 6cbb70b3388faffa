"""`pmpguard convert`: a CLIP of OpenCLIP, of OpenAI or in torch's files as a Hugging Face CLIP folder."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from pmpguard.errors import ConfigError, ModelError
from pmpguard.models.clip_folder import (
    FAMILIES,
    TOKENIZER_FILES,
    TOKENIZER_FIX,
    has_tokenizer,
    preprocessing,
)

if TYPE_CHECKING:
    from pmpguard.models.openclip_config import OpenClipConfig


@dataclass(frozen=True)
class Conversion:
    """Where the folder is, what it holds, and what is still missing from it."""

    folder: str
    family: str
    parameters: int
    image_size: int
    patch_size: int
    dim: int
    heads: int
    activation: str
    max_tokens: int
    fit: str
    has_tokenizer: bool

    def as_text(self) -> str:
        text = (
            f"{self.folder}: {self.family} with {self.parameters:,} parameters, {self.image_size} px in "
            f"patches of {self.patch_size}, embeddings of {self.dim}, {self.heads} attention heads, "
            f"{self.activation}, at most {self.max_tokens} tokens; images that are not square are "
            + ("cropped in the middle" if self.fit == "crop" else "squashed")
        )
        if not self.has_tokenizer:
            return f"{text}\nTokenizer files are missing: {TOKENIZER_FIX}"
        return f"{text}\nuse it as it is (--model {self.folder}), or train from it (--train.model.vision)"


def convert(
    source: Path,
    out: Path,
    activation: Literal["quick_gelu", "gelu"] | None = None,
    head_width: int | None = None,
    text_head_width: int | None = None,
    tokenizer: Path | None = None,
    fit: Literal["crop", "squash"] | None = None,
) -> Conversion:
    """Convert the weights of GeoRSCLIP, RemoteCLIP, OpenCLIP or OpenAI (ViT): to rank with, or to train from.

    What the weights do not tell is read from an open_clip_config.json beside them, where there is one. Of a
    folder in Hugging Face's form, pytorch_model.bin becomes safetensors, and the fit is changed if asked for.

    Args:
        source: a .pt, .bin or .safetensors file holding a state dict, or a folder with one.
        out: the folder to write.
        activation: quick_gelu for OpenAI's weights and those tuned from them, gelu for OpenCLIP's own.
        head_width: channels per attention head of the vision tower, where its width is none of the usual.
        text_head_width: channels per attention head of the text tower, likewise.
        tokenizer: a folder with CLIP's tokenizer files, or the file bpe_simple_vocab_16e6.txt.gz of its code.
        fit: what to do with images that are not square, crop the middle out or squash them; by default what
            open_clip_config.json says, without one crop as CLIP does.
    """
    import transformers

    from pmpguard.files import atomic_directory, read_json, write_json
    from pmpguard.models.checkpoints import load_exactly, read_foreign_weights
    from pmpguard.models.encoders.pretrained import MARK, PREPROCESSORS
    from pmpguard.models.openclip import WEIGHT_FILES, convert_openclip, weights_file
    from pmpguard.models.openclip_config import read_openclip_config
    from pmpguard.models.torch_folder import is_clip_folder

    asked = {"activation": activation, "head_width": head_width, "text_head_width": text_head_width}
    if is_clip_folder(source) and not any((source / name).is_file() for name in WEIGHT_FILES):
        return convert_folder(source, out, asked, tokenizer, fit)
    path = weights_file(source)
    stored = read_openclip_config(path.parent, fit)
    given = replace(
        stored,
        activation=agreed("activation", activation, stored.activation),
        head_width=agreed("head_width", head_width, stored.head_width),
        text_head_width=agreed("text_head_width", text_head_width, stored.text_head_width),
    )
    if tokenizer and not tokenizer.is_file() and not has_tokenizer(tokenizer):
        raise ModelError(
            f"{tokenizer}: no tokenizer files",
            fix="it should hold tokenizer.json, or vocab.json and merges.txt",
        )
    words = tokenizer or (path.parent if has_tokenizer(path.parent) else None)
    clip = convert_openclip(read_foreign_weights(path), given)
    config = transformers.CLIPConfig(**clip.settings)
    model = transformers.CLIPModel(config)
    load_exactly(model, clip.weights, str(path))
    size = config.vision_config.image_size
    with atomic_directory(out) as folder:
        model.save_pretrained(folder, max_shard_size="100GB")  # one file, which is what a model folder has
        write_json(folder / PREPROCESSORS[0], preprocessing(size, given.framing, given.mean, given.std))
        marks = {"cleaning": given.cleaning, "half_pixel": given.framing.half_pixel}
        write_json(folder / "config.json", read_json(folder / "config.json") | {MARK: marks})
        if words is not None:
            copy_tokenizer(words, folder)
            require_end_last(folder, given, config.text_config.vocab_size)
    return conversion(out, model, given.framing.fit, words is not None)


def conversion(out: Path, model: Any, fit: str, has_words: bool) -> Conversion:
    """What there is to say about a whole CLIP or SigLIP."""
    from pmpguard.models.clip_folder import SPECIAL_TOKENS, shared_dim

    config = model.config
    vision = config.vision_config
    return Conversion(
        folder=str(out),
        family=FAMILIES[config.model_type],
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        image_size=vision.image_size,
        patch_size=vision.patch_size,
        dim=shared_dim(config.to_dict()),
        heads=vision.num_attention_heads,
        activation=vision.hidden_act,
        max_tokens=config.text_config.max_position_embeddings - SPECIAL_TOKENS[config.model_type],
        fit=fit,
        has_tokenizer=has_words,
    )


def convert_folder(
    source: Path,
    out: Path,
    asked: dict[str, Any],
    tokenizer: Path | None,
    fit: Literal["crop", "squash"] | None,
) -> Conversion:
    """Rewrite a folder that is in Hugging Face's form already: its config.json decides all but the fit."""
    from pmpguard.data.images.framing import Framing
    from pmpguard.files import atomic_directory, read_json, write_json
    from pmpguard.models.clip_folder import clip_framing
    from pmpguard.models.encoders.pretrained import (
        MARK,
        PREPROCESSORS,
        image_statistics,
        stored_preprocessing,
    )
    from pmpguard.models.torch_folder import read_clip_folder

    given = next((name for name, value in asked.items() if value is not None), None)
    if given is not None:
        raise ConfigError(f"--{given}: config.json of {source} says it already", fix="leave the option out")
    model, stored = read_clip_folder(source)
    vision = model.config.vision_config
    framing = clip_framing(source, stored, vision.image_size)
    words = tokenizer or (source if has_tokenizer(source) else None)
    with atomic_directory(out) as folder:
        model.save_pretrained(folder, max_shard_size="100GB")
        if MARK in stored:
            write_json(folder / "config.json", read_json(folder / "config.json") | {MARK: stored[MARK]})
        _, pixels = stored_preprocessing(str(source))
        if pixels and fit in (None, framing.fit):
            write_json(folder / PREPROCESSORS[0], pixels)
        else:
            mean, std = image_statistics(str(source), vision.model_type)
            framing = Framing(fit or framing.fit, framing.resample)
            write_json(folder / PREPROCESSORS[0], preprocessing(vision.image_size, framing, mean, std))
        if words is not None:
            copy_tokenizer(words, folder)
    return conversion(out, model, framing.fit, words is not None)


T = TypeVar("T")


def agreed(name: str, asked: T | None, stored: T | None) -> T | None:
    """What was asked for or what stands beside the weights, which must not contradict each other."""
    if asked is not None and stored not in (None, asked):
        raise ConfigError(
            f"--{name} is {asked}, but open_clip_config.json says {stored}", fix="leave the option out"
        )
    return stored if asked is None else asked


def copy_tokenizer(source: Path, folder: Path) -> None:
    """CLIP's tokenizer files; a missing tokenizer.json is made of the others, or of CLIP's own file."""
    if source.is_file():
        from pmpguard.models.bpe_vocabulary import clip_tokenizer

        clip_tokenizer(source).save(str(folder / "tokenizer.json"))
        return
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, folder / name)
    if not any((folder / name).is_file() for name in ("tokenizer.json", "spiece.model")):
        from pmpguard.models.encoders.pretrained import load_tokenizer

        rules = load_tokenizer(str(folder)).tokenizer
        (folder / "tokenizer.json").write_text(rules.to_json(), encoding="utf-8")


def require_end_last(folder: Path, given: OpenClipConfig, vocabulary: int) -> None:
    """OpenCLIP takes a text's vector at its largest id: with another tokenizer that must be the end."""
    from pmpguard.models.encoders.pretrained import load_tokenizer

    tokenizer = load_tokenizer(str(folder)).tokenizer
    end = int(tokenizer.encode(["a"], 1)[0][0, -1])
    if tokenizer.suffix != 1 or end != vocabulary - 1:
        raise ModelError(
            f"the tokenizer ({given.own_tokenizer or 'of CLIP'}) ends texts with id {end}, but OpenCLIP "
            f"reads their vectors at the largest id, {vocabulary - 1}",
            fix="give the tokenizer that belongs to these weights",
        )
