"""S-CLIP: plan, captions and keywords against loops, the contract, what it learns from mismatched pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.feature_world import build_method, learn
from helpers.robust_examples import CHANCE, example_batch, keeps_the_contract, learn_squares
from torch.nn.functional import normalize

from pmpguard.losses.infonce import infonce_terms
from pmpguard.losses.positives import positive_targets
from pmpguard.methods.baselines.sclip import Sclip, caption_terms, image_plan, keyword_terms, token_shares


def unit(count: int, seed: int) -> torch.Tensor:
    return normalize(torch.randn(count, 6, generator=torch.Generator().manual_seed(seed)), dim=1)


def test_the_plan_against_sinkhorn_in_numpy() -> None:
    images, paired = unit(7, 0), torch.tensor([1.0, 0, 1, 1, 0, 0, 1])
    rows, columns = np.flatnonzero(paired.numpy() == 0), np.flatnonzero(paired.numpy() == 1)
    kernel = np.exp(-(1 - (images @ images.T).double().numpy()[np.ix_(rows, columns)]) / 0.2)
    v = np.ones(len(columns))
    for _ in range(200):
        u = (1 / len(rows)) / (kernel @ v)
        v = (1 / len(columns)) / (kernel.T @ u)
    expected = u[:, None] * kernel * v
    expected /= expected.sum(1, keepdims=True)
    found = image_plan(images, paired, torch.tensor(0.2), 200)
    np.testing.assert_allclose(found.numpy()[np.ix_(rows, columns)], expected, atol=1e-4)
    assert float(found.sum()) == pytest.approx(len(rows), rel=1e-4)
    assert float(found[columns].abs().sum()) == 0 == float(found[:, rows].abs().sum())


@pytest.mark.parametrize("paired", [torch.zeros(4), torch.ones(4)])
def test_without_two_sides_there_is_no_plan(paired: torch.Tensor) -> None:
    assert float(image_plan(unit(4, 1), paired, torch.tensor(0.1), 10).abs().sum()) == 0


def test_an_unpaired_image_learns_the_trusted_captions_of_images_like_it() -> None:
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    image_of, trusted = torch.tensor([0, 0, 1, 2, 0]), torch.tensor([1.0, 1, 1, 0, 0])
    plan = torch.zeros(3, 3)
    plan[2] = torch.tensor([0.7, 0.3, 0.0])
    log_p = logits[[0, 1, 2], 2].log_softmax(0)  # of trusted captions alone
    expected = -(0.35 * log_p[0] + 0.35 * log_p[1] + 0.3 * log_p[2])
    found = caption_terms(logits, plan, trusted, image_of)
    assert found.tolist() == pytest.approx([0, 0, float(expected)], abs=1e-5)


def test_keywords_are_partial_labels() -> None:
    logits = torch.tensor([[2.0, 0.0, 1.0, 5.0]])
    candidates, known = torch.tensor([[1.0, 0, 1, 0]]), torch.tensor([True, True, True, False])
    weights = torch.tensor([2.0, 1.0]).softmax(0)
    log_p = torch.tensor([2.0, 0.0, 1.0]).log_softmax(0)
    expected = -(weights[0] * log_p[0] + weights[1] * log_p[2])
    assert float(keyword_terms(logits, candidates, known)) == pytest.approx(float(expected), abs=1e-6)
    assert float(keyword_terms(logits, 0 * candidates, known)) == 0


def test_keywords_are_words_neither_rare_nor_common() -> None:
    method = build_method("sclip", pairs=5, keywords=4, rarest=0.3, commonest=0.9)
    assert isinstance(method, Sclip)
    red, roof = (method.retriever.tokenizer.rules.token_to_id(word) for word in ("red", "roof"))
    ids = torch.tensor([[red, roof, 0], [red, red, 0], [red, roof, roof], [red, 0, 0]])
    mask = ids > 0
    assert token_shares(ids, mask)[[red, roof]].tolist() == [1.0, 0.5]
    method._find_keywords(ids, mask, torch.tensor([0, 1, 2, 3, 2]))
    assert method.keyword_ids.tolist() == [roof, -1, -1, -1]  # "red" is in every caption
    assert method.has_keyword[:, 0].tolist() == [True, False, True, False, True]


def test_terms_of_paired_and_unpaired_images() -> None:
    method, batch = build_method("sclip", dim=8), example_batch(epoch=1)
    assert isinstance(method, Sclip)
    method.p_match[batch.rows[batch.image_of == 2]] = 0.1
    terms = method.losses(batch)
    unpaired = batch.image_of == 2
    assert bool((terms["labelled"][unpaired] == 0).all()) and bool((terms["captions"][unpaired] > 0).all())
    assert bool((terms["captions"][~unpaired] == 0).all()) and bool((terms["labelled"][~unpaired] > 0).all())


def test_the_labelled_loss_is_that_of_trusted_pairs_among_themselves() -> None:
    method, batch = build_method("sclip", dim=8), example_batch(epoch=1)
    assert isinstance(method, Sclip)
    distrusted = batch.image_of == 2
    distrusted[0] = True  # of an image with others
    method.p_match[batch.rows[distrusted]] = 0.1
    kept = (~distrusted).nonzero()[:, 0]
    images, own = batch.image_of[kept].unique(return_inverse=True)
    texts, seen = batch.texts.pooled[kept], batch.images.pooled[images]
    keys = batch.image_keys[images], batch.caption_keys[kept]
    expected = infonce_terms(texts @ seen.T / method.temperature, positive_targets(own, *keys), own)
    found = method.losses(batch)["labelled"]
    torch.testing.assert_close(found[kept], expected, rtol=1e-4, atol=1e-5)
    assert bool((found[distrusted] == 0).all())


@pytest.mark.parametrize("distrusted", [0, 2])
def test_contract(distrusted: int) -> None:
    method = build_method("sclip", dim=8)
    assert isinstance(method, Sclip)
    method.p_match[: 2 * distrusted] = 0.1
    method.has_keyword[::2, :3] = True
    method.keyword_ids[:3] = torch.tensor([2, 3, 2])
    keeps_the_contract(method, 3)


@pytest.mark.slow
def test_it_learns_more_than_infonce_from_60_percent_wrong_pairs() -> None:
    robust, plain = (learn(name, 0.6, 0, epochs=15, dim=32) for name in ("sclip", "infonce"))
    assert robust.mr > plain.mr + 10
    assert robust.auroc is not None and robust.auroc > 0.9


@pytest.mark.slow
def test_it_learns_squares(tmp_path: Path) -> None:
    found = learn_squares(tmp_path, "sclip", rarest=0.01, commonest=0.6)
    assert found.best_mr > 4 * CHANCE
    method = found.method
    assert isinstance(method, Sclip) and bool((method.keyword_ids >= 0).any())
