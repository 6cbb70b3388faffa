"""CLIP's own vocabulary file, `bpe_simple_vocab_16e6.txt.gz`, as a tokenizer.json."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from pmpguard.errors import ModelError

MERGES = 49152 - 256 - 2  # the file holds more, which CLIP does not use
FIRST, LAST = "<|startoftext|>", "<|endoftext|>"
PIECES = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


def clip_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer that OpenAI's and OpenCLIP's code makes of this file."""
    try:
        lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise ModelError(
            f"{path}: not CLIP's vocabulary ({error})",
            fix="give bpe_simple_vocab_16e6.txt.gz, which the packages open_clip and clip hold, or a folder",
        ) from error
    pairs = [line.split() for line in lines[1 : MERGES + 1]]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise ModelError(f"{path}: not CLIP's vocabulary", fix="give bpe_simple_vocab_16e6.txt.gz")
    letters = byte_letters()
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in pairs)]
    vocabulary = {piece: place for place, piece in enumerate([*pieces, FIRST, LAST])}
    rules = tokenizers.Tokenizer(
        models.BPE(
            vocabulary,
            [(left, right) for left, right in pairs],
            end_of_word_suffix="</w>",
            unk_token=LAST,
        )
    )
    rules.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(tokenizers.Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    rules.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(PIECES), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    rules.decoder = decoders.ByteLevel()
    first, last = (FIRST, vocabulary[FIRST]), (LAST, vocabulary[LAST])
    rules.post_processor = processors.RobertaProcessing(
        last, first, trim_offsets=False, add_prefix_space=False
    )
    rules.add_special_tokens([FIRST, LAST])
    rules.enable_padding(pad_id=vocabulary[LAST], pad_token=LAST)
    return rules


def byte_letters() -> list[str]:
    """A printable letter for each byte, in CLIP's order: the printable bytes first, as themselves."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = sum(byte not in printable for byte in range(256))
    return [*map(chr, printable), *(chr(256 + place) for place in range(others))]
