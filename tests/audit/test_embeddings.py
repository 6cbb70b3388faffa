"""Evidence from embeddings: every part against loops, its sum against each part, captions wrong together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.planted_pairs import planted
from pmpguard.audit.embeddings import audit_embeddings, embedding_evidence, unit_rows
from pmpguard.detection.verdicts import judge_evidence
from sklearn.metrics import roc_auc_score

from pmpguard.detection import verdicts as audit_evidence
from pmpguard.detection.evidence.caption_agreement import image_level_mismatch
from pmpguard.errors import DataError


def unit(values):
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def test_parts_against_loops():
    pairs = planted(images=12, per_image=3, dim=5)
    evidence = embedding_evidence(
        pairs.images, pairs.captions, pairs.image_of, np.arange(36), mismatched_count=200
    )
    images, captions = unit(pairs.images), unit(pairs.captions)
    cosines = captions @ images.T
    centred = unit(captions - captions.mean(0))
    looks = unit(images - images.mean(0))
    raw = np.zeros((36, 3))
    for row, image in enumerate(pairs.image_of):
        by_caption = (cosines[row, image] - cosines[row].mean()) / cosines[row].std()
        by_image = (cosines[row, image] - cosines[:, image].mean()) / cosines[:, image].std()
        raw[row, 0] = by_caption + by_image
        siblings = [
            centred[row] @ centred[other]
            for other in range(36)
            if pairs.image_of[other] == image and other != row
        ]
        raw[row, 2] = np.mean(sorted(siblings)[-2:])
    consensus = []
    for image in range(12):
        near = np.argsort(
            [-np.inf if other == image else looks[image] @ looks[other] for other in range(12)]
        )[-10:]
        consensus.append(np.mean([centred[pairs.image_of == other].mean(0) for other in near], axis=0))
    told = centred @ unit(np.array(consensus)).T
    for row, image in enumerate(pairs.image_of):
        raw[row, 1] = (told[row, image] - told[row].mean()) / told[row].std()
        raw[row, 1] += (told[row, image] - told[:, image].mean()) / told[:, image].std()
    assert evidence.names == ("score", "neighbours", "agreement", "mapped", "said", "shown")
    for part in range(3):  # equal up to the shift and scale that standardise mismatched pairs
        slope, constant = np.polyfit(raw[:, part], evidence.labelled[:, part], 1)
        assert slope > 0
        np.testing.assert_allclose(evidence.labelled[:, part], slope * raw[:, part] + constant, atol=2e-3)
    np.testing.assert_allclose(evidence.wrong.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(evidence.wrong.std(0), 1, atol=1e-9)


@pytest.mark.parametrize(("rate", "by"), [(0.2, 0.05), (0.5, 0.03), (0.8, 0.0)])
def test_all_parts_together_beat_the_score(rate, by):
    """In data without neighbours, four hundred right pairs are few to weigh seven parts by."""
    pairs = planted(images=500, rate=rate, whiten=1.2, dim=24, blur=1.5)
    found = audit_embeddings(pairs.images, pairs.captions, pairs.image_of, np.arange(len(pairs.captions)))
    score = roc_auc_score(~pairs.wrong, found.parts[:, 0])
    combined = roc_auc_score(~pairs.wrong, found.combined)
    assert combined > score + by and combined > 0.85
    assert found.verdicts.mismatch_rate == pytest.approx(pairs.wrong.mean(), abs=0.12)
    np.testing.assert_allclose(found.judge(found.parts, found.names), found.p_measured)


def test_a_random_caption_is_judged_like_a_wrong_one():
    pairs = planted(images=300, rate=0.3, seed=3)
    evidence = embedding_evidence(pairs.images, pairs.captions, pairs.image_of, np.arange(1200))
    wrong = evidence.labelled[pairs.wrong]
    for part in range(wrong.shape[1]):
        assert abs(np.mean(wrong[:, part])) < 0.25


def test_one_caption_an_image_has_no_agreement():
    pairs = planted(images=300, per_image=1)
    found = audit_embeddings(pairs.images, pairs.captions)
    assert found.names == ("score", "neighbours", "mapped", "said", "shown", "competitors")
    assert roc_auc_score(pairs.wrong, -found.combined) > 0.9


def test_an_image_with_one_caption_among_others_gets_nothing_for_it():
    pairs = planted(images=100, per_image=4, rate=0.3)
    keep = np.ones(400, bool)
    keep[1:4] = False  # image 0 keeps one caption
    evidence = embedding_evidence(pairs.images, pairs.captions, pairs.image_of[keep], np.flatnonzero(keep))
    caption_agreement = evidence.labelled[:, evidence.names.index("agreement")]
    captions = torch.tensor([5, 9, 300])
    asked = evidence.measure(captions, torch.zeros(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64))
    np.testing.assert_allclose(asked[:, evidence.names.index("agreement")], caption_agreement[0])


def exchanged(images=300, rate=0.3, seed=0):
    """Images exchanged: the captions of an image are wrong together, and agree."""
    pairs = planted(images=images, rate=0.0, seed=seed)
    moved = np.flatnonzero(np.random.default_rng(seed).random(images) < rate)
    place = np.arange(images)
    place[moved] = np.roll(moved, 1)
    return pairs, pairs.images[place], np.isin(pairs.image_of, moved)


def test_captions_that_are_wrong_together_do_not_vouch_for_each_other():
    pairs, images, wrong = exchanged()
    found = audit_embeddings(images, pairs.captions, pairs.image_of, np.arange(1200))
    assert any("wrong together" in warning for warning in found.warnings)
    assert found.verdicts.mismatch_rate == pytest.approx(wrong.mean(), abs=0.06)
    assert roc_auc_score(wrong, -found.combined) > 0.95
    np.testing.assert_allclose(found.judge(found.parts, found.names), found.verdicts.p_match)


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8])
def test_captions_wrong_one_by_one_may_vouch(rate):
    pairs = planted(images=300, rate=rate)
    found = audit_embeddings(pairs.images, pairs.captions, pairs.image_of, np.arange(1200))
    assert not any("wrong together" in warning for warning in found.warnings)


def test_right_captions_that_score_low_are_not_taken_for_exchanged_images():
    generator = np.random.default_rng(0)
    image_of = np.repeat(np.arange(200), 4)
    p_match = np.where(generator.random(800) < 0.2, 0.0, 1.0)  # scattered over images
    agreeing = generator.normal(3, 1, 800)
    assert not image_level_mismatch(p_match, image_of, agreeing, generator.normal(size=5000))
    whole = np.repeat(generator.random(200) < 0.2, 4)
    assert image_level_mismatch(np.where(whole, 0.0, 1.0), image_of, agreeing, generator.normal(size=5000))


def test_folds_are_judged_as_one():
    parts = [planted(images=150, rate=0.4, seed=seed) for seed in (1, 2)]
    evidences = [embedding_evidence(p.images, p.captions, p.image_of, np.arange(600)) for p in parts]
    found = judge_evidence(evidences)
    truth = np.concatenate([p.wrong for p in parts])
    assert len(found.combined) == 1200
    assert roc_auc_score(truth, -found.combined) > 0.97
    assert found.verdicts.mismatch_rate == pytest.approx(truth.mean(), abs=0.05)


def copied(rate, seed=0, images=400, places=4):
    """Every image carries captions of its own or, at `rate`, copies of any: caption c describes image c."""
    generator = np.random.default_rng(seed)
    scenes = generator.standard_normal((images, 24))
    looks, texts = (scenes + 1.1 * generator.standard_normal(scenes.shape) for _ in range(2))
    image_of = np.repeat(np.arange(images), places)
    wrong = generator.random(len(image_of)) < rate
    caption_of = np.where(wrong, generator.integers(images, size=len(image_of)), image_of)
    return looks, texts, image_of, caption_of, caption_of != image_of


@pytest.mark.parametrize("rate", [0.4, 0.7])
def test_captions_that_stand_on_several_images_are_told_better(rate, monkeypatch):
    looks, texts, image_of, caption_of, wrong = copied(rate)
    evidence = embedding_evidence(looks, texts, image_of, caption_of)
    found = judge_evidence([evidence], bootstrap=20)
    assert found.names[-1] == "competitors"
    told, before = (roc_auc_score(~wrong, p) for p in (found.combined, found.p_measured))
    assert told > before + 0.003
    np.testing.assert_allclose(found.judge(found.parts, found.names), found.p_measured)
    monkeypatch.setattr(audit_evidence, "_rivals", lambda *_: None)
    without = judge_evidence([evidence], bootstrap=20)
    np.testing.assert_array_equal(without.verdicts.p_match, found.p_measured)
    assert (
        found.verdicts.mismatch_rate == without.verdicts.mismatch_rate
    )  # competitors say which, not how many
    assert found.verdicts.mismatch_interval == without.verdicts.mismatch_interval


def test_rivals_are_found_in_other_folds_by_their_strings():
    looks, texts, image_of, caption_of, wrong = copied(0.6)
    folds = [image_of % 2 == fold for fold in (0, 1)]
    evidences, strings = [], []
    for fold, rows in enumerate(folds):
        neighbour_text, numbers = np.unique(caption_of[rows], return_inverse=True)
        evidences.append(
            embedding_evidence(looks[fold::2], texts[neighbour_text], image_of[rows] // 2, numbers)
        )
        strings.append(neighbour_text)
    truth = np.concatenate([wrong[rows] for rows in folds])
    apart, together = (judge_evidence(evidences, given, bootstrap=0) for given in (None, strings))
    alone, told = (roc_auc_score(~truth, found.combined) for found in (apart, together))
    assert told > alone + 0.002


def test_a_few_repeated_captions_upset_nothing():
    """Where captions read alike no others, hardly any has a competitor: none is lifted or condemned."""
    for seed in range(4):
        pairs = planted(images=1000, per_image=1, rate=0.3, seed=seed)
        caption_of = np.arange(1000)
        caption_of[np.flatnonzero(pairs.wrong)[:2]] = 0
        evidence = embedding_evidence(pairs.images, pairs.captions, pairs.image_of, caption_of)
        found = judge_evidence([replace(evidence, alike=None)], bootstrap=0)
        assert "competitors" not in found.names
        np.testing.assert_array_equal(found.verdicts.p_match, found.p_measured)
        with_alike = judge_evidence([evidence], bootstrap=0)
        told, before = (roc_auc_score(~pairs.wrong, one.combined) for one in (with_alike, found))
        assert told > before - 0.01


def test_copies_on_exchanged_images_are_no_rivals():
    """All captions of an image move together: the image they came from carries them no longer."""
    looks, texts, image_of, _, _ = copied(0.0)
    moved = np.arange(400) < 160
    neighbour_text = np.where(moved, np.roll(np.arange(400), 1), np.arange(400))
    neighbour_text[0] = 159  # a circle of image-level noise
    whiten = np.repeat(texts, 4, axis=0) + 0.2 * np.random.default_rng(1).standard_normal((1600, 24))
    caption_of = 4 * neighbour_text[image_of] + np.tile(np.arange(4), 400)
    caption_of[np.flatnonzero(~moved[image_of])[:200]] = 0  # copies enough for competitors
    found = audit_embeddings(looks, whiten, image_of, caption_of, bootstrap=0)
    assert any("wrong together" in warning and "competitors" in warning for warning in found.warnings)
    assert "competitors" not in found.names


def test_a_fold_without_siblings_is_judged_by_what_both_folds_know():
    several, alone = planted(images=150, rate=0.4, seed=1), planted(images=300, per_image=1, rate=0.4, seed=2)
    evidences = [
        embedding_evidence(p.images, p.captions, p.image_of, np.arange(len(p.captions)))
        for p in (several, alone)
    ]
    found = judge_evidence(evidences, bootstrap=0)
    assert found.names == ("score", "neighbours", "mapped", "said", "shown") and len(evidences[0].names) == 6
    answers = [found.judge(evidence.labelled, evidence.names) for evidence in evidences]
    np.testing.assert_allclose(np.concatenate(answers), found.p_measured)


@pytest.mark.parametrize(
    ("images", "captions", "said"),
    [
        (np.ones((3, 4)), np.ones((3, 5)), "dimensions"),
        (np.ones((3, 4)), np.array([[1.0] * 4, [0.0] * 4, [1.0] * 4]), "captions row 1"),
        (np.full((3, 4), np.nan), np.ones((3, 4)), "images row 0"),
        (np.ones(4), np.ones((3, 4)), "shape"),
    ],
)
def test_unusable_embeddings_are_named(images, captions, neighbour_text):
    with pytest.raises(DataError, match=neighbour_text):
        audit_embeddings(images, captions)


def test_half_precision_is_read():
    assert unit_rows(np.full((2, 4), 2.0, np.float16), "x").tolist() == [[0.5] * 4] * 2


def test_known_scene_classes_keep_pairs_that_fit_from_standing_for_wrong_ones():
    """Captions of one class fit all its images: of four classes, a quarter of the random pairs fit."""
    generator = np.random.default_rng(0)
    classes = np.repeat(np.arange(4), 300)
    images, captions = (np.eye(8)[classes] + 0.1 * generator.standard_normal((1200, 8)) for _ in range(2))
    wrong = generator.random(1200) < 0.2
    neighbour_text = np.where(wrong, (np.arange(1200) + 300) % 1200, np.arange(1200))  # of the next class
    for labels, share in ((None, 0.25), (classes, 0.2 / 3)):  # a wrong caption's own class is not known
        evidence = embedding_evidence(images, captions, np.arange(1200), neighbour_text, image_labels=labels)
        middle = (evidence.labelled[wrong, 0].mean() + evidence.labelled[~wrong, 0].mean()) / 2
        assert abs((evidence.wrong[:, 0] > middle).mean() - share) < 0.03
