"""Evidence that a caption belongs to its image: it agrees with the image's other captions.

The captions of one image describe one scene, so a matching caption resembles its siblings and a mismatched
one does not. A null pair takes a labelled caption's place and is compared with the same siblings
(`query_images` and `exclude_rows` of that place). Most siblings may be mismatched themselves, so only the
closest two count: two right captions find each other among several wrong ones.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pmpguard.detection.evidence.similarity import Measure

Array = npt.NDArray[np.float64]
CLOSEST = 2
SURELY_MISMATCHED = 0.1
# kinds of evidence that `image_level_mismatch` may go by, best first
REFERENCE_EVIDENCE = ("similarity", "neighbour_text", "regression")
MAX_GATHERED = 32_000_000  # numbers gathered at once


@torch.no_grad()
def caption_agreement(
    captions: Tensor,
    caption_of: Tensor,
    image_of: Tensor,
    query_captions: Tensor,
    query_images: Tensor,
    exclude_rows: Tensor | None = None,
    level: float | None = None,
) -> Tensor:
    """(P,) mean of each query caption's two largest cosines with the labelled captions of its query image.

    captions (C, d) are unit vectors; caption_of and image_of (N,) the labelled pairs; query_captions and
    query_images (P,) the combinations asked about. `exclude_rows` (P,) are the labelled rows left out, which
    is the asked pair itself when it is labelled; -1 leaves out none. An image with one other caption answers
    with that one; an image with none says nothing, and its queries get `level`, by default the mean of all
    that could be answered (0 when none could). Give labelled and simulated mismatched pairs the same `level`:
    the means of the two differ, and would tell them apart where nothing is known.
    """
    device = captions.device
    caption_of, image_of = caption_of.to(device), image_of.to(device)  # (N,)
    query_captions, query_images = query_captions.to(device), query_images.to(device)  # (P,)
    if not len(query_captions):
        return captions.new_zeros(0, dtype=torch.float32)
    excluded = torch.full_like(query_images, -1) if exclude_rows is None else exclude_rows.to(device)
    by_image = torch.argsort(image_of, stable=True)  # (N,) rows, image by image
    images = int(max(image_of.max() if len(image_of) else -1, query_images.max())) + 1
    counts = torch.bincount(image_of, minlength=images)  # (I,)
    starts = counts.cumsum(0) - counts  # (I,)

    answers = torch.zeros(len(query_captions), dtype=torch.float32, device=device)  # (P,)
    answered = torch.zeros(len(query_captions), dtype=torch.bool, device=device)
    # queries of images with equally many captions go together, so that little is padded
    order = torch.argsort(counts[query_images], stable=True)  # (P,)
    for part in _chunks(order, counts[query_images[order]], captions.shape[1]):
        asked = query_images[part]  # (Q,)
        longest = int(counts[asked].max())
        if not longest:
            continue
        offsets = torch.arange(longest, device=device)  # (K,)
        places = (starts[asked, None] + offsets).clamp(max=len(by_image) - 1)  # (Q, K)
        siblings = by_image[places]  # (Q, K) rows
        present = (offsets < counts[asked, None]) & (siblings != excluded[part, None])  # (Q, K)
        others = captions[caption_of[siblings]].float()  # (Q, K, d)
        cosines = torch.einsum("qd,qkd->qk", captions[query_captions[part]].float(), others)
        closest = cosines.masked_fill(~present, -torch.inf).topk(min(CLOSEST, longest), dim=1).values
        exists = closest > -torch.inf  # (Q, 2)
        totals = closest.masked_fill(~exists, 0).sum(1)
        answers[part] = totals / exists.sum(1).clamp(min=1)
        answered[part] = exists.any(1)
    if level is None:
        level = float(answers[answered].mean()) if answered.any() else 0.0
    return torch.where(answered, answers, level)


def caption_agreement_measure(texts: Tensor, text_of: Tensor, image_of: Tensor) -> Measure | None:
    """By centred unit vectors (C, d); None where no image has several captions."""
    several = torch.bincount(image_of)[image_of] > 1  # (N,)
    if not bool(several.any()):
        return None
    rows = torch.arange(len(text_of), device=text_of.device)
    answered = caption_agreement(texts, text_of, image_of, text_of[several], image_of[several], rows[several])
    level = float(answered.mean()) / 2  # of pairs that nothing can be said about: between wrong and right

    def agree(of_text: Tensor, of_image: Tensor, left_out: Tensor) -> Tensor:
        return caption_agreement(texts, text_of, image_of, of_text, of_image, left_out, level)

    return agree


def image_level_mismatch(
    p_match: Array, image_of: npt.NDArray[np.int64], observed: Array, null: Array
) -> bool:
    """Whether the pairs that look mismatched agree with siblings that do so, too.

    p_match (N,) by other evidence alone; agreement observed (N,) and of null pairs (M,). Captions mismatched
    one by one agree with nothing. Right captions that the model does not understand agree with siblings it
    does understand. Only where both fail are whole images mismatched (image-level noise).
    """
    suspects = p_match < SURELY_MISMATCHED
    images = int(image_of.max()) + 1
    counts = np.bincount(image_of, minlength=images)[image_of]  # (N,)
    suspects &= counts > 1
    if suspects.sum() < 20:
        return False
    totals = np.bincount(image_of, weights=p_match, minlength=images)[image_of]
    siblings = (totals - p_match) / np.maximum(counts - 1, 1)  # (N,) mean p(match) of the other captions
    agreeing = observed[suspects] > np.quantile(null, 0.9)
    excess = (agreeing.mean() - 0.1) / 0.9  # beyond what random captions reach
    distrusted = siblings[suspects][agreeing].mean() < 0.5 * p_match.mean() if agreeing.any() else False
    return bool(excess > 0.3 and distrusted)


def _chunks(order: Tensor, counts: Tensor, dim: int) -> list[Tensor]:
    """Split queries sorted by their images' caption counts: no part gathers more than `MAX_GATHERED`."""
    parts, start = [], 0
    while start < len(order):
        size = max(MAX_GATHERED // (max(int(counts[start]), 1) * dim), 1)
        # counts grow along the order: shrink until the largest count of the part fits too
        while size > 1 and size * int(counts[min(start + size, len(order)) - 1]) * dim > 2 * MAX_GATHERED:
            size = size // 2
        parts.append(order[start : start + size])
        start += size
    return parts
