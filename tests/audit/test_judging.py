"""Words on regions against loops, and captions proposed for images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from helpers.planted_pairs import planted

from pmpguard.audit.judging import (
    judge_parts,
    judge_together,
    judged_by_model,
    judged_part,
    mean_largest_cosines,
    numbers_in,
    unknown_words,
    word_region_measure,
)
from pmpguard.audit.proposals import picked_probability, propose_for_rows
from pmpguard.data.images.decode import load_pair_image
from pmpguard.data.images.sources import open_images
from pmpguard.data.pairs import PairTable
from pmpguard.detection.detector import NoiseDetector
from pmpguard.detection.vectors import unit_rows
from pmpguard.evaluation.detection import auroc
from pmpguard.models.config import preset
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.synthetic.scenes import synthetic_scenes, write_world
from pmpguard.training import kept_vectors


def encoded(count, fragments, dim=5, seed=0, masked=False):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(count, fragments + 1, dim, generator=generator)
    values = values / values.norm(dim=-1, keepdim=True)
    mask = torch.ones(count, fragments, dtype=torch.bool)
    if masked:
        lengths = torch.randint(1, fragments + 1, (count, 1), generator=generator)
        mask = torch.arange(fragments) < lengths
    return Encoded(values[:, 0], values[:, 1:], mask)


def naive(captions, images, caption, image):
    best = [
        max(float(word @ region) for region in images.fragments[image])
        for word, real in zip(captions.fragments[caption], captions.mask[caption], strict=True)
        if real
    ]
    return np.mean(best)


def test_words_on_regions_against_loops():
    captions, images = encoded(7, 4, seed=1, masked=True), encoded(6, 3, seed=2)
    every = np.array([[naive(captions, images, c, i) for i in range(6)] for c in range(7)])
    np.testing.assert_allclose(mean_largest_cosines(captions, images).numpy(), every, atol=1e-6)
    measure = word_region_measure(captions, images, references=100)
    asked = torch.tensor([0, 3, 6, 3]), torch.tensor([5, 0, 2, 3])
    found = measure(*asked, asked[0])
    for place, (c, i) in enumerate(zip(*(numbers.tolist() for numbers in asked), strict=True)):
        by_caption = (every[c, i] - every[c].mean()) / every[c].std()
        by_image = (every[c, i] - every[:, i].mean()) / every[:, i].std()
        assert found[place].item() == pytest.approx((by_caption + by_image) / np.sqrt(2), rel=1e-3)
    halves = (items.to(dtype=torch.float16) for items in (captions, images))  # as large sets are kept
    kept = word_region_measure(*halves, references=100)(*asked, asked[0])
    torch.testing.assert_close(kept, found, rtol=0, atol=0.01)


@pytest.fixture(scope="module")
def judged():
    pairs = planted(images=120, rate=0.4, seed=4, noise=0.6)
    return pairs, NoiseDetector(bootstrap=0).fit(pairs.captions, pairs.images, None, pairs.image_of)


def propose(judged, rows, count):
    pairs, detector = judged
    return propose_for_rows(
        unit_rows(pairs.captions, "captions"),
        unit_rows(pairs.images, "images"),
        torch.arange(480), torch.from_numpy(pairs.image_of), detector.collected, detector.verdicts, rows,
        count,
    )  # fmt: skip


def test_proposals_describe_the_image(judged):
    pairs, detector = judged
    rows = np.flatnonzero(detector.verdicts.flag)
    found = propose(judged, rows, 3)
    assert found.captions.shape == found.p_match.shape == (len(rows), 3)
    assert (np.diff(found.p_match, axis=1) <= 1e-12).all()
    described = pairs.own[found.captions[:, 0]] == pairs.image_of[rows]
    has_one_elsewhere = np.array(
        [((pairs.own == image) & (pairs.image_of != image)).any() for image in pairs.image_of[rows]]
    )
    better = found.p_match[:, 0] > np.median(found.p_match[:, 0])
    assert described[better & has_one_elsewhere].mean() > 0.6
    assert described[better].mean() > described[~better].mean()


def test_what_a_image_carries_already_is_not_proposed(judged):
    pairs, detector = judged
    rows = np.flatnonzero(detector.verdicts.flag)
    found = propose(judged, rows, 5)
    for row, captions in zip(rows, found.captions, strict=True):
        assert not set(captions.tolist()) & set(
            np.flatnonzero(pairs.image_of == pairs.image_of[row]).tolist()
        )


def test_a_proposal_is_judged_as_if_it_were_the_label(judged):
    pairs, detector = judged
    rows = np.flatnonzero(detector.verdicts.flag)[:4]
    found = propose(judged, rows, 2)
    for place, row in enumerate(rows):
        for caption, p_match in zip(found.captions[place], found.p_match[place], strict=True):
            numbers = [torch.tensor([int(value)]) for value in (caption, pairs.image_of[row], row)]
            measured = detector.collected.measure(*numbers)
            as_label = detector.verdicts.judge(measured, tuple(detector.collected.measures))
            wanted = picked_probability(as_label, detector.verdicts.p_measured, 1 - detector.noise_rate)
            assert wanted[0] == pytest.approx(p_match, abs=0.01)  # one null pair more or less above it


def test_a_large_collection_kept_in_half_floats_is_judged_like_a_small_one(judged, monkeypatch):
    pairs, detector = judged
    names = [f"{image:03d}.png" for image in pairs.image_of]
    table = PairTable.from_columns({"image": names, "caption": [f"caption {row}" for row in range(480)]})
    monkeypatch.setattr("pmpguard.detection.detector.LARGE_SET", 100)
    large = NoiseDetector(bootstrap=0, folds=2).fit(
        pairs.captions, pairs.images, table.caption_codes, table.image_codes
    )
    assert large.vectors[0].dtype == torch.float16
    rows, verdicts = judge_parts(
        table, [judged_part(table, large)], proposals=2, heat_maps=0, bootstrap=0, seed=0
    )
    assert len(rows) == 480 and all(row.proposals for row in rows if row.flag)
    assert (verdicts.flag == detector.verdicts.flag).mean() > 0.95


def test_nothing_asked_nothing_proposed(judged):
    assert propose(judged, np.empty(0, np.int64), 3).captions.shape == (0, 3)


def test_unknown_words_are_counted():
    model = Retriever.create(preset("tiny", dim=8), ["a red roof"])
    assert unknown_words(model, ["a red roof", "one blue roof"]) == pytest.approx(2 / 6)


def test_every_pair_gets_the_vectors_of_its_own_caption_and_image(tmp_path, monkeypatch):
    table = write_world(synthetic_scenes(12, size=32), tmp_path / "world")
    table = table.with_column("caption", [table.captions[7], *table.captions[1:]])  # one caption, two images
    torch.manual_seed(0)
    model = Retriever.create(preset("tiny", dim=32, image_size=32), table.captions).eval()
    rows = np.random.default_rng(0).permutation(len(table))[:40]
    rows = np.append(rows, [row for row in (0, 7) if row not in rows])
    pixels = open_images(table.take(rows), 32, torch.device("cpu"))
    part = judged_by_model(model, table, rows, pixels)
    assert part.rows.tolist() == rows.tolist()
    texts = model.encode_texts([table.captions[row] for row in rows]).pooled
    images = model.encode_images([load_pair_image(table, int(row)) for row in rows]).pooled
    torch.testing.assert_close(part.captions[part.text_of], texts, rtol=0, atol=1e-5)
    torch.testing.assert_close(part.images[part.image_of], images, rtol=0, atol=1e-5)
    assert [part.texts[code] for code in part.text_of.tolist()] == [table.captions[row] for row in rows]
    assert torch.pdist(part.captions).min() > 1e-3 and torch.pdist(part.images).min() > 1e-3  # told apart
    monkeypatch.setenv("PMPGUARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_vectors, "MAX_BYTES", 0)
    mapped = judged_by_model(model, table, rows, pixels)
    assert torch.equal(mapped.image_words.regions, part.image_words.regions)  # float16, either way
    torch.testing.assert_close(mapped.captions, part.captions, rtol=0, atol=1e-3)


def test_captions_and_images_of_a_part_are_known_by_their_numbers_in_the_table():
    images = ["u", "u", "v", "w", "w", "v"]
    captions = ["one", "two", "one", "three", "two", "four"]
    columns = {"image": images, "caption": captions, "split": ["train"] * 6}
    table = PairTable.from_columns(pa.table({"pair_id": list("abcdef"), **columns}))
    rows = np.array([4, 5, 2])
    part = table.take(rows)
    of_captions, of_images = numbers_in(table, part, rows)
    for place, row in enumerate(rows):
        assert of_captions[part.caption_codes[place]] == table.caption_codes[row]
        assert of_images[part.image_codes[place]] == table.image_codes[row]


def folded(pairs):
    """Parts of one table, each with the evidence of a detector that judged all of it."""
    table = PairTable.from_columns(
        {
            "image": [str(i) for i in pairs.image_of],
            "caption": [f"caption {r}" for r in range(len(pairs.wrong))],
        }
    )
    detector = NoiseDetector(bootstrap=0).fit(pairs.captions, pairs.images, None, pairs.image_of)
    return table, detector, judged_part(table, detector)


def test_a_whole_table_is_judged_as_its_detector_did():
    table, detector, part = folded(planted(images=100, rate=0.4))
    found = judge_together([part], bootstrap=0)
    np.testing.assert_allclose(found.p_match, detector.p_match)
    assert part.texts == table.captions and part.captions.shape[1] == part.images.shape[1]
    shown = (part.captions[part.text_of] * part.images[part.image_of]).sum(1).double().numpy()
    truth = planted(images=100, rate=0.4).wrong
    assert auroc(-shown, truth) > 0.9  # captions lie where the regression expects their images


def test_parts_are_judged_as_one():
    worlds = [planted(images=150, rate=0.4, seed=seed) for seed in (1, 2)]
    parts = []
    for number, world in enumerate(worlds):
        part = folded(world)[2]
        parts.append(
            replace(
                part,
                text_numbers=part.text_numbers + 600 * number,
                image_numbers=part.image_numbers + 150 * number,
            )
        )
    found = judge_together(parts, bootstrap=0)
    truth = np.concatenate([world.wrong for world in worlds])
    assert len(found.combined) == 1200
    assert auroc(-found.combined, truth) > 0.97
    assert found.noise_rate == pytest.approx(truth.mean(), abs=0.05)
    kinds = dict(parts[0].evidence.evidence)
    del kinds["caption_agreement"]
    without = replace(parts[0], evidence=replace(parts[0].evidence, evidence=kinds))
    assert (
        "caption_agreement" not in judge_together([without, parts[1]], bootstrap=0).names
    )  # not known to all
