"""Captions to ids and back to words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Rules
from tokenizers import models, normalizers, pre_tokenizers, processors

from pmpguard.errors import DataError, ModelError
from pmpguard.models.tokenizer import Tokenizer, word_tokenizer

CAPTIONS = ["A round pond.", "a pond beside a farm", "two planes, near the pond"]


def wordpiece_tokenizer() -> Tokenizer:
    """BERT's rules over a handful of pieces."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "base", "##ball", "##s", "pond", "a", ","]
    rules = Rules(models.WordPiece({piece: place for place, piece in enumerate(pieces)}, unk_token="[UNK]"))
    rules.normalizer = normalizers.BertNormalizer()
    rules.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rules.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    rules.enable_padding(length=12)
    rules.enable_truncation(5)
    return Tokenizer.from_json(rules.to_str())


def test_commonest_words_come_first_and_ties_are_alphabetical():
    tokenizer = word_tokenizer(CAPTIONS)
    vocabulary = tokenizer.rules.get_vocab()
    order = sorted(vocabulary, key=vocabulary.get)
    assert order == ["[PAD]", "[UNK]", "a", "pond", "beside", "farm", "near", "planes", "round", "the", "two"]
    assert word_tokenizer(reversed(CAPTIONS)).to_json() == tokenizer.to_json()


def test_min_count_and_max_size():
    assert word_tokenizer(CAPTIONS, min_count=2).size == 4
    assert word_tokenizer(CAPTIONS, max_size=5).size == 5


def test_pads_on_the_right_and_masks_padding_only():
    ids, mask = word_tokenizer(CAPTIONS).encode(["a pond", "a lake beside a farm"], max_tokens=8)
    assert ids.tolist() == [[2, 3, 0, 0, 0], [2, 1, 4, 2, 5]]
    assert mask.tolist() == [[True, True, False, False, False], [True] * 5]


def test_long_captions_keep_their_special_tokens():
    tokenizer = wordpiece_tokenizer()
    ids, mask = tokenizer.encode(["a pond a pond a pond", "pond"], max_tokens=3)
    assert (tokenizer.prefix, tokenizer.suffix) == (1, 1)
    assert ids.tolist() == [[2, 8, 7, 8, 3], [2, 7, 3, 0, 0]]
    assert mask.sum(1).tolist() == [5, 3]


def test_pieces_are_merged_into_words_as_written():
    tokenizer = wordpiece_tokenizer()
    words = tokenizer.words("A Baseballs, pond", max_tokens=10)
    assert [(word.text, word.fragments) for word in words] == [
        ("A", (0,)),
        ("Baseballs", (1, 2, 3)),
        (",", (4,)),
        ("pond", (5,)),
    ]
    assert tokenizer.words("A Baseballs", max_tokens=2)[-1].fragments == (1,)


def test_unseen_words_are_shown_as_written():
    words = word_tokenizer(CAPTIONS).words("The  Crossroads!", max_tokens=5)
    assert [word.text for word in words] == ["The", "Crossroads"]


@pytest.mark.parametrize("text", ["", "   ", "...", "\u200b"])
def test_a_text_without_words_is_named(text):
    with pytest.raises(DataError, match="text 1 has no words"):
        word_tokenizer(CAPTIONS).encode(["a pond", text], max_tokens=5)


def test_json_round_trip_keeps_ids_and_padding():
    for tokenizer in (word_tokenizer(CAPTIONS), wordpiece_tokenizer()):
        again = Tokenizer.from_json(tokenizer.to_json())
        assert again.pad_id == tokenizer.pad_id
        assert again.to_json() == tokenizer.to_json()
        for before, after in zip(
            tokenizer.encode(["a pond", "pond a pond"], 9),
            again.encode(["a pond", "pond a pond"], 9),
            strict=True,
        ):
            assert before.tolist() == after.tolist()


def test_another_padding_id_is_kept():
    text = wordpiece_tokenizer().to_json()
    tokenizer = Tokenizer.from_json(Tokenizer.from_json(text, pad_id=3).to_json())
    assert tokenizer.encode(["a", "a pond"], 4)[0].tolist() == [[2, 8, 3, 3], [2, 8, 7, 3]]


@pytest.mark.parametrize("content", ["", "{}", json.dumps({"model": {"type": "Nonsense"}})])
def test_a_damaged_file_is_named(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    with pytest.raises(ModelError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer.load(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ModelError, match="file not found"):
        Tokenizer.load(tmp_path / "tokenizer.json")


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=5))
def test_encoding_never_exceeds_the_limit_and_words_cover_the_fragments(texts):
    tokenizer = word_tokenizer(["a pond", *texts])
    texts = [f"pond {text}" for text in texts]
    _, mask = tokenizer.encode(texts, max_tokens=4)
    assert mask.shape[1] <= 4
    for text, row in zip(texts, mask, strict=True):
        covered = [piece for word in tokenizer.words(text, max_tokens=4) for piece in word.fragments]
        assert covered == list(range(int(row.sum())))
