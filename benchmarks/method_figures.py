"""The figures of docs/method.md, drawn by the package itself: `python benchmarks/method_figures.py`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from pmpguard.detection.mixture import fit_match_mixture
from pmpguard.errors import require
from pmpguard.models.attention.awareness import awareness_scores
from pmpguard.models.attention.boundary import optimal_boundary

MATCHED, MISMATCHED = (0.45, 0.12), (0.15, 0.08)  # mean and deviation of fragments' similarities
ALPHA = 2.0
GREEN, RED, GREY = "tab:green", "tab:red", "tab:grey"


def boundary_figure(axes: Any) -> float:
    """Equations 7 to 9: two Gaussians, what a boundary costs, and the one that costs least."""
    t = np.linspace(-0.2, 0.9, 400)
    for (mean, deviation), colour, label in ((MATCHED, GREEN, "matched"), (MISMATCHED, RED, "mismatched")):
        density = np.exp(-0.5 * ((t - mean) / deviation) ** 2) / deviation / np.sqrt(2 * np.pi)
        axes.plot(t, density, color=colour, label=f"{label} fragments")
    cost = ALPHA * (1 - normal_cdf(t, *MISMATCHED)) + normal_cdf(t, *MATCHED)
    axes.plot(t, cost, color=GREY, linestyle="--", label="α P(s⁻ > t) + P(s⁺ < t)")
    best = optimal_boundary(*MATCHED, *MISMATCHED, alpha=ALPHA)
    assert best is not None
    axes.axvline(best, color="black", linewidth=1)
    axes.annotate("  $t_k$", (best, 4.5))
    axes.set(xlabel="similarity of a word and its best region", title="Boundary, equations 7 to 9")
    axes.legend(fontsize=8)
    return float(best)


def normal_cdf(x: np.ndarray, mean: float, deviation: float) -> np.ndarray:
    below: np.ndarray = torch.special.ndtr(torch.from_numpy((x - mean) / deviation)).numpy()
    return below


def awareness_figure(axes: Any) -> None:
    """Equations 10 to 14: the score of one word and three regions as its best region comes nearer."""
    cosines = np.linspace(-0.2, 1, 200)
    word = torch.tensor([[[1.0, 0.0, 0.0, 0.0]]])  # (1, 1, d)
    scores = []
    for cosine in cosines:
        best = torch.tensor([cosine, float(np.sqrt(1 - cosine**2)), 0.0, 0.0])
        others = torch.tensor([[0.1, 0.0, 0.995, 0.0], [0.0, 0.0, 0.0, 1.0]])
        regions = normalize(torch.cat([best[None], others]), dim=-1)[None].float()  # (1, 3, d)
        scores.append(float(awareness_scores(word, torch.ones(1, 1, dtype=torch.bool), regions, 0.3)))
    axes.plot(cosines, scores, color="tab:blue")
    axes.axvline(0.3, color="black", linewidth=1)
    axes.annotate("  t", (0.3, min(scores)))
    axes.axhline(0, color=GREY, linewidth=0.5)
    axes.set(xlabel="cosine of a word and its best region", ylabel="S", title="Awareness, equations 10 to 14")


def detection_figure(axes: Any) -> float:
    """Labelled pairs as a mixture with a known null; returns the estimated noise rate."""
    draw = np.random.default_rng(0)
    null = draw.normal(0, 1, 4000)
    labelled = np.concatenate([draw.normal(0, 1, 800), draw.normal(3, 1.1, 1200)])
    mixture = fit_match_mixture(labelled, null)
    bins = np.linspace(-8, 7, 61)
    axes.hist(labelled, bins, color="tab:blue", alpha=0.5, label="labelled pairs")
    rate = 1 - mixture.match_rate
    axes.hist(
        null, bins, weights=np.full(len(null), rate * len(labelled) / len(null)), color=RED, histtype="step",
        label=f"null pairs, as {rate:.0%} of the labelled ones",
    )  # fmt: skip
    axes.set(xlabel="evidence", ylabel="pairs", title="Detection: a mixture with a known null")
    order = np.argsort(labelled)
    right = axes.twinx()
    right.plot(labelled[order], mixture.p_match[order], color="black", label="p(match)")
    right.set(ylim=(0, 1.02), ylabel="p(match)")
    handles = [*axes.get_legend_handles_labels()[0], *right.get_legend_handles_labels()[0]]
    axes.legend(handles, [handle.get_label() for handle in handles], fontsize=8, loc="upper left")
    return float(rate)


def draw(folder: Path) -> list[Path]:
    """Write the three figures."""
    figures = require("matplotlib.figure", "plots")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    kinds = {"boundary": boundary_figure, "awareness": awareness_figure, "detection": detection_figure}
    for name, plot in kinds.items():
        figure = figures.Figure(figsize=(5.6, 3.4), layout="constrained", dpi=130)
        plot(figure.subplots())
        written.append(folder / f"method-{name}.png")
        figure.savefig(written[-1], metadata={"Software": None})
    return written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    print(*draw(parser.parse_args().out), sep="\n")
