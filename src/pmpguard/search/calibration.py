"""What a score is worth: the probability that a caption with that score describes the image.

Captions that belong to images of the index are scored against their own images and against others, and
the mixture of `detection` is fitted to both: it says how much more often matching pairs reach a score than
others. Before its score is seen, an image is taken to match a query with probability `PRIOR`: almost all of
the index's own pairs match, most of what a search looks through does not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from pmpguard.detection.mixture import MatchMixture, chance_levels, fit_match_mixture
from pmpguard.errors import damage_named
from pmpguard.models.retriever import Retriever
from pmpguard.search.index.version import IndexedKind
from pmpguard.stable_random import StableRandom

CALIBRATION = "calibration.npz"
PAIRS = 400  # captions with their images; all other combinations are the mismatched sample
FEWEST = 20
PRIOR = 0.01  # one image in a hundred: as common as one of a hundred kinds of scenes


def calibrate(
    model: Retriever, images: IndexedKind, captions: IndexedKind, *, pairs: int = PAIRS, seed: int = 0
) -> MatchMixture | None:
    """Fit the mixture to a sample of the pairs; None where there are too few.

    The sample depends on the ids alone, not on the order in which items were added.
    """
    if not len(captions):
        return None
    own = captions.metadata["image_id"].to_pylist()
    rows = [row for row in captions.live_rows() if own[row] in images.row_of]
    rows.sort(key=lambda row: captions.ids[row])
    chosen = StableRandom("calibration", seed).choice(len(rows), pairs)
    drawn = {own[rows[place]]: rows[place] for place in sorted(chosen)}  # one caption of an image
    if len(drawn) < FEWEST:
        return None
    texts = captions.vectors.take(list(drawn.values()))
    pixels = images.vectors.take([images.row_of[id] for id in drawn])
    scores = model.score(texts.to(model.device), pixels.to(model.device)).double().cpu().numpy()  # (P, P)
    words = np.array(captions.metadata["caption"].take(list(drawn.values())).to_pylist())
    wrong = words[:, None] != words[None, :]  # equal captions fit each other's images
    return fit_match_mixture(np.diag(scores), scores[wrong], bootstrap=0)


def match_probabilities(
    mixture: MatchMixture, scores: npt.ArrayLike, prior: float = PRIOR
) -> npt.NDArray[np.float64]:
    """(S,) probabilities that pairs with these scores match; they never fall as the score grows."""
    low, high = chance_levels(np.asarray(scores, np.float64), mixture.mismatched)
    chance = ((low + high) / 2)[:, None]  # (S, 1)
    shares = mixture.weights[1:] / max(mixture.weights[1:].sum(), np.finfo(float).tiny)
    times_likelier = (shares * mixture.exponents * (1 - chance) ** (mixture.exponents - 1)).sum(1)  # (S,)
    matched: npt.NDArray[np.float64] = prior * times_likelier
    return matched / (matched + 1 - prior)


def save_calibration(mixture: MatchMixture, folder: Path) -> None:
    arrays: dict[str, npt.NDArray[np.float64]] = {
        "mismatched": mixture.mismatched,
        "exponents": mixture.exponents,
        "weights": mixture.weights,
        "match_rate": np.array([mixture.match_rate]),
        "converged": np.array([float(mixture.converged)]),
    }
    with (folder / CALIBRATION).open("wb") as stream:
        np.savez(stream, allow_pickle=False, **arrays)


def load_calibration(folder: Path) -> MatchMixture | None:
    path = folder / CALIBRATION
    if not path.is_file():
        return None
    with damage_named(path, "build the index again"), np.load(path, allow_pickle=False) as stored:
        return MatchMixture(
            p_match=np.empty(0),
            match_rate=float(stored["match_rate"][0]),
            converged=bool(stored["converged"][0]),
            mismatch_interval=None,
            mismatched=stored["mismatched"],
            exponents=stored["exponents"],
            weights=stored["weights"],
        )
