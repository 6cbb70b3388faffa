"""NoiseDetector: planted truth, honesty where nothing can be known, what it takes, what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.planted_embeddings import Clusters, blind, clusters

from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.vectors import unit_rows
from pmpguard.errors import ConfigError, DataError
from pmpguard.evaluation.detection import auroc


@pytest.fixture
def float64_default() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def fitted(given: Clusters, **options: Any) -> NoiseDetector:
    return NoiseDetector(**{"bootstrap": 0, **options}).fit(given.texts, given.images, None, given.image_of)


@pytest.mark.parametrize("rate", [0.2, 0.4])
@pytest.mark.parametrize("dims", [(24, 40), (24, 24)])
def test_planted_mismatches_of_one_caption_per_image_are_found(rate: float, dims: tuple[int, int]) -> None:
    given = clusters(800, rate, dims=dims)
    found = fitted(given)
    assert auroc(-found.p_match, given.is_mismatched) > 0.97
    assert found.noise_rate == pytest.approx(given.is_mismatched.mean(), abs=0.05)
    assert ("similarity" in found.evidence) == (dims[0] == dims[1])
    assert found.verdicts.informative


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.0, 0.6, 0.8])
def test_no_mismatch_and_mostly_mismatches_are_told(rate: float) -> None:
    given = clusters(1500, rate)
    found = fitted(given)
    assert found.noise_rate == pytest.approx(given.is_mismatched.mean(), abs=0.05 if rate < 0.7 else 0.07)
    if rate:
        assert auroc(-found.p_match, given.is_mismatched) > 0.97


def test_several_captions_per_image_agree_with_each_other() -> None:
    given = clusters(200, 0.4, per_image=4)
    found = fitted(given)
    assert "caption_agreement" in found.evidence and "caption_agreement" not in str(found.left_out)
    assert auroc(-found.p_match, given.is_mismatched) > 0.97
    assert found.noise_rate == pytest.approx(given.is_mismatched.mean(), abs=0.05)


def test_image_level_noise_is_noticed() -> None:
    given = clusters(300, 0.3, per_image=4, level="image")
    found = fitted(given)
    assert any("image-level noise" in warning for warning in found.verdicts.warnings)
    assert "caption_agreement" not in found.verdicts.measured_names and "competition" not in found.evidence
    assert auroc(-found.p_match, given.is_mismatched) > 0.95
    assert not any("image-level" in w for w in fitted(clusters(300, 0.3, per_image=4)).verdicts.warnings)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("pairs", "least"), [(200, 0.8), (300, 0.9), (1000, 0.9)])
def test_no_pair_vouches_for_itself_where_every_caption_is_wrong(pairs: int, least: float, seed: int) -> None:
    """A pair believed in one round could teach the next to believe it; folds forbid that."""
    found = NoiseDetector(bootstrap=0, seed=seed).fit(*blind(pairs, seed=seed))
    assert found.noise_rate >= least
    assert not found.verdicts.informative or found.p_match.mean() < 0.2
    for name in ("regression", "reverse_regression", "neighbour_text", "neighbour_image"):
        null = found.collected.evidence[name].arrays()[1]
        raw = found.collected.evidence[name].arrays()[0]
        same = np.repeat([True, False], [len(raw), len(null)])
        assert auroc(np.concatenate([raw, null]), same) == pytest.approx(0.5, abs=1.2 / pairs**0.5), name


@pytest.mark.slow
@pytest.mark.parametrize("dims", [(32, 48), (384, 640)])
def test_of_a_hundred_pairs_of_noise_chance_passes_for_evidence_in_no_draw_of_ten(
    dims: tuple[int, int],
) -> None:
    """Also where there are more dimensions than pairs, in which every vector tells what the others lack."""
    for seed in range(10):
        given = blind(100, dims, seed)
        assert not NoiseDetector(bootstrap=0, seed=seed).fit(*given).verdicts.informative, seed


@pytest.mark.parametrize(("rate", "noise", "least"), [(0.2, 1.0, 0.75), (0.6, 0.5, 0.9)])
def test_of_a_hundred_pairs_with_a_signal_it_is_seen(rate: float, noise: float, least: float) -> None:
    given = clusters(100, rate, noise=noise)
    found = fitted(given)
    assert found.verdicts.informative and auroc(-found.p_match, given.is_mismatched) > least


def test_evidence_of_a_pair_does_not_depend_on_its_own_clean_probability() -> None:
    """Pairs of one fold are judged alike, whatever stands in their own fold's labels."""
    given = clusters(200, 0.3)
    folds = np.arange(200) % 4
    detector = NoiseDetector(bootstrap=0)
    pairs = (given.texts, given.images)
    first = detector.fit(*pairs, image_folds=folds).collected.evidence
    # texts of two pairs of fold 0 change places: all that others' folds learn of them is another
    text_of = np.arange(200)
    text_of[[0, 4]] = text_of[[4, 0]]
    measures = detector.collected.measures
    asked = torch.tensor([8, 12]), torch.tensor([8, 12]), torch.tensor([8, 12])
    before = {name: measures[name](*asked) for name in ("regression", "neighbour_text")}
    swapped = NoiseDetector(bootstrap=0).fit(*pairs, text_of, image_folds=folds)
    for name, values in before.items():
        # rounds that judge fold 0 never saw the exchanged pairs, but for the null pairs of the discriminant
        torch.testing.assert_close(swapped.collected.measures[name](*asked), values, rtol=0, atol=0.05)
        torch.testing.assert_close(first[name].observed[[8, 12]], values)


def test_the_order_of_pairs_does_not_matter() -> None:
    given = clusters(300, 0.3)
    order = np.random.default_rng(0).permutation(300)
    rows = np.arange(300)
    plain = NoiseDetector(bootstrap=0).fit(given.texts, given.images, rows, rows)
    permuted = NoiseDetector(bootstrap=0).fit(given.texts, given.images, order, order)
    assert permuted.noise_rate == pytest.approx(plain.noise_rate, abs=0.03)
    assert np.abs(permuted.p_match - plain.p_match[order]).mean() < 0.03


def test_arrays_tensors_lists_and_half_precision_give_the_same() -> None:
    given = clusters(150, 0.3)
    expected = NoiseDetector(bootstrap=0).fit(given.texts, given.images).p_match
    assert expected.dtype == np.float64 and expected.shape == (150,)
    for texts, images in (
        (given.texts.numpy(), given.images.numpy()),
        (given.texts.double(), given.images.double().numpy()),
        (given.texts.tolist(), given.images.tolist()),
    ):
        np.testing.assert_allclose(NoiseDetector(bootstrap=0).fit(texts, images).p_match, expected, atol=1e-5)
    rough = NoiseDetector(bootstrap=0).fit(given.texts.half(), given.images.bfloat16()).p_match
    assert np.abs(rough - expected).mean() < 0.05


def test_the_default_number_type_changes_nothing(float64_default: None) -> None:
    given = clusters(150, 0.3, per_image=2)
    found = fitted(replace(given, texts=given.texts.double()))
    assert found.clean_probability.dtype == torch.float32
    torch.set_default_dtype(torch.float32)
    np.testing.assert_allclose(found.p_match, fitted(given).p_match, atol=1e-6)


def test_the_same_seed_gives_the_same_and_gradients_do_not_leak() -> None:
    given = clusters(150, 0.3)
    given.texts.requires_grad_()
    first, again = fitted(given), fitted(given)
    np.testing.assert_array_equal(first.p_match, again.p_match)
    assert not first.clean_probability.requires_grad


def test_equal_texts_share_a_row() -> None:
    given = clusters(300, 0.0)
    text_of = np.arange(300)
    text_of[:60] = np.roll(np.arange(60), 7) + 100  # texts that stand on their own image, too
    wrong = text_of != np.arange(300)
    found = NoiseDetector(bootstrap=0).fit(given.texts, given.images, text_of)
    assert len(found.p_match) == 300
    assert auroc(-found.p_match, wrong) > 0.95


def test_the_interval_holds_the_estimate() -> None:
    found = fitted(clusters(300, 0.3), bootstrap=30)
    low, high = found.noise_rate_interval
    assert 0 <= low <= found.noise_rate <= high <= 1 and high - low < 0.3
    assert fitted(clusters(60, 0.3)).noise_rate_interval == (0.0, 1.0)  # not asked for: nothing is claimed


def test_evidence_is_standardised_by_null_pairs() -> None:
    found = fitted(clusters(200, 0.3, dims=(24, 24)))
    null = found.collected.evidence["similarity"].arrays()[1]
    raw = found.collected.evidence["similarity"].arrays()[0]
    np.testing.assert_allclose(found.evidence["similarity"], (raw - null.mean()) / null.std())
    assert all(values.shape == (200,) and np.isfinite(values).all() for values in found.evidence.values())


@pytest.mark.parametrize("side", ["texts", "images"])
@pytest.mark.parametrize("dims", [(8, 8), (8, 5)])
def test_a_constant_side_is_said_to_say_nothing(side: str, dims: tuple[int, int]) -> None:
    texts, images = blind(200, dims)
    (texts if side == "texts" else images)[:] = 1.0
    found = NoiseDetector(bootstrap=0).fit(texts, images)
    assert not found.verdicts.informative and (found.p_match == 1).all()
    assert any(reason.startswith(f"{side}: all vectors are equal") for reason in found.left_out)
    assert any("says nothing" in warning for warning in found.verdicts.warnings)


def test_nothing_is_held_against_pairs_where_all_vectors_are_equal() -> None:
    found = NoiseDetector(bootstrap=0).fit(np.ones((200, 4)), np.ones((200, 6)))
    assert (found.p_match == 1).all() and found.noise_rate == 0
    assert sum(reason.startswith(("texts: ", "images: ")) for reason in found.left_out) == 2
    assert any("says nothing" in warning for warning in found.verdicts.warnings)


@pytest.mark.parametrize("pairs", [2, 3, 5, 12])
def test_a_handful_of_pairs_is_judged_with_a_warning(pairs: int) -> None:
    found = NoiseDetector(bootstrap=3).fit(*blind(pairs, (4, 6)))
    assert np.isfinite(found.p_match).all() and len(found.p_match) == pairs
    assert any(f"only {pairs} pairs" in warning for warning in found.verdicts.warnings)
    assert found.noise_rate_interval == (0.0, 1.0)  # nothing is claimed


NOT_FINITE, ZERO = blind(10, (4, 4))
NOT_FINITE[3, 1], ZERO[2] = np.nan, 0.0
TEN, MORE = blind(10, (4, 4))[0], blind(30, (4, 4))[0]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ((TEN[:1], TEN[:1]), "no mismatched pair can be formed"),
        ((TEN, TEN[:1], None, np.zeros(10, int)), "no mismatched pair can be formed"),
        ((NOT_FINITE, TEN), "texts row 3: not finite"),
        ((TEN, NOT_FINITE * np.inf), "images row 0: not finite"),
        ((TEN, ZERO), "images row 2: not finite or all zero"),
        ((MORE, TEN), "text_of has 30 rows but image_of 10"),
        ((TEN, MORE), "text_of has 10 rows but image_of 30"),
        ((TEN * 1j, TEN), "texts: complex numbers"),
        ((TEN, torch.from_numpy(TEN) * 1j), "images: complex numbers"),
        ((TEN, TEN, np.arange(10) + 1), "text_of row 9: 10 is not one of the 10"),
        ((TEN, TEN, None, np.arange(10) - 1), "image_of row 0: -1 is not one of the 10"),
        ((TEN, TEN, np.arange(9)), "text_of has 9 rows but image_of 10"),
        ((TEN, TEN, np.arange(10) + 0.5), "text_of: float64 numbers no rows"),
        ((TEN, TEN, [], []), "text_of has shape"),
        ((TEN[:0], TEN[:0]), "texts: shape"),
        ((TEN[0], TEN[0]), "texts: shape"),
        (([["a", "b"]] * 4, TEN[:4]), "texts: could not convert"),
        ((TEN[:2], [[1, 2], [3]]), "images: setting an array element"),
    ],
)
def test_unusable_input_is_named(given: tuple[Any, ...], told: str) -> None:
    with pytest.raises(DataError, match=told) as caught:
        NoiseDetector(bootstrap=0).fit(*given)
    assert "Fix:" in str(caught.value) or "shape" in told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"common_space": True}, "common_space: texts have 4 dimensions but images 6"),
        ({"image_labels": [0] * 9}, r"image_labels: shape \(9,\), expected \(10,\)"),
        ({"image_labels": ["park"] * 10}, "image_labels: <U4 is no whole number"),
        ({"image_folds": [0, 1]}, r"image_folds: shape \(2,\), expected \(10,\)"),
        ({"image_folds": np.arange(10) % 2 + 0.5}, "image_folds: float64 is no whole number"),
        ({"image_folds": np.arange(10) - 1}, "image_folds row 0: -1 is negative"),
        ({"image_folds": torch.full((10,), 3)}, "all 10 images are in fold 3"),
    ],
)
def test_unusable_classes_folds_and_spaces_are_named(given: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=told) as caught:
        NoiseDetector(bootstrap=0).fit(*blind(10, (4, 6)), **given)
    assert caught.value.fix


def test_folds_may_be_numbered_with_gaps() -> None:
    given, folds = clusters(120, 0.3), np.arange(120) % 2
    found = [
        NoiseDetector(bootstrap=0).fit(given.texts, given.images, image_folds=each).p_match
        for each in (folds, folds * 1_000_000_000)
    ]
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"folds": 1}, "folds: 1 is no whole number from 2"),
        ({"rounds": 2.5}, "rounds: 2.5 is no whole number from 1"),
        ({"rounds": 0}, "rounds: 0 is"),
        ({"neighbours": 0}, "neighbours: 0 is"),
        ({"neighbours": -3}, "neighbours: -3 is"),
        ({"bootstrap": -1}, "bootstrap: -1 is no whole number from 0"),
        ({"bootstrap": True}, "bootstrap: True is"),
    ],
)
def test_options_that_count_nothing_are_named(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        NoiseDetector(**options)
    assert caught.value.fix


@pytest.mark.parametrize("device", ["cuda", "abacus"])
def test_a_device_that_is_not_there_is_named(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"device: .?{device}"):
        NoiseDetector(device=device).fit(TEN, TEN)


def test_more_texts_than_images_are_fine_with_numbers() -> None:
    texts = blind(300, (6, 6))[0]
    found = NoiseDetector(bootstrap=0).fit(texts, texts[::3], None, np.arange(300) // 3)
    assert len(found.p_match) == 300


def test_further_evidence_is_weighed_with_the_rest() -> None:
    given = clusters(300, 0.5, noise=2.0)
    truth = torch.from_numpy(given.own)

    def knows(texts: torch.Tensor, images: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        draw = torch.rand(len(texts), generator=torch.Generator().manual_seed(len(texts)))
        return (truth[texts] == images) * 3.0 + draw

    alone = NoiseDetector(bootstrap=0).fit(given.texts, given.images)
    helped = NoiseDetector(bootstrap=0).fit(given.texts, given.images, more={"judge": knows})
    assert "judge" in helped.evidence
    told, before = (auroc(-found.p_match, given.is_mismatched) for found in (helped, alone))
    assert told > 0.99 > before


def test_unit_rows_are_float32_of_length_one() -> None:
    rows = unit_rows(np.full((2, 4), 2.0, np.float16), "x")
    assert rows.dtype == torch.float32 and rows.tolist() == [[0.5] * 4] * 2


def test_what_is_approximate_is_said() -> None:
    given = clusters(300, 0.2)
    assert not any("exact neighbours" in said for said in fitted(given).left_out)
    found = NoiseDetector(bootstrap=0, exact_up_to=200).fit(given.texts, given.images)
    assert any("exact neighbours" in said for said in found.left_out)
    assert auroc(-found.p_match, given.is_mismatched) > 0.9


def test_a_detector_shows_itself_in_a_few_lines():
    assert repr(NoiseDetector()) == "NoiseDetector(rounds=3, seed=0), not fitted"
    draw = np.random.default_rng(0)
    scenes = draw.normal(size=(300, 8))
    fitted = NoiseDetector(bootstrap=0).fit(
        scenes @ draw.normal(size=(8, 12)), scenes @ draw.normal(size=(8, 20))
    )
    text = repr(fitted)
    assert text.startswith("NoiseDetector of 300 pairs") and "left out: similarity" in text
    assert "(no interval asked for)" in text and "100.0%" not in text
    assert len(text.splitlines()) < 8
