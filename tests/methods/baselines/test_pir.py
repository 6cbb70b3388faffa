"""PIR: affiliation and clusters against loops, where scenes come from, and that it learns."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.method_examples import batch, build, encoded
from helpers.peer_runs import CHANCE, short_run

import pmpguard
from pmpguard.errors import ConfigError
from pmpguard.methods.baselines.pir import affiliation_terms, cluster
from pmpguard.methods.method import TrainingView
from pmpguard.models.encoders.projection import unit


def vectors(count, dim=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return unit(torch.randn(count, dim, generator=generator, dtype=torch.float64))


def view(labels, epoch=0, images=6, seed=3):
    """Ten pairs of six images."""
    generator = torch.Generator().manual_seed(seed)
    image_of = torch.arange(10) % images
    encode = lambda: (encoded(10, 4, 16, generator), encoded(images, 3, 16, generator))  # noqa: E731
    given = None if labels is None else torch.tensor(labels)
    return TrainingView(encode, torch.arange(10), image_of, epoch, 0, given)


def pir(**settings):
    method = build("pir", **settings)
    method.register_buffer("scene_of", torch.full((10,), -1))
    return method


def test_affiliation_against_loops():
    images, texts = vectors(6), vectors(6, seed=1)
    scenes = torch.tensor([2, 0, 2, -1, -1, 2])
    members = [[0, 2, 5], [1], [0, 2, 5], [3], [4], [0, 2, 5]]  # unknown scenes are alone
    expected = []
    for t in range(6):
        logits_of = []
        for own, others in ((images, texts), (texts, images)):
            centres = [sum(others[k] for k in members[u]) / len(members[u]) for u in range(6)]
            logits = [float(own[t] @ centre) / 0.07 for centre in centres]
            logits_of.append(logits[t] - math.log(sum(math.exp(value) for value in logits)))
        expected.append(-sum(logits_of) / 2)
    found = affiliation_terms(images, texts, scenes, torch.tensor(0.07, dtype=torch.float64))
    assert found.tolist() == pytest.approx(expected, rel=1e-9)


def test_affiliation_gradients_and_order():
    images, texts, scenes = vectors(5), vectors(5, seed=1), torch.tensor([0, 1, 0, -1, 1])
    tau = torch.tensor(0.2, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda one, two: affiliation_terms(one, two, scenes, tau),
        (images.requires_grad_(), texts.requires_grad_()),
    )
    order = torch.tensor([3, 0, 4, 2, 1])
    shuffled = affiliation_terms(images[order], texts[order], scenes[order], tau)
    torch.testing.assert_close(shuffled, affiliation_terms(images, texts, scenes, tau)[order])


def test_pairs_of_one_scene_affiliate():
    """The loss of a pair is lower the nearer it is to its own scene's centre."""
    images, texts = vectors(4), vectors(4, seed=1)
    scenes = torch.tensor([0, 0, 1, 1])
    centre = unit(texts[:2].mean(0))
    moved = torch.cat([unit(images[:1] + 2 * centre), images[1:]])
    tau = torch.tensor(0.07, dtype=torch.float64)
    assert affiliation_terms(moved, texts, scenes, tau)[0] < affiliation_terms(images, texts, scenes, tau)[0]


def test_clusters_find_groups_that_are_there():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(4, (200,), generator=generator)
    centres = vectors(4, dim=16, seed=5).float()
    points = unit(centres[truth] + 0.1 * torch.randn(200, 16, generator=generator))
    found = cluster(points, 4, seed=1)
    pairs = {(int(a), int(b)) for a, b in zip(truth, found, strict=True)}
    assert len(pairs) == 4  # one cluster per group and one group per cluster
    assert torch.equal(found, cluster(points, 4, seed=1))
    assert len(set(cluster(points[:3], 32, seed=1).tolist())) == 3  # fewer images than clusters


def test_each_vector_is_in_the_cluster_whose_mean_direction_is_nearest():
    points = vectors(60, dim=6).float()
    found = cluster(points, 5, seed=0)
    means = torch.stack([unit(points[found == k].sum(0)) for k in range(5)])
    assert torch.equal((points @ means.T).argmax(1), found)


def test_scenes_come_from_the_labels_of_the_images():
    method = pir()
    values = method.begin_epoch(view([2, 0, -1, 1, 1, 2])).log
    assert method.scene_of.tolist() == [2, 0, -1, 1, 1, 2, 2, 0, -1, 1]
    assert values == {"scenes": 3.0, "images_with_scene": pytest.approx(5 / 6)}
    method.begin_epoch(view([0] * 6, epoch=1))  # noted once
    assert method.scene_of[0] == 2


@pytest.mark.parametrize("labels", [None, [-1] * 6])
def test_without_labels_clusters_take_their_place(labels):
    method = pir(classes=3)
    method.begin_epoch(view(labels))
    assert set(method.scene_of.tolist()) == {0, 1, 2}
    assert method.scene_of[0] == method.scene_of[6]  # the same image
    with pytest.raises(ConfigError, match="no scene labels"):
        pir(scenes="labels").begin_epoch(view(labels))


def test_clusters_can_be_asked_for_and_too_many_labels_are_refused():
    method = pir(scenes="clusters", classes=2)
    method.begin_epoch(view([5, 5, 5, 5, 5, 5]))
    assert set(method.scene_of.tolist()) == {0, 1}
    with pytest.raises(ConfigError, match="set it to 6 or more"):
        pir(classes=4).begin_epoch(view([5, 0, 1, 2, 3, 4]))


def test_the_scene_term_is_cross_entropy_of_the_pair_s_image():
    method, given = pir(), batch()
    method.scene_of[:6] = torch.tensor([3, 1, -1, 0, 4, 3])
    terms = method.losses(given)
    for t, v in enumerate(given.image_of.tolist()):
        image = given.images[[v]]
        mean = image.fragments[0][image.mask[0]].mean(0)
        logits = method.head.scenes(4 * mean / mean.norm()).detach()  # 4 = sqrt(16)
        scene = int(method.scene_of[t])
        expected = 0.0 if scene < 0 else float(logits.exp().sum().log() - logits[scene])
        assert terms["scene"][t].item() == pytest.approx(expected, rel=1e-4)
    torch.testing.assert_close(terms["infonce"], build("infonce").losses(given)["infonce"])


def test_the_scene_term_teaches_the_classifier_alone():
    method, given = pir(), batch()
    method.scene_of[:6] = torch.arange(6)
    given.images.fragments.requires_grad_()
    method.losses(given)["scene"].sum().backward()
    taught = {name for name, weight in method.named_parameters() if weight.grad is not None}
    assert taught == {"retriever.head.scenes.weight", "retriever.head.scenes.bias"}
    assert given.images.fragments.grad is None


@pytest.mark.slow
def test_it_learns_and_what_it_learned_is_saved(tmp_path):
    result = short_run("pir", tmp_path / "run")
    assert result.best_mr > 5 * CHANCE
    assert int(result.method.scene_of.min()) >= 0  # clusters, as squares have no labels
    loaded, images = pmpguard.load(tmp_path / "run" / "model"), torch.rand(3, 3, 32, 32)
    expected = result.retriever.encode_images(images)
    assert torch.equal(loaded.encode_images(images).pooled, expected.pooled)
    assert torch.equal(loaded.head.scene_logits(expected), result.retriever.head.scene_logits(expected))
