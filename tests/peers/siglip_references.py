"""Tiny SigLIPs in the form the Hub has them, and what transformers makes of images and odd texts.

    python tests/peers/siglip_references.py OUT

It needs transformers with sentencepiece and protobuf, which alone read SigLIP's `spiece.model`. Images go
through its processor of Pillow: that of torchvision, the default where there is one, rounds otherwise, and
what comes of it is written, too. The captions of SigLIP 2 were in lower case, which its tokenizer, Gemma's,
leaves to the caller.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import sys
from pathlib import Path

import numpy as np
import sentencepiece
import torch
from openclip_references import TEXTS, images
from PIL import Image
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import (
    GemmaTokenizer,
    SiglipConfig,
    SiglipImageProcessor,
    SiglipImageProcessorPil,
    SiglipModel,
    SiglipTokenizer,
)

CONTEXT, SIZE = 20, 32


def siglip_words(folder: Path) -> SiglipTokenizer:
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 5),
        model_writer=written,
        vocab_size=210,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        hard_vocab_limit=False,
    )
    (folder / "spiece.model").write_bytes(written.getvalue())
    return SiglipTokenizer(str(folder / "spiece.model"), pad_token="</s>", model_max_length=CONTEXT)


def gemma_words(folder: Path) -> GemmaTokenizer:
    rules = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    rules.normalizer = normalizers.Replace(" ", "▁")
    rules.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    rules.train_from_iterator(TEXTS * 5, trainers.BpeTrainer(vocab_size=500, special_tokens=names))
    learned = json.loads(rules.to_str())["model"]
    merges = [tuple(pair) for pair in learned["merges"]]
    return GemmaTokenizer(
        learned["vocab"],
        merges,
        add_bos_token=False,
        add_eos_token=True,
        padding_side="right",
        model_max_length=CONTEXT,
    )


def write_case(folder: Path, tokenizer: SiglipTokenizer | GemmaTokenizer, texts: list[str]) -> None:
    """The model's folder, and transformers' unit vectors of what its own tokenizer and processor give."""
    tokenizer.save_pretrained(folder)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    size = max(tokenizer.get_vocab().values()) + 1
    words = {"vocab_size": size, "max_position_embeddings": CONTEXT, "projection_size": 16}
    torch.manual_seed(0)
    config = SiglipConfig(
        vision_config=tower | {"image_size": SIZE, "patch_size": 8}, text_config=tower | words
    )
    model = SiglipModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # biases and norms away from 0 and 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    processor = SiglipImageProcessorPil(size={"height": SIZE, "width": SIZE})
    processor.save_pretrained(folder)
    arrays = images()
    pixels = processor([Image.fromarray(array) for array in arrays], return_tensors="pt").pixel_values
    ids = tokenizer(
        texts, padding="max_length", max_length=CONTEXT, truncation=True, return_tensors="pt"
    ).input_ids
    rounded = {}
    if importlib.util.find_spec("torchvision"):
        other = SiglipImageProcessor(size={"height": SIZE, "width": SIZE})
        tensors = [torch.from_numpy(array).permute(2, 0, 1) for array in arrays]
        with torch.no_grad():
            found = model.get_image_features(**other(tensors, return_tensors="pt")).pooler_output
        rounded["torchvision"] = torch.nn.functional.normalize(found)
    with torch.no_grad():
        seen = model.get_image_features(pixel_values=pixels).pooler_output
        read = model.get_text_features(input_ids=ids).pooler_output
    unit = torch.nn.functional.normalize
    np.savez(folder / "inputs.npz", *arrays)
    np.savez(folder / "outputs.npz", images=unit(seen), texts=unit(read), ids=ids, **rounded)
    (folder / "texts.json").write_text(json.dumps(TEXTS))


def main() -> None:
    out = Path(sys.argv[1])
    for name, words, lower in (("siglip", siglip_words, False), ("siglip2", gemma_words, True)):
        folder = out / name
        folder.mkdir(parents=True)
        tokenizer = words(folder)
        write_case(folder, tokenizer, [text.lower() if lower else text for text in TEXTS])
    spiece = out / "siglip" / "spiece.model"
    (out / "siglip" / "spiece.model.gz").write_bytes(gzip.compress(spiece.read_bytes(), mtime=0))
    spiece.unlink()


if __name__ == "__main__":
    main()
