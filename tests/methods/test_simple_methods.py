"""InfoNCE, VSE++ and NAAF against naive versions, and the contract every method keeps."""

from __future__ import annotations

import pytest
import torch
from helpers.method_examples import batch, build
from torch import Tensor

from pmpguard.errors import ConfigError
from pmpguard.methods.method import EncodedBatch
from pmpguard.methods.registry import BUILT_IN, find_method


def naive_hinge(scores: Tensor, image_of: Tensor, margin: float, how: str) -> list[float]:
    result = []
    for t, v in enumerate(image_of.tolist()):
        rows = [max(0.0, margin - scores[t, v] + scores[t, k]) for k in range(scores.shape[1]) if k != v]
        columns = [
            max(0.0, margin - scores[t, v] + scores[k, v]) for k in range(scores.shape[0]) if image_of[k] != v
        ]
        pick = max if how == "hardest" else (lambda values: sum(values) / len(values))
        result.append(float(pick(rows) + pick(columns)))
    return result


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_method_gives_finite_per_pair_terms_with_gradients(name: str) -> None:
    method, given = build(name), batch()
    given.texts.pooled.requires_grad_()
    given.texts.fragments.requires_grad_()
    terms = method.losses(given)
    assert terms
    for term in terms.values():
        assert term.shape == (6,) and torch.isfinite(term).all()
    sum(term.mean() for term in terms.values()).backward()  # type: ignore[union-attr]
    gradients = [tensor.grad for tensor in (given.texts.pooled, given.texts.fragments)]
    assert any(gradient is not None and gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_order_of_a_batch_does_not_matter(name: str) -> None:
    given = batch()
    order = torch.tensor([3, 5, 0, 1, 4, 2])
    shuffled = EncodedBatch(
        given.texts[order], given.images, given.image_of[order], given.image_keys,
        given.caption_keys[order], given.rows[order], given.epoch,
    )  # fmt: skip
    left, right = (build(name).losses(part) for part in (given, shuffled))
    for key, term in left.items():
        torch.testing.assert_close(term[order], right[key], rtol=1e-4, atol=1e-5)


def test_infonce_is_the_mean_of_row_and_column_cross_entropy() -> None:
    method, given = build("infonce"), batch(captions=5)
    logits = (given.texts.pooled @ given.images.pooled.T / 0.07).double()
    for t in range(5):
        row = -(logits[t, t] - torch.logsumexp(logits[t], 0))
        column = -(logits[t, t] - torch.logsumexp(logits[:, t], 0))
        assert method.losses(given)["infonce"][t].item() == pytest.approx((row + column).item() / 2, rel=1e-4)


@pytest.mark.parametrize("epoch,how", [(0, "mean"), (1, "hardest")])
def test_vse_against_a_loop(epoch: int, how: str) -> None:
    given = batch(epoch=epoch)
    scores = given.texts.pooled @ given.images.pooled.T
    found = build("vse").losses(given)["triplet"]
    assert found.tolist() == pytest.approx(naive_hinge(scores, given.image_of, 0.2, how), rel=1e-4, abs=1e-5)


def test_naaf_ranks_by_the_awareness_score_and_moves_its_boundary() -> None:
    method = build("naaf")
    assert method.retriever.config.ranking == "awareness"
    for seed in range(20):
        method.losses(batch(captions=12, images=12, seed=seed))
    assert set(method.progress()) >= {"mu+", "t"}
    assert float(method.retriever.boundary.words_seen) > 0


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"settings\.margn: unknown setting"):
        find_method("vse").read_settings("recommended", {"margn": 1})
    with pytest.raises(ConfigError, match="no preset 'printed'"):
        find_method("vse").read_settings("printed", {})


def test_methods_are_found_by_import_path_and_unknown_names_list_the_known() -> None:
    assert find_method("pmpguard.methods.baselines.ccl:Ccl").name == "ccl"
    with pytest.raises(ConfigError, match="known: pmpguard, infonce, vse, naaf, ccl"):
        find_method("clip")
    with pytest.raises(ConfigError, match="cannot import"):
        find_method("pmpguard.methods.nowhere:Nothing")
    with pytest.raises(ConfigError, match="not a subclass"):
        find_method("pathlib:Path")
