"""The boundary t_k between matched and mismatched fragments (eqs 7-9), learned while training.

A sample is max_j s_ij: how well one word is found in one image. Words of captions whose own image ranks first
in the batch give the matched samples; the same words in another image give the mismatched ones. Both are
taken as Gaussians, and t minimises J(t) = alpha * P(S- > t) + P(S+ < t) over t >= 0.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from pmpguard.errors import ConfigError

DECAY = 0.9  # of the moving averages, per update
STEP = 0.7  # how far t moves to the new minimiser
WORDS_BEFORE_USE = 200  # t stays 0 until so many matched words were seen
SMALLEST_SIGMA = 1e-6

Mismatched = Literal["easiest", "random", "hardest"]
AtTest = Literal["safe", "t_k"]
MISMATCHED = ("easiest", "random", "hardest")
AT_TEST = ("safe", "t_k")


def optimal_boundary(
    mu_pos: float, sigma_pos: float, mu_neg: float, sigma_neg: float, alpha: float = 2.0
) -> float | None:
    """The t >= 0 that minimises J(t) = alpha * P(S- > t) + P(S+ < t), or None.

    J' has the sign of A t^2 + B t + C, so the minimum is where that rises through 0: the root with +sqrt.
    None means that no t is better than rejecting everything (t = infinity, J = 1), or that a sigma is not
    positive; keep the previous boundary then.

    >>> round(optimal_boundary(0.6, 0.1, 0.2, 0.1), 4)
    0.4173
    >>> optimal_boundary(0.2, 0.05, 0.2, 0.3) is None
    True
    """
    moments = torch.tensor([mu_pos, sigma_pos, mu_neg, sigma_neg], dtype=torch.float64)
    t, exists = optimal_boundary_tensor(moments[0], moments[1], moments[2], moments[3], alpha)
    return t.item() if exists.item() else None


def optimal_boundary_tensor(
    mu_pos: Tensor, sigma_pos: Tensor, mu_neg: Tensor, sigma_neg: Tensor, alpha: float = 2.0
) -> tuple[Tensor, Tensor]:
    """`optimal_boundary` for float64 tensors of any one shape: (t, whether there is one).

    All cases are computed and one is picked, so nothing waits for the device.
    """
    pos, neg = sigma_pos.square(), sigma_neg.square()
    a = pos - neg
    b = 2 * (mu_pos * neg - mu_neg * pos)
    log_ratio = torch.log(sigma_neg / (alpha * sigma_pos))
    c = mu_neg.square() * pos - mu_pos.square() * neg + 2 * pos * neg * log_ratio
    discriminant = b.square() - 4 * a * c
    root = discriminant.clamp(min=0).sqrt()
    # Of the two forms of one root, the one whose sum does not cancel. Equal variances (a = 0) need the first.
    stationary = torch.where(b >= 0, -2 * c / (b + root), (root - b) / (2 * a))
    usable = (discriminant >= 0) & torch.isfinite(stationary) & (stationary >= 0)
    stationary = torch.where(usable, stationary, 0.0)

    def above(t: Tensor, mu: Tensor, sigma: Tensor) -> Tensor:
        return torch.erfc((t - mu) / (sigma * math.sqrt(2))) / 2

    def cost(t: Tensor) -> Tensor:
        return alpha * above(t, mu_neg, sigma_neg) + above(-t, -mu_pos, sigma_pos)

    def gain_over_rejecting_everything(t: Tensor) -> Tensor:
        return above(t, mu_pos, sigma_pos) - alpha * above(t, mu_neg, sigma_neg)

    zero = torch.zeros_like(stationary)
    t = torch.where(cost(stationary) <= cost(zero), stationary, zero)
    exists = (gain_over_rejecting_everything(t) > 0) & (sigma_pos > 0) & (sigma_neg > 0)
    return t, exists


class Boundary(nn.Module):
    """Moving averages of both Gaussians and the boundary between them, as buffers: saved with the model.

    At test the default boundary is `safe`, mu+ - 3 sigma+: t_k was set to reject, and would also reject
    relevant fragments there.
    """

    moments: Tensor  # (4,) moving averages of x+, x+^2, x-, x-^2, biased towards 0 by `mass`
    mass: Tensor  # the same moving average of 1
    words_seen: Tensor
    t: Tensor
    kept: Tensor  # 1 where the last batch left t where it was

    def __init__(
        self, alpha: float = 2.0, mismatched: Mismatched = "easiest", at_test: AtTest = "safe"
    ) -> None:
        super().__init__()
        if mismatched not in MISMATCHED:
            raise ConfigError(f"boundary.mismatched is {mismatched!r}", fix=f"choose one of {MISMATCHED}")
        if at_test not in AT_TEST:
            raise ConfigError(f"boundary.at_test is {at_test!r}", fix=f"choose one of {AT_TEST}")
        if not alpha > 0:
            raise ConfigError(f"boundary.alpha is {alpha}", fix="give a number above 0")
        self.alpha = alpha
        self.mismatched = mismatched
        self.at_test = at_test
        self.register_buffer("moments", torch.zeros(4, dtype=torch.float64))
        self.register_buffer("mass", torch.zeros((), dtype=torch.float64))
        self.register_buffer("words_seen", torch.zeros((), dtype=torch.float64))
        self.register_buffer("t", torch.zeros((), dtype=torch.float64))
        self.register_buffer("kept", torch.zeros((), dtype=torch.float64), persistent=False)

    def gaussians(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """mu+, sigma+, mu-, sigma- from the bias-corrected moving averages; zeros before the first update."""
        first_pos, second_pos, first_neg, second_neg = (self.moments / self.mass.clamp(min=1e-12)).unbind()
        sigma_pos = (second_pos - first_pos.square()).clamp(min=0).sqrt()
        sigma_neg = (second_neg - first_neg.square()).clamp(min=0).sqrt()
        return first_pos, sigma_pos, first_neg, sigma_neg

    def value(self, train: bool) -> Tensor:
        """The boundary to score with, as a tensor: t_k in training; at test what `at_test` says."""
        if train or self.at_test == "t_k":
            return self.t
        mu_pos, sigma_pos, _, _ = self.gaussians()
        return torch.where(self.words_seen >= WORDS_BEFORE_USE, mu_pos - 3 * sigma_pos, 0.0)

    @torch.no_grad()
    def update(
        self,
        words: Tensor,
        word_mask: Tensor,
        regions: Tensor,
        image_of: Tensor,
        scores: Tensor,
        region_mask: Tensor | None = None,
    ) -> None:
        """Take one batch, gathered from all ranks, into account and move t, or keep it.

        words (T, m, d), word_mask (T, m), regions (I, n, d), image_of (T,) the labelled image of each
        caption. `scores` (T, I) decide which image ranks first and which is easiest or hardest. t stays where
        the batch has no matched words, few words were seen so far, or rejecting everything would be better.
        """
        pure, other = _choose(scores, image_of, self.mismatched)  # (T,), (T,)
        matched, mismatched = (
            best_cosines(
                words, word_mask, regions[image], None if region_mask is None else region_mask[image]
            )
            for image in (image_of, other)
        )  # (T, m) each
        count, *sums = _sample_sums(matched.double(), mismatched.double(), word_mask & pure[:, None])  # (5,)
        any_sample = count > 0
        fresh = torch.stack(sums) / count.clamp(min=1)  # (4,)
        self.moments.copy_(torch.where(any_sample, DECAY * self.moments + (1 - DECAY) * fresh, self.moments))
        self.mass.copy_(torch.where(any_sample, DECAY * self.mass + (1 - DECAY), self.mass))
        self.words_seen.add_(count)

        mu_pos, sigma_pos, mu_neg, sigma_neg = self.gaussians()
        new, exists = optimal_boundary_tensor(
            mu_pos,
            sigma_pos.clamp(min=SMALLEST_SIGMA),
            mu_neg,
            sigma_neg.clamp(min=SMALLEST_SIGMA),
            self.alpha,
        )
        moves = any_sample & (self.words_seen >= WORDS_BEFORE_USE) & exists
        self.t.copy_(torch.where(moves, STEP * new + (1 - STEP) * self.t, self.t))
        self.kept.copy_(~moves)


def best_cosines(
    words: Tensor, word_mask: Tensor, regions: Tensor, region_mask: Tensor | None = None
) -> Tensor:
    """max_j s_ij of every word in its caption's image: (P, m, d), (P, n, d) -> (P, m), 0 at masked words."""
    cosines = torch.einsum("pmd,pnd->pmn", words, regions)  # (P, m, n)
    if region_mask is not None:
        cosines = cosines.masked_fill(~region_mask[:, None], -1.0)
    return cosines.amax(-1).masked_fill(~word_mask, 0.0)  # (P, m)


def _choose(scores: Tensor, image_of: Tensor, mismatched: Mismatched) -> tuple[Tensor, Tensor]:
    """(T,) bool: captions whose labelled image ranks first; (T,): the other image each is mismatched with."""
    own = nn.functional.one_hot(image_of, scores.shape[1]).bool()  # (T, I)
    own_score = scores.gather(1, image_of[:, None])  # (T, 1)
    pure = (scores <= own_score).all(1) & (~own).any(1)  # (T,)
    if mismatched == "random":
        drawn = torch.rand(scores.shape, device=scores.device)
    else:
        drawn = scores if mismatched == "hardest" else -scores
    return pure, drawn.masked_fill(own, -torch.inf).argmax(1)


def _sample_sums(matched: Tensor, mismatched: Tensor, kept: Tensor) -> Tensor:
    """(5,): how many samples are kept, then the sums of x+, x+^2, x-, x-^2 over them; all (T, m)."""
    samples = (torch.ones_like(matched), matched, matched.square(), mismatched, mismatched.square())
    return torch.stack([(x * kept).sum() for x in samples])
