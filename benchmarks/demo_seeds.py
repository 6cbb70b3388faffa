"""Does PMPGuard beat plain InfoNCE on the synthetic scenes, whatever the seed?

The demo's two trainings for several seeds and mismatch rates. Rows of the same settings are skipped, so an
interrupted run goes on; rows are collected in benchmarks/results/demo_seeds.jsonl.

    python benchmarks/demo_seeds.py [--seeds 0 1 2 3 4] [--rates 0.4 0.8]
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path

from pmpguard.cli.demo import METHODS, demo_config
from pmpguard.experiments.rows import append_row, read_rows, row_fingerprint, summarise
from pmpguard.experiments.run import (
    PreparedDataset,
    deciding_settings,
    prepare_dataset,
    resolve_experiment,
    run_experiment,
)

ROWS = Path(__file__).parent / "results" / "demo_seeds.jsonl"


def main(seeds: list[int], rates: list[float]) -> None:
    done = {row.fingerprint for row in read_rows(ROWS)} if ROWS.exists() else set()
    data: PreparedDataset | None = None
    for seed in seeds:
        for rate in rates:
            for method, settings in METHODS.items():
                base = demo_config(scenes=1000, rate=rate, seed=seed, epochs=10, encoders="light")
                train = replace(base.train, method=method, settings=settings, checkpoint_every=-1)
                config = resolve_experiment(replace(base, train=train))
                if row_fingerprint(method, deciding_settings(config)) in done:
                    continue
                data = data or prepare_dataset(config)
                with tempfile.TemporaryDirectory() as folder:
                    row = run_experiment(config, Path(folder), data).row
                append_row(ROWS, row)
                print(f"seed {seed}, rate {rate}, {method}: mR {row.metrics['mr']:.2f}", flush=True)
    for summary in summarise(read_rows(ROWS)):
        score = summary.metrics["mr"]
        spread = f" ± {score.std:.2f}" if score.std is not None else ""
        print(f"{summary.method:>10} at {summary.rate:g}: mR {score.mean:.2f}{spread} ({score.count} seeds)")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.4, 0.8])
    arguments = parser.parse_args()
    main(arguments.seeds, arguments.rates)
