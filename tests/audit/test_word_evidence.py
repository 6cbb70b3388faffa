"""Words against loops, and that the wrong word of a partly wrong caption is found."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

from pmpguard.audit.word_evidence import (
    PRIOR_COUNT,
    ImageWords,
    WordList,
    WordSpan,
    image_evidence,
    sibling_evidence,
    spelling_vectors,
    support,
    visibility,
    word_spans,
)
from pmpguard.audit.word_verdicts import judge_words
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever
from pmpguard.models.tokenizer import word_tokenizer


def unit(*shape, seed=0):
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values / values.norm(dim=-1, keepdim=True)


def spans_of(caption):
    found, at = [], 0
    for word in caption.split():
        at = caption.index(word, at)
        found.append(WordSpan(at, at + len(word)))
        at += len(word)
    return tuple(found)


def words_of(captions):
    return WordList.of(captions, [spans_of(caption) for caption in captions])


def test_spans_are_the_words_the_model_reads():
    caption = "A red-roofed house , 12 trees !"
    spans = word_spans(word_tokenizer([caption]), caption, max_tokens=5)
    assert [caption[s.start : s.stop] for s in spans] == ["A", "red", "roofed", "house", "12"]


def test_spellings_are_encoded_by_themselves():
    model = Retriever.create(preset("tiny", dim=16), ["a red pond", "trees"])
    vectors = spelling_vectors(model, ["pond", "red"])
    alone = model.encode_texts(["red"]).fragments[0, :1]
    torch.testing.assert_close(vectors[1:], alone)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(2))


def test_rises_against_loops():
    vectors, regions = unit(7, 5), unit(6, 4, 5, seed=1)
    pixels = ImageWords.of(vectors, regions, references=6)
    spellings, images = np.array([0, 6, 3, 3, 0]), np.array([5, 0, 2, 5, 5])
    found = pixels.rises(spellings, images)
    for place, (spelling, image) in enumerate(zip(spellings, images, strict=True)):
        best = [max(float(vectors[spelling] @ region) for region in regions[other]) for other in range(6)]
        expected = (best[image] - np.mean(best)) / np.std(best)
        assert found[place] == pytest.approx(expected, rel=1e-4)
    assert len(pixels.rises(np.empty(0, np.int64), np.empty(0, np.int64))) == 0


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 100_000), st.integers(1, 4), st.integers(1, 8))
def test_siblings_against_loops(seed, images, pairs):
    generator = np.random.default_rng(seed)
    captions = [" ".join(generator.choice(list("abcd"), size=generator.integers(1, 5))) for _ in range(pairs)]
    image_of = generator.integers(images, size=pairs)
    believed = generator.random(pairs)
    words = words_of(captions)
    found = sibling_evidence(words, image_of, believed)
    sets = [set(caption.split()) for caption in captions]
    places = [row for row in range(pairs) if (image_of == image_of[row]).sum() > 1]

    def others(row):
        return set().union(*(sets[k] for k in range(pairs) if image_of[k] == image_of[row] and k != row))

    chance = Counter(word for row in places for word in others(row))
    hits, weight = Counter(), Counter()
    for row in places:
        for word in sets[row]:
            weight[word] += believed[row]
            hits[word] += believed[row] * (word in others(row))
    expected = []
    for row, caption in enumerate(captions):
        for word in caption.split():
            if row not in places:
                expected.append(0.0)
                continue
            c = min(max(chance[word] / len(places), 1e-3), 1 - 1e-3)
            u = max((hits[word] + PRIOR_COUNT * c) / (weight[word] + PRIOR_COUNT), c)
            u = min(max(u, 1e-3), 1 - 1e-3)
            expected.append(math.log(u / c) if word in others(row) else math.log((1 - u) / (1 - c)))
    np.testing.assert_allclose(found, expected, atol=1e-9)


def test_visibility_and_support_by_hand():
    spelling = np.array([0, 0, 1])
    visible = visibility(spelling, np.array([3.0, 1.0, -2.0]), np.array([1.0, 0.5, 1.0]), 3)
    assert visible.tolist() == pytest.approx([3.5 / (1.5 + PRIOR_COUNT), 0.0, 0.0])
    evidence = image_evidence(spelling, np.array([2.0, 0.0, -2.0]), np.array([1.0, 0.0]))
    assert evidence.tolist() == [1.5, -0.5, 0.0]
    assert support(evidence).tolist() == pytest.approx([1 / (1 + math.exp(-x)) for x in evidence])


@dataclass(frozen=True)
class Part:
    words: WordList | None
    image_words: ImageWords | None
    image_of: torch.Tensor


def world(images=150, per_image=3, rate=0.3, seed=0):
    """Each image shows five of thirty things, each somewhere; captions name three and say "the".

    In some captions one thing is not in the image.
    """
    generator = np.random.default_rng(seed)
    things = unit(31, 12, seed=seed)  # 30 is "the"
    regions = unit(images, 6, 12, seed=seed + 1)
    captions, image_of, truth = [], [], []
    for image in range(images):
        present = generator.choice(30, size=5, replace=False)
        regions[image, :5] += 1.5 * things[present]
        absent = np.setdiff1d(np.arange(30), present)
        for _ in range(per_image):
            named = list(generator.choice(present, size=3, replace=False))
            is_mismatched = [False] * 3
            if generator.random() < rate:
                place = generator.integers(3)
                named[place] = generator.choice(absent)
                is_mismatched[place] = True
            captions.append("the " + " ".join(f"thing{number}" for number in named))
            image_of.append(image)
            truth += [False, *is_mismatched]
    words = words_of(captions)
    order = [30 if spelling == "the" else int(spelling[5:]) for spelling in words.spellings]
    regions = regions / regions.norm(dim=-1, keepdim=True)
    pixels = ImageWords.of(things[order], regions.half())
    return captions, Part(words, pixels, torch.tensor(image_of)), np.array(truth)


def test_the_wrong_word_is_found():
    captions, part, truth = world()
    judged = judge_words(part, np.ones(len(captions)))
    found = average_precision_score(truth, -judged.support)
    assert truth.mean() < 0.09 and found > 0.6
    the = [
        place for place, number in enumerate(judged.words.spelling) if judged.words.spellings[number] == "the"
    ]
    assert np.abs(judged.support[the] - 0.5).max() < 0.3  # says nothing, is never red
    red = judged.support < 0.2
    assert truth[red].mean() > 0.5 and not red[the].any()


def test_verdicts_know_their_places():
    captions, part, _ = world(images=20)
    judged = judge_words(part, np.ones(len(captions)))
    for place in (0, 7, 59):
        told = judged.verdicts(place, with_regions=True)
        assert [captions[place][word.start : word.stop] for word in told] == captions[place].split()
        assert all(len(word.regions) == 6 for word in told)
        assert [word.wrong for word in told] == [word.support < 0.2 for word in told]
        assert all(word.regions == () for word in judged.verdicts(place, with_regions=False))
    caption = captions[3]
    proposed = judged.of_proposal(caption, spans_of(caption), image=int(part.image_of[40]))
    assert [caption[word.start : word.stop] for word in proposed] == caption.split()


def test_without_words_there_is_nothing_to_tell():
    assert judge_words(Part(None, None, torch.zeros(3, dtype=torch.int64)), np.ones(3)) is None
