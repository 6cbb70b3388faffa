"""Recalls are those of CLIP_benchmark and open_clip, which tests/peers/recall_references.py recorded."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from pmpguard.evaluation.recall import retrieval_recall

WRITTEN = Path(__file__).parent / "data" / "peer_recalls.npz"
PEERS = os.environ.get("PMPGUARD_PEERS", "")  # a Python that has open_clip and clip_benchmark


def check(path, record_property=lambda name, value: None):
    stored = np.load(path)
    images, texts, image_of = stored["images"], stored["texts"], stored["image_of"]
    for name, rows in (
        ("clip_benchmark", np.arange(len(texts))),
        ("open_clip", np.unique(image_of, return_index=True)[1]),  # it knows one text an image
    ):
        found = retrieval_recall(texts[rows] @ images.T, image_of[rows], bootstrap=0)
        wanted = stored[name]
        np.testing.assert_allclose((*found.i2t, *found.t2i), wanted, atol=1e-4)
        record_property(f"recall, {name}", float(np.abs((*found.i2t, *found.t2i) - wanted).max()))
        assert found.mr == pytest.approx(wanted.mean(), abs=1e-4)
        assert wanted.min() > 5 and wanted.max() < 99  # nothing of it is trivial


def test_recalls_are_those_of_other_libraries():
    check(WRITTEN)


@pytest.mark.slow
@pytest.mark.skipif(not PEERS, reason="PMPGUARD_PEERS names no Python that has open_clip and clip_benchmark")
def test_the_real_libraries_agree_today(tmp_path, record_property):
    script = Path(__file__).parents[1] / "peers" / "recall_references.py"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([PEERS, str(script), str(tmp_path / "new.npz")], check=True, env=environment)
    check(tmp_path / "new.npz", record_property)
