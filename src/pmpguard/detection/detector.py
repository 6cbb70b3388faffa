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
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.detection.evidence.canonical import canonical_vectors, weighted_mean
from pmpguard.detection.evidence.caption_agreement import caption_agreement_measure
from pmpguard.detection.evidence.competition import SIMILAR_TEXTS
from pmpguard.detection.evidence.nearest import MAX_EXACT_NEIGHBOURS, centred
from pmpguard.detection.evidence.neighbours import (
    NEIGHBOURS,
    NeighbourGraph,
    Neighbourhoods,
    find_neighbourhoods,
    neighbour_measures,
)
from pmpguard.detection.evidence.regression import (
    Moments,
    RegressionSums,
    regression_measures,
    regression_sums,
    whiten,
)
from pmpguard.detection.evidence.similarity import Measure, similarity_measure
from pmpguard.detection.image_groups import check_whole, checked_folds, checked_labels
from pmpguard.detection.judge import CAPTION_AGREEMENT, Verdicts, judge_pairs
from pmpguard.detection.measures import FoldMeasures, PairEvidence, ask_fold, asked, by_fold
from pmpguard.detection.null_pairs import Array, Evidence, NullPairs, pair_numbers, sample_null_pairs
from pmpguard.detection.vectors import LARGE_SET, checked_rows, unit_rows, without_constant_sides
from pmpguard.device import pick_device
from pmpguard.errors import DataError
from pmpguard.stable_random import StableRandom

FOLDS = 5
FOLDS_OF_LARGE_SETS = (
    2  # every fold's rounds cost as much as all of a small set, and half of a large one is plenty
)
ROUNDS = 3
MIN_ROUND_NULL_PAIRS = 2_000
Pairs = tuple[Tensor, Tensor]  # numbers of texts and of images, (N,) each


def usual_folds(pairs: int) -> int:
    """Into how many folds the images of so many pairs are cut."""
    return FOLDS if pairs <= LARGE_SET else FOLDS_OF_LARGE_SETS


@dataclass(repr=False)
class NoiseDetector:
    """Find mismatched pairs in embeddings; scikit-learn style: options here, data in `fit`.

    Args:
        rounds: how often pairs are judged, each time by others as far as they were believed the time before.
        folds: of images, each judged by rounds its pairs took no part in; by default 5, and 2 of large sets.
            Two at least.
        neighbours: of each text and image that vote on its pairs.
        exact_up_to: so many vectors are compared with all others; more by inverted lists.
        bootstrap: resamples for the interval of the noise rate; 0 leaves it out.
        seed: of null pairs, folds and resamples.
        device: where to compute; by default where tensors are given, else the CPU.

    Attributes:
        p_match: (N,) float64, the probability of each labelled pair to match.
        noise_rate: estimated share of mismatched pairs.
        noise_rate_interval: its 95 % interval; (0, 1), which claims nothing, where none was asked for, of
            fewer than a hundred pairs and of evidence that does not tell.
        evidence: name -> (N,), each with mean 0 and deviation 1 on null pairs.
        left_out: what was not used, and why.

    Examples:
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
    verdicts: Verdicts = field(init=False)
    collected: PairEvidence = field(init=False)
    clean_probability: Tensor = field(init=False)  # (N,) after the rounds
    vectors: tuple[Tensor, Tensor] = field(init=False)  # half-whitened texts (C, k), images (I, l)
    similar_texts: NeighbourGraph | None = field(init=False)
    null: NullPairs = field(init=False)

    def __post_init__(self) -> None:
        least_of = {"rounds": 1, "neighbours": 1, "exact_up_to": 0, "bootstrap": 0, "seed": 0}
        for name, least in least_of.items():
            check_whole(name, getattr(self, name), least)
        if self.folds is not None:
            check_whole("folds", self.folds, 2)

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
            texts: (C, d) vectors of any encoder. Equal texts should share a row.
            images: (I, e) vectors of the same or another encoder. Equal images should share a row.
            text_of: (N,) row of each pair's text.
            image_of: (N,) row of each pair's image.
            more: further evidence that can be measured pair by pair.
            common_space: whether cosines of texts with images mean anything; by default where d equals e.
            image_labels: (I,) scene classes where known, -1 for unknown: null pairs are then of different
                ones.
            image_folds: (I,) folds of images that show different things; by default random ones.
        """
        text_vectors = checked_rows(texts, "texts", None if self.device is None else pick_device(self.device))
        image_vectors = checked_rows(images, "images", text_vectors.device)
        dims = text_vectors.shape[1], image_vectors.shape[1]
        if common_space and dims[0] != dims[1]:
            raise DataError(
                f"common_space: texts have {dims[0]} dimensions but images {dims[1]}",
                fix="leave it out: vectors of two encoders may differ",
            )
        if common_space is None:
            common_space = dims[0] == dims[1]
        text_vectors, image_vectors, self.left_out = without_constant_sides(text_vectors, image_vectors)
        sizes = len(text_vectors), len(image_vectors)
        given = (
            np.arange(sizes[0]) if text_of is None else text_of,
            np.arange(sizes[1]) if image_of is None else image_of,
        )
        numbers = pair_numbers(*given, *sizes)
        image_labels = checked_labels(image_labels, sizes[1])
        if image_folds is None:
            folds = self.folds or usual_folds(len(numbers[0]))
            image_folds = StableRandom("folds", self.seed).order(sizes[1]) % folds
        else:
            image_folds = checked_folds(image_folds, sizes[1])
        device = text_vectors.device
        pairs = torch.from_numpy(numbers[0]).to(device), torch.from_numpy(numbers[1]).to(device)
        large = len(pairs[0]) > LARGE_SET
        kept = torch.float16 if large else torch.float32
        self.vectors = whiten(text_vectors, dtype=kept), whiten(image_vectors, dtype=kept)
        if large:  # what they have in common is taken away once and for all, so that graphs need no copies
            self.vectors = centred(self.vectors[0]), centred(self.vectors[1])
        measures = self._standing_measures(text_vectors, image_vectors, pairs, common_space, more)
        del text_vectors, image_vectors
        self.null = sample_null_pairs(*pairs, self.seed, image_labels)
        self._note_what_is_left_out()
        fold_of = torch.as_tensor(image_folds, device=pairs[0].device)  # (I,)
        self.similar_texts = None
        self.collected = self._collect(pairs, measures, fold_of)
        self.verdicts = judge_pairs(
            self.collected.evidence, *pairs, self.null, similar_texts=self.similar_texts,
            bootstrap=self.bootstrap, seed=self.seed,
        )  # fmt: skip
        return self

    def __repr__(self) -> str:
        if not hasattr(self, "verdicts"):
            return f"NoiseDetector(rounds={self.rounds}, seed={self.seed}), not fitted"
        interval = self.verdicts.noise_rate_interval
        said = "no interval asked for" if interval is None else "{:.1%} to {:.1%}".format(*interval)
        lines = [
            f"NoiseDetector of {len(self.p_match):,} pairs, {int(self.verdicts.flag.sum()):,} flagged",
            f"  noise rate {self.noise_rate:.1%} ({said})",
            f"  evidence: {', '.join(self.verdicts.names)}",
            *(f"  left out: {why}" for why in self.left_out),
        ]
        return "\n".join(lines)

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

    def _standing_measures(
        self,
        texts: Tensor,
        images: Tensor,
        pairs: Pairs,
        common_space: bool,
        more: Mapping[str, Measure] | None,
    ) -> dict[str, Measure]:
        """What needs no rounds: similarity in a common space, agreement among an image's captions."""
        found = dict(more or {})
        if common_space:
            found["similarity"] = similarity_measure(unit_rows(texts, "texts"), unit_rows(images, "images"))
        else:
            self.left_out.append("similarity: texts and images have no common space")
        large = len(pairs[0]) > LARGE_SET  # then vectors are centred already
        own = self.vectors[0] if large else centred(self.vectors[0])
        agreement = caption_agreement_measure(own, *pairs)
        if agreement is None:
            self.left_out.append("caption_agreement: every image has one caption")
        else:
            found[CAPTION_AGREEMENT] = agreement
        return found

    def _note_what_is_left_out(self) -> None:
        for name, vectors in zip(("texts", "images"), self.vectors, strict=True):
            if vectors.shape[1] < 2 and bool(vectors.any()):
                self.left_out.append(f"{name}: their vectors hardly differ, so they say nothing")
        if min(map(len, self.vectors)) < 2:
            self.left_out.append("neighbours: there is but one text or image")
        if max(map(len, self.vectors)) > self.exact_up_to:
            self.left_out.append(
                f"exact neighbours: inverted lists search more than {self.exact_up_to:,} vectors"
            )

    def _collect(self, pairs: Pairs, standing: dict[str, Measure], fold_of: Tensor) -> PairEvidence:
        """Every kind of evidence, of a fold's pairs by what the other folds' pairs taught.

        Folds are judged one after the other, and of a large set only what can build a fold's measures again
        is kept: graphs take more memory than the vectors they are made of.
        """
        text_of, image_of = pairs
        null, count = self.null, int(fold_of.max()) + 1
        rows = torch.arange(len(text_of), device=text_of.device)
        observed = {name: asked(measure, text_of, image_of, rows) for name, measure in standing.items()}
        simulated = {
            name: asked(measure, null.texts, null.images, null.rows) for name, measure in standing.items()
        }
        kept = torch.float32
        known, large = (dict(observed), dict(simulated)), len(rows) > LARGE_SET
        graphs = self._graphs_of(*self.vectors)
        self.similar_texts = None if graphs is None else graphs.texts
        taught = [fold_of[image_of] != fold for fold in range(count)]  # (N,) each
        probabilities = [self._rounds(pairs, some, *known, graphs, some.to(kept), min(self.rounds, 1))
                         for some in taught]  # fmt: skip
        if large and graphs is not None:
            self.similar_texts = graphs.texts.nearest(SIMILAR_TEXTS)
            graphs = None
        folds: list[FoldMeasures] = []
        for fold, some in enumerate(taught):
            fold_graphs = self._fold_graphs(pairs, probabilities[fold], graphs)
            probability = probabilities[fold]
            taught_by = probability  # what the directions of the graphs were found by
            probability = self._rounds(pairs, some, *known, fold_graphs, probability, self.rounds - 1)
            probabilities[fold] = probability
            measures = self._measures(pairs, probability, fold_graphs)
            for found, asked_pairs in (
                (observed, (text_of, image_of, rows)),
                (simulated, (null.texts, null.images, null.rows)),
            ):
                ask_fold(found, measures, fold_of, fold, *asked_pairs)
            again = partial(self._built_again, pairs, taught_by, probability)
            folds.append(FoldMeasures(again, None if large else measures))
            del measures, fold_graphs
        told = {name: by_fold(fold_of, [each.of(name) for each in folds])
                for name in observed if name not in standing}  # fmt: skip
        # a pair takes part in the rounds of all folds but its own
        self.clean_probability = sum(probabilities, torch.zeros_like(probabilities[0])) / max(count - 1, 1)
        evidence = {name: Evidence(observed[name], simulated[name]) for name in observed}
        return PairEvidence(evidence, {**standing, **told})

    def _built_again(self, pairs: Pairs, directions_by: Tensor, probability: Tensor) -> dict[str, Measure]:
        """The measures of a fold, from the clean probabilities after its first and after its last round."""
        return self._measures(pairs, probability, self._fold_graphs(pairs, directions_by, None))

    def _rounds(
        self,
        pairs: Pairs,
        taught: Tensor,
        observed: Mapping[str, Tensor],
        simulated: Mapping[str, Tensor],
        graphs: Neighbourhoods | None,
        probability: Tensor,
        rounds: int,
    ) -> Tensor:
        """Clean probabilities (N,) after so many more rounds of the `taught` pairs (N,) bool; 0 of others."""
        text_of, image_of = pairs[0][taught], pairs[1][taught]
        if not len(text_of):
            return probability
        # null pairs of the taught items alone; few pairs need no smooth density
        null, places = self._null_among(text_of, image_of)
        rows = taught.nonzero()[:, 0]
        halves = StableRandom("halves", self.seed).order(int(pairs[1].max()) + 1) % FOLDS
        half_of = torch.from_numpy(halves).to(text_of.device)
        for _ in range(rounds if len(null) else 0):
            evidence = {name: Evidence(observed[name][rows], simulated[name][places]) for name in observed}
            for measures in (
                self._crossfit_regressions(pairs, probability, half_of),
                self._neighbour_measures(pairs, probability, graphs),
            ):
                evidence |= {
                    name: Evidence(
                        asked(measure, text_of, image_of, rows),
                        asked(measure, null.texts, null.images, null.rows),
                    )
                    for name, measure in measures.items()
                }
            del measures  # they hold what every text and image is paired with
            found = judge_pairs(
                evidence, text_of, image_of, null, similar_texts=self.similar_texts, seed=self.seed
            )
            probability = torch.zeros_like(probability)
            probability[rows] = torch.from_numpy(found.p_match).to(probability)
        return probability

    def _fold_graphs(
        self, pairs: Pairs, probability: Tensor, graphs: Neighbourhoods | None
    ) -> Neighbourhoods | None:
        """From the second round on neighbours are of canonical directions."""
        if self.rounds > 1 and bool((probability > 0).any()) and min(map(len, self.vectors)) > 1:
            return self._canonical_graphs(pairs, probability)
        return graphs or self._graphs_of(*self.vectors)

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
        own = Moments.of(self.vectors[0]), Moments.of(self.vectors[1])
        sums: list[RegressionSums] = []
        for part in range(int(part_of.max()) + 1):
            rows = (part_of[pairs[1]] == part) & (probability > 0)
            sums.append(regression_sums(*self.vectors, pairs[0][rows], pairs[1][rows], probability[rows]))
        whole = sums[0]
        for each in sums[1:]:
            whole = whole + each
        by_part = [regression_measures(*self.vectors, whole - each, own) for each in sums]
        return {name: by_fold(part_of, [each[name] for each in by_part]) for name in by_part[0]}

    def _canonical_graphs(self, pairs: Pairs, probability: Tensor) -> Neighbourhoods | None:
        """Neighbours among the directions that tell of each other, by the believed pairs."""
        texts, images = self.vectors
        weight = float(probability.sum())
        vectors = texts, images
        if weight >= 1 and min(texts.shape[1], images.shape[1]) >= 2:
            sums = regression_sums(texts, images, *pairs, probability)
            text_mean = weighted_mean(texts, pairs[0], probability)
            image_mean = weighted_mean(images, pairs[1], probability)
            vectors = canonical_vectors(texts, images, sums, text_mean, image_mean, weight)
        return self._graphs_of(*vectors)

    def _graphs_of(self, texts: Tensor, images: Tensor) -> Neighbourhoods | None:
        half = texts.dtype == torch.float16  # those of large sets, centred before
        return find_neighbourhoods(texts, images, self.neighbours, self.exact_up_to, already_centred=half)
