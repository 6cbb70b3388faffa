"""Texts are cleaned as a CLIP's own code did; tests/models/test_openclip_references.py holds the numbers."""

from __future__ import annotations

import gzip

import pytest
from helpers.openclip_weights import save_tokenizer

import pmpguard.errors
from pmpguard.errors import MissingExtraError, ModelError
from pmpguard.models import text_cleaning
from pmpguard.models.bpe_vocabulary import byte_letters, clip_tokenizer
from pmpguard.models.text_cleaning import text_cleaner
from pmpguard.models.tokenizer import Tokenizer


@pytest.mark.parametrize(
    ("cleaning", "wanted"),
    [
        ("none", " A  schÃ¶ne &amp;amp; “Farm_yard” "),
        ("whitespace", 'A schöne & "Farm_yard"'),
        ("clip", 'a schöne & "farm_yard"'),
        ("canonical", "a schöne farm yard"),
    ],
)
def test_each_way_to_clean(cleaning, wanted):
    assert text_cleaner(cleaning)(" A  schÃ¶ne &amp;amp; “Farm_yard” ") == wanted


def test_without_ftfy_a_model_that_needs_it_says_so(monkeypatch):
    def missing(module, extra):
        raise MissingExtraError(f"no {module}", fix=f"pip install 'pmpguard[{extra}]'")

    monkeypatch.setattr(text_cleaning, "require", missing)
    assert text_cleaner("none")("a") == "a"
    with pytest.raises(MissingExtraError, match="ftfy") as refused:
        text_cleaner("clip")
    assert "[clip]" in refused.value.fix
    assert issubclass(MissingExtraError, pmpguard.errors.PmpguardError)


def test_words_are_those_of_the_cleaned_text(tmp_path):
    save_tokenizer(tmp_path)
    text = (tmp_path / "tokenizer.json").read_text()
    tokenizer = Tokenizer.from_json(text, cleaning="clip")
    assert [word.text for word in tokenizer.words("A&nbsp;POND  near\ttrees", 8)] == [
        "a",
        "pond",
        "near",
        "trees",
    ]
    assert tokenizer.encode(["A&nbsp;POND"], 8)[0].tolist() == tokenizer.encode(["a pond"], 8)[0].tolist()


def test_every_byte_has_a_letter_of_its_own():
    letters = byte_letters()
    assert len(set(letters)) == 256 and letters[0] == "!" and all(letter.isprintable() for letter in letters)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"plain text",
        gzip.compress(b"#version\nno pairs here at all\n", mtime=0),
        gzip.compress(b"#v", mtime=0),
    ],
)
def test_a_file_that_is_no_vocabulary_is_named(tmp_path, content):
    (tmp_path / "bpe.txt.gz").write_bytes(content)
    with pytest.raises(ModelError, match=r"bpe\.txt\.gz: not CLIP's vocabulary") as refused:
        clip_tokenizer(tmp_path / "bpe.txt.gz")
    assert "bpe_simple_vocab_16e6" in refused.value.fix
