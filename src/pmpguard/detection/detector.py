"""NoiseDetector: which labelled pairs of texts and images are mismatched, from embeddings alone.

Texts and images may come from any two encoders; nothing is trained but closed forms. Evidence is collected in
rounds: regressions (`evidence/regression.py`) and neighbours' votes (`evidence/neighbours.py`) count every
pair by its clean probability, and the verdicts of one round are the clean probabilities of the next (self-
training). From the second round on neighbours are found among canonical directions (`evidence/canonical.py`).

A pair that was believed has taught those that then vouch for it, which null pairs never could. So images are
cut into folds, and pairs of a fold are judged by rounds that none of them took part in (cross-fitting).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.detection.evidence.canonical import canonical_vectors
from pmpguard.detection.evidence.caption_agreement import caption_agreement_measure
from pmpguard.detection.evidence.nearest import MAX_EXACT_NEIGHBOURS, centred
from pmpguard.detection.evidence.neighbours import (
    NEIGHBOURS,
    NeighbourGraph,
    Neighbourhoods,
    find_neighbourhoods,
    neighbour_measures,
)
from pmpguard.detection.evidence.regression import (
    RegressionSums,
    regression_measures,
    regression_sums,
    whiten,
)
from pmpguard.detection.evidence.similarity import Measure, similarity_measure
from pmpguard.detection.judge import CAPTION_AGREEMENT, Verdicts, judge_pairs
from pmpguard.detection.measures import PairEvidence, asked, by_fold
from pmpguard.detection.null_pairs import Array, Evidence, NullPairs, pair_numbers, sample_null_pairs
from pmpguard.errors import DataError
from pmpguard.stable_random import StableRandom

FOLDS = 5
FOLDS_OF_LARGE_SETS = (
    2  # every fold's rounds cost as much as all of a small set, and half of a large one is plenty
)
LARGE_SET = 50_000  # pairs
ROUNDS = 3
MIN_ROUND_NULL_PAIRS = 2_000
SAME = 1e-6  # unit vectors that differ by less in every direction are one
Pairs = tuple[Tensor, Tensor]  # numbers of texts and of images, (N,) each


@dataclass
class NoiseDetector:
    """Find mismatched pairs in embeddings; scikit-learn style: options here, data in `fit`.

    Args:
        rounds: how often pairs are judged, each time by others as far as they were believed the time before.
        folds: of images, each judged by rounds its pairs took no part in; by default 5, and 2 of large sets.
        neighbours: of each text and image that vote on its pairs.
        exact_up_to: so many vectors are compared with all others; more by inverted lists.
        bootstrap: resamples for the interval of the noise rate; 0 leaves it out.
        seed: of null pairs, folds and resamples.
        device: where to compute; by default where tensors are given, else the CPU.

    Attributes, after `fit`:
        p_match: (N,) float64, the probability of each labelled pair to match.
        noise_rate: estimated share of mismatched pairs.
        noise_rate_interval: its 95 % interval.
        evidence: name -> (N,), each with mean 0 and deviation 1 on null pairs.
        left_out: what was not used, and why.

    Example:
        >>> draw = np.random.default_rng(0)
        >>> scenes = draw.normal(size=(600, 8))
        >>> texts, images = scenes @ draw.normal(size=(8, 12)), scenes @ draw.normal(size=(8, 20))
        >>> texts[:120] = texts[:120][::-1]  # a fifth is mismatched
        >>> detector = NoiseDetector(bootstrap=0).fit(texts, images)
        >>> 0.15 < detector.noise_rate < 0.25, bool(detector.p_match[:120].mean() < 0.1)
        (True, True)
    """

    rounds: int = ROUNDS
    folds: int | None = None
    neighbours: int = NEIGHBOURS
    exact_up_to: int = MAX_EXACT_NEIGHBOURS
    bootstrap: int = 100
    seed: int = 0
    device: torch.device | str | None = None

    left_out: list[str] = field(default_factory=list, init=False)
    verdicts: Verdicts = field(init=False, repr=False)
    collected: PairEvidence = field(init=False, repr=False)
    clean_probability: Tensor = field(init=False, repr=False)  # (N,) after the rounds
    vectors: tuple[Tensor, Tensor] = field(
        init=False, repr=False
    )  # half-whitened texts (C, k), images (I, l)
    similar_texts: NeighbourGraph | None = field(init=False, repr=False)
    null: NullPairs = field(init=False, repr=False)

    def fit(
        self,
        texts: npt.ArrayLike | Tensor,
        images: npt.ArrayLike | Tensor,
        text_of: npt.ArrayLike | Tensor | None = None,
        image_of: npt.ArrayLike | Tensor | None = None,
        *,
        more: Mapping[str, Measure] | None = None,
        common_space: bool | None = None,
        image_labels: npt.ArrayLike | None = None,
        image_folds: npt.ArrayLike | None = None,
    ) -> NoiseDetector:
        """Judge the pairs: row r is `texts[text_of[r]]` with `images[image_of[r]]`, by default row with row.

        Args:
            texts, images: (C, d) and (I, e), of any two encoders. Equal texts, and equal images, should share
            a row. text_of, image_of: (N,) numbers of the pairs.
            more: further evidence that can be measured pair by pair.
            common_space: whether cosines of texts with images mean anything; by default where d equals e.
            image_labels: (I,) scene classes where known, -1 for unknown: null pairs are then of different
                ones.
            image_folds: (I,) folds of images that show different things; by default random ones.
        """
        self.left_out = []
        text_vectors, image_vectors = (
            unit_rows(texts, "texts", self.device),
            unit_rows(images, "images", self.device),
        )
        image_vectors = image_vectors.to(text_vectors.device)
        text_vectors, image_vectors = self._without_constant_sides(text_vectors, image_vectors)
        rows = len(text_vectors)
        given = (
            np.arange(rows) if text_of is None else text_of,
            np.arange(rows) if image_of is None else image_of,
        )
        numbers = pair_numbers(*given, rows, len(image_vectors))
        device = text_vectors.device
        pairs = torch.from_numpy(numbers[0]).to(device), torch.from_numpy(numbers[1]).to(device)
        measures = self._standing_measures(text_vectors, image_vectors, pairs, common_space, more)
        self.null = sample_null_pairs(*pairs, self.seed, image_labels)
        self.vectors = whiten(text_vectors), whiten(image_vectors)
        graphs = find_neighbourhoods(*self.vectors, self.neighbours, self.exact_up_to)
        self._note_what_is_left_out(graphs)
        self.similar_texts = None if graphs is None else graphs.texts
        if image_folds is None:
            folds = self.folds or (FOLDS if len(pairs[0]) <= LARGE_SET else FOLDS_OF_LARGE_SETS)
            image_folds = StableRandom("folds", self.seed).order(len(image_vectors)) % folds
        fold_of = torch.as_tensor(np.asarray(image_folds), device=pairs[0].device)  # (I,)
        self.collected = self._collect(pairs, measures, graphs, fold_of)
        self.verdicts = judge_pairs(
            self.collected.evidence, *pairs, self.null, similar_texts=self.similar_texts,
            bootstrap=self.bootstrap, seed=self.seed,
        )  # fmt: skip
        return self

    @property
    def p_match(self) -> Array:
        return self.verdicts.p_match

    @property
    def noise_rate(self) -> float:
        return self.verdicts.noise_rate

    @property
    def noise_rate_interval(self) -> tuple[float, float]:
        return self.verdicts.noise_rate_interval or (0.0, 1.0)

    @property
    def evidence(self) -> dict[str, Array]:
        return dict(zip(self.verdicts.names, self.verdicts.evidence.T, strict=True))

    def _without_constant_sides(self, texts: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides; constants where either has but one vector, as then neither tells of the other."""
        blind = False
        for name, vectors in (("texts", texts), ("images", images)):
            if len(vectors) > 1 and bool(((vectors - vectors[0]).abs() < SAME).all()):
                self.left_out.append(f"{name}: all vectors are equal, so no pair can be told from another")
                blind = True
        if not blind:
            return texts, images
        first = (torch.arange(vectors.shape[1], device=vectors.device) == 0 for vectors in (texts, images))
        one, other = (
            axis.to(texts).expand(len(of), -1) for axis, of in zip(first, (texts, images), strict=True)
        )
        return one, other

    def _standing_measures(
        self,
        texts: Tensor,
        images: Tensor,
        pairs: Pairs,
        common_space: bool | None,
        more: Mapping[str, Measure] | None,
    ) -> dict[str, Measure]:
        """What needs no rounds: similarity in a common space, agreement among an image's captions."""
        found = dict(more or {})
        if common_space if common_space is not None else texts.shape[1] == images.shape[1]:
            found["similarity"] = similarity_measure(texts, images)
        else:
            self.left_out.append("similarity: texts and images have no common space")
        agreement = caption_agreement_measure(centred(whiten(texts)), pairs[0], pairs[1])
        if agreement is None:
            self.left_out.append("caption_agreement: every image has one caption")
        else:
            found[CAPTION_AGREEMENT] = agreement
        return found

    def _note_what_is_left_out(self, graphs: Neighbourhoods | None) -> None:
        for name, vectors in zip(("texts", "images"), self.vectors, strict=True):
            if vectors.shape[1] < 2 and bool(vectors.any()):
                self.left_out.append(f"{name}: their vectors hardly differ, so they say nothing")
        if graphs is None:
            self.left_out.append("neighbours: there is but one text or image")

    def _collect(
        self,
        pairs: Pairs,
        standing: dict[str, Measure],
        graphs: Neighbourhoods | None,
        fold_of: Tensor,
    ) -> PairEvidence:
        """Every kind of evidence, of a fold's pairs by what the other folds' pairs taught."""
        text_of, image_of = pairs
        null, count = self.null, int(fold_of.max()) + 1
        rows = torch.arange(len(text_of), device=text_of.device)
        observed = {name: asked(measure, text_of, image_of, rows) for name, measure in standing.items()}
        simulated = {
            name: asked(measure, null.texts, null.images, null.rows) for name, measure in standing.items()
        }
        told: list[dict[str, Measure]] = []
        total = torch.zeros(len(text_of), dtype=torch.float32, device=text_of.device)
        for fold in range(count):
            taught = fold_of[image_of] != fold  # (N,)
            probability, graph = self._rounds(pairs, taught, observed, simulated, graphs)
            told.append(self._measures(pairs, probability, graph))
            total += probability
        measures = {name: by_fold(fold_of, [each[name] for each in told]) for name in told[0]}
        for name, measure in measures.items():
            observed[name] = asked(measure, text_of, image_of, rows)
            simulated[name] = asked(measure, null.texts, null.images, null.rows)
        self.clean_probability = total / max(
            count - 1, 1
        )  # a pair takes part in the rounds of all folds but its own
        evidence = {name: Evidence(observed[name], simulated[name]) for name in observed}
        return PairEvidence(evidence, {**standing, **measures})

    def _rounds(
        self,
        pairs: Pairs,
        taught: Tensor,
        observed: Mapping[str, Tensor],
        simulated: Mapping[str, Tensor],
        graphs: Neighbourhoods | None,
    ) -> tuple[Tensor, Neighbourhoods | None]:
        """Clean probabilities (N,) of the `taught` pairs (N,) bool after all rounds, 0 of the others.

        And the graphs of canonical directions they were found with.
        """
        text_of, image_of = pairs[0][taught], pairs[1][taught]
        probability = taught.to(torch.float32)
        if not len(text_of):
            return probability, graphs
        # null pairs of the taught items alone; few pairs need no smooth density
        null, places = self._null_among(text_of, image_of)
        rows = taught.nonzero()[:, 0]
        halves = StableRandom("halves", self.seed).order(int(pairs[1].max()) + 1) % FOLDS
        half_of = torch.from_numpy(halves).to(text_of.device)
        for number in range(self.rounds if len(null) else 0):
            if number == 1 and graphs is not None:
                graphs = self._canonical_graphs(pairs, probability)
            crossed = self._crossfit_regressions(pairs, probability, half_of)
            measures = {**crossed, **self._neighbour_measures(pairs, probability, graphs)}
            evidence = {name: Evidence(observed[name][rows], simulated[name][places]) for name in observed}
            evidence |= {
                name: Evidence(
                    asked(measure, text_of, image_of, rows),
                    asked(measure, null.texts, null.images, null.rows),
                )
                for name, measure in measures.items()
            }
            found = judge_pairs(
                evidence, text_of, image_of, null, similar_texts=self.similar_texts, seed=self.seed
            )
            probability = torch.zeros_like(probability)
            probability[rows] = torch.from_numpy(found.p_match).to(probability)
        return probability, graphs

    def _null_among(self, text_of: Tensor, image_of: Tensor) -> tuple[NullPairs, Tensor]:
        """Null pairs whose text and image are both among the taught pairs, and their places among all."""
        within = torch.isin(self.null.texts, text_of) & torch.isin(self.null.images, image_of)
        places = within.nonzero()[:, 0][: max(4 * len(text_of), MIN_ROUND_NULL_PAIRS)]
        return NullPairs(self.null.texts[places], self.null.images[places], self.null.rows[places]), places

    def _measures(
        self, pairs: Pairs, probability: Tensor, graphs: Neighbourhoods | None
    ) -> dict[str, Measure]:
        """What the believed pairs tell of any pair that they do not hold."""
        sums = regression_sums(*self.vectors, *pairs, probability)
        return {
            **regression_measures(*self.vectors, sums),
            **self._neighbour_measures(pairs, probability, graphs),
        }

    def _neighbour_measures(
        self, pairs: Pairs, probability: Tensor, graphs: Neighbourhoods | None
    ) -> dict[str, Measure]:
        return {} if graphs is None else neighbour_measures(graphs, pairs[0], pairs[1], probability)

    def _crossfit_regressions(self, pairs: Pairs, probability: Tensor, part_of: Tensor) -> dict[str, Measure]:
        """Regressions that judge a pair without having seen a pair of its image; part_of (I,)."""
        sums: list[RegressionSums] = []
        for part in range(int(part_of.max()) + 1):
            rows = (part_of[pairs[1]] == part) & (probability > 0)
            sums.append(regression_sums(*self.vectors, pairs[0][rows], pairs[1][rows], probability[rows]))
        whole = sums[0]
        for each in sums[1:]:
            whole = whole + each
        by_part = [regression_measures(*self.vectors, whole - each) for each in sums]
        return {name: by_fold(part_of, [each[name] for each in by_part]) for name in by_part[0]}

    def _canonical_graphs(self, pairs: Pairs, probability: Tensor) -> Neighbourhoods | None:
        """Neighbours among the directions that tell of each other, by the believed pairs."""
        texts, images = self.vectors
        weight = float(probability.sum())
        if weight < 1 or min(texts.shape[1], images.shape[1]) < 2:
            return find_neighbourhoods(texts, images, self.neighbours, self.exact_up_to)
        sums = regression_sums(texts, images, *pairs, probability)
        means = (_weighted_mean(texts, pairs[0], probability), _weighted_mean(images, pairs[1], probability))
        vectors = canonical_vectors(texts, images, sums, *means, weight)
        return find_neighbourhoods(*vectors, self.neighbours, self.exact_up_to)


def _weighted_mean(vectors: Tensor, numbers: Tensor, weights: Tensor) -> Tensor:
    """(k,): the mean of vectors (n, k) by number (N,), each counting by its weight (N,)."""
    counts = vectors.new_zeros(len(vectors)).index_add_(0, numbers, weights.to(vectors))
    mean: Tensor = counts @ vectors / counts.sum().clamp(min=1e-6)
    return mean


def unit_rows(values: npt.ArrayLike | Tensor, name: str, device: torch.device | str | None = None) -> Tensor:
    """A float32 matrix of unit rows; an error names the first row that is not finite or has no length."""
    try:
        matrix = (
            values if isinstance(values, Tensor) else torch.from_numpy(np.array(values, dtype=np.float32))
        )
    except (TypeError, ValueError) as error:
        raise DataError(f"{name}: {error}", fix="give one row of numbers per vector") from error
    matrix = matrix.detach().to(device=device, dtype=torch.float32)
    if matrix.ndim != 2 or not matrix.numel():
        raise DataError(
            f"{name}: shape {tuple(matrix.shape)}, expected (number, dimensions)",
            fix="give one row per vector",
        )
    lengths = matrix.norm(dim=1)  # (n,)
    bad = (~(lengths.isfinite() & (lengths > 0))).nonzero()
    if len(bad):
        raise DataError(
            f"{name} row {int(bad[0])}: not finite or all zero ({len(bad)} such rows)",
            fix="embed them again or leave their pairs out",
        )
    unit: Tensor = matrix / lengths[:, None]
    return unit
