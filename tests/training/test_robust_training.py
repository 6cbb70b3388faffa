"""The demo's promise in small: with two captions in five mismatched, PMPGuard ranks better and detects them.

`benchmarks/demo_seeds.py` shows the same at full size, for five seeds and at 80 %.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pmpguard.cli.demo import METHODS, demo_config
from pmpguard.errors import MissingExtraError
from pmpguard.experiments.run import ExperimentResult, prepare_dataset, run_experiment


@pytest.mark.slow
def test_pmpguard_beats_infonce_and_flags_mismatched_captions_on_every_seed(tmp_path: Path) -> None:
    data = None
    for seed in (0, 1):
        results: dict[str, ExperimentResult] = {}
        for method, settings in METHODS.items():
            base = demo_config(scenes=300, rate=0.4, seed=seed, epochs=6, encoders="light")
            if method == "pmpguard":
                settings = {**settings, "calibration_epochs": 4}
            train = replace(
                base.train, method=method, settings=settings, checkpoint_every=-1, evaluate_every=2
            )
            config = replace(base, train=train)
            try:
                data = data or prepare_dataset(config)
                results[method] = run_experiment(config, tmp_path / f"{method}-{seed}", data)
            except MissingExtraError as error:
                pytest.skip(str(error))
        guarded = results["pmpguard"]
        assert guarded.test.recall.mr > results["infonce"].test.recall.mr + 1
        assert guarded.detection is not None and guarded.detection.auroc is not None
        assert guarded.detection.auroc > 0.9
        assert guarded.row.metrics["detection_estimated_rate"] == pytest.approx(0.4, abs=0.15)
