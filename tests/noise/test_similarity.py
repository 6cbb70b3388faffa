"""The similarity filter against a loop over all pairs."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.noise_rules import broken_rules, make_table

from pmpguard.errors import ConfigError, DataError
from pmpguard.noise.inject import corrupt_pairs
from pmpguard.noise.similarity import SimilarityFilter


def random_scores(table, seed=0):
    """(captions, images): high on the diagonal, uniform elsewhere."""
    chance = np.random.default_rng(seed)
    scores = chance.random((len(table), len(table.first_rows)))
    scores[np.arange(len(table)), table.image_codes] = chance.uniform(0.3, 1.0, len(table))
    return scores


@pytest.mark.parametrize("level", ["caption", "image"])
def test_replacements_score_under_the_quantile(level):
    clean = make_table(images=100, captions=2, sentences=300)
    scores = random_scores(clean)
    result = corrupt_pairs(
        clean, 0.5, 0, level, similarity=SimilarityFilter.from_matrix(scores, clean.image_codes)
    )
    assert broken_rules(clean, result, other_class=False) == []
    train = [row for row, pair in enumerate(clean) if pair.split == "train"]
    threshold = np.quantile([scores[row, clean.image_codes[row]] for row in train], 0.1)
    rows = np.flatnonzero(result.is_noisy)
    reached = scores[result.source_rows[rows], clean.image_codes[rows]]
    assert (reached < threshold).all() and result.over_threshold == 0
    plain = corrupt_pairs(clean, 0.5, 0, level, other_class=False)
    rows = np.flatnonzero(plain.is_noisy)
    assert (scores[plain.source_rows[rows], clean.image_codes[rows]] >= threshold).any()


def test_the_least_similar_draw_is_kept_when_none_is_under():
    clean = make_table(images=10, captions=1, sentences=300)
    scores = np.full((10, 10), 0.9)
    scores[:, 3] = np.linspace(0.5, 0.6, 10)  # nothing is under 0.1, but captions differ for image 3
    np.fill_diagonal(scores, 0.1)
    patient = SimilarityFilter.from_matrix(scores, clean.image_codes, draws=200)
    result = corrupt_pairs(clean, 1.0, 0, similarity=patient)
    assert result.over_threshold == 8 == int(result.is_noisy.sum())
    assert result.effective_rate == 1.0
    assert result.source_rows[3] == 0  # the lowest of its column in the split


def test_embeddings_give_the_cosines():
    clean = make_table(images=12, captions=2)
    chance = np.random.default_rng(1)
    images, captions = chance.normal(size=(12, 4)), chance.normal(size=(24, 4))
    similarity = SimilarityFilter.from_embeddings(images, captions, clean.image_codes)
    rows, sources = np.array([0, 5, 23, 7]), np.array([3, 3, 0, 11])
    expected = [
        sum(images[clean.image_codes[row]][axis] * captions[source][axis] for axis in range(4))
        for row, source in zip(rows, sources, strict=True)
    ]
    assert np.allclose(similarity.scores(rows, sources), expected)


def test_a_callable_sees_rows_of_the_whole_table():
    clean = make_table(sentences=300)
    seen = []

    def score(image_rows, caption_rows):
        seen.append((image_rows, caption_rows))
        return (image_rows != caption_rows) * -1.0

    result = corrupt_pairs(clean, 0.3, 0, similarity=SimilarityFilter(score))
    assert result.over_threshold == 0
    train = {row for row, pair in enumerate(clean) if pair.split == "train"}
    assert {int(row) for pair in seen for rows in pair for row in rows} <= train


def test_bad_filters_are_refused():
    clean = make_table()
    with pytest.raises(DataError, match=r"shape \(3, 3\), the table has 200 pairs of 40 images"):
        SimilarityFilter.from_matrix(np.zeros((3, 3)), clean.image_codes)
    with pytest.raises(DataError, match="embeddings have shapes"):
        SimilarityFilter.from_embeddings(np.zeros((40, 3)), np.zeros((200, 4)), clean.image_codes)
    with pytest.raises(DataError, match="image row 0, caption row 0: nan"):
        corrupt_pairs(clean, 0.1, 0, similarity=SimilarityFilter(lambda a, b: np.full(len(a), np.nan)))
    with pytest.raises(DataError, match="gave shape"):
        corrupt_pairs(clean, 0.1, 0, similarity=SimilarityFilter(lambda a, b: np.zeros(3)))
    with pytest.raises(ConfigError, match="quantile"):
        SimilarityFilter(lambda a, b: a, quantile=0.0)
    with pytest.raises(ConfigError, match="draws"):
        SimilarityFilter(lambda a, b: a, draws=0)
    with pytest.raises(ConfigError, match="cannot permute"):
        corrupt_pairs(clean, 0.1, 0, mode="permute", similarity=SimilarityFilter(lambda a, b: a * 0.0))
