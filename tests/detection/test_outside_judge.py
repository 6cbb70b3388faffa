"""A judge from outside: a good one helps, a useless or a hostile one takes nothing away."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch.nn.functional import normalize

from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.evidence.similarity import similarity_measure
from pmpguard.detection.outside_judge import JUDGE, NOT_COUNTED, agrees

COUNT = 800


@pytest.fixture(scope="module")
def world():
    """Weak encoders, and the hidden scenes as a strong judge would see them."""
    draw = np.random.default_rng(0)
    scenes = draw.normal(size=(COUNT, 10))
    own = np.arange(COUNT)
    moved = draw.permutation(COUNT)[: COUNT // 2]
    own[moved] = own[draw.permutation(moved)]
    texts = scenes[own] @ draw.normal(size=(10, 24)) + 5.0 * draw.normal(size=(COUNT, 24))
    images = scenes @ draw.normal(size=(10, 32)) + 4.0 * draw.normal(size=(COUNT, 32))
    return texts, images, scenes[own], scenes, own != np.arange(COUNT)


def fitted(world, judge=None):
    texts, images, *_, wrong = world
    more = {}
    if judge is not None:
        vectors = (normalize(torch.tensor(each, dtype=torch.float32), dim=1) for each in judge)
        more[JUDGE] = similarity_measure(*vectors)
    detector = NoiseDetector(bootstrap=0).fit(texts, images, more=more)
    return detector, roc_auc_score(~wrong, detector.verdicts.combined)


@pytest.fixture(scope="module")
def alone(world):
    return fitted(world)[1]


def test_a_good_judge_helps(world, alone):
    detector, found = fitted(world, (world[2], world[3]))
    assert alone < 0.95 and found > alone + 0.03
    assert JUDGE in detector.evidence and detector.verdicts.weights.support[JUDGE] > 0


def hostile(world):
    """What each does to the scenes that the judge believes a caption describes."""
    draw = np.random.default_rng(1)
    by_heart = draw.normal(size=world[2].shape)
    by_heart[world[4]] = world[3][world[4]]  # mismatched pairs alone fit
    return {
        "random": draw.normal(size=world[2].shape),
        "shuffled": world[2][draw.permutation(COUNT)],
        "turned round": -world[2],
        "mismatched by heart": by_heart,
        "all labels by heart": world[3],
    }


@pytest.mark.parametrize(
    "kind", ["random", "shuffled", "turned round", "mismatched by heart", "all labels by heart"]
)
def test_a_useless_or_hostile_judge_takes_nothing_away(world, alone, kind):
    detector, found = fitted(world, (hostile(world)[kind], world[3]))
    assert found > alone - 0.002
    counted = JUDGE in detector.verdicts.names
    assert counted != (NOT_COUNTED in detector.verdicts.warnings)
    assert kind in ("random", "shuffled") or not counted


def test_agreement_by_hand():
    draw = np.random.default_rng(2)
    matched = draw.random(2000) < 0.5
    own, null = draw.normal(3.0 * matched)[:, None], draw.normal(size=(4000, 1))
    assert agrees(draw.normal(2.0 * matched), own, null)
    assert not agrees(draw.normal(-2.0 * matched), own, null)
    assert not agrees(draw.normal(2.0, size=2000), own, null)  # of every labelled pair the same
    nothing = np.zeros((2000, 0))
    assert agrees(draw.normal(size=2000), nothing, nothing)  # nobody to ask
