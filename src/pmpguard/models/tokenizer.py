"""Captions to token ids, and back to the words a reader sees.

Every tokenizer, ours or a pretrained one, is one `tokenizer.json` in the format of the `tokenizers` package,
so a saved model needs nothing else to read text.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import tokenizers
import torch
from tokenizers import models, normalizers, pre_tokenizers
from torch import Tensor

from pmpguard.errors import DataError, ModelError, damage_named
from pmpguard.models.text_cleaning import Cleaning, text_cleaner

PAD, UNKNOWN = "[PAD]", "[UNK]"
TEXTS_FIX = "give an image, or use a model that reads texts, such as `default` or the folder of a CLIP"


@dataclass(frozen=True)
class Word:
    """A word of a caption and the places of its pieces among the caption's fragments."""

    text: str
    fragments: tuple[int, ...]


class Tokenizer:
    """Pads on the right, cuts long captions, and knows how many special tokens stand before and after."""

    def __init__(self, rules: tokenizers.Tokenizer, pad_id: int, cleaning: Cleaning = "none") -> None:
        self.clean = text_cleaner(cleaning)
        rules.no_truncation()
        rules.no_padding()
        rules.encode_special_tokens = True  # "<|endoftext|>" in a caption is text and ends nothing
        self.rules = rules
        self.pad_id = pad_id
        probe = rules.encode("a").special_tokens_mask
        self.prefix = next((place for place, special in enumerate(probe) if not special), len(probe))
        self.suffix = sum(probe) - self.prefix

    @property
    def size(self) -> int:
        """How many different ids there are."""
        return self.rules.get_vocab_size()

    @property
    def largest_id(self) -> int:
        """The largest id a text can get, of added tokens too."""
        return max(self.rules.get_vocab(with_added_tokens=True).values(), default=-1)

    def encode(self, texts: Sequence[str], max_tokens: int) -> tuple[Tensor, Tensor]:
        """Ids (N, L) and a mask (N, L), true except at padding; L is the longest caption's length.

        At most `max_tokens` tokens of each caption are kept; a text without any is an error, because
        nothing could be matched with it.
        """
        flat, lengths = array("i"), array("i")  # not a list of lists: captions may be millions
        for row, text in enumerate(texts):
            tokens: list[int] = self.rules.encode(self.clean(text)).ids
            end = len(tokens) - self.suffix
            if end <= self.prefix:
                raise DataError(f"text {row} has no words: {text[:80]!r}", fix="fill it in or drop the pair")
            kept = tokens[: min(end, self.prefix + max_tokens)] + tokens[end:]
            flat.extend(kept)
            lengths.append(len(kept))
        longest = max(lengths, default=self.prefix + self.suffix)
        mask = torch.arange(longest) < torch.tensor(lengths, dtype=torch.long)[:, None]  # (N, L)
        ids = torch.full(mask.shape, self.pad_id, dtype=torch.long)
        ids[mask] = torch.tensor(flat, dtype=torch.long)
        return ids, mask

    def words(self, text: str, max_tokens: int) -> list[Word]:
        """The caption's words as written, each with its pieces; what `encode` cuts off is left out."""
        text = self.clean(text)
        encoding = self.rules.encode(text)
        places = range(self.prefix, min(len(encoding.ids) - self.suffix, self.prefix + max_tokens))
        words = []
        for _, group in groupby(places, key=lambda place: encoding.word_ids[place]):
            pieces = list(group)
            start, end = encoding.offsets[pieces[0]][0], encoding.offsets[pieces[-1]][1]
            words.append(Word(text[start:end].strip(), tuple(place - self.prefix for place in pieces)))
        return words

    def to_json(self) -> str:
        """The content of `tokenizer.json`; the padding id is kept in its own field of that format."""
        self.rules.enable_padding(pad_id=self.pad_id, pad_token=self.rules.id_to_token(self.pad_id) or PAD)
        text: str = self.rules.to_str(pretty=True)
        self.rules.no_padding()
        return text

    @classmethod
    def from_json(
        cls,
        text: str,
        where: str = "tokenizer.json",
        pad_id: int | None = None,
        cleaning: Cleaning = "none",
    ) -> Tokenizer:
        """Read the content of a `tokenizer.json`; `pad_id` overrides its own padding id."""
        try:
            rules = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the package raises bare Exception
            raise ModelError(f"{where}: not a tokenizer ({error})", fix="restore it from a copy") from error
        if pad_id is None:
            pad_id = rules.padding["pad_id"] if rules.padding else rules.token_to_id(PAD) or 0
        return cls(rules, pad_id, cleaning)

    @classmethod
    def load(cls, path: Path, cleaning: Cleaning = "none") -> Tokenizer:
        if not path.is_file():
            raise ModelError(f"{path}: file not found", fix="a model directory needs its tokenizer.json")
        with damage_named(path, "restore it from a copy", ModelError):
            return cls.from_json(path.read_text(encoding="utf-8"), str(path), cleaning=cleaning)


class NoTokenizer(Tokenizer):
    """Of a model that reads images only: any text is refused."""

    def __init__(self) -> None:
        self.clean = text_cleaner("none")
        self.pad_id = self.prefix = self.suffix = 0

    @property
    def rules(self) -> tokenizers.Tokenizer:  # type: ignore[override]
        raise ModelError("this model reads images only, no texts", fix=TEXTS_FIX)


def word_tokenizer(captions: Iterable[str], *, min_count: int = 1, max_size: int = 20_000) -> Tokenizer:
    """One id per lower-case word of the captions, the commonest first; unseen words share one id.

    >>> tokenizer = word_tokenizer(["A pond.", "A round pond"])
    >>> tokenizer.encode(["a pond", "A square pond!"], max_tokens=8)[0].tolist()
    [[2, 3, 0], [2, 1, 3]]
    """
    rules = tokenizers.Tokenizer(models.WordLevel({PAD: 0, UNKNOWN: 1}, unk_token=UNKNOWN))
    rules.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    rules.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"\w+"), behavior="removed", invert=True)
    counts: Counter[str] = Counter()
    for caption in captions:
        text = rules.normalizer.normalize_str(caption)
        counts.update(word for word, _ in rules.pre_tokenizer.pre_tokenize_str(text))
    frequent = [word for word, count in counts.items() if count >= min_count]
    kept = sorted(frequent, key=lambda word: (-counts[word], word))
    vocabulary = {PAD: 0, UNKNOWN: 1} | {word: place for place, word in enumerate(kept[: max_size - 2], 2)}
    rules.model = models.WordLevel(vocabulary, unk_token=UNKNOWN)
    return Tokenizer(rules, pad_id=0)
