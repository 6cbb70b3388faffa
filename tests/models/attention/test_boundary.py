from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.errors import ConfigError
from pmpguard.methods.method import boundary_progress
from pmpguard.models.attention.boundary import (
    Boundary,
    best_cosines,
    optimal_boundary,
    optimal_boundary_tensor,
)


def unit(*shape: int, seed: int = 0) -> Tensor:
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def batch(captions: int = 8, images: int = 8, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Words near a region of their own image, so that most captions rank their image first; their scores."""
    regions = unit(images, 5, 16, seed=seed)
    image_of = torch.arange(captions) % images
    words = normalize(regions[image_of][:, :4] + 0.3 * unit(captions, 4, 16, seed=seed + 1), dim=-1)
    mask = torch.rand(captions, 4, generator=torch.Generator().manual_seed(seed)) > 0.2
    mask[:, 0] = True
    return words, mask, regions, image_of, mean_best(words, mask, regions)


def mean_best(words: Tensor, mask: Tensor, regions: Tensor) -> Tensor:
    """(T, I): the mean over a caption's words of the best cosine in an image."""
    best = torch.einsum("tmd,ind->timn", words, regions).amax(-1).masked_fill(~mask[:, None], 0)
    return best.sum(-1) / mask.sum(-1)[:, None]


def cost(t: float, mu_pos: float, sigma_pos: float, mu_neg: float, sigma_neg: float, alpha: float) -> float:
    false_alarm = 0.5 * math.erfc((t - mu_neg) / (sigma_neg * math.sqrt(2)))
    miss = 0.5 * math.erfc((mu_pos - t) / (sigma_pos * math.sqrt(2)))
    return alpha * false_alarm + miss


def grid_minimum(gaussians: np.ndarray, alpha: float) -> np.ndarray:
    """The least J over a fine grid of t in [0, 6]: gaussians (K, 4) -> (K,)."""
    t = torch.linspace(0, 6, 6001, dtype=torch.float64)
    mu_pos, sigma_pos, mu_neg, sigma_neg = torch.as_tensor(gaussians)[:, :, None].unbind(1)  # (K, 1) each
    false_alarm = 0.5 * torch.erfc((t - mu_neg) / (sigma_neg * math.sqrt(2)))  # (K, 6001)
    miss = 0.5 * torch.erfc((mu_pos - t) / (sigma_pos * math.sqrt(2)))
    return (alpha * false_alarm + miss).amin(1).numpy()


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 5.0])
def test_minimises_the_cost_for_thousands_of_gaussians(alpha: float) -> None:
    random = np.random.default_rng(int(10 * alpha))
    count = 1000
    gaussians = np.stack(
        [
            random.uniform(-0.5, 1.0, count),
            random.uniform(0.01, 0.4, count),
            random.uniform(-0.5, 1.0, count),
            random.uniform(0.01, 0.4, count),
        ],
        axis=1,
    )
    least = grid_minimum(gaussians, alpha)
    rejected = 0
    for row, on_grid in zip(gaussians, least, strict=True):
        t = optimal_boundary(*row, alpha=alpha)
        if t is None:  # nothing on the grid beats rejecting everything, whose cost is 1
            rejected += 1
            assert on_grid > 1 - 1e-6
        else:
            assert t >= 0
            assert cost(t, *row, alpha=alpha) <= min(on_grid, 1.0) + 1e-12
    assert 0 < rejected < count


def test_equal_variances() -> None:
    for mu_pos, mu_neg, sigma in [(0.6, 0.2, 0.1), (0.5, 0.4, 0.3), (0.9, -0.3, 0.05)]:
        expected = (mu_pos + mu_neg) / 2 + sigma**2 * math.log(2) / (mu_pos - mu_neg)
        assert optimal_boundary(mu_pos, sigma, mu_neg, sigma) == pytest.approx(expected, rel=1e-12)
        nearly = optimal_boundary(mu_pos, sigma * (1 + 1e-9), mu_neg, sigma)
        assert nearly == pytest.approx(expected, rel=1e-6)


def test_identical_gaussians_teach_nothing() -> None:
    assert optimal_boundary(0.3, 0.1, 0.3, 0.1) is None
    assert optimal_boundary(0.3, 0.1, 0.3, 0.1, alpha=1.0) is None


def test_negative_discriminant() -> None:
    """J never turns: it only falls when the matched are narrower, and only rises when they are wider."""
    assert optimal_boundary(0.3, 0.19, 0.3, 0.2) is None
    wider = (0.3, 0.2, 0.3, 0.19)
    assert optimal_boundary(*wider, alpha=0.5) == 0
    assert cost(0, *wider, alpha=0.5) < 1


def test_reversed_gaussians_reject_everything() -> None:
    assert optimal_boundary(0.1, 0.1, 0.6, 0.1) is None


def test_a_minimum_below_zero_becomes_zero() -> None:
    assert optimal_boundary(0.3, 0.05, -0.6, 0.05) == 0


def test_a_boundary_above_one_is_kept() -> None:
    t = optimal_boundary(1.5, 0.1, 0.9, 0.1)
    assert t is not None and t > 1


def test_without_spread_there_is_no_boundary() -> None:
    assert optimal_boundary(0.5, 0.0, 0.1, 0.1) is None
    assert optimal_boundary(0.5, 0.1, 0.1, -0.1) is None
    assert optimal_boundary(math.nan, 0.1, 0.1, 0.1) is None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(*[st.floats(-1, 1), st.floats(0.01, 1)] * 2), min_size=1, max_size=5))
def test_the_tensor_form_does_many_at_once(gaussians: list[tuple[float, float, float, float]]) -> None:
    t, found = optimal_boundary_tensor(*torch.tensor(gaussians, dtype=torch.float64).unbind(1))
    for row, boundary, exists in zip(gaussians, t.tolist(), found.tolist(), strict=True):
        assert optimal_boundary(*row) == (boundary if exists else None)


def naive_samples(
    words: Tensor, mask: Tensor, regions: Tensor, image_of: Tensor, rule: str
) -> tuple[list[float], list[float]]:
    """Matched and mismatched samples, caption by caption, with the default ranking."""
    matched: list[float] = []
    wrong: list[float] = []
    for caption in range(len(words)):
        best = [
            [max((word @ region).item() for region in image) for word in words[caption][mask[caption]]]
            for image in regions
        ]
        score = [sum(row) / len(row) for row in best]
        own = int(image_of[caption])
        if max(score) > score[own]:
            continue
        others = [image for image in range(len(regions)) if image != own]
        pick = min if rule == "easiest" else max
        matched += best[own]
        wrong += best[pick(others, key=score.__getitem__)]
    return matched, wrong


@pytest.mark.parametrize("rule", ["easiest", "hardest"])
def test_samples_and_moments_equal_the_naive_loop(rule: str) -> None:
    words, mask, regions, image_of, scores = batch(12, 6)
    image_of[3] = (image_of[3] + 1) % 6  # a wrong label, which the purity filter must leave out
    boundary = Boundary(mismatched=rule)  # type: ignore[arg-type]
    boundary.update(words, mask, regions, image_of, scores)
    matched, wrong = naive_samples(words, mask, regions, image_of, rule)
    assert len(matched) < int(mask.sum())
    assert boundary.words_seen.item() == len(matched)
    mu_pos, sigma_pos, mu_neg, sigma_neg = (value.item() for value in boundary.gaussians())
    assert mu_pos == pytest.approx(np.mean(matched), abs=1e-6)
    assert sigma_pos == pytest.approx(np.std(matched), abs=1e-5)
    assert mu_neg == pytest.approx(np.mean(wrong), abs=1e-6)
    assert sigma_neg == pytest.approx(np.std(wrong), abs=1e-5)


def test_moving_averages_are_bias_corrected() -> None:
    boundary = Boundary()
    first, second = [], []
    for step in range(3):
        words, mask, regions, image_of, scores = batch(12, 6, seed=10 * step)
        boundary.update(words, mask, regions, image_of, scores)
        matched, _ = naive_samples(words, mask, regions, image_of, "easiest")
        first.append(np.mean(matched))
        second.append(np.mean(np.square(matched)))
    share = np.array([0.81, 0.9, 1.0]) * 0.1
    mean, square = share @ first / share.sum(), share @ second / share.sum()
    mu_pos, sigma_pos, _, _ = boundary.gaussians()
    assert mu_pos.item() == pytest.approx(mean, abs=1e-6)
    assert sigma_pos.item() == pytest.approx(math.sqrt(square - mean**2), abs=1e-5)


def test_random_mismatches_follow_the_seed_and_are_never_the_own_image() -> None:
    sample = batch(12, 6)
    moments = []
    for seed in (1, 1, 2):
        boundary = Boundary(mismatched="random")
        torch.manual_seed(seed)
        boundary.update(*sample)
        moments.append(boundary.moments)
    assert torch.equal(moments[0], moments[1]) and not torch.equal(moments[0], moments[2])
    two, by_rule = batch(12, 2), []
    for rule in ("easiest", "random", "hardest"):  # of two images, the other one is drawn under every rule
        boundary = Boundary(mismatched=rule)  # type: ignore[arg-type]
        boundary.update(*two)
        by_rule.append(boundary.moments)
    assert torch.equal(by_rule[0], by_rule[1]) and torch.equal(by_rule[0], by_rule[2])


def test_scores_decide_which_captions_are_pure() -> None:
    words, mask, regions, image_of, _ = batch(4, 4)
    scores = torch.zeros(4, 4)
    scores[torch.arange(4), image_of] = torch.tensor([1.0, -1.0, 1.0, -1.0])
    boundary = Boundary()
    boundary.update(words, mask, regions, image_of, scores)
    assert boundary.words_seen.item() == mask[[0, 2]].sum().item()


def test_t_waits_for_200_words_then_moves_seven_tenths() -> None:
    boundary, sample = Boundary(), batch(32, 8)
    previous = 0.0
    moved = 0
    for _ in range(6):
        boundary.update(*sample)
        if boundary.words_seen < 200:
            assert boundary.kept and boundary.t == 0 and boundary.value(train=False).item() == 0
        else:
            moved += 1
            new = optimal_boundary(*(x.item() for x in boundary.gaussians()))
            assert new is not None and not boundary.kept
            assert boundary.t.item() == pytest.approx(0.7 * new + 0.3 * previous, rel=1e-9)
        previous = boundary.t.item()
    assert 0 < moved < 6
    assert boundary.value(train=True).item() == previous > 0


def test_rejecting_everything_keeps_t_and_says_so() -> None:
    boundary = Boundary()
    boundary.t.fill_(0.25)
    boundary.words_seen.fill_(1000)
    words, mask, regions, image_of, _ = batch(8, 8)
    same = regions[:1].expand(8, -1, -1)  # one image eight times: a mismatch looks like a match
    boundary.update(words, mask, same, image_of, mean_best(words, mask, same))
    mu_pos, _, mu_neg, _ = boundary.gaussians()
    assert mu_pos == mu_neg and boundary.t == 0.25 and boundary_progress(boundary)["t_kept"] == 1


def test_a_batch_without_matched_words_changes_nothing() -> None:
    boundary = Boundary()
    words, mask, regions, image_of, scores = batch(64, 8)
    boundary.update(words, mask, regions, image_of, scores)
    assert not boundary.kept
    before = {name: value.clone() for name, value in boundary.state_dict().items()}
    scores[torch.arange(64), image_of] = -1.0
    one_image = words[:2], mask[:2], regions[:1], torch.zeros(2, dtype=torch.long), torch.ones(2, 1)
    for sample in ((words, mask, regions, image_of, scores), one_image):
        boundary.update(*sample)
        assert boundary.kept
        assert all(torch.equal(before[name], value) for name, value in boundary.state_dict().items())


def test_values_for_training_and_test() -> None:
    safe, letter, sample = Boundary(), Boundary(at_test="t_k"), batch(64, 8)
    for _ in range(2):
        safe.update(*sample)
        letter.update(*sample)
    mu_pos, sigma_pos, _, _ = safe.gaussians()
    assert safe.value(train=False).item() == pytest.approx((mu_pos - 3 * sigma_pos).item())
    assert safe.value(train=True) == letter.value(train=True) == letter.value(train=False) == letter.t
    assert safe.value(train=False) != safe.value(train=True)


def test_state_travels_with_the_model() -> None:
    first, second, sample = Boundary(), Boundary(), batch(64, 8)
    first.update(*sample)
    second.load_state_dict(first.state_dict())
    first.update(*sample)
    second.update(*sample)
    assert boundary_progress(first) == boundary_progress(second) and first.t > 0


def test_nothing_carries_a_gradient() -> None:
    words, mask, regions, image_of, scores = batch(64, 8)
    boundary = Boundary()
    boundary.update(words.requires_grad_(), mask, regions.requires_grad_(), image_of, scores.requires_grad_())
    assert not boundary.moments.requires_grad and not boundary.value(train=True).requires_grad


def test_masked_regions_are_not_looked_at() -> None:
    words, mask, regions, _, _ = batch(8, 8)
    region_mask = torch.ones(8, 5, dtype=torch.bool)
    region_mask[:, 0] = False  # where every first word lies
    own = best_cosines(words, mask, regions, region_mask)
    torch.testing.assert_close(own, best_cosines(words, mask, regions[:, 1:]))
    assert not torch.equal(own, best_cosines(words, mask, regions))


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"boundary\.mismatched"):
        Boundary(mismatched="nearest")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"boundary\.at_test"):
        Boundary(at_test="mean")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"boundary\.alpha"):
        Boundary(alpha=0.0)
