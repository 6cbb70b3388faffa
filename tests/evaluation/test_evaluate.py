"""Evaluating a retriever: exhaustive, by shortlist, by several rankings, and what is reported."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from pmpguard.data.images.sources import ImagesInMemory
from pmpguard.data.pairs import PairTable
from pmpguard.errors import ConfigError, DataError
from pmpguard.evaluation.evaluate import (
    EvaluationReport,
    Gallery,
    encode_gallery,
    evaluate_retriever,
    shortlist_scores,
)
from pmpguard.evaluation.recall import retrieval_recall
from pmpguard.models.config import RetrieverConfig
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever

CPU = torch.device("cpu")
WORDS = ["red", "green", "blue", "roof", "pond", "road", "tree", "field"]


@pytest.fixture(scope="module")
def gallery() -> Gallery:
    """Fourteen images of noise with two captions each; one sentence occurs twice."""
    draw = np.random.default_rng(0)
    captions = [" ".join(draw.choice(WORDS, 4)) for _ in range(28)]
    captions[9] = captions[2]
    columns = {"image": [f"{number // 2}.png" for number in range(28)], "caption": captions}
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (14, 3, 32, 32), generator=generator, dtype=torch.uint8)
    return Gallery(PairTable.from_columns(columns, name="noise"), ImagesInMemory(pixels, CPU))


@pytest.fixture(scope="module")
def retriever() -> Retriever:
    torch.manual_seed(0)
    return Retriever.create(RetrieverConfig(vision="tiny", text="tiny", dim=16, image_size=32), WORDS).eval()


def test_recalls_are_those_of_the_whole_score_matrix(retriever: Retriever, gallery: Gallery) -> None:
    report = evaluate_retriever(
        retriever, gallery, split="test", rankings=["pooled", "gated", "awareness+gated"], bootstrap=50
    )
    texts = retriever.encode_texts(gallery.table.captions)
    images = retriever.encode_images(next(gallery.images.batches([np.arange(14)])))
    assert list(report.rankings) == ["awareness", "pooled", "gated", "awareness+gated"]
    for name, measured in report.rankings.items():
        scores = retriever.score(texts, images, ranking=name)  # type: ignore[arg-type]
        expected = retrieval_recall(scores, gallery.table.image_codes, bootstrap=0)
        assert measured.i2t == pytest.approx(expected.i2t) and measured.t2i == pytest.approx(expected.t2i)
    assert report.recall is report.rankings["awareness"] and report.recall.string_aware is not None
    assert report.seconds > 0 and report.peak_memory_gb > 0


@pytest.mark.parametrize("batch", [5, 100])
def test_encoding_in_batches_keeps_the_order(retriever: Retriever, gallery: Gallery, batch: int) -> None:
    texts, images = encode_gallery(retriever, gallery, batch)
    assert len(texts) == 28 and len(images) == 14
    expected = retriever.encode_texts([gallery.table.captions[20]])
    torch.testing.assert_close(texts.pooled[20], expected.pooled[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shortlist", [28, 1000])
def test_a_shortlist_of_everything_equals_the_exhaustive_scores(
    retriever: Retriever, gallery: Gallery, shortlist: int
) -> None:
    exhaustive = evaluate_retriever(retriever, gallery, split="test", bootstrap=0)
    listed = evaluate_retriever(retriever, gallery, split="test", shortlist=shortlist, bootstrap=0)
    assert listed.recall == exhaustive.recall
    assert listed.shortlist == shortlist


@pytest.mark.parametrize("shortlist", [1, 3, 14, 27])
def test_a_shorter_list_re_ranks_exactly_the_nearest_and_keeps_the_rest_below(
    retriever: Retriever, gallery: Gallery, shortlist: int
) -> None:
    texts, images = encode_gallery(retriever, gallery, 100)
    fine = retriever.score(texts, images)  # (T, I)
    found = shortlist_scores(texts, images, shortlist, retriever.score)
    pooled = texts.pooled @ images.pooled.T
    chosen = torch.zeros_like(pooled, dtype=torch.bool)
    for row in range(len(texts)):
        chosen[row, pooled[row].argsort(descending=True)[:shortlist]] = True
    for column in range(len(images)):
        chosen[pooled[:, column].argsort(descending=True)[:shortlist], column] = True
    torch.testing.assert_close(found[chosen], fine[chosen], rtol=1e-4, atol=1e-5)
    if not chosen.all():
        assert float(found[~chosen].max()) < float(found[chosen].min())
        torch.testing.assert_close(found[~chosen].argsort(), pooled[~chosen].argsort())


def test_a_shortlist_only_scores_what_is_on_it(gallery: Gallery, retriever: Retriever) -> None:
    texts, images = encode_gallery(retriever, gallery, 100)
    scored = 0

    def score(captions: Encoded, pixels: Encoded) -> Tensor:
        nonlocal scored
        scored += len(captions) * len(pixels)
        return retriever.score(captions, pixels)

    shortlist_scores(texts, images, 2, score)
    assert 2 * 28 <= scored <= 2 * 28 + 2 * 14  # each caption's two, and each image's two


def test_the_report_says_what_was_done(retriever: Retriever, gallery: Gallery) -> None:
    report = evaluate_retriever(retriever, gallery, split="val", shortlist=3, bootstrap=50)
    assert isinstance(report, EvaluationReport)
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["split"] == "val" and plain["shortlist"] == 3 and plain["images"] == 14
    assert plain["rankings"]["awareness"]["mr"] == pytest.approx(report.recall.mr)
    low, high = plain["intervals"]["mr"]
    assert low <= report.recall.mr <= high
    text = report.as_text()
    assert (
        "the 3 nearest by pooled vectors" in text and "GB peak" in text and f"{low:.2f} to {high:.2f}" in text
    )
    assert "equal captions" in text and "R@K: % of queries" in text
    assert "among 14 images recalls are high by themselves" in text
    quiet = evaluate_retriever(retriever, gallery, split="val", bootstrap=0)
    assert "all pairs" in quiet.as_text() and "resampled" not in quiet.as_text()
    assert quiet.as_dict()["intervals"] == {}


def test_bad_requests_are_refused(retriever: Retriever, gallery: Gallery) -> None:
    with pytest.raises(ConfigError, match="shortlist: 0 is not positive"):
        evaluate_retriever(retriever, gallery, split="test", shortlist=0)
    with pytest.raises(DataError, match="at least two images"):
        Gallery(gallery.table.slice(0, 2), ImagesInMemory(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), CPU))
