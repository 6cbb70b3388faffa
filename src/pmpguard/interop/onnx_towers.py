"""Both towers as ONNX graphs, with all that is needed to use them without this package."""

from __future__ import annotations

import contextlib
import logging
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import pmpguard
from pmpguard.errors import ModelError, require
from pmpguard.files import atomic_directory, write_json
from pmpguard.models.retriever import Retriever
from pmpguard.safe_text import one_line

IMAGE, TEXT = "image.onnx", "text.onnx"
TOLERANCE = 1e-4  # of a unit vector's component between onnxruntime and torch
LARGEST_BATCH = 65_536
COLOUR = re.compile(r"\x1b\[\d*m")  # of a terminal, in torch's errors
PROBES = ["a pond", "two planes near a long building beside the road", "many green trees are in a farm"]
CLEANERS = {
    "none": "text",
    "lower": "text.lower()",
    "siglip": '" ".join(text.lower().translate(str.maketrans("", "", string.punctuation)).split())',
    "whitespace": '" ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())',
    "clip": '" ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split()).lower()',
    "canonical": '" ".join(" ".join(html.unescape(html.unescape(ftfy.fix_text(text))).split())'
    '.translate(str.maketrans("_", " ", string.punctuation.replace("_", ""))).lower().split())',
}


READS_TEXTS = """
words = tokenizers.Tokenizer.from_file("tokenizer.json")
words.encode_special_tokens = True
words.enable_truncation(settings["max_length"])


def encode_texts(texts):
    found = words.encode_batch([{cleaning} for text in texts])
    ids = np.array([each.ids for each in found], np.int64)
    mask = np.array([each.attention_mask for each in found], np.int64)
    return onnxruntime.InferenceSession("text.onnx").run(["vectors"], {{"ids": ids, "mask": mask}})[0]
"""


class ImageTower(nn.Module):
    """Pixels (N, 3, s, s) uint8 to vectors (N, d) and regions (N, n, d)."""

    def __init__(self, model: Retriever) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        encoded = self.model.forward_images(pixels)
        return encoded.pooled, encoded.fragments


class TextTower(nn.Module):
    """Ids and mask (N, L) to vectors (N, d), words (N, m, d) and which of them are real (N, m)."""

    def __init__(self, model: Retriever) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        encoded = self.model.forward_texts(ids, mask > 0)
        return encoded.pooled, encoded.fragments, encoded.mask


@dataclass(frozen=True)
class OnnxExport:
    """Where the graphs are, and how far onnxruntime's vectors are from torch's."""

    folder: str
    image_difference: float
    text_difference: float | None  # None of a model that reads images only

    def as_text(self) -> str:
        files, differences = IMAGE, f"{self.image_difference:.1e} (images)"
        if self.text_difference is not None:
            files, differences = (
                f"{IMAGE} and {TEXT}",
                f"{differences} and {self.text_difference:.1e} (texts)",
            )
        return f"{self.folder}: {files}; onnxruntime's vectors differ from torch's by at most {differences}"


def export_onnx(model: Retriever, out: Path) -> OnnxExport:
    """Write towers, tokenizer and how images and texts are prepared; hold onnxruntime against torch."""
    runtime = require("onnxruntime", "onnx")
    require("onnx", "onnx")
    require("onnxscript", "onnx")
    size = model.config.image_size
    model = model.float().cpu().eval()
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (3, 3, size, size), generator=draw, dtype=torch.uint8)
    batch = torch.export.Dim("batch", min=1, max=LARGEST_BATCH)
    with atomic_directory(out) as folder, written_out_attention(model):
        tower = ImageTower(model)
        write_graph(tower, (pixels,), ({0: batch},), folder / IMAGE, ["pixels"], ["vectors", "regions"])
        images = [(pixels[:count].numpy(),) for count in (1, 3)]
        seen = largest_difference(runtime, folder / IMAGE, tower, images)
        read = export_texts(runtime, model, folder, batch) if model.reads_texts else None
        write_json(folder / "preprocessing.json", preparation(model))
        (folder / "README.md").write_text(card(model), encoding="utf-8")
    return OnnxExport(str(out), seen, read)


def export_texts(runtime: Any, model: Retriever, folder: Path, batch: Any) -> float:
    """Write the tower of texts and its tokenizer; how far onnxruntime's vectors are from torch's."""
    ids, mask = model.tokenize(PROBES)
    special = model.tokenizer.prefix + model.tokenizer.suffix
    length = torch.export.Dim("length", min=special + 1, max=special + model.config.max_tokens)
    tower, shape = TextTower(model), {0: batch, 1: length}
    outputs = ["vectors", "words", "word_mask"]
    write_graph(tower, (ids, mask.long()), (shape, shape), folder / TEXT, ["ids", "mask"], outputs)
    (folder / "tokenizer.json").write_text(model.tokenizer.to_json(), encoding="utf-8")
    texts = [
        (found.numpy(), shown.long().numpy())
        for found, shown in (model.tokenize(PROBES[:count]) for count in (1, 2, 3))
    ]
    return largest_difference(runtime, folder / TEXT, tower, texts)


@contextlib.contextmanager
def written_out_attention(model: Retriever) -> Iterator[None]:
    """Attention as plain products: torch cannot write Swin's and T5's fused attention with its biases."""
    towers: list[Any] = [model.image_encoder.backbone, model.text_encoder.backbone]
    configs = [tower.config for tower in towers if hasattr(tower, "set_attn_implementation")]
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = "eager"
    try:
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation = implementation


def write_graph(
    tower: nn.Module,
    arguments: tuple[Tensor, ...],
    shapes: tuple[dict[int, Any], ...],
    path: Path,
    inputs: list[str],
    outputs: list[str],
) -> None:
    """Trace the tower with dimensions that may change; large weights go into a file beside the graph."""
    try:
        with quiet():
            program = torch.onnx.export(
                tower.eval(),
                arguments,
                dynamo=True,
                dynamic_shapes=shapes,
                input_names=inputs,
                output_names=outputs,
                verbose=False,
            )
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        reason = (COLOUR.sub("", str(error)).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{path.name}: torch {torch.__version__} cannot write this model as a graph ({reason})",
            fix="a newer torch may; 2.13 writes the families of the page on models in and out",
        ) from error
    if program is None:
        raise ModelError(f"{path.name}: torch wrote no graph", fix="try another version of torch")
    program.save(path)


def largest_difference(
    runtime: Any, path: Path, tower: nn.Module, batches: Sequence[tuple[npt.NDArray[Any], ...]]
) -> float:
    """How far any real number of onnxruntime's is from torch's over some batches; too far is an error."""
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    worst = 0.0
    for batch in batches:
        with torch.no_grad():
            wanted = [each.numpy() for each in tower(*map(torch.from_numpy, batch))]
        try:
            found = session.run(None, dict(zip(names, batch, strict=True)))
        except Exception as error:  # onnxruntime's errors have no class in common
            raise ModelError(
                f"{path.name}: onnxruntime cannot run {len(batch[0])} at once ({one_line(str(error))})",
                fix="try another version of torch or onnxruntime, or use the model with pmpguard itself",
            ) from error
        if len(wanted) == 3:  # words: those at padding may hold anything
            seen = wanted[2][..., None]
            wanted, found = [wanted[0], wanted[1] * seen, wanted[2]], [found[0], found[1] * seen, found[2]]
        for ours, theirs in zip(wanted, found, strict=True):
            if ours.shape != theirs.shape:
                raise ModelError(
                    f"{path.name}: onnxruntime gives {theirs.shape} where torch gives {ours.shape}",
                    fix="use the model with pmpguard itself",
                )
            worst = max(worst, float(np.abs(ours.astype(np.float64) - theirs.astype(np.float64)).max()))
    if not worst <= TOLERANCE:
        raise ModelError(
            f"{path.name}: onnxruntime's vectors differ from torch's by {worst:g}",
            fix="try another version of onnxruntime, or use the model with pmpguard itself",
        )
    return worst


def preparation(model: Retriever) -> dict[str, Any]:
    """What is done to images and texts before the graphs see them."""
    framing, tokenizer = model.framing, model.tokenizer
    stored = {
        "image_size": model.config.image_size,
        "fit": framing.fit,
        "resample": framing.resample,
        "shorter_side": framing.shorter_side or model.config.image_size,
        "dim": model.config.dim,
    }
    if not model.reads_texts:
        return stored
    return stored | {
        "max_length": model.config.max_tokens + tokenizer.prefix + tokenizer.suffix,
        "cleaning": model.text_encoder.architecture.cleaning,
        "logit_scale": 1 / model.temperature.item(),
        "ranking": model.config.ranking,
    }


def card(model: Retriever) -> str:
    """README.md: how to use the graphs with onnxruntime, tokenizers and Pillow alone."""
    cleaning = CLEANERS[model.text_encoder.architecture.cleaning]
    modules = [name for name in ("ftfy", "html", "string") if f"{name}." in cleaning]
    needs = "".join(f"import {name}\n" for name in modules if model.reads_texts)
    resize = ['image = image.resize((size, size), filters[settings["resample"]])']
    if model.framing.fit == "crop":
        half = "{} // 2" if model.framing.half_pixel == "down" else "round({} / 2)"
        left, top = half.format("(wide - size)"), half.format("(tall - size)")
        resize = [
            'shorter, least = settings["shorter_side"], min(image.size)',
            "wide, tall = (shorter if side == least else int(shorter * side / least) for side in image.size)",
            'image = image.resize((wide, tall), filters[settings["resample"]])',
            f"left, top = {left}, {top}",
            "image = image.crop((left, top, left + size, top + size))",
        ]
    resized = "\n".join(f"    {line}" for line in resize)
    size, dim = model.config.image_size, model.config.dim
    title, encoders = "Images to vectors as ONNX", model.config.vision
    about = "Images that are alike have a high dot product of their vectors."
    library, reads, shown = "", "", 'encode_images(["scene.png"])'
    if model.reads_texts:
        title, encoders = "Image–text retriever as ONNX", f"{encoders} and {model.config.text}"
        about = f"""`{TEXT}` takes `ids` and `mask` (N, L) as int64 and gives `vectors`, `words` and
`word_mask`. Captions and images that match have a high dot product of their vectors."""
        library, reads = "import tokenizers\n", READS_TEXTS.format(cleaning=cleaning)
        shown = f'encode_texts(["a round pond beside a farm"]) @ {shown}.T'
    return f"""# {title}

Written by pmpguard {pmpguard.__version__} from a model of {encoders}.
`{IMAGE}` takes `pixels` (N, 3, {size}, {size}) as uint8 and gives unit `vectors` (N, {dim}) and `regions`.
{about}

```python
import json
{needs}
import numpy as np
import onnxruntime
{library}from PIL import Image, ImageOps

settings = json.load(open("preprocessing.json"))
filters = {{"bicubic": Image.Resampling.BICUBIC, "bilinear": Image.Resampling.BILINEAR}}
{reads}

def pixels(path):
    size, image = settings["image_size"], ImageOps.exif_transpose(Image.open(path)).convert("RGB")
{resized}
    return np.asarray(image, np.uint8).transpose(2, 0, 1)


def encode_images(paths):
    batch = np.stack([pixels(path) for path in paths])
    return onnxruntime.InferenceSession("{IMAGE}").run(["vectors"], {{"pixels": batch}})[0]


print({shown})
```

pmpguard itself lays transparent images on black and stretches images deeper than 8 bits from their 2nd to
their 98th percentile. This code does neither: save such images as RGB of 8 bits first.
"""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the exporter's warnings, which speak of its own inside and of packages that are not used."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
