"""PMPGuard's own parts: chunked gates, calibration on unseen pairs, detection, proposing and rematching."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.method_examples import batch, build
from helpers.planted_embeddings import blind, clusters
from torch import Tensor

from pmpguard.detection import judge
from pmpguard.detection.evidence.competition import competition_evidence
from pmpguard.detection.null_pairs import Evidence
from pmpguard.evaluation.detection import auroc
from pmpguard.losses.hinge import hinge_terms
from pmpguard.methods import pmpguard
from pmpguard.methods.detecting import KINDS, planned_repeats
from pmpguard.methods.method import TrainingView
from pmpguard.methods.pmpguard import PmpGuard, PmpGuardSettings
from pmpguard.models.attention.awareness import awareness_scores
from pmpguard.models.config import CrossGatedConfig, RetrieverConfig
from pmpguard.models.encoded import Encoded

PAIRS = 2000


def view(epoch: int, wrong: float = 0.4, noise: float = 0.5) -> tuple[TrainingView, torch.Tensor]:
    """A training set with embeddings right up to noise; `wrong` of the captions moved to other images."""
    generator = torch.Generator().manual_seed(5)
    images = torch.nn.functional.normalize(torch.randn(PAIRS // 4, 24, generator=generator), dim=-1)
    truth = torch.arange(PAIRS) // 4
    captions = images[truth] + noise * torch.randn(PAIRS, 24, generator=generator) / 24**0.5
    image_of = truth.clone()
    is_mismatched = torch.rand(PAIRS, generator=generator) < wrong
    image_of[is_mismatched] = (truth + 1 + torch.randint(0, PAIRS // 4 - 1, (PAIRS,), generator=generator))[
        is_mismatched
    ] % len(images)

    def encode() -> tuple[Encoded, Encoded]:
        def encoded(vectors: torch.Tensor) -> Encoded:
            unit = torch.nn.functional.normalize(vectors, dim=-1)
            return Encoded(unit, unit[:, None], torch.ones(len(unit), 1, dtype=torch.bool))

        return encoded(captions), encoded(images)

    return TrainingView(encode, torch.arange(PAIRS), image_of, epoch, seed=0), is_mismatched


def guard(pairs: int = PAIRS, **settings: Any) -> PmpGuard:
    small = build("pmpguard", **settings)
    return PmpGuard(small.retriever, small.settings, pairs)


def tokens_view(
    texts: Tensor, images: Tensor, image_of: Tensor | None = None, epoch: int = 0
) -> TrainingView:
    """A training set before its first epoch: encoders' tokens are known, nothing is learned."""

    def fail() -> tuple[Encoded, Encoded]:
        raise AssertionError("new layers say nothing before training")

    rows = torch.arange(len(texts))
    placed = rows if image_of is None else image_of
    return TrainingView(fail, rows, placed, epoch, 0, read_tokens=lambda: (texts, images))


def test_gates_in_chunks_give_the_same_cosines_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    given, found = batch(captions=12, images=12), []
    for chunk in (64, 5):
        monkeypatch.setattr(pmpguard, "GATED_AT_ONCE", chunk)
        method = build("pmpguard", cga=True)
        assert isinstance(method, PmpGuard) and method.retriever.cross_gated_attention is not None
        cosines = method._gated_cosines(given.texts, given.images)
        cosines.square().sum().backward()
        found.append((cosines.detach(), method.retriever.cross_gated_attention.attention.grad))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.slow
def test_calibration_images_are_not_trained_on_until_they_are_released() -> None:
    method = guard(detect_from_epoch=1, calibration_epochs=3, rematch=False, complementary=1.0)
    seen = view(0)[0]
    method.begin_epoch(seen)
    held = method._held_out(seen)
    assert method.kept_back is not None and torch.equal(method.kept_back, held)
    assert 0.12 < held.float().mean() < 0.28
    assert (method.weight[held] == 0).all() and (method.weight[~held] > 0.5).float().mean() > 0.3
    method.begin_epoch(view(2)[0])
    assert (method.weight[held] == 0).all() and (method.weight[~held] > 0.5).any()
    method.begin_epoch(view(3)[0])
    assert (method.weight[held] > 0.5).any() and not method.kept_back.any()


def test_before_any_training_captions_are_judged_by_how_they_agree() -> None:
    method = guard(detect_from_epoch=2, rematch=False)
    seen, is_mismatched = view(0)
    assert "estimated_mismatch_rate" in method.begin_epoch(seen).log
    assert method.p_match is not None
    first = method.p_match.clone()
    assert first[is_mismatched].mean() < 0.3 < 0.7 < first[~is_mismatched].mean()
    method.begin_epoch(view(1)[0])  # no score yet: the verdicts stay
    assert torch.equal(method.p_match, first)


def test_training_free_detection_reads_the_encoders_before_their_new_layers_and_is_remembered() -> None:
    method = guard(detect_from_epoch=1, rematch=False)
    seen, is_mismatched = view(0)
    tokens = seen.captions.pooled, seen.images.pooled

    def fail() -> tuple[Encoded, Encoded]:
        raise AssertionError("what the new layers make of the tokens says nothing yet")

    method.begin_epoch(replace(seen, encode=fail, read_tokens=lambda: tokens, _cache={}))
    assert method.p_match is not None
    assert method.p_match[is_mismatched].mean() < 0.3 < 0.7 < method.p_match[~is_mismatched].mean()
    before = method.remembered.clone(), method.null_remembered.clone()
    assert not any(values.isnan().any() for values in before)
    method.begin_epoch(view(1, noise=4.0)[0])
    assert torch.equal(method.remembered, before[0]) and torch.equal(method.null_remembered, before[1])
    assert method.support_weights[KINDS.index("regression")] > 0


def test_captions_of_exchanged_images_neither_vouch_for_each_other_nor_compete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(judge, "competition_evidence", None)  # asking for it would fail
    method = guard(detect_from_epoch=1, calibration=0.0, rematch=False)
    seen, _ = view(0, wrong=0.0)
    images = int(seen.image_of.max()) + 1
    moved = (torch.rand(images, generator=torch.Generator().manual_seed(2)) < 0.3).nonzero()[:, 0]
    place = torch.arange(images)
    place[moved] = moved.roll(1)
    exchanged = replace(seen, image_of=place[seen.image_of])
    is_mismatched = torch.isin(seen.image_of, moved)
    for epoch in (0, 1):
        values = method.begin_epoch(replace(exchanged, epoch=epoch, _cache={})).log
    assert values["estimated_mismatch_rate"] == pytest.approx(float(is_mismatched.float().mean()), abs=0.05)
    assert method.p_match is not None
    assert method.p_match[is_mismatched].mean() < 0.1 and method.p_match[~is_mismatched].mean() > 0.9
    assert method.support_weights[KINDS.index("caption_agreement")] == -1
    assert (method.evidence_weights == -1).all()  # with competition, which was never asked


def test_images_with_one_caption_are_judged_before_any_training() -> None:
    given = clusters(800, 0.4)
    method = guard(len(given.own), detect_from_epoch=1, calibration=0.0)
    found = method.begin_epoch(tokens_view(given.texts, given.images))
    assert found.log["judged"] == 1
    assert found.log["estimated_mismatch_rate"] == pytest.approx(given.is_mismatched.mean(), abs=0.05)
    assert method.p_match is not None
    assert auroc(-method.p_match.double().numpy(), given.is_mismatched) > 0.97
    assert float(method.weight[torch.from_numpy(given.is_mismatched)].mean()) < 0.2


def all_are_trained_on(method: PmpGuard, seen: TrainingView, told: str, caplog: Any) -> None:
    """Every label counts in full, the log says why, the metrics that nothing was judged."""
    with caplog.at_level("WARNING", logger="pmpguard"):
        plan = method.begin_epoch(seen)
    assert plan.weights is not None and (plan.weights == 1).all() and plan.partners is None
    assert method.p_match is not None and (method.p_match == 1).all()
    assert plan.log == {"judged": 0}  # nor is any rate known, nor any pair worth a second model
    assert method.kept_back is None or not method.kept_back.any()
    assert any("all are trained on" in message and told in message for message in caplog.messages)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("pairs", [300, 800])
def test_pure_noise_is_trained_on_like_any_labels(pairs: int, seed: int, caplog: Any) -> None:
    texts, images = (torch.from_numpy(each).float() for each in blind(pairs, seed=seed))
    method = guard(pairs, complementary=1.0)
    all_are_trained_on(method, tokens_view(texts, images), "hardly any pair looks matched", caplog)


@pytest.mark.parametrize("pairs", [2, 30, 99])
def test_tiny_sets_are_trained_on_whatever_they_look_like(pairs: int, caplog: Any) -> None:
    given = clusters(pairs, 0.3)
    method = guard(pairs)
    all_are_trained_on(method, tokens_view(given.texts, given.images), "captions cannot be judged", caplog)


@pytest.mark.parametrize("per_image", [1, 3])
def test_captions_in_an_unknown_script_are_trained_on(per_image: int, caplog: Any) -> None:
    """The encoder knows none of the letters: every caption has the same vector."""
    given = clusters(200, 0.3, per_image)
    method = guard(200 * per_image)
    seen = tokens_view(torch.ones_like(given.texts), given.images, given.image_of)
    all_are_trained_on(method, seen, "hardly any pair looks matched", caplog)


def test_what_was_blind_before_training_may_see_later(caplog: Any) -> None:
    """The model learns the unknown script, and judges from then on; only then are pairs held out."""
    method = guard(calibration=0.2, detect_from_epoch=1)
    seen, is_mismatched = view(0)
    unread = torch.ones(PAIRS, 8), seen.images.pooled
    plan = method.begin_epoch(replace(seen, read_tokens=lambda: unread))
    assert plan.log == {"judged": 0} and plan.weights is not None and (plan.weights == 1).all()
    found = method.begin_epoch(view(1)[0]).log
    held = method._held_out(view(1)[0])
    assert held.any() and (method.weight[held] == 0).all()
    assert found["judged"] == 1 and found["estimated_mismatch_rate"] == pytest.approx(0.4, abs=0.1)
    assert method.p_match is not None
    assert method.p_match[is_mismatched].mean() < 0.5 < method.p_match[~is_mismatched].mean()


@pytest.mark.parametrize("good", [True, False])
def test_a_good_judge_from_outside_helps_and_a_random_one_takes_nothing_away(good: bool, caplog: Any) -> None:
    given = clusters(400, 0.4, noise=1.2)
    noise = torch.randn(400, generator=torch.Generator().manual_seed(3))
    own = torch.from_numpy(given.own)

    def judge(texts: Tensor, images: Tensor, _: Tensor) -> Tensor:
        return 2.0 * good * (own[texts] == images) + noise[(texts + 7 * images) % 400]

    found = {}
    for heard in (False, True):
        method = guard(400)
        if heard:
            method.set_judge(judge)
        method.begin_epoch(tokens_view(given.texts, given.images))
        assert method.p_match is not None and float(method.judged) == 1
        found[heard] = auroc(-method.p_match.double().numpy(), given.is_mismatched)
    assert found[True] > found[False] + (0.02 if good else -0.01)
    assert method.remembered.shape == (4, 400) and (not good or not method.remembered[3].isnan().any())


def test_what_is_judged_wrong_gives_way_to_what_is_judged_right() -> None:
    weight = torch.zeros(1000)
    weight[::5] = 0.9
    for clean_oversampling, expected in ((1.0, 1.0), (2.5, 2.5), (4.0, 4.0), (9.0, 5.0)):
        repeats = planned_repeats(weight, clean_oversampling, seed=0, epoch=4)
        assert int(repeats.sum()) == 1000  # as many pairs as ever
        assert float(repeats[::5].double().mean()) == pytest.approx(expected)
        assert int(repeats[::5].max() - repeats[::5].min()) <= 1
        assert int(repeats[weight < 0.5].max()) <= 1
    again = planned_repeats(weight, 2.5, seed=0, epoch=4)
    assert torch.equal(again, planned_repeats(weight, 2.5, seed=0, epoch=4))
    assert not torch.equal(again, planned_repeats(weight, 2.5, seed=0, epoch=5))
    assert (planned_repeats(torch.ones(7), 3.0, 0, 0) == 1).all()  # nothing gives way
    assert (planned_repeats(torch.zeros(7), 3.0, 0, 0) == 1).all()  # nothing to prefer


@pytest.mark.parametrize("told", [False, True])
def test_pairs_judged_to_match_come_more_often_from_an_epoch_on(told: bool) -> None:
    method = guard(detect_from_epoch=0, rematch=False, calibration_epochs=2, clean_oversampling=3.0)
    if told:
        method.set_clean_mask(~view(0)[1])
    for epoch in (0, 1, 2):
        seen, is_mismatched = view(epoch)
        method.begin_epoch(seen)
        assert method.repeats is not None
        often = method.repeats.double()
        assert int(often.sum()) == PAIRS
        if epoch < 2:
            assert (often == 1).all()
    assert float(often[~is_mismatched].mean()) > 1.4 > 0.3 > float(often[is_mismatched].mean())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "parts"), [("support_weights", 5), ("evidence_weights", 6)])
def test_what_each_part_counts_is_learned_from_unseen_pairs_and_then_kept(name: str, parts: int) -> None:
    method = guard(detect_from_epoch=1, calibration_epochs=3, rematch=False)
    learned = []
    for epoch in (0, 1, 2, 3, 4):
        method.begin_epoch(view(epoch, noise=1.0 if epoch < 3 else 0.2)[0])
        learned.append(getattr(method, name).tolist()[:parts])
    assert set(learned[0]) == {-1.0}  # training-free detection keeps its own
    assert min(learned[1]) >= 0 and learned[1] != learned[2]
    assert learned[2] == learned[3] == learned[4]  # all images are trained on now
    assert (method.support_weights[KINDS.index("competition") :] == -1).all()


def test_what_supports_a_competitor_is_weighed_alike_before_and_after_the_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    supports = []

    def ask(support: Tensor, *rest: object) -> Evidence | None:
        supports.append(support)
        return competition_evidence(support, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(judge, "competition_evidence", ask)
    method = guard(detect_from_epoch=1, calibration_epochs=2, rematch=False)
    method.begin_epoch(view(0)[0])
    assert method.p_match is not None
    before = method.p_match.clone()
    for epoch in (1, 2):  # the same evidence and probabilities
        method.p_match.copy_(before)
        method.begin_epoch(view(epoch)[0])
    torch.testing.assert_close(supports[-1], supports[-2])


def test_competition_judges_pairs_but_not_how_many_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Competition that condemns half of the right pairs changes verdicts, not the rate."""
    is_mismatched = view(0)[1]
    misled = torch.arange(PAIRS) % 2 == 0

    def condemn(support: Tensor, believed: Tensor, *rest: object) -> Evidence | None:
        if len(support) != PAIRS:  # of a fold's rounds
            return None
        noise = torch.randn(len(support) + 20_000, generator=torch.Generator().manual_seed(5))
        return Evidence(torch.where(misled, 0.0, 5.0) + noise[: len(support)], noise[len(support) :])

    found = []
    for competition in (None, condemn):
        monkeypatch.setattr(judge, "competition_evidence", competition or (lambda *given: None))
        method = guard(detect_from_epoch=0, rematch=False)
        found.append((method.begin_epoch(view(0)[0]).log["estimated_mismatch_rate"], method.p_match))
    (rate, alone), (with_competition, beside) = found
    assert rate == with_competition == pytest.approx(float(is_mismatched.float().mean()), abs=0.05)
    assert alone is not None and beside is not None
    moved = (alone - beside)[~is_mismatched & misled].mean()
    assert moved > 0.05 > (alone - beside)[~is_mismatched & ~misled].mean()


def test_a_model_that_got_worse_hardly_moves_the_rate() -> None:
    """It cannot tell some matching pairs from others; what is remembered of before training can."""
    method = guard(detect_from_epoch=0, rematch=False)
    for epoch, noise in ((0, 0.5), (1, 4.0), (2, 0.5)):
        estimated = method.begin_epoch(view(epoch, noise=noise)[0]).log["estimated_mismatch_rate"]
        assert estimated == pytest.approx(0.4, abs=0.03)


def test_mismatched_pairs_are_flagged_and_the_rate_is_estimated() -> None:
    method = guard(detect_from_epoch=0, rematch=False)
    seen, is_mismatched = view(0)
    values = method.begin_epoch(seen).log
    assert values["estimated_mismatch_rate"] == pytest.approx(0.4, abs=0.03)
    assert method.p_match is not None
    assert method.p_match[is_mismatched].mean() < 0.05 and method.p_match[~is_mismatched].mean() > 0.95


def test_every_image_gets_a_caption_it_is_not_labelled_with() -> None:
    method = guard(detect_from_epoch=0, rematch=False)
    seen, is_mismatched = view(0)
    method.begin_epoch(seen)
    assert method.proposed_caption is not None
    assert (seen.image_of[method.proposed_caption] != seen.image_of).all()
    found = (method.proposed_caption // 4 == seen.image_of)[is_mismatched].float().mean()
    assert found > 0.5  # many images have a caption of their own among those that were moved away


def test_rematched_captions_are_trained_with_the_image_they_belong_to() -> None:
    method = guard(detect_from_epoch=0, rematch=True, rematch_from=0, calibration_epochs=0)
    seen, is_mismatched = view(0)
    assert method.begin_epoch(seen).log["rematched"] > 100
    moved = method.paired_image != seen.image_of
    assert is_mismatched[moved].float().mean() > 0.95
    # A image none of whose four captions was flagged (0.6 ** 4 = 13 % of them) is no candidate.
    assert (method.paired_image[moved] == torch.arange(PAIRS)[moved] // 4).float().mean() > 0.8
    assert (method.weight[moved] <= 0.5).all()


def test_the_paper_preset_is_as_printed() -> None:
    kind = type(build("pmpguard"))
    paper = kind.read_settings("paper", {})
    assert isinstance(paper, PmpGuardSettings)
    assert (paper.suppress, paper.rematch, paper.pooled_weight) == (False, False, 0.0)
    config = kind.model_config(RetrieverConfig(), paper)
    assert config.cross_gated == CrossGatedConfig(use=True, attention_scale=1.0, gate_bias=0.0)
    assert config.ranking == "awareness"


def test_negatives_are_averaged_until_the_warm_up_is_over() -> None:
    method = build("pmpguard", cga=False, awareness_loss="hinge", warmup_epochs=1, suppress=False)
    for epoch, negatives in ((0, "mean"), (1, "hardest")):
        given = batch(epoch=epoch)
        assert isinstance(method, PmpGuard)
        t = method.retriever.boundary.value(train=True)
        scores = awareness_scores(
            given.texts.fragments, given.texts.mask, given.images.fragments, t, region_mask=given.images.mask
        )
        wanted = hinge_terms(
            scores,
            given.image_of,
            given.targets > 0,
            method.settings.margin,
            negatives,  # type: ignore[arg-type]
        )
        torch.testing.assert_close(method.losses(given)["awareness"], wanted, atol=1e-5, rtol=1e-5)


def test_without_suppression_no_pair_is_judged() -> None:
    kind = type(build("pmpguard"))
    paper = kind.read_settings("paper", {})
    assert isinstance(paper, PmpGuardSettings) and paper.form == "joint" and paper.awareness_loss == "hinge"
    method = guard(suppress=False)
    assert method.p_match is None and method.begin_epoch(view(5)[0]).log == {}
    assert (method.weight == 1).all()


def test_a_flagged_pair_still_pushes_but_not_one_kept_for_calibration() -> None:
    method, given = build("pmpguard", pnaa=False, complementary=3.0, complementary_temperature=0.2), batch()
    assert isinstance(method, PmpGuard) and method.kept_back is not None
    given = replace(given, weights=torch.zeros(len(given.rows)))
    method.kept_back[given.rows[2]] = True
    logits = given.texts.pooled @ given.images.pooled.T / 0.2
    wanted = []
    for t, own in enumerate(given.image_of.tolist()):
        row = sum(float(logits[t].softmax(0)[v]) for v in range(5) if v != own)
        column = sum(float(logits[:, own].softmax(0)[k]) for k in range(6) if given.image_of[k] != own)
        wanted.append(3.0 * (row + column) / 2 if t != 2 else 0.0)
    found = method.losses(given)
    torch.testing.assert_close(found["complementary"], torch.tensor(wanted), atol=1e-5, rtol=1e-5)
    assert not found["pooled"].any() and build("pmpguard").kept_back is None


def test_a_pair_of_weight_zero_gets_no_pull() -> None:
    method, given = build("pmpguard", cga=False, pnaa=False), batch(captions=5)
    assert isinstance(method, PmpGuard)
    given = replace(given, weights=torch.tensor([0.0, 1, 1, 1, 1]))
    assert float(method.losses(given)["pooled"][0].detach()) == 0


def test_pairs_learn_from_a_teacher_as_far_as_they_are_not_trusted() -> None:
    given, seen = batch(captions=9, images=5), batch(captions=9, images=5, seed=1)
    teacher = build("pmpguard").retriever
    method = build("pmpguard", distill_weight=2.0)
    assert isinstance(method, PmpGuard)
    taught = replace(given, teacher_scores=method.teacher_scores(teacher, seen))
    for name, term in method.losses(taught).items():
        if name.startswith("taught"):
            assert (term == 0).all()
    taught = replace(taught, weights=torch.tensor([0.75] + [0.25] * 8))
    rows = [
        seen.texts.pooled @ seen.images.pooled.T / teacher.temperature,
        awareness_scores(
            seen.texts.fragments, seen.texts.mask, seen.images.fragments, teacher.boundary.value(train=False),
            region_mask=seen.images.mask,
        )
        / method.settings.awareness_temperature,
    ]  # fmt: skip
    logits = given.texts.pooled @ given.images.pooled.T / method.temperature
    believed = sum(each.softmax(1) for each in rows) / 2
    shown = sum(each.softmax(0) for each in rows) / 2
    caption = -(believed * logits.log_softmax(1)).sum(1) * torch.tensor([0.25] + [0.75] * 8)
    image = -(shown * logits.log_softmax(0)).sum(0) * torch.tensor(
        [0.25 if v == int(given.image_of[0]) else 0.75 for v in range(5)]
    )
    found = method.losses(taught)["taught pooled"]
    torch.testing.assert_close(found, 2.0 * (caption + image.mean()) / 2, rtol=1e-4, atol=1e-4)


def test_a_second_model_is_asked_for_from_the_given_share_on() -> None:
    for least, estimated, expected in ((None, 0.9, False), (0.5, 0.49, False), (0.5, 0.5, True)):
        method = guard(distill_above_rate=least)
        assert not method.wants_distillation()  # nothing is estimated yet, and nothing is found wrong
        method._buffer("estimated_rate").fill_(estimated)
        assert method.wants_distillation() is expected
    assert not guard(distill_above_rate=0.0, suppress=False).wants_distillation()  # it judges no pairs


def test_a_second_model_of_the_oracle_follows_the_labels_it_was_told() -> None:
    for least, expected in ((None, False), (0.2, True), (0.9, False)):
        method = guard(distill_above_rate=least, suppress=False)
        clean = torch.ones(len(method.weight))
        clean[: len(clean) // 2] = 0
        method.set_clean_mask(clean)
        assert method.wants_distillation() is expected
