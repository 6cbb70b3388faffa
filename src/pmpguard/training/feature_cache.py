"""Frozen backbones run once: their tokens are kept, and steps train the projections and heads alone.

Possible when nothing in the backbones is trained and images are not augmented, for then a image's tokens
never change. A kept item is one block (1 + n, c): the pooled token, then the fragments. `CachedImages` and
`CachedCaptions` stand in for `Images` and `TokenTable`, so that whoever feeds batches need not know;
`images_of` and `texts_of` of `kept_tokens.py` finish either kind of input.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from pmpguard.data.images.sources import ImageSource, ImageSubset
from pmpguard.data.images.transforms import Augmentation
from pmpguard.device import encoder_precision, to_device
from pmpguard.errors import ConfigError
from pmpguard.models.retriever import Retriever
from pmpguard.training.kept_tokens import pack
from pmpguard.training.loader import TokenTable
from pmpguard.training.packing import PaddedWords
from pmpguard.training.tracking import progress_bar


@dataclass(frozen=True)
class CachedImages:
    """The tokens of every image, where pixels would be."""

    blocks: Tensor  # (images, 1 + n, c)

    def __len__(self) -> int:
        return len(self.blocks)

    def batches(self, codes: Sequence[np.ndarray]) -> Iterator[Tensor]:
        for part in codes:
            yield self.blocks[to_device(part, self.blocks.device)]


@dataclass(frozen=True)
class CachedCaptions(TokenTable):
    """The tokens of every distinct caption: `ids` holds blocks (U, 1 + m, c), `mask` (U, m) marks words."""

    def padded(self, captions: np.ndarray, width: int | None = None) -> PaddedWords:
        """Blocks (n, 1 + L, c) and mask (n, L) of the given captions, L their longest rounded up."""
        width = width or self.width(captions)
        index = to_device(captions, self.ids.device)
        return PaddedWords(self.ids[index, : 1 + width], self.mask[index, :width])


def can_cache(retriever: Retriever, augmentation: Augmentation) -> bool:
    """Whether nothing before the projections changes during a run."""
    return is_frozen(retriever) and not augments(augmentation)


def is_frozen(retriever: Retriever) -> bool:
    """Whether nothing inside either backbone is trained, adapters included."""
    encoders = (retriever.image_encoder, retriever.text_encoder)
    return all(encoder.options.frozen and not encoder.adapted for encoder in encoders)


def augments(augmentation: Augmentation) -> bool:
    """Whether images come out different from how they went in."""
    return augmentation.flip or augmentation.rotate or augmentation.crop_min < 1 or augmentation.colour > 0


@torch.no_grad()
def cache_tokens(
    retriever: Retriever,
    images: ImageSource,
    tokens: TokenTable,
    batch: int,
    device: torch.device,
    precision: str = "fp32",
) -> tuple[ImageSource, CachedCaptions]:
    """Run both frozen backbones over everything; tokens stay on the device, in the run's precision."""
    if not is_frozen(retriever):
        raise ConfigError(
            "tokens can be kept only of frozen backbones",
            fix="set model.vision_options.frozen=true and model.text_options.frozen=true",
        )
    kept = kept_type(precision, device)
    mark = f"{kept} {device} {weights_fingerprint(retriever.text_encoder.backbone)}"
    known = _CAPTIONS.setdefault(whole_set(images), {}).setdefault(mark, {})
    with encoder_precision(device, precision):
        captions, mask = _caption_blocks(retriever, tokens, batch, kept, known)
    return (
        cache_images(retriever, images, batch, device, precision),
        CachedCaptions(captions, mask, mask.sum(1).cpu().numpy(), tokens.row_of, packs=False),
    )


def _caption_blocks(
    retriever: Retriever, tokens: TokenTable, batch: int, kept: torch.dtype, known: dict[bytes, Tensor]
) -> tuple[Tensor, Tensor]:
    """Blocks (U, 1 + m, c) and mask (U, m). What is not `known` is read, shortest first to pad little."""
    ids = tokens.ids.cpu().numpy()
    names = [row[:length].tobytes() for row, length in zip(ids, tokens.lengths, strict=True)]
    order = np.argsort(tokens.lengths, kind="stable")
    new = np.array([row for row in order if names[row] not in known], dtype=np.int64)
    with progress_bar(len(new), 0, "reading captions", unit="caption") as bar:
        for start in range(0, len(new), batch):
            rows = new[start : start + batch]
            chosen, width = torch.from_numpy(rows).to(tokens.ids.device), int(tokens.lengths[rows].max())
            part = retriever.text_tokens(tokens.ids[chosen, :width], tokens.mask[chosen, :width])
            for row, block, words in zip(rows, pack(part).to(kept), part.mask.sum(1).tolist(), strict=True):
                known[names[row]] = block[: 1 + words].clone()  # (1 + words, c)
            bar.update(len(rows))
    longest = max(1, tokens.mask.shape[1] - sum(tokens.specials))  # m
    width = known[names[0]].shape[1] if names else 0
    blocks = torch.zeros(len(names), 1 + longest, width, dtype=kept, device=tokens.ids.device)
    for row, name in enumerate(names):
        blocks[row, : len(known[name])] = known[name]
    words = torch.tensor([len(known[name]) - 1 for name in names], device=tokens.ids.device)
    return blocks, torch.arange(longest, device=words.device) < words[:, None]


@torch.no_grad()
def cache_images(
    retriever: Retriever, images: ImageSource, batch: int, device: torch.device, precision: str = "fp32"
) -> ImageSource:
    """The tokens of the images, in the form of these; of a part of a set, the whole set is read."""
    if isinstance(images, ImageSubset):
        whole = cache_images(retriever, images.whole, batch, device, precision)
        return ImageSubset(whole, images.codes)
    kept = kept_type(precision, device)
    codes = np.arange(len(images))
    parts = [codes[start : start + batch] for start in range(0, len(codes), batch)]

    def read() -> Tensor:
        blocks = []
        with progress_bar(len(codes), 0, "reading images", unit="image") as bar:
            for pixels in images.batches(parts):
                blocks.append(pack(retriever.image_tokens(pixels)).to(kept))
                bar.update(len(pixels))
        return torch.cat(blocks)

    with encoder_precision(device, precision):
        mark = f"{batch} {kept} {device} {weights_fingerprint(retriever.image_encoder.backbone)}"
        blocks = _remembered(images, mark, read)
    return CachedImages(blocks)


def whole_set(images: ImageSource) -> ImageSource:
    """The open set that `images` are a part of, or they themselves."""
    return whole_set(images.whole) if isinstance(images, ImageSubset) else images


def kept_type(precision: str, device: torch.device) -> torch.dtype:
    """Tokens are kept as the run computes them."""
    return torch.bfloat16 if precision == "bf16" and device.type == "cuda" else torch.float32


# What was read of images that are still open, and of captions paired with them: the next run over the same
# dataset with the same backbones need not read it again.
_READ: WeakKeyDictionary[ImageSource, OrderedDict[str, Tensor]] = WeakKeyDictionary()
_CAPTIONS: WeakKeyDictionary[ImageSource, dict[str, dict[bytes, Tensor]]] = WeakKeyDictionary()
MOST_REMEMBERED = 4  # by set of images


def _remembered(images: ImageSource, mark: str, read: Callable[[], Tensor]) -> Tensor:
    found = _READ.setdefault(images, OrderedDict())
    if mark not in found:
        found[mark] = read()
    found.move_to_end(mark)
    while len(found) > MOST_REMEMBERED:
        found.popitem(last=False)
    return found[mark]


def weights_fingerprint(module: nn.Module) -> str:
    """Equal marks, equal weights."""
    return tensors_fingerprint(module.state_dict().values())


def tensors_fingerprint(tensors: Iterable[Tensor]) -> str:
    """A hash of the tensors' values and shapes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
