"""Tiny models of the real open_clip, and what it makes of images of any shape and of odd texts.

    python tests/peers/openclip_references.py OUT [--large]

It needs open_clip_torch, which the project's own environment must not have. Every folder under OUT holds a
model as the Hub stores it, `inputs.npz` with images, `texts.json`, and `outputs.npz` with open_clip's unit
vectors. `--large` writes the widths of ViT-S, B, B-plus, L, H, g and bigG with two layers each, hundreds of
megabytes, and `configs.json` with the settings of every model that open_clip knows.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import open_clip
import torch
from open_clip.tokenizer import SimpleTokenizer, bytes_to_unicode, default_bpe
from PIL import Image
from safetensors.torch import save_file

TEXTS = [
    "a pond",
    "Two planes near a LONG runway.",
    "  many   green trees\tand\na road ",
    "",
    "it's the farm's edge, isn't it? they'll've seen",
    "schÃ¶ne HÃ¤user",
    "“quoted” – dashed… ‘text’",
    "fish &amp; chips &lt;b&gt; &amp;amp;",
    "<b>bold</b> &amp; plain",
    "some <|endoftext|> is text",
    "<|startoftext|> a farm",
    "ﬁelds of ﬂowers",
    "ＦＵＬＬ ｗｉｄｔｈ",
    "12 345 ships, 6.7 km²",
    "café naïve Ωμέγας ΣΑΣ İstanbul",
    "农田 旁边 有 一条 河",
    "سفينة في الميناء",
    "🚢🏝️ near the 🌉",
    "!!!??? --- ___",
    "a_b-c/d\\e:f;g",
    "word " * 60,
    "supercalifragilisticexpialidocious" * 6,
    "e\u0301cole \u200bzero\u00a0width",
    "no\x07bell \x1b[31mred\x1b[0m",
]
SHAPES = [(40, 40), (61, 40), (33, 57), (32, 32), (20, 90)]  # width, height


def tiny(embed: int = 24, **settings: object) -> dict[str, object]:
    vision = {"image_size": 32, "layers": 2, "width": 32, "head_width": 8, "patch_size": 8}
    text = {"context_length": 20, "vocab_size": 0, "width": 16, "heads": 4, "layers": 2}
    tower = {"norm_kwargs": {"eps": 1e-3}, "act_kwargs": {"approximate": "tanh"}}
    if settings.pop("custom", False):
        vision, text = vision | tower, text | tower
        settings["custom_text"] = True
    return {"embed_dim": embed, "vision_cfg": vision, "text_cfg": text, **settings}


CASES = {
    "quickgelu-crop": (tiny(quick_gelu=True), {}),
    "tanh-squash": (
        tiny(custom=True),
        {
            "resize_mode": "squash",
            "interpolation": "bilinear",
            "mean": [0.0, 0.1, 0.2],
            "std": [1.0, 0.9, 0.8],
        },
    ),
}
LARGE = [
    "ViT-B-32-quickgelu",
    "ViT-L-14",
    "ViT-H-14",
    "ViT-g-14",
    "ViT-bigG-14",
    "ViT-S-16-alt",
    "ViT-B-16-plus-240",
]


def learned_merges(count: int) -> list[tuple[str, str]]:
    """Merges of byte pairs learned on the texts above, in the form of CLIP's vocabulary."""
    letters = bytes_to_unicode()
    words: dict[tuple[str, ...], int] = {}
    for text in TEXTS:
        for word in text.lower().split():
            pieces = [letters[byte] for byte in word.encode("utf-8")]
            words[(*pieces[:-1], pieces[-1] + "</w>")] = words.get((*pieces[:-1], pieces[-1] + "</w>"), 0) + 1
    merges: list[tuple[str, str]] = []
    for _ in range(count):
        pairs: dict[tuple[str, str], int] = {}
        for word, times in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] = pairs.get(pair, 0) + times
        if not pairs:
            break
        best = max(sorted(pairs), key=lambda pair: pairs[pair])
        merges.append(best)
        words = {merged(word, best): times for word, times in words.items()}
    return merges


def merged(word: tuple[str, ...], pair: tuple[str, str]) -> tuple[str, ...]:
    result: list[str] = []
    for piece in word:
        if result and (result[-1], piece) == pair:
            result[-1] += piece
        else:
            result.append(piece)
    return tuple(result)


def images() -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    found = []
    for width, height in SHAPES:
        coarse = Image.fromarray(draw.integers(0, 256, (5, 5, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int64)
        found.append(
            np.clip(smooth + draw.integers(-20, 21, smooth.shape), 0, 255).astype(np.uint8)
        )  # (H, W, 3)
    return found


def write_case(folder: Path, model_cfg: dict[str, object], pixels: dict[str, object], bpe: Path) -> None:
    folder.mkdir(parents=True)
    config = {"model_cfg": model_cfg, "preprocess_cfg": pixels}
    (folder / "open_clip_config.json").write_text(json.dumps(config, indent=2))
    torch.manual_seed(0)
    kind = open_clip.CustomTextCLIP if model_cfg.get("custom_text") else open_clip.CLIP
    settings = {name: value for name, value in model_cfg.items() if name != "custom_text"}
    model = kind(**settings)
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms away from 0 and 1
            if parameter.ndim:
                parameter.add_(0.05 * torch.randn_like(parameter))
    weights = {name: value.clone().contiguous() for name, value in model.state_dict().items()}
    save_file(weights, folder / "open_clip_model.safetensors")
    model, preprocess = open_clip.create_model_from_pretrained(f"local-dir:{folder}")  # as any user does
    model.eval()
    tokenize = SimpleTokenizer(bpe, context_length=model_cfg["text_cfg"]["context_length"])
    arrays = images()
    batch = torch.stack([preprocess(Image.fromarray(array)) for array in arrays])
    with torch.no_grad():
        seen = model.encode_image(batch, normalize=True).numpy()
        read = model.encode_text(tokenize(TEXTS), normalize=True).numpy()
    np.savez(folder / "inputs.npz", *arrays)
    np.savez(folder / "outputs.npz", images=seen, texts=read)
    (folder / "texts.json").write_text(json.dumps(TEXTS))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    if options.large:
        for name in LARGE:
            config = open_clip.get_model_config(name)
            config["vision_cfg"]["layers"] = config["text_cfg"]["layers"] = 2
            write_case(options.out / name, config, {}, Path(default_bpe()))
        (options.out / "vocabulary.txt.gz").write_bytes(Path(default_bpe()).read_bytes())
        configs = {name: open_clip.get_model_config(name) for name in open_clip.list_models()}
        (options.out / "configs.json").write_text(json.dumps(configs))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    bpe = options.out / "vocabulary.txt.gz"
    merges = learned_merges(150)
    lines = ["#version: learned on the texts", *(" ".join(pair) for pair in merges)]
    bpe.write_bytes(gzip.compress("\n".join(lines).encode("utf-8"), mtime=0))
    for name, (model_cfg, pixels) in CASES.items():
        model_cfg["text_cfg"]["vocab_size"] = 512 + len(merges) + 2
        write_case(options.out / name, model_cfg, pixels, bpe)


if __name__ == "__main__":
    main()
