"""Verdicts from several kinds of evidence, each for labelled pairs and, by the same computation, wrong ones.

A discriminant makes one number of them (see `detection/combine.py`), the mixture a probability. Competitors
are added here: whether another image has a better claim to the caption, by all other parts together, where
captions stand on several images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.detection.combine import Discriminant, refined_discriminant
from pmpguard.detection.evidence.caption_agreement import (
    REFERENCE_EVIDENCE,
    caption_agreement,
    image_level_mismatch,
    rows_of_images,
)
from pmpguard.detection.evidence.competition import competition_evidence
from pmpguard.detection.evidence.neighbours import NeighbourGraph
from pmpguard.detection.evidence.similarity import Numbers, pair_numbers, sample_null_numbers
from pmpguard.detection.mixture import MatchMixture, fit_match_mixture, fit_with_known_rate
from pmpguard.detection.scores import Array, ScoreAudit, audit_scores, verdicts_of

# (captions (P,), images (P,), rows left out (P,)) -> (P,): more of it speaks for a match
Measure = Callable[[Tensor, Tensor, Tensor], Tensor]
SIMILARITY, CAPTION_AGREEMENT, NEIGHBOUR_CONSENSUS, COMPETITION = (
    "score",
    "agreement",
    "neighbours",
    "competitors",
)
REGRESSION, NEIGHBOUR_TEXT, NEIGHBOUR_IMAGE = "mapped", "said", "shown"  # see `first_look.py`
CHUNK = 65_536


@dataclass(frozen=True)
class PairEvidence:
    """All evidence of one set of embeddings; each has mean 0 and deviation 1 on null pairs."""

    names: tuple[str, ...]
    labelled: Array  # (N, K)
    wrong: Array  # (M, K)
    caption_of: Numbers  # (N,)
    image_of: Numbers  # (N,)
    null_pairs: tuple[Numbers, Numbers]  # (M,) captions, (M,) images
    measure: Callable[[Tensor, Tensor, Tensor], Array]  # (captions, images, rows left out) -> (P, K)
    alike: NeighbourGraph | None = (
        None  # which captions read alike, by the numbers that `judge_evidence` knows them by
    )


@dataclass(frozen=True)
class EmbeddingAudit:
    """Verdicts with the parts they rest on.

    `judge` gives p(match) of any measured evidence (P, K) with the names of its K parts, to which competitors
    do not belong; `p_measured` are its answers for the labelled pairs.
    """

    verdicts: ScoreAudit
    names: tuple[str, ...]
    parts: Array  # (N, K)
    combined: Array  # (N,)
    judge: Callable[[Array, tuple[str, ...]], Array]
    p_measured: Array  # (N,)
    warnings: tuple[str, ...] = ()


def measured_evidence(
    measures: Mapping[str, Measure],
    caption_of: Tensor,
    image_of: Tensor,
    image_labels: npt.NDArray[Any] | None = None,
    mismatched_count: int | None = None,
    seed: int = 0,
) -> PairEvidence:
    """What `measures` say of the labelled pairs (N,) and of deliberately wrong ones."""
    drawn = null_pair_tensors(caption_of, image_of, image_labels, mismatched_count, seed)
    null_parts = measured(measures, *drawn)  # (M, K)
    centre, scale = null_parts.mean(0), null_parts.std(0)
    scale = np.where(scale > 1e-12, scale, 1.0)

    def measure(some_captions: Tensor, some_images: Tensor, left_out: Tensor) -> Array:
        found: Array = (measured(measures, some_captions, some_images, left_out) - centre) / scale
        return found

    own_rows = torch.arange(len(caption_of), device=image_of.device)
    return PairEvidence(
        tuple(measures),
        measure(caption_of, image_of, own_rows),
        (null_parts - centre) / scale,
        *pair_numbers(caption_of, image_of),
        pair_numbers(*drawn[:2]),
        measure,
    )


def null_pair_tensors(
    caption_of: Tensor,
    image_of: Tensor,
    image_labels: npt.NDArray[Any] | None = None,
    count: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Captions and images (M,) of deliberately mismatched pairs, and the rows (M,) whose place they take."""
    drawn = sample_null_numbers(*pair_numbers(caption_of, image_of), count, seed, image_labels)
    captions, images = (torch.from_numpy(numbers).to(image_of.device) for numbers in drawn)
    draws = torch.from_numpy(np.random.default_rng([seed, 2]).random(len(images)))
    return captions, images, rows_of_images(image_of, images, draws)


def caption_agreement_measure(neighbour_text: Tensor, caption_of: Tensor, image_of: Tensor) -> Measure | None:
    """Agreement by centred unit vectors (C, d); None where no image has several captions."""
    counts = torch.bincount(image_of)[image_of]  # (N,)
    several = counts > 1
    if not bool(several.any()):
        return None
    rows = torch.arange(len(caption_of), device=caption_of.device)
    answered = caption_agreement(
        neighbour_text, caption_of, image_of, caption_of[several], image_of[several], rows[several]
    )
    level = float(answered.mean()) / 2  # of pairs that nothing can be said about: between wrong and right

    def agree(captions: Tensor, images: Tensor, left_out: Tensor) -> Tensor:
        return caption_agreement(neighbour_text, caption_of, image_of, captions, images, left_out, level)

    return agree


def measured(measures: Mapping[str, Measure], captions: Tensor, images: Tensor, left_out: Tensor) -> Array:
    """(P, K) raw parts, some pairs at a time."""
    if not measures:
        return np.empty((len(captions), 0))
    parts = [
        torch.stack([measure(*some).double() for measure in measures.values()], dim=1).cpu().numpy()
        for some in zip(*(torch.split(x, CHUNK) for x in (captions, images, left_out)), strict=True)
    ]
    return np.concatenate(parts) if parts else np.empty((0, len(measures)))


def judge_evidence(
    evidences: Sequence[PairEvidence],
    strings: Sequence[Numbers] | None = None,
    *,
    bootstrap: int = 100,
    seed: int = 0,
) -> EmbeddingAudit:
    """One set of verdicts on the pairs of several sets of embeddings (folds), in the order given.

    `strings` numbers the captions of each set so that equal strings have equal numbers in all of them; by
    default every set's captions are its own. Images of different sets are different ones. Captions that
    read alike are competitors, too, where all sets know of the same ones.

    Captions of one image may be wrong together, when a image was exchanged: then they agree with each other
    and agreement proves nothing. `image_level_mismatch` looks for it; if so, agreement and competitors are
    left out.

    Competitors help to tell which pairs are wrong, not how many: captions with many copies have more
    competitors among random pairs than among labelled ones. So the rate is estimated without them.
    """
    names = tuple(name for name in evidences[0].names if all(name in other.names for other in evidences))
    columns = [[evidence.names.index(name) for name in names] for evidence in evidences]
    chosen = [(e.labelled[:, c], e.wrong[:, c]) for e, c in zip(evidences, columns, strict=True)]
    labelled, wrong = (np.concatenate(parts) for parts in zip(*chosen, strict=True))  # (N, K), (M, K)
    pairs, null_pairs = _numbered(evidences, strings)
    warnings = []
    together = False
    if CAPTION_AGREEMENT in names:
        reference = names.index(next(name for name in REFERENCE_EVIDENCE if name in names))
        agree = names.index(CAPTION_AGREEMENT)
        alone = fit_match_mixture(labelled[:, reference], wrong[:, reference], bootstrap=0)
        together = image_level_mismatch(alone.p_match, pairs[1], labelled[:, agree], wrong[:, agree])
        if together:
            warnings.append(
                "captions of one image seem to be wrong together (images exchanged?): their agreement with "
                "each other and competitors were not counted"
            )
    counted = tuple(name for name in names if not (together and name == CAPTION_AGREEMENT))
    used = [names.index(name) for name in counted]
    discriminant = refined_discriminant(labelled[:, used], wrong[:, used])
    combined, mismatched = discriminant(labelled[:, used]), discriminant(wrong[:, used])
    measured = verdicts = audit_scores(combined, mismatched, bootstrap=bootstrap, seed=seed)
    judge = _judge(discriminant, measured.mixture, counted)
    shared = len({id(evidence.alike) for evidence in evidences}) == 1
    alike = evidences[0].alike if shared and (strings is not None or len(evidences) == 1) else None
    competitors = (
        None if together else _competition(combined, measured.p_match, pairs, null_pairs, alike, seed)
    )
    if competitors is not None:
        labelled, wrong = (
            np.column_stack(both) for both in ((labelled, competitors[0]), (wrong, competitors[1]))
        )
        names = (*names, COMPETITION)
        discriminant = refined_discriminant(labelled, wrong)
        combined = discriminant(labelled)
        mixture, _ = fit_with_known_rate(combined, discriminant(wrong), measured.mismatch_rate, seed=seed)
        verdicts = replace(
            verdicts_of(combined, mixture),
            mismatch_rate=measured.mismatch_rate,
            mismatch_interval=measured.mismatch_interval,
        )
    return EmbeddingAudit(
        replace(verdicts, warnings=()),
        names,
        labelled,
        combined,
        judge,
        measured.p_match,
        (*warnings, *measured.warnings),
    )


Pairs = tuple[Numbers, Numbers]  # captions, images


def _numbered(evidences: Sequence[PairEvidence], strings: Sequence[Numbers] | None) -> tuple[Pairs, Pairs]:
    """Labelled (N,) and wrong (M,) pairs of all sets, numbered as one."""
    found: tuple[list[Pairs], list[Pairs]] = ([], [])
    first_caption = first_image = 0
    for number, evidence in enumerate(evidences):
        captions = int(evidence.caption_of.max()) + 1
        names = np.arange(captions) + first_caption if strings is None else strings[number]
        for listed, (of_caption, of_image) in zip(
            found, ((evidence.caption_of, evidence.image_of), evidence.null_pairs), strict=True
        ):
            listed.append((names[of_caption], of_image + first_image))
        first_caption += captions
        first_image += int(evidence.image_of.max()) + 1
    labelled, wrong = (tuple(np.concatenate(each) for each in zip(*listed, strict=True)) for listed in found)
    return (labelled[0], labelled[1]), (wrong[0], wrong[1])


def _competition(
    support: Array, p_match: Array, pairs: Pairs, null_pairs: Pairs, alike: NeighbourGraph | None, seed: int
) -> tuple[Array, Array] | None:
    """The part (N,), (M,), standardised like the others; support and p_match (N,) are by those."""
    device = "cpu" if alike is None else alike.numbers.device
    captions, images, *wrong = (torch.from_numpy(each).to(device) for each in (*pairs, *null_pairs))
    judged = torch.from_numpy(support).to(device), torch.from_numpy(p_match).to(device)
    part = competition_evidence(*judged, captions, images, (wrong[0], wrong[1]), alike, seed)
    if part is None:
        return None
    labelled, simulated = (each.double().cpu().numpy() for each in (part.labelled, part.wrong))
    scale = float(simulated.std()) or 1.0
    return (labelled - simulated.mean()) / scale, (simulated - simulated.mean()) / scale


def _judge(
    discriminant: Discriminant, mixture: MatchMixture, names: tuple[str, ...]
) -> Callable[[Array, tuple[str, ...]], Array]:
    def judge(parts: Array, given: tuple[str, ...]) -> Array:
        columns = [given.index(name) for name in names]
        return mixture.posterior(discriminant(parts[:, columns]))

    return judge
