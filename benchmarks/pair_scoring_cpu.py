"""All-pairs scoring on a CPU against the loops it replaces, both in float32 torch, in one run.

Awareness attention: the slow side takes one caption at a time, multiplies its words with the regions of all
images (bmm), forms every context vector and compares it. It runs on a sample of captions, evenly spread
over the lengths, and is extrapolated to all. It is tried with torch's own threads and with one caption per
thread; the faster counts.

Cross-gated attention: the slow sides apply the gates' weight to [u; vt] and [v; ut] of every pair, as
printed. `packed` shares everything else with the fast side: no padding, blocks (of the size that suits it),
one block per thread. `padded` is the usual module: a batch of captions padded to the longest, times a batch
of images. All run on samples of pairs, captions of natural order, and are extrapolated. The fast side is the
function compiled from C; `torch_only` is what runs where there is no compiler, and shows what factorising
alone gives. Without a compiler both are the same.

The sides alternate, part by part, and a ratio is the median over parts: other load hits all alike. The
ratio of processor seconds is given too.

    python benchmarks/pair_scoring_cpu.py --threads 2
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import leaky_relu, normalize

from pmpguard.kernels.cross_gated.native import compiled, native_gated_cosines
from pmpguard.kernels.packed_scoring import (
    pack_captions,
    packed_gated_cosines,
    score_blocks,
)
from pmpguard.kernels.pair_scoring import awareness_all_pairs, trimmed
from pmpguard.kernels.thread_pool import on_every_core
from pmpguard.models.attention.awareness import awareness_scores
from pmpguard.models.attention.cross_gated import CrossGatedAttention
from pmpguard.models.encoded import Encoded

Result = TypeVar("Result")

REGIONS, LONGEST, DIM, CAPTIONS_PER_IMAGE = 49, 24, 512, 5
BOUNDARY, SHARPNESS = 0.1, 20.0


def planted(images: int, seed: int) -> tuple[Encoded, Encoded]:
    """Captions whose words resemble regions of their own image, among images that share topics."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / math.sqrt(DIM)

    topics = noise(30, DIM)
    topic = torch.randint(30, (images, REGIONS), generator=generator)
    regions = normalize(0.7 * topics[topic] + noise(images, REGIONS, DIM), dim=-1)  # (I, n, d)
    captions = images * CAPTIONS_PER_IMAGE
    image_of = torch.arange(captions) // CAPTIONS_PER_IMAGE
    named = torch.randint(REGIONS, (captions, LONGEST), generator=generator)
    words = normalize(
        0.6 * regions[image_of[:, None], named] + noise(captions, LONGEST, DIM), dim=-1
    )  # (T, m, d)
    lengths = (11 + 4 * torch.randn(captions, generator=generator)).round().clamp(3, LONGEST)
    mask = torch.arange(LONGEST) < lengths[:, None]
    everything = torch.ones(images, REGIONS, dtype=torch.bool)
    pooled_words = normalize((words * mask[..., None]).sum(1), dim=-1)
    return Encoded(pooled_words, words, mask), Encoded(
        normalize(regions.mean(1), dim=-1), regions, everything
    )


def loop_scores(words: Tensor, regions: Tensor) -> Tensor:
    """One caption (m, d) against all images (I, n, d), contexts formed -> (I,)."""
    words = words.expand(len(regions), -1, -1)  # (I, m, d)
    s = torch.bmm(words, regions.transpose(1, 2))  # (I, m, n)
    negative = (s.amax(-1) - BOUNDARY).clamp(max=0)
    clean_oversampling = s > BOUNDARY
    weights = (SHARPNESS * (s - BOUNDARY)).masked_fill(~clean_oversampling, -1e9).softmax(
        -1
    ) * clean_oversampling
    contexts = torch.bmm(weights, regions)  # (I, m, d)
    feature = torch.cosine_similarity(words, contexts, dim=-1)
    leaky = leaky_relu(s, 0.1)
    leaky = leaky / (leaky.norm(dim=1, keepdim=True) + 1e-8)
    relevance = ((SHARPNESS * leaky).softmax(-1) * s).sum(-1)
    scores: Tensor = (feature + relevance + negative).mean(1)
    return scores


@dataclass(frozen=True)
class Took:
    """Seconds on the wall and of processors."""

    wall: float
    cpu: float


def timed(work: Callable[[], Result]) -> tuple[Took, Result]:
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return Took(time.perf_counter() - wall, time.process_time() - cpu), result


def one_after_another(score: Callable[[int], Tensor], captions: Sequence[int]) -> list[Tensor]:
    return [score(caption) for caption in captions]


def awareness_rows(texts: Encoded, images: Encoded, parts: int, sample: int) -> dict[str, Any]:
    """Seconds of both sides for all captions, the ratio, and how the results compare."""
    by_length = texts.mask.sum(1).argsort(stable=True)  # (T,)
    fast_scores = torch.zeros(len(texts), len(images))
    fast: list[Took] = []
    with_torch_threads: list[Took] = []
    per_thread: list[Took] = []
    sampled: list[int] = []
    slow_scores: list[Tensor] = []

    def loop(caption: int) -> Tensor:
        return loop_scores(texts.fragments[caption][texts.mask[caption]], images.fragments)

    loop(0)
    for part in range(parts):
        rows = by_length[part::parts]
        took, fast_scores[rows] = timed(partial(awareness_all_pairs, texts[rows], images, BOUNDARY))
        fast.append(took)
        step = max(1, len(rows) // sample)
        captions = rows[step // 2 :: step].tolist()
        scale = len(rows) / len(captions)
        took, scores = timed(partial(one_after_another, loop, captions))
        with_torch_threads.append(Took(took.wall * scale, took.cpu * scale))
        took, _ = timed(partial(on_every_core, loop, captions))
        per_thread.append(Took(took.wall * scale, took.cpu * scale))
        sampled += captions
        slow_scores += scores
    slow = [min(ways, key=lambda way: way.wall) for ways in zip(with_torch_threads, per_thread, strict=True)]
    loops = torch.stack(slow_scores)  # (S, I)
    picked = fast_scores[sampled]  # (S, I)
    exact = torch.cat([exact_scores(texts, images, caption) for caption in sampled])  # (S, I)
    return {
        "seconds": sum(took.wall for took in fast),
        "loop_seconds_extrapolated": sum(took.wall for took in slow),
        "loop_seconds_with_torch_threads": sum(took.wall for took in with_torch_threads),
        "loop_seconds_one_caption_per_thread": sum(took.wall for took in per_thread),
        "loop_captions_run": len(sampled),
        **ratios(fast, slow),
        **rank_comparison(picked, loops, torch.tensor(sampled) // CAPTIONS_PER_IMAGE),
        "largest_error_to_float64": (picked - exact).abs().max().item(),
        "loop_largest_error_to_float64": (loops - exact).abs().max().item(),
    }


def ratios(fast: Sequence[Took], slow: Sequence[Took]) -> dict[str, Any]:
    wall = [b.wall / a.wall for a, b in zip(fast, slow, strict=True)]
    cpu = [b.cpu / a.cpu for a, b in zip(fast, slow, strict=True)]
    return {
        "ratio": statistics.median(wall),
        "ratio_of_processor_seconds": statistics.median(cpu),
        "ratios": wall,
    }


def exact_scores(texts: Encoded, images: Encoded, caption: int) -> Tensor:
    """(1, I) in float64, some images at a time."""
    text = texts[[caption]].to(dtype=torch.float64)
    some = [images[start : start + 100].fragments.double() for start in range(0, len(images), 100)]
    return torch.cat([awareness_scores(text.fragments, text.mask, x, BOUNDARY) for x in some], dim=1)


def rank_comparison(fast: Tensor, slow: Tensor, image_of: Tensor) -> dict[str, Any]:
    """Ranks of the labelled images, and the largest score gap between any two images in different order."""
    own = image_of[:, None]
    ranks = [(scores > scores.gather(1, own)).sum(1) for scores in (fast, slow)]
    order = slow.argsort(1, descending=True)
    in_slow_order = fast.gather(1, order)
    reversed_gap = (in_slow_order[:, 1:] - in_slow_order[:, :-1]).clamp(min=0)
    return {
        "labelled_ranks_compared": len(fast),
        "labelled_ranks_different": int((ranks[0] != ranks[1]).sum()),
        "neighbours_compared": reversed_gap.numel(),
        "neighbours_in_other_order": int((reversed_gap > 0).sum()),
        "largest_gap_in_other_order": reversed_gap.max().item(),
    }


def unfactorised_block(
    by_word: Sequence[Tensor], by_image: Sequence[Tensor], length: int, *, attention: CrossGatedAttention
) -> Tensor:
    """Cosines (I, C) of a block with the gates' weight applied to concatenated vectors."""
    (words,) = by_word  # (m * C, d)
    (regions,) = by_image  # (I, n, d)
    images, n, dim = regions.shape
    logits = (regions.view(images * n, dim) @ attention.rotate(words).T).view(images, n, -1)  # (I, n, mC)
    context = torch.bmm(logits.softmax(1).transpose(1, 2), regions)  # (I, mC, d)
    expanded = words.expand(images, -1, -1)
    gate = torch.sigmoid(attention.word_gate(torch.cat([expanded, context], -1)))
    gated_words = (gate * expanded + (1 - gate) * context).view(images, length, -1, dim).sum(1)  # (I, C, d)
    over_words = logits.view(images, n, length, -1).softmax(2).permute(3, 0, 1, 2)  # (C, I, n, m)
    by_caption = words.view(length, -1, dim).transpose(0, 1)  # (C, m, d)
    context = torch.bmm(over_words.reshape(-1, images * n, length), by_caption)  # (C, I * n, d)
    expanded = regions.view(1, images * n, dim).expand(len(context), -1, -1)
    gate = torch.sigmoid(attention.region_gate(torch.cat([expanded, context], -1)))
    gated_regions = gate * expanded + (1 - gate) * context  # (C, I * n, d)
    gated_regions = gated_regions.view(-1, images, n, dim).sum(2).transpose(0, 1)  # (I, C, d)
    return (normalize(gated_words, dim=-1) * normalize(gated_regions, dim=-1)).sum(-1)


def unfactorised_padded(
    attention: CrossGatedAttention, words: Tensor, word_mask: Tensor, regions: Tensor
) -> Tensor:
    """Cosines (T, I) of a batch, (T, m, d), (T, m), (I, n, d), step by step as printed."""
    logits = torch.einsum("tmd,ind->timn", attention.rotate(words), regions)  # (T, I, m, n)
    captions, images, m, n = logits.shape
    keep = word_mask[:, None, :, None]  # (T, 1, m, 1)
    context = torch.einsum("timn,ind->timd", logits.softmax(-1), regions)
    own = words[:, None].expand(captions, images, m, DIM)
    gate = torch.sigmoid(attention.word_gate(torch.cat([own, context], -1)))
    gated_words = ((gate * own + (1 - gate) * context) * keep).sum(2)  # (T, I, d)
    context = torch.einsum("timn,tmd->tind", logits.masked_fill(~keep, -1e9).softmax(2), words)
    own = regions[None].expand(captions, images, n, DIM)
    gate = torch.sigmoid(attention.region_gate(torch.cat([own, context], -1)))
    gated_regions = (gate * own + (1 - gate) * context).sum(2)  # (T, I, d)
    return torch.cosine_similarity(gated_words, gated_regions, dim=-1)


@torch.no_grad()
def gated_rows(texts: Encoded, images: Encoded, parts: int) -> dict[str, Any]:
    """Seconds of each side, extrapolated to all pairs, and the ratios. Fast sides have a larger sample."""
    torch.manual_seed(0)
    attention = CrossGatedAttention(DIM)
    unfactorised = partial(unfactorised_block, attention=attention)
    share = len(texts) // parts
    few_images = images.fragments[:48]
    sides: dict[str, list[Took]] = {"fast": [], "torch_only": [], "packed": [], "padded": []}
    compiling, function = timed(compiled)
    difference = 0.0
    for part in range(parts):
        many = texts[part * share : (part + 1) * share]
        few = many[:48]

        def fast(many: Encoded = many) -> Tensor:
            return native_gated_cosines(attention, many.fragments, many.mask, images.fragments[:96])

        def torch_only(many: Encoded = many) -> Tensor:
            return packed_gated_cosines(attention, many.fragments, many.mask, images.fragments[:96])

        def packed(few: Encoded = few) -> Tensor:
            words, blocks = pack_captions(
                few.fragments, few.mask, 44, lambda captions, length: 32 // captions
            )
            return score_blocks(unfactorised, blocks, [words], [few_images], len(few))

        def padded(few: Encoded = few) -> Tensor:
            batches = [trimmed(few[start : start + 8]) for start in range(0, len(few), 8)]
            return torch.cat(
                [
                    torch.cat(
                        [
                            unfactorised_padded(attention, x.fragments, x.mask, y)
                            for y in torch.split(few_images, 8)
                        ],
                        1,
                    )
                    for x in batches
                ]
            )

        results = {}
        all_sides = {"fast": fast, "torch_only": torch_only, "packed": packed, "padded": padded}
        for name, side in all_sides.items():
            took, results[name] = timed(side)
            pairs = results[name].numel()
            sides[name].append(Took(took.wall / pairs, took.cpu / pairs))
        few_of = [found[: len(few), : len(few_images)] for found in results.values()]
        difference = max(difference, *((few_of[0] - other).abs().max().item() for other in few_of[1:]))
    everything = len(texts) * len(images)
    seconds = {
        name: statistics.median(took.wall for took in side) * everything for name, side in sides.items()
    }
    return {
        "seconds_extrapolated": seconds["fast"],
        "compiled": function is not None,
        "compile_seconds": compiling.wall,
        "unfactorised_packed": {
            "seconds_extrapolated": seconds["packed"],
            **ratios(sides["fast"], sides["packed"]),
        },
        "unfactorised_padded": {
            "seconds_extrapolated": seconds["padded"],
            **ratios(sides["fast"], sides["padded"]),
        },
        "torch_only": {
            "seconds_extrapolated": seconds["torch_only"],
            "to_unfactorised_packed": ratios(sides["torch_only"], sides["packed"]),
            "to_unfactorised_padded": ratios(sides["torch_only"], sides["padded"]),
        },
        "largest_difference": difference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=1093)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", type=int, default=5)
    parser.add_argument("--sample", type=int, default=12, help="captions of each part that the loop runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "pair_scoring_cpu.json"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    texts, images = planted(options.images, options.seed)
    with torch.no_grad():
        awareness = awareness_rows(texts, images, options.parts, options.sample)
    peak_gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    gated = gated_rows(texts, images, options.parts)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    row = {
        "images": len(images),
        "captions": len(texts),
        "regions": REGIONS,
        "longest_caption": LONGEST,
        "mean_words": texts.mask.sum(1).double().mean().item(),
        "dim": DIM,
        "awareness_attention": awareness,
        "cross_gated_attention": gated,
        "peak_gigabytes_awareness_both_sides_and_data": peak_gigabytes,
        "threads": options.threads,
        "torch": torch.__version__,
        "machine": platform.machine(),
        "load_at_end": list(os.getloadavg()),
        "commit": commit.stdout.strip() or None,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(row, indent=2) + "\n")
    print(json.dumps(row, indent=2))


if __name__ == "__main__":
    main()
