"""A CLIP of a few thousand weights whose tokenizer knows given captions, as `pmpguard convert` leaves one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

FIRST, LAST = "<|startoftext|>", "<|endoftext|>"


def save_tiny_clip(folder: Path, captions: Iterable[str], size: int = 64, width: int = 64) -> Path:
    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", *sorted({word for caption in captions for word in caption.lower().split()})]
    vocabulary = {word: place for place, word in enumerate([*words, FIRST, LAST])}
    rules = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    rules.normalizer = normalizers.Lowercase()
    rules.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    rules.post_processor = processors.BertProcessing((LAST, vocabulary[LAST]), (FIRST, vocabulary[FIRST]))
    PreTrainedTokenizerFast(
        tokenizer_object=rules, pad_token="[PAD]", unk_token="[UNK]", bos_token=FIRST, eos_token=LAST
    ).save_pretrained(folder)
    tower = {"num_attention_heads": 4, "num_hidden_layers": 2, "hidden_size": width,
             "intermediate_size": 2 * width, "projection_dim": width}  # fmt: skip
    text = {"vocab_size": len(vocabulary), "max_position_embeddings": 40, "pad_token_id": 0,
            "bos_token_id": vocabulary[FIRST], "eos_token_id": vocabulary[LAST]}  # fmt: skip
    config = CLIPConfig(
        vision_config=tower | {"image_size": size, "patch_size": size // 8},
        text_config=tower | text,
        projection_dim=width,
    )
    CLIPModel(config).save_pretrained(folder)
    return folder
