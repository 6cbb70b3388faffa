from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pmpguard.errors import ConfigError
from pmpguard.losses import positive_targets
from pmpguard.losses.infonce import infonce_terms

FORMS = ["symmetric", "joint"]


def draw(captions: int, images: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """image_of, image_keys, caption_keys, weights, logits of a batch with repeats of all kinds."""
    generator = torch.Generator().manual_seed(seed)
    image_of = torch.randint(images, (captions,), generator=generator)
    image_keys = torch.randint(images, (images,), generator=generator)
    caption_keys = torch.randint(captions, (captions,), generator=generator)
    weights = torch.rand(captions, generator=generator, dtype=torch.float64)
    weights[torch.rand(captions, generator=generator) < 0.3] = 0.0
    logits = 3 * torch.randn(captions, images, generator=generator, dtype=torch.float64)
    return image_of, image_keys, caption_keys, weights, logits


sizes = given(captions=st.integers(1, 7), images=st.integers(1, 5), seed=st.integers(0, 10_000))


@settings(max_examples=60, deadline=None)
@sizes
def test_targets_equal_the_naive_loop(captions: int, images: int, seed: int) -> None:
    image_of, image_keys, caption_keys, weights, _ = draw(captions, images, seed)
    targets = positive_targets(image_of, image_keys, caption_keys, weights)
    plain = positive_targets(image_of, image_keys, caption_keys)
    for t in range(captions):
        for v in range(images):
            pairs = [
                k
                for k in range(captions)
                if caption_keys[k] == caption_keys[t] and image_keys[image_of[k]] == image_keys[v]
            ]
            assert targets[t, v].item() == max([weights[k].item() for k in pairs], default=0.0)
            assert plain[t, v].item() == float(bool(pairs))


def naive_symmetric(logits: Tensor, targets: Tensor, image_of: Tensor) -> list[float]:
    z, y = logits.tolist(), targets.tolist()
    captions, images = logits.shape
    terms = []
    for t in range(captions):
        v = int(image_of[t])
        row_sum, column_sum = sum(y[t]), sum(y[k][v] for k in range(captions))
        row_total = sum(math.exp(z[t][k]) for k in range(images))
        column_total = sum(math.exp(z[k][v]) for k in range(captions))
        row = column = 0.0
        if row_sum > 0:
            row = -sum(y[t][k] / row_sum * math.log(math.exp(z[t][k]) / row_total) for k in range(images))
        if column_sum > 0:
            column = -sum(
                y[k][v] / column_sum * math.log(math.exp(z[k][v]) / column_total) for k in range(captions)
            )
        terms.append((row + column) / 2)
    return terms


def naive_joint(logits: Tensor, targets: Tensor) -> list[float]:
    z, y = logits.tolist(), targets.tolist()
    captions, images = logits.shape
    terms = []
    for t in range(captions):
        term = 0.0
        for k in range(images):
            if y[t][k] > 0:
                total = 2 * math.exp(z[t][k])
                total += sum(math.exp(z[t][j]) for j in range(images) if y[t][j] == 0)
                total += sum(math.exp(z[j][k]) for j in range(captions) if y[j][k] == 0)
                term -= y[t][k] / sum(y[t]) * math.log(math.exp(z[t][k]) / total)
        terms.append(term)
    return terms


@settings(max_examples=60, deadline=None)
@sizes
def test_terms_equal_the_naive_loops(captions: int, images: int, seed: int) -> None:
    image_of, image_keys, caption_keys, weights, logits = draw(captions, images, seed)
    for some_weights in (None, weights):
        targets = positive_targets(image_of, image_keys, caption_keys, some_weights).double()
        symmetric = infonce_terms(logits, targets, image_of)
        assert symmetric.tolist() == pytest.approx(naive_symmetric(logits, targets, image_of), abs=1e-10)
        joint = infonce_terms(logits, targets, image_of, "joint")
        assert joint.tolist() == pytest.approx(naive_joint(logits, targets), abs=1e-10)


def test_one_caption_per_image_is_the_usual_infonce() -> None:
    logits = torch.randn(6, 6, dtype=torch.float64)
    own = torch.arange(6)
    rows = torch.nn.functional.cross_entropy(logits, own, reduction="none")
    columns = torch.nn.functional.cross_entropy(logits.T, own, reduction="none")
    targets = torch.eye(6, dtype=torch.float64)
    torch.testing.assert_close(infonce_terms(logits, targets, own), (rows + columns) / 2)
    # Eq. 6 is both cross-entropies plus the log of the sum of both probabilities.
    joint = rows + columns + torch.log(torch.exp(-rows) + torch.exp(-columns))
    torch.testing.assert_close(infonce_terms(logits, targets, own, "joint"), joint)


def test_floors() -> None:
    perfect = 200 * torch.eye(5, dtype=torch.float64)
    own, targets = torch.arange(5), torch.eye(5, dtype=torch.float64)
    assert infonce_terms(perfect, targets, own).max() < 1e-12
    torch.testing.assert_close(
        infonce_terms(perfect, targets, own, "joint"), torch.full((5,), math.log(2), dtype=torch.float64)
    )


@pytest.mark.parametrize("form", FORMS)
def test_permuting_the_batch_permutes_the_terms(form: str) -> None:
    image_of, image_keys, caption_keys, weights, logits = draw(8, 5, 3)
    captions, images = torch.randperm(8), torch.randperm(5)
    inverse = torch.argsort(images)
    plain = infonce_terms(
        logits, positive_targets(image_of, image_keys, caption_keys, weights), image_of, form
    )
    shuffled = infonce_terms(
        logits[captions][:, images],
        positive_targets(
            inverse[image_of[captions]], image_keys[images], caption_keys[captions], weights[captions]
        ),
        inverse[image_of[captions]],
        form,
    )
    torch.testing.assert_close(shuffled, plain[captions])


@pytest.mark.parametrize("form", FORMS)
def test_gradients(form: str) -> None:
    image_of, image_keys, caption_keys, weights, logits = draw(6, 4, 5)
    targets = positive_targets(image_of, image_keys, caption_keys, weights)
    assert targets.any()
    assert torch.autograd.gradcheck(
        lambda z: infonce_terms(z, targets, image_of, form), logits.requires_grad_()
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_pair_of_weight_zero_is_never_pulled_together(form: str) -> None:
    own = torch.arange(5)
    weights = torch.tensor([1.0, 0.0, 1.0, 0.5, 1.0], dtype=torch.float64)
    logits = torch.randn(5, 5, dtype=torch.float64, requires_grad=True)
    terms = infonce_terms(logits, positive_targets(own, own, own, weights), own, form)
    assert terms[1] == 0
    (weights * terms).sum().backward()
    assert logits.grad is not None
    assert logits.grad[1, 1] >= 0  # following the gradient never raises its logit
    assert (logits.grad[[0, 2, 3, 4], [0, 2, 3, 4]] < 0).all()


def test_captions_of_one_image_pull_with_their_own_weights() -> None:
    """The weighted sum of the column parts of an image is sum w_t * -log p(t | v)."""
    image_of = torch.tensor([0, 0, 0, 1])
    weights = torch.tensor([1.0, 0.25, 0.0, 1.0], dtype=torch.float64)
    logits = torch.randn(4, 2, dtype=torch.float64)
    targets = positive_targets(image_of, torch.arange(2), torch.arange(4), weights)
    rows = -logits.log_softmax(1).gather(1, image_of[:, None])[:, 0] * (weights > 0)
    columns = 2 * infonce_terms(logits, targets, image_of) - rows
    expected = (weights * -logits.log_softmax(0).gather(1, image_of[:, None])[:, 0])[:3].sum()
    torch.testing.assert_close((weights * columns)[:3].sum(), expected)


def test_positives_are_not_each_others_negatives() -> None:
    """Two pairs of one sentence: raising one of their four logits never raises the loss at its optimum."""
    own = torch.arange(3)
    targets = positive_targets(own, own, torch.tensor([4, 4, 5]))
    assert targets.tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]
    logits = torch.zeros(3, 3, dtype=torch.float64)
    logits[:2, :2] = 9.0
    logits[2, 2] = 9.0
    logits.requires_grad_()
    infonce_terms(logits, targets.double(), own).sum().backward()
    assert logits.grad is not None
    assert (logits.grad[:2, :2] <= 1e-12).all()
    logits.grad = None
    infonce_terms(logits, targets.double(), own, "joint").sum().backward()
    assert (logits.grad[:2, :2] <= 0).all()


def test_an_unknown_form_is_refused() -> None:
    with pytest.raises(ConfigError, match="aggregation form"):
        infonce_terms(torch.zeros(2, 2), torch.eye(2), torch.arange(2), "both")  # type: ignore[arg-type]
