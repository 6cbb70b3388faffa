"""Evidence about every pair from two matrices of embeddings, and verdicts from the evidence.

Several parts, each for labelled pairs and, by the same computation, for deliberately wrong ones:

* score: the cosine of caption and image, standardised by what both score in general;
* agreement: how well the caption agrees with the image's other captions, where images have several;
* neighbours: how well it says what is said of the pictures that look alike;
* anything else the caller measures pair by pair (`more`);
* rivals: whether another image has a better claim to the caption, by all other parts together, where captions
  stand on several images.

A discriminant makes one number of them (see `catching/discriminant.py`), the mixture a probability.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.audit.scores import Array, ScoreAudit, audit_scores, verdicts_of
from pmpguard.catching.agreement import agreement, rows_of_images, wrong_together
from pmpguard.catching.discriminant import Discriminant, refined_discriminant
from pmpguard.catching.evidence import Numbers, draw_wrong_pairs, pair_numbers, pooled_statistics
from pmpguard.catching.mixture import MatchMixture, fit_match_mixture, fit_with_known_rate
from pmpguard.catching.neighbours import centred, neighbour_consensus
from pmpguard.catching.rivals import rival_part
from pmpguard.errors import DataError

# (captions (P,), images (P,), rows left out (P,)) -> (P,): more of it speaks for a match
Measure = Callable[[Tensor, Tensor, Tensor], Tensor]
SCORE, AGREEMENT, NEIGHBOURS, RIVALS = "score", "agreement", "neighbours", "rivals"
CHUNK = 65_536


@dataclass(frozen=True)
class PairEvidence:
    """All parts for one set of embeddings; every part is 0 on average, and deviates by 1, on wrong pairs."""

    names: tuple[str, ...]
    labelled: Array  # (N, K)
    wrong: Array  # (M, K)
    caption_of: Numbers  # (N,)
    image_of: Numbers  # (N,)
    wrong_pairs: tuple[Numbers, Numbers]  # (M,) captions, (M,) images
    measure: Callable[[Tensor, Tensor, Tensor], Array]  # (captions, images, rows left out) -> (P, K)


@dataclass(frozen=True)
class EmbeddingAudit:
    """Verdicts with the parts they rest on.

    `judge` gives p(match) of any measured evidence (P, K) with the names of its K parts, to which rivals do
    not belong; `p_measured` are its answers for the labelled pairs.
    """

    verdicts: ScoreAudit
    names: tuple[str, ...]
    parts: Array  # (N, K)
    combined: Array  # (N,)
    judge: Callable[[Array, tuple[str, ...]], Array]
    p_measured: Array  # (N,)
    warnings: tuple[str, ...] = ()


def audit_embeddings(
    images: npt.ArrayLike | Tensor,
    captions: npt.ArrayLike | Tensor,
    image_of: npt.ArrayLike | Tensor | None = None,
    caption_of: npt.ArrayLike | Tensor | None = None,
    *,
    image_labels: npt.ArrayLike | None = None,
    bootstrap: int = 100,
    seed: int = 0,
) -> EmbeddingAudit:
    """Judge pairs by embeddings of any model with a common space, such as any CLIP.

    images (I, d) and captions (C, d); pair r is caption `caption_of[r]` with image `image_of[r]`, by default
    caption r with image r. Equal captions, and equal images, should share a number: two pictures of one
    number are never taken for a wrong pair. `image_labels` (I,), where scene classes are known, are whole
    numbers, -1 for unknown: what wrong pairs look like is then learned from pairs of different classes.
    """
    evidence = embedding_evidence(
        images, captions, image_of, caption_of, image_labels=image_labels, seed=seed
    )
    return judge_evidence([evidence], bootstrap=bootstrap, seed=seed)


@torch.no_grad()
def embedding_evidence(
    images: npt.ArrayLike | Tensor,
    captions: npt.ArrayLike | Tensor,
    image_of: npt.ArrayLike | Tensor | None = None,
    caption_of: npt.ArrayLike | Tensor | None = None,
    *,
    image_labels: npt.ArrayLike | None = None,
    more: Mapping[str, Measure] | None = None,
    mismatched_count: int | None = None,
    seed: int = 0,
) -> PairEvidence:
    """The parts of every labelled pair and of deliberately wrong ones; see `audit_embeddings`."""
    pictures, texts = unit_rows(images, "images"), unit_rows(captions, "captions")
    if pictures.shape[1] != texts.shape[1]:
        raise DataError(
            f"images have {pictures.shape[1]} dimensions but captions {texts.shape[1]}",
            fix="both must come from one model with a common space",
        )
    rows_given = np.arange(len(texts)) if caption_of is None else caption_of
    pairs = pair_numbers(
        rows_given, np.arange(len(texts)) if image_of is None else image_of, len(texts), len(pictures)
    )
    device = texts.device
    of_caption, of_image = (torch.from_numpy(numbers).to(device) for numbers in pairs)  # (N,)
    labels = None if image_labels is None else np.asarray(image_labels)
    drawn = draw_wrong_pairs(*pairs, mismatched_count, seed, labels)
    wrong_captions, wrong_images = (torch.from_numpy(numbers).to(device) for numbers in drawn)  # (M,)
    draws = torch.from_numpy(np.random.default_rng([seed, 2]).random(len(wrong_images)))
    places = rows_of_images(of_image, wrong_images, draws)  # (M,) whose place the wrong caption takes

    measures = _measures(pictures, texts, of_caption, of_image)
    measures.update(more or {})
    wrong_parts = _measured(measures, wrong_captions, wrong_images, places)  # (M, K)
    centre, scale = wrong_parts.mean(0), wrong_parts.std(0)
    scale = np.where(scale > 1e-12, scale, 1.0)

    def measure(some_captions: Tensor, some_images: Tensor, left_out: Tensor) -> Array:
        found: Array = (_measured(measures, some_captions, some_images, left_out) - centre) / scale
        return found

    own_rows = torch.arange(len(of_caption), device=device)
    return PairEvidence(
        tuple(measures),
        measure(of_caption, of_image, own_rows),
        (wrong_parts - centre) / scale,
        *pairs,
        drawn,
        measure,
    )


def _measures(pictures: Tensor, texts: Tensor, of_caption: Tensor, of_image: Tensor) -> dict[str, Measure]:
    """Score and neighbours always; agreement where an image has several captions."""
    statistics = pooled_statistics(texts, pictures)
    said, looks = centred(texts), centred(pictures)  # (C, d), (I, d)
    consensus = neighbour_consensus(looks, said, of_caption, of_image)  # (I, d)
    consensus_statistics = pooled_statistics(said, consensus)

    def score(captions: Tensor, images: Tensor, _: Tensor) -> Tensor:
        cosines = (texts[captions] * pictures[images]).sum(-1)
        return statistics.standardise(cosines, captions, images)

    def neighbours(captions: Tensor, images: Tensor, _: Tensor) -> Tensor:
        cosines = (said[captions] * consensus[images]).sum(-1)
        return consensus_statistics.standardise(cosines, captions, images)

    measures: dict[str, Measure] = {SCORE: score, NEIGHBOURS: neighbours}
    counts = torch.bincount(of_image)[of_image]  # (N,)
    if bool((counts > 1).any()):
        rows = torch.arange(len(of_caption), device=of_caption.device)
        several = counts > 1
        answered = agreement(
            said, of_caption, of_image, of_caption[several], of_image[several], rows[several]
        )
        level = float(answered.mean()) / 2  # of pairs that nothing can be said about: between wrong and right

        def agree(captions: Tensor, images: Tensor, left_out: Tensor) -> Tensor:
            return agreement(said, of_caption, of_image, captions, images, left_out, level)

        measures[AGREEMENT] = agree
    return measures


def _measured(measures: Mapping[str, Measure], captions: Tensor, images: Tensor, left_out: Tensor) -> Array:
    """(P, K) raw parts, some pairs at a time."""
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
    default every set's captions are its own. Images of different sets are different ones.

    Captions of one image may be wrong together, when a picture was exchanged: then they agree with each other
    and agreement proves nothing. `wrong_together` looks for it; if so, agreement and rivals are left out.

    Rivals help to tell which pairs are wrong, not how many: captions with many copies have more rivals among
    random pairs than among labelled ones. So the rate is estimated without them.
    """
    names = tuple(name for name in evidences[0].names if all(name in other.names for other in evidences))
    columns = [[evidence.names.index(name) for name in names] for evidence in evidences]
    chosen = [(e.labelled[:, c], e.wrong[:, c]) for e, c in zip(evidences, columns, strict=True)]
    labelled, wrong = (np.concatenate(parts) for parts in zip(*chosen, strict=True))  # (N, K), (M, K)
    pairs, wrong_pairs = _numbered(evidences, strings)
    warnings = []
    together = False
    if AGREEMENT in names:
        score, agree = names.index(SCORE), names.index(AGREEMENT)
        alone = fit_match_mixture(labelled[:, score], wrong[:, score], bootstrap=0)
        together = wrong_together(alone.p_match, pairs[1], labelled[:, agree], wrong[:, agree])
        if together:
            warnings.append(
                "captions of one image seem to be wrong together (pictures exchanged?): their agreement with "
                "each other and rivals were not counted"
            )
    counted = tuple(name for name in names if not (together and name == AGREEMENT))
    used = [names.index(name) for name in counted]
    discriminant = refined_discriminant(labelled[:, used], wrong[:, used])
    combined, mismatched = discriminant(labelled[:, used]), discriminant(wrong[:, used])
    measured = verdicts = audit_scores(combined, mismatched, bootstrap=bootstrap, seed=seed)
    judge = _judge(discriminant, measured.mixture, counted)
    rivals = None if together else _rivals(combined, measured.p_match, pairs, wrong_pairs, seed)
    if rivals is not None:
        labelled, wrong = (np.column_stack(both) for both in ((labelled, rivals[0]), (wrong, rivals[1])))
        names = (*names, RIVALS)
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
            found, ((evidence.caption_of, evidence.image_of), evidence.wrong_pairs), strict=True
        ):
            listed.append((names[of_caption], of_image + first_image))
        first_caption += captions
        first_image += int(evidence.image_of.max()) + 1
    labelled, wrong = (tuple(np.concatenate(each) for each in zip(*listed, strict=True)) for listed in found)
    return (labelled[0], labelled[1]), (wrong[0], wrong[1])


def _rivals(
    support: Array, p_match: Array, pairs: Pairs, wrong_pairs: Pairs, seed: int
) -> tuple[Array, Array] | None:
    """The part (N,), (M,), standardised like the others; support and p_match (N,) are by those."""
    captions, images, *wrong = map(torch.from_numpy, (*pairs, *wrong_pairs))
    judged = torch.from_numpy(support), torch.from_numpy(p_match)
    part = rival_part(*judged, captions, images, (wrong[0], wrong[1]), None, seed)
    if part is None:
        return None
    labelled, simulated = part.labelled.double().numpy(), part.wrong.double().numpy()
    scale = float(simulated.std()) or 1.0
    return (labelled - simulated.mean()) / scale, (simulated - simulated.mean()) / scale


def _judge(
    discriminant: Discriminant, mixture: MatchMixture, names: tuple[str, ...]
) -> Callable[[Array, tuple[str, ...]], Array]:
    def judge(parts: Array, given: tuple[str, ...]) -> Array:
        columns = [given.index(name) for name in names]
        return mixture.posterior(discriminant(parts[:, columns]))

    return judge


def unit_rows(values: npt.ArrayLike | Tensor, name: str) -> Tensor:
    """A float32 matrix of unit rows; an error names the first row that is not finite or has no length."""
    given = values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, dtype=np.float32))
    matrix: Tensor = given.float()
    if matrix.ndim != 2 or not matrix.numel():
        raise DataError(f"{name}: shape {tuple(matrix.shape)}, expected (number, dimensions)")
    lengths = matrix.norm(dim=1)  # (N,)
    bad = (~(lengths.isfinite() & (lengths > 0))).nonzero()
    if len(bad):
        raise DataError(
            f"{name} row {int(bad[0])}: not finite or all zero ({len(bad)} such rows)",
            fix="embed them again or leave their pairs out",
        )
    scaled: Tensor = matrix / lengths[:, None]
    return scaled
