"""Features by several workers are those of one process, bit for bit, also when one of them is killed."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.killed_child import kill_one_child
from helpers.search_examples import make_world, save_model
from PIL import Image

from pmpguard.data.formats import read_pairs
from pmpguard.data.images.sources import open_images
from pmpguard.engine.parts import ALONE, Engine
from pmpguard.models.retriever import Retriever
from pmpguard.training import encode_parts
from pmpguard.training.encode import Split


@pytest.fixture(scope="module")
def split_and_model(tmp_path_factory):
    world, model = make_world(tmp_path_factory.mktemp("scenes"))
    retriever = Retriever.load(model).eval()
    table = read_pairs(world)
    images = open_images(table, retriever.config.image_size, torch.device("cpu"))
    return Split.open(table, images, retriever, batch=7), retriever


@pytest.mark.parametrize("workers", [1, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 3))])
def test_features_in_parts_are_those_of_one_process(split_and_model, monkeypatch, tmp_path, workers):
    monkeypatch.setattr(encode_parts, "BATCHES_A_PART", 2)
    split, retriever = split_and_model
    engine = ALONE if workers == 1 else Engine(workers, scratch=tmp_path / "scratch")
    killed: list[int] = []

    def kill_a_worker_when_the_first_part_is_done() -> None:
        while not list((tmp_path / "scratch").glob("*/images-*.npy")):
            time.sleep(0.01)
        killed.extend(kill_one_child("pmpguard.engine.worker"))

    killer = threading.Thread(target=kill_a_worker_when_the_first_part_is_done)
    if workers == 3:
        killer.start()
    found = encode_parts.pooled_features_in_parts(split, retriever, engine)
    if workers == 3:
        killer.join()
        assert len(killed) == 1
    for parts, whole in zip(found, split.pooled_features(retriever), strict=True):
        assert torch.equal(parts, whole)
    assert not (tmp_path / "scratch").exists()


def test_images_that_are_not_square_are_framed_as_the_model_says(tmp_path):
    drawn = np.random.default_rng(0).integers(0, 255, (6, 20, 60, 3), np.uint8)
    (tmp_path / "pairs.csv").write_text("image,caption\n" + "".join(f"{i}.png,pond {i}\n" for i in range(6)))
    for number, pixels in enumerate(drawn):
        Image.fromarray(pixels).save(tmp_path / f"{number}.png")
    retriever = Retriever.load(save_model(tmp_path / "model", ["pond"], fit="crop")).eval()
    table = read_pairs(tmp_path / "pairs.csv")
    images = open_images(table, 64, torch.device("cpu"), framing=retriever.framing)
    squashed = open_images(table, 64, torch.device("cpu"))
    split = Split.open(table, images, retriever, batch=4)
    found = encode_parts.pooled_features_in_parts(split, retriever, ALONE)[1]
    assert torch.equal(found, split.pooled_features(retriever)[1])
    assert not torch.equal(found, replace(split, images=squashed).pooled_features(retriever)[1])
