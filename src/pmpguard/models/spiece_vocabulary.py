"""SentencePiece's vocabulary file, `spiece.model`, as a tokenizer.json, without its package or protobuf."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from pmpguard.errors import ModelError

# Fields of the file's messages, by number: sentencepiece_model.proto.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
TEXT, SCORE, KIND = 1, 2, 3  # of a piece
MODEL_TYPE, UNKNOWN_ID, BYTE_FALLBACK = 3, 40, 35  # of the trainer
CHARACTER_MAP = 2  # of the normalizer
UNIGRAM = 1
END = "</s>"

Value = int | bytes


def spiece_tokenizer(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a Unigram `spiece.model`, which ends each text with </s> as SigLIP's and T5's do."""
    try:
        pieces, scores, trainer, character_map = [], [], {}, b""
        for number, message in fields(path.read_bytes()):
            if number == PIECES:
                piece = dict(fields(_bytes(message)))
                pieces.append(_bytes(piece[TEXT]).decode("utf-8"))
                scores.append(struct.unpack("<f", _bytes(piece.get(SCORE, bytes(4))))[0])
            elif number == TRAINER:
                trainer = dict(fields(_bytes(message)))
            elif number == NORMALIZER:
                character_map = _bytes(dict(fields(_bytes(message))).get(CHARACTER_MAP, b""))
        unknown, last = int(trainer.get(UNKNOWN_ID, 0)), pieces.index(END)
        if trainer.get(MODEL_TYPE, UNIGRAM) != UNIGRAM:
            raise ValueError("not of the kind Unigram")
        byte_fallback = bool(trainer.get(BYTE_FALLBACK, 0))
        rules = tokenizers.Tokenizer(
            models.Unigram(list(zip(pieces, scores, strict=True)), unknown, byte_fallback)
        )
    except (OSError, ValueError, KeyError, IndexError, struct.error, TypeError) as error:
        raise ModelError(
            f"{path}: not a vocabulary of SentencePiece ({error})",
            fix="restore it, or put the model's tokenizer.json beside it",
        ) from error
    steps = [normalizers.Precompiled(character_map)] if character_map else []
    spaces = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
    rules.normalizer = normalizers.Sequence([*steps, normalizers.Strip(), spaces])
    rules.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    rules.decoder = decoders.Metaspace(prepend_scheme="always")
    rules.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, last)])
    rules.add_special_tokens([END])
    return rules


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field of a protobuf message; fixed-width ones come as their bytes.

    >>> list(fields(bytes([8, 150, 1, 18, 2, 104, 105])))
    [(1, 150), (2, b'hi')]
    """
    place = 0
    while place < len(message):
        key, place = _number(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _number(message, place)
            yield key >> 3, value
            continue
        if kind == 2:
            length, place = _number(message, place)
        else:
            length = {1: 8, 5: 4}[kind]
        if place + length > len(message):
            raise ValueError("cut off")
        yield key >> 3, message[place : place + length]
        place += length


def _number(message: bytes, place: int) -> tuple[int, int]:
    """A number of seven bits a byte, lowest first, and the place after it."""
    number = 0
    for shift in range(0, 70, 7):
        byte = message[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
    raise ValueError("a number without end")


def _bytes(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where a text should be")
    return value
