"""Packed captions give what padded ones give, whatever lies beside them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Rules
from transformers import BertConfig, BertModel

from pmpguard.models.encoders.text import TextEncoder, pretrained_text_encoder
from pmpguard.models.tokenizer import Tokenizer, word_tokenizer
from pmpguard.training.packing import (
    ROW_LENGTH,
    WORD_STEPS,
    Packing,
    most_longer,
    pack_words,
    row_starts,
    rows_needed,
)

CAPTIONS = [
    "a river", "many green trees are around a long straight river with a bridge", "two planes",
    "a parking lot with many cars beside a large building and some green trees and a road", "sea",
    "six white storage tanks", "a dense residential area with a road", "a bare land",
]  # fmt: skip


@given(st.lists(st.integers(1, ROW_LENGTH), min_size=1, max_size=60))
def test_captions_never_overlap_nor_straddle_rows(lengths: list[int]) -> None:
    counts = np.array(lengths)
    starts = row_starts(counts)
    assert (starts // ROW_LENGTH == (starts + counts - 1) // ROW_LENGTH).all()
    places = np.concatenate([np.arange(a, a + n) for a, n in zip(starts, counts, strict=True)])
    assert len(set(places.tolist())) == counts.sum()
    assert rows_needed(counts) == places.max() // ROW_LENGTH + 1
    assert rows_needed(counts) <= 2 * counts.sum() / ROW_LENGTH + 1


BATCHES = st.lists(st.lists(st.integers(0, 80), min_size=1, max_size=70), min_size=1, max_size=5)


@given(BATCHES, st.booleans())
def test_counts_of_long_captions_hold_for_every_batch(lists: list[list[int]], spare: bool) -> None:
    batches = [np.array(batch) for batch in lists]
    pairs = max(map(len, batches))
    bounds = most_longer(batches, spare=spare)
    assert tuple(limit for limit, _ in bounds) == WORD_STEPS
    for limit, count in bounds:
        longer = max(sum(words > limit for words in batch) for batch in lists)
        assert longer <= count <= pairs
        assert spare or count <= longer + pairs // 32
        assert count > 0 or longer == 0


@given(BATCHES, BATCHES)
def test_room_for_two_epochs_holds_the_long_captions_of_both(
    first: list[list[int]], second: list[list[int]]
) -> None:
    lengths = [np.array([5])]
    counts = [most_longer([np.array(batch) for batch in lists]) for lists in (first, second)]
    one, other = (Packing.for_batches(lengths, longer_than) for longer_than in counts)
    both = one.at_least(other).longer_than
    assert both is not None and both == other.at_least(one).longer_than
    for found, own, given_count in zip(both, *counts, strict=True):
        assert found == (own[0], max(own[1], given_count[1]))
    assert one.at_least(Packing.for_batches(lengths)).longer_than is None


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[TextEncoder, Tokenizer]:
    folder: Path = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    for word in " ".join(CAPTIONS).split():
        words.setdefault(word, len(words))
    config = BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=48, max_position_embeddings=64, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    from tokenizers import models, pre_tokenizers, processors

    rules = Rules(models.WordLevel(words, unk_token="[UNK]"))
    rules.pre_tokenizer = pre_tokenizers.Whitespace()
    rules.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    rules.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}'
    )
    return pretrained_text_encoder(str(folder), 16, 30)


def test_packed_captions_give_the_vectors_and_gradients_of_padded_ones(
    encoder: tuple[TextEncoder, Tokenizer],
) -> None:
    text, tokenizer = encoder
    text = text.double()
    assert text.packs
    ids, mask = tokenizer.encode(CAPTIONS, 30)
    lengths = mask.sum(1).numpy()
    chosen = np.array([3, 0, 6, 1, 4])
    found = []
    for packed in (False, True):
        text.zero_grad()
        if packed:
            packing = Packing.for_batches([lengths[chosen], lengths])
            words = pack_words(ids, chosen, lengths[chosen], (1, 1), packing)
            tokens = text.packed_tokens(words.ids, words.owner, words.position, words.place, words.mask)
            assert len(tokens) == 32 and not tokens.mask[len(chosen) :].any()
        else:
            tokens = text.tokens(ids[chosen], mask[chosen])
        encoded = text.project(tokens)
        width = int(encoded.mask[: len(chosen)].sum(1).max())
        real = encoded.mask[: len(chosen), :width]
        fragments = encoded.fragments[: len(chosen), :width][real]
        weight = torch.linspace(-1, 1, fragments.numel(), dtype=torch.float64).view_as(fragments)
        ((fragments * weight).sum() + encoded.pooled[: len(chosen), :3].sum()).backward()
        gradient = torch.cat([value.grad.flatten() for value in text.parameters() if value.grad is not None])
        found.append((encoded.pooled[: len(chosen)].detach(), fragments.detach(), gradient))
    for padded, packed_value in zip(*found, strict=True):
        torch.testing.assert_close(packed_value, padded, rtol=1e-9, atol=1e-9)


def test_the_tiny_encoder_is_not_packed() -> None:
    tokenizer = word_tokenizer(CAPTIONS)
    text, _ = pretrained_text_encoder("tiny", 16, 30, tokenizer=tokenizer)
    assert not text.packs
