"""A real Ray cluster of two nodes on this machine: the same files, also when a node is lost."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.free_port import free_port
from helpers.search_examples import embed, files_of, make_world

from pmpguard.data.formats import read_pairs
from pmpguard.data.images.sources import StreamedImages
from pmpguard.data.quality.check import check_dataset
from pmpguard.engine.parts import Engine, Part, run_parts
from pmpguard.engine.ray_cluster import connected, sigterm_kept
from pmpguard.errors import ConfigError, DataError, PmpguardError
from pmpguard.models.retriever import Retriever
from pmpguard.search.index.changes import build_index
from pmpguard.training.encode import Split
from pmpguard.training.encode_parts import pooled_features_in_parts

CALLS = "helpers.engine_calls"
STORE_BYTES = 100 << 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes with a core each; what they run finds modules as this process does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_health_check_period_ms", "500")  # a lost node is noticed within seconds
        patch.setenv("RAY_health_check_failure_threshold", "2")
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
        with sigterm_kept():  # a node takes SIGTERM for itself, and the tests after these raise it
            started = Cluster(initialize_head=True, head_node_args=node)
            started.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        yield started
        started.shutdown()


def parts_in(folder: Path, count: int) -> list[Part]:
    outputs = [folder / f"{number}.txt" for number in range(count)]
    return [Part({"number": number, "out": str(out)}, out) for number, out in enumerate(outputs)]


@pytest.mark.slow
def test_embedding_and_check_equal_those_of_one_process(cluster, tmp_path):
    world, model = make_world(tmp_path)
    engine = Engine(2, "ray", cluster.address, scratch=tmp_path / "scratch")
    embed(world, model, tmp_path / "shared", partition_size=20, engine=engine)
    embed(world, model, tmp_path / "straight", partition_size=20)
    assert files_of(tmp_path / "shared") == files_of(tmp_path / "straight")
    table = read_pairs(world)
    assert check_dataset(table, engine=engine) == check_dataset(table)
    retriever = Retriever.load(model).eval()
    images = StreamedImages(table, retriever.config.image_size, retriever.device)
    split = Split.open(table, images, retriever, batch=7)
    shared = pooled_features_in_parts(split, retriever, engine)  # what a quick audit judges by
    for parts, whole in zip(shared, split.pooled_features(retriever), strict=True):
        assert torch.equal(parts, whole)
    build_index(tmp_path / "index", tmp_path / "shared", engine=engine)
    build_index(tmp_path / "straight-index", tmp_path / "shared")
    assert files_of(tmp_path / "index") == files_of(tmp_path / "straight-index")


@pytest.mark.slow
def test_errors_of_tasks_are_raised_here(cluster, tmp_path):
    engine = Engine(2, "ray", cluster.address)
    with pytest.raises(DataError, match=r"shard-\d\.tar: cut off"):
        run_parts(engine, f"{CALLS}:refuse", parts_in(tmp_path, 2))
    with pytest.raises(PmpguardError, match=r"3 workers were lost .* on .*0\.txt"):
        run_parts(engine, f"{CALLS}:die", parts_in(tmp_path, 1))


@pytest.mark.slow
@pytest.mark.parametrize("who", ["connects", "is connected by its caller", "starts a cluster beside one"])
def test_sigterm_means_in_and_after_a_job_what_it_meant_before(cluster, tmp_path, who):
    import ray

    heard = []

    def listen(number: int, _: object) -> None:
        heard.append(number)

    before = signal.signal(signal.SIGTERM, listen)
    try:
        if who == "is connected by its caller":
            with sigterm_kept():
                ray.init(address=cluster.address, log_to_driver=False)
        engine = Engine(2, "ray", None if who == "starts a cluster beside one" else cluster.address)
        with connected(engine):
            signal.raise_signal(signal.SIGTERM)
        run_parts(engine, f"{CALLS}:write_square", parts_in(tmp_path, 2))
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM] * 2
        assert ray.is_initialized() == (who == "is connected by its caller")
    finally:
        with sigterm_kept():
            ray.shutdown()
        signal.signal(signal.SIGTERM, before)
    assert [(tmp_path / f"{number}.txt").read_text() for number in range(2)] == ["0", "1"]


@pytest.mark.slow
def test_what_a_lost_node_was_working_on_is_done_again(cluster, tmp_path):
    lost = {}

    def lose_a_node() -> None:
        while len(list(tmp_path.glob("*.begun"))) < 2:  # a part runs on each
            time.sleep(0.05)
        lost.update({path: path.read_text() for path in tmp_path.glob("*.begun")})
        cluster.remove_node(cluster.worker_nodes.copy().pop(), allow_graceful=False)
        while all(Path("/proc", process).exists() for process in lost.values()):
            time.sleep(0.05)
        (tmp_path / "go").touch()

    loser = threading.Thread(target=lose_a_node)
    loser.start()
    run_parts(Engine(2, "ray", cluster.address), f"{CALLS}:wait_for", parts_in(tmp_path, 4))
    loser.join()
    assert sum(path.read_text() != process for path, process in lost.items()) == 1  # begun once more
    assert [(tmp_path / f"{n}.txt").read_text() for n in range(4)] == ["0", "1", "4", "9"]


def test_an_address_that_does_not_answer_is_named(tmp_path):
    address = f"127.0.0.1:{free_port()}"
    for written in (address, f"ray://{address}"):
        with pytest.raises(PmpguardError, match="no Ray cluster answers"):
            run_parts(Engine(2, "ray", written), f"{CALLS}:write_square", parts_in(tmp_path, 1))


@pytest.mark.parametrize("address", ["head", "head:port", "http://head:6379/x", "head:99999"])
def test_an_address_of_another_form_is_refused(tmp_path, address):
    with pytest.raises(ConfigError, match="not of the form host:port"):
        run_parts(Engine(2, "ray", address), f"{CALLS}:write_square", parts_in(tmp_path, 1))
