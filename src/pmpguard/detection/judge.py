"""Verdicts: several kinds of evidence, each of labelled and of null pairs, become one probability per pair.

A discriminant makes one number of them (`combine.py`), the mixture with its known null a probability
(`mixture.py`). Competition is added here, because it reads how well all pairs are supported by the other
evidence. It helps to tell which pairs are mismatched, not how many: captions with many copies have more
competitors among null pairs than among labelled ones. So the noise rate is estimated without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.detection.combine import Discriminant, refined_discriminant, weighted_sum
from pmpguard.detection.evidence.caption_agreement import REFERENCE_EVIDENCE, image_level_mismatch
from pmpguard.detection.evidence.competition import competition_evidence
from pmpguard.detection.evidence.neighbours import NeighbourGraph
from pmpguard.detection.mixture import MatchMixture, fit_match_mixture, fit_with_known_rate
from pmpguard.detection.null_pairs import Array, Evidence, NullPairs
from pmpguard.detection.outside_judge import JUDGE, NOT_COUNTED, agrees
from pmpguard.errors import DataError

Rows = npt.NDArray[np.bool_]
FLAGGED_BELOW = 0.3  # so that more than eight in ten flags are right where images have one caption
FEW_PAIRS = 100  # under so many the noise rate is hardly more than a guess
MOSTLY_MISMATCHED = 0.7
HARDLY_ANY_MATCH = 0.03  # under this share of matches, evidence that says nothing looks the same
LEAST_SEPARATION = 5.0  # standard errors of independent pairs; pairs share neighbours, so chance makes four
COMPETITION, CAPTION_AGREEMENT = "competition", "caption_agreement"


@dataclass(frozen=True)
class Weights:
    """What each kind of evidence counts, by name: without competition and with it."""

    support: Mapping[str, float]
    all: Mapping[str, float]


@dataclass(frozen=True)
class Verdicts:
    """What the evidence says of each labelled pair (N,) and of all."""

    p_match: Array  # (N,)
    noise_rate: float
    noise_rate_interval: tuple[float, float] | None
    names: tuple[str, ...]  # kinds of evidence, K
    evidence: Array  # (N, K), each of mean 0 and deviation 1 on null pairs
    combined: Array  # (N,)
    p_measured: Array  # (N,) by what can be measured of any pair, that is without competition
    support: Array  # (N,) the same as one number
    null_support: Array  # (M,) of the null pairs
    weights: Weights
    discriminant: Discriminant  # of what can be measured
    mixture: MatchMixture  # of the same
    measured_names: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def flag(self) -> Rows:
        """(N,) judged mismatched."""
        return self.p_match < FLAGGED_BELOW

    @property
    def rank(self) -> npt.NDArray[np.int64]:
        """(N,): 1 is the most suspicious pair."""
        order = np.lexsort([self.combined, self.p_match])  # p(match) first; equal ones by their evidence
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(1, len(order) + 1)
        return rank

    @property
    def informative(self) -> bool:
        """Whether the evidence tells anything: where hardly any pair looks like a match, it may be blind.

        The rate alone does not say so: of few pairs that chance made look better than most it takes some for
        matches. So labelled pairs must have more evidence than null pairs by more than chance makes it.
        """
        hardly = max(self.noise_rate, float((self.p_match < 0.5).mean())) > 1 - HARDLY_ANY_MATCH
        told = np.ptp(self.combined) > 0 and separation(self.support, self.null_support) >= LEAST_SEPARATION
        return bool(told and not hardly)

    def judge(self, measured: Array, names: tuple[str, ...]) -> Array:
        """p(match) of any pairs from their evidence (P, K) by name, as if they were labels."""
        return self.mixture.posterior(self.combine(measured, names))

    def combine(self, measured: Array, names: tuple[str, ...]) -> Array:
        """(P,) the evidence (P, K) of any pairs, by name, as one number."""
        return self.discriminant(measured[:, [names.index(name) for name in self.measured_names]])


def judge_pairs(
    evidence: Mapping[str, Evidence],
    text_of: Tensor,
    image_of: Tensor,
    null: NullPairs,
    *,
    similar_texts: NeighbourGraph | None = None,
    clean_probability: Tensor | None = None,
    held_out: Rows | None = None,
    known: Weights | None = None,
    noise_rate: float | None = None,
    bootstrap: int = 0,
    seed: int = 0,
) -> Verdicts:
    """Weigh the evidence and judge the labelled pairs.

    Args:
        evidence: kinds of evidence by name; more speaks for a match.
        text_of, image_of: (N,) the labelled pairs by number.
        null: the null pairs that the evidence was measured on.
        similar_texts: texts that read alike compete, too.
        clean_probability: (N,) of each pair to match, for competition; by default what the evidence says.
        held_out: (N,) pairs that nothing was trained on; weights and the rate are learned from them.
        known: weights learned before, used where no pair is held out.
        noise_rate: where it is known already.
        bootstrap: resamples for the interval of the rate.

    Captions of one image may be mismatched together (image-level noise): then they agree with each other and
    agreement proves nothing. It is looked for; if so, agreement and competition are left out.
    """
    if not evidence:
        raise DataError("there is no evidence to judge by", fix="give embeddings of texts and images")
    observed, simulated = _columns(evidence)
    names = tuple(evidence)
    counted = held_out if held_out is not None and held_out.any() else None
    warnings: list[str] = []
    together = _mismatched_together(names, observed, simulated, image_of)
    if together:
        warnings.append(
            "captions of one image seem to be mismatched together (image-level noise): their agreement with "
            "each other and competition were not counted"
        )
    used = [place for place, name in enumerate(names) if not (together and name == CAPTION_AGREEMENT)]
    if JUDGE in names:
        own = [place for place in used if names[place] != JUDGE]
        if not agrees(observed[:, names.index(JUDGE)], observed[:, own], simulated[:, own]):
            used = own
            warnings.append(NOT_COUNTED)
    measured_names = tuple(names[place] for place in used)
    support_by = _discriminant(observed[:, used], simulated[:, used], measured_names, counted,
                               None if known is None else known.support)  # fmt: skip
    support, null_support = support_by(observed[:, used]), support_by(simulated[:, used])
    interval, mixture = None, None
    if noise_rate is None:
        fit = fit_match_mixture(support if counted is None else support[counted], null_support,
                                bootstrap=bootstrap, seed=seed)  # fmt: skip
        noise_rate, interval = fit.mismatch_rate, fit.mismatch_interval
        mixture = fit if counted is None else None
    if mixture is None:  # a rate that is not of these very scores moves the null ones
        mixture, _ = fit_with_known_rate(support, null_support, noise_rate, seed=seed)
    combined, p_match, all_names, by_name = (
        support,
        mixture.p_match,
        measured_names,
        support_by.named(measured_names),
    )
    columns = observed[:, used]
    competition = None
    if not together:
        believed = torch.from_numpy(mixture.p_match).to(image_of.device).float()
        competition = competition_evidence(
            torch.from_numpy(support).to(image_of.device),
            believed if clean_probability is None else clean_probability,
            text_of, image_of, null, similar_texts, seed,
        )  # fmt: skip
    all_weights = by_name
    if competition is not None:
        more = _columns({COMPETITION: competition})
        columns = np.hstack([columns, more[0]])
        null_columns = np.hstack([simulated[:, used], more[1]])
        all_names = (*measured_names, COMPETITION)
        by_all = _discriminant(
            columns, null_columns, all_names, counted, None if known is None else known.all
        )
        combined = by_all(columns)
        final, _ = fit_with_known_rate(combined, by_all(null_columns), noise_rate, seed=seed)
        p_match, all_weights = final.p_match, by_all.named(all_names)
    found = Verdicts(
        p_match=p_match,
        noise_rate=noise_rate,
        noise_rate_interval=interval,
        names=all_names,
        evidence=columns,
        combined=combined,
        p_measured=mixture.p_match,
        support=support,
        null_support=null_support,
        weights=Weights(by_name, all_weights),
        discriminant=support_by,
        mixture=mixture,
        measured_names=measured_names,
        warnings=(),
    )
    if interval is not None and (len(combined) < FEW_PAIRS or not found.informative):
        interval = (0.0, 1.0)  # nothing is claimed
    return replace(found, noise_rate_interval=interval, warnings=(*warnings, *_doubts(found)))


def separation(support: Array, null_support: Array) -> float:
    """How surely labelled pairs (N,) have more than null ones (M,), in standard errors (Mann-Whitney).

    >>> round(separation(np.array([2.0, 3.0, 4.0]), np.array([0.0, 1.0, 3.0])), 2)
    1.31
    """
    null, counts = np.sort(null_support), (len(support), len(null_support))
    below = np.searchsorted(null, support, "left") + np.searchsorted(null, support, "right")
    chance = float(below.mean()) / (2 * counts[1])
    return (chance - 0.5) * float(np.sqrt(12 * counts[0] * counts[1] / (counts[0] + counts[1] + 1)))


def _columns(evidence: Mapping[str, Evidence]) -> tuple[Array, Array]:
    """(N, K) and (M, K), each kind with mean 0 and deviation 1 on null pairs."""
    arrays = [each.arrays() for each in evidence.values()]
    observed, null = (np.stack(sample, axis=1) for sample in zip(*arrays, strict=True))
    centre, scale = null.mean(0), null.std(0)
    scale = np.where(scale > 1e-12, scale, 1.0)
    return (observed - centre) / scale, (null - centre) / scale


def _discriminant(
    observed: Array,
    null: Array,
    names: tuple[str, ...],
    counted: Rows | None,
    known: Mapping[str, float] | None,
) -> Discriminant:
    """Learned from what is held out, else as known, else from all labelled pairs."""
    if counted is None and known is not None and all(name in known for name in names):
        return weighted_sum(null, np.array([known[name] for name in names]))
    own = [place for place, name in enumerate(names) if name != CAPTION_AGREEMENT]
    return refined_discriminant(observed if counted is None else observed[counted], null, judged_by=own)


def _mismatched_together(names: tuple[str, ...], observed: Array, null: Array, image_of: Tensor) -> bool:
    reference = next((name for name in REFERENCE_EVIDENCE if name in names), None)
    if CAPTION_AGREEMENT not in names or reference is None:
        return False
    place, agreement = names.index(reference), names.index(CAPTION_AGREEMENT)
    alone = fit_match_mixture(observed[:, place], null[:, place], bootstrap=0)
    owners = image_of.cpu().numpy()
    return image_level_mismatch(alone.p_match, owners, observed[:, agreement], null[:, agreement])


def _doubts(found: Verdicts) -> list[str]:
    said = []
    if len(found.combined) < FEW_PAIRS:
        said.append(f"only {len(found.combined)} pairs: the estimated noise rate is a rough guess")
    if np.ptp(found.combined) == 0:
        said.append("all evidence is equal: it says nothing, and no pair is held against")
    elif not found.informative:
        said.append(
            "labelled pairs hardly differ from random ones: either most captions are wrong, or the "
            "embeddings are too weak to tell; no verdict and no rate can be trusted"
        )
    elif found.noise_rate >= MOSTLY_MISMATCHED:
        said.append(
            f"about {found.noise_rate:.0%} of the labelled pairs look mismatched: either most captions are "
            "wrong, or the embeddings are too weak to tell; look at some before trusting this"
        )
    return said
