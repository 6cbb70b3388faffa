"""InfoNCE, VSE++, NAAF and CCL against naive versions, and the contract every method keeps."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pmpguard.errors import ConfigError
from pmpguard.losses.complementary import Penalty, complementary_terms, log1m_exp
from pmpguard.methods.method import EncodedBatch, Method
from pmpguard.methods.registry import BUILT_IN, find_method
from pmpguard.model.encoded import Encoded
from pmpguard.model.retriever import Retriever
from pmpguard.model.retriever_config import RetrieverConfig

WORDS = ["red", "green", "roof", "pond", "road", "tree"]


def encoded(count: int, fragments: int, dim: int, generator: torch.Generator) -> Encoded:
    def unit(*shape: int) -> Tensor:
        vectors = torch.randn(*shape, generator=generator, dtype=torch.float32)
        return torch.nn.functional.normalize(vectors, dim=-1)

    mask = torch.arange(fragments)[None] < torch.randint(1, fragments + 1, (count, 1), generator=generator)
    return Encoded(unit(count, dim), unit(count, fragments, dim), mask)


def batch(captions: int = 6, images: int = 5, epoch: int = 3, seed: int = 0) -> EncodedBatch:
    generator = torch.Generator().manual_seed(seed)
    image_of = torch.cat(
        [torch.arange(images), torch.randint(images, (captions - images,), generator=generator)]
    )
    return EncodedBatch(
        encoded(captions, 4, 16, generator),
        encoded(images, 3, 16, generator),
        image_of,
        torch.arange(images) + 10,
        torch.arange(captions),
        torch.arange(captions),
        epoch,
    )


def build(name: str, **settings: object) -> Method:
    kind = find_method(name)
    read = kind.read_settings("recommended", dict(settings))
    config = RetrieverConfig(vision="tiny", text="tiny", dim=16, image_size=32)
    torch.manual_seed(0)
    return kind(Retriever.create(kind.shape(config, read), WORDS), read, 100)


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
    assert method.retriever.config.ranking == "S"
    for seed in range(20):
        method.losses(batch(captions=12, images=12, seed=seed))
    assert set(method.progress()) >= {"mu+", "t"}
    assert float(method.retriever.boundary.words_seen) > 0


@pytest.mark.parametrize("penalty", ["log", "linear"])
def test_ccl_against_a_loop(penalty: Penalty) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 4, generator=generator, dtype=torch.float64) * 5
    image_of = torch.tensor([0, 1, 2, 3, 0, 0])
    positives = torch.nn.functional.one_hot(image_of, 4).bool()
    positives[1, 2] = True
    rows, columns = logits.softmax(1), logits.softmax(0)

    def cost(p: Tensor) -> float:
        return -math.log(1 - p) if penalty == "log" else float(p)

    expected = []
    for t, v in enumerate(image_of.tolist()):
        row = sum(cost(rows[t, k]) for k in range(4) if not positives[t, k])
        column = sum(cost(columns[k, v]) for k in range(6) if not positives[k, v])
        expected.append(row + column)
    found = complementary_terms(logits, positives, image_of, penalty)
    assert found.tolist() == pytest.approx(expected, rel=1e-6)


def test_ccl_counts_pictures_as_much_as_captions_however_many_captions_they_have() -> None:
    """Flat probabilities cost a query its negatives' share, nearly 1, be it caption or picture."""
    for captions in (1, 5):
        image_of = torch.arange(100).repeat_interleave(captions)
        positives = torch.nn.functional.one_hot(image_of, 100).bool()
        found = complementary_terms(torch.zeros(len(image_of), 100), positives, image_of).mean()
        assert float(found) == pytest.approx(2.0, abs=0.03)


def test_ccl_can_make_knowing_the_scene_cheaper_than_no_opinion_when_most_labels_are_wrong() -> None:
    """128 pictures of 32 scenes, one caption each, a fifth labelled right; only scenes can be known."""
    scene = torch.arange(128) % 32
    image_of = torch.arange(128).roll(1)  # another scene's picture
    image_of[:26] = torch.randperm(26, generator=torch.Generator().manual_seed(0))
    caption_scene = scene.clone()
    caption_scene[:26] = scene[image_of[:26]]
    positives = torch.nn.functional.one_hot(image_of, 128).bool()
    known = 6.0 * (caption_scene[:, None] == scene[None]).double()  # (128, 128)
    gain = {
        penalty: float(
            (
                complementary_terms(torch.zeros_like(known), positives, image_of, penalty)
                - complementary_terms(known, positives, image_of, penalty)
            ).mean()
        )
        for penalty in ("log", "linear")
    }
    assert gain["linear"] > 0 > gain["log"]


def test_log_of_one_minus_p_is_accurate_at_both_ends() -> None:
    log_p = torch.tensor([-1e-5, -0.1, -0.7, -5.0, -50.0], dtype=torch.float64)
    expected = [math.log(-math.expm1(value)) for value in log_p.tolist()]
    assert log1m_exp(log_p).tolist() == pytest.approx(expected, rel=1e-9)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"settings\.margn: unknown setting"):
        find_method("vse").read_settings("recommended", {"margn": 1})
    with pytest.raises(ConfigError, match="no preset 'printed'"):
        find_method("vse").read_settings("printed", {})


def test_methods_are_found_by_import_path_and_unknown_names_list_the_known() -> None:
    assert find_method("pmpguard.methods.ccl:Ccl").name == "ccl"
    with pytest.raises(ConfigError, match="known: pmpguard, infonce, vse, naaf, ccl"):
        find_method("clip")
    with pytest.raises(ConfigError, match="cannot import"):
        find_method("pmpguard.methods.nowhere:Nothing")
    with pytest.raises(ConfigError, match="not a subclass"):
        find_method("pathlib:Path")
