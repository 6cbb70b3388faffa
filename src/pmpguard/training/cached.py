"""Frozen backbones run once: their tokens are kept, and steps train the projections and heads alone.

Possible when nothing in the backbones is trained and pictures are not augmented, for then a picture's tokens
never change. A kept item is one block (1 + n, c): the pooled token, then the fragments. `CachedPictures` and
`CachedCaptions` stand in for `Pictures` and `TokenTable`, so that whoever feeds batches need not know;
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

from pmpguard.data.transforms import Augmentation
from pmpguard.errors import ConfigError
from pmpguard.evaluation.evaluate import PictureSource, encoder_precision
from pmpguard.model.retriever import Retriever
from pmpguard.training.feeding import TokenTable
from pmpguard.training.kept_tokens import pack
from pmpguard.training.pictures import Pictures, SomePictures
from pmpguard.training.tracking import progress_bar
from pmpguard.training.words import PaddedWords


@dataclass(frozen=True)
class CachedPictures:
    """The tokens of every picture, where pixels would be."""

    blocks: Tensor  # (images, 1 + n, c)

    def __len__(self) -> int:
        return len(self.blocks)

    def batches(self, codes: Sequence[np.ndarray]) -> Iterator[Tensor]:
        for part in codes:
            yield self.blocks[torch.from_numpy(part).to(self.blocks.device)]


@dataclass(frozen=True)
class CachedCaptions(TokenTable):
    """The tokens of every distinct caption: `ids` holds blocks (U, 1 + m, c), `mask` (U, m) marks words."""

    def padded(self, captions: np.ndarray) -> PaddedWords:
        """Blocks (n, 1 + L, c) and mask (n, L) of the given captions, L their longest rounded up."""
        width = self.width(captions)
        index = torch.from_numpy(captions).to(self.ids.device)
        return PaddedWords(self.ids[index, : 1 + width], self.mask[index, :width])


def can_cache(retriever: Retriever, augmentation: Augmentation) -> bool:
    """Whether nothing before the projections changes during a run."""
    return is_frozen(retriever) and not augments(augmentation)


def is_frozen(retriever: Retriever) -> bool:
    """Whether nothing inside either backbone is trained, adapters included."""
    encoders = (retriever.image_encoder, retriever.text_encoder)
    return all(encoder.options.frozen and not encoder.adapted for encoder in encoders)


def augments(augmentation: Augmentation) -> bool:
    """Whether pictures come out different from how they went in."""
    return augmentation.flip or augmentation.rotate or augmentation.crop_min < 1 or augmentation.colour > 0


@torch.no_grad()
def cache_tokens(
    retriever: Retriever,
    pictures: Pictures,
    tokens: TokenTable,
    batch: int,
    device: torch.device,
    precision: str = "fp32",
) -> tuple[PictureSource, CachedCaptions]:
    """Run both frozen backbones over everything; tokens stay on the device, in the run's precision."""
    if not is_frozen(retriever):
        raise ConfigError(
            "tokens can be kept only of frozen backbones",
            fix="set model.vision_options.frozen=true and model.text_options.frozen=true",
        )
    kept = kept_type(precision, device)

    def read_captions() -> tuple[Tensor, ...]:
        return _read_captions(retriever, tokens, batch, kept)

    mark = f"{batch} {kept} {device} {tensors_mark([tokens.ids, tokens.mask])}"
    with encoder_precision(device, precision):
        captions, mask = _remembered(
            pictures, f"{mark} {weights_mark(retriever.text_encoder.backbone)}", read_captions
        )  # (U, 1 + m, c), (U, m)
    return (
        cache_pictures(retriever, pictures, batch, device, precision),
        CachedCaptions(captions, mask, mask.sum(1).cpu().numpy(), tokens.row_of, packs=False),
    )


def _read_captions(
    retriever: Retriever, tokens: TokenTable, batch: int, kept: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Blocks (U, 1 + m, c) and mask (U, m), read shortest first so that little of a batch is padding."""
    order = np.argsort(tokens.lengths, kind="stable")
    longest = tokens.mask.shape[1] - sum(tokens.specials)  # m
    blocks = torch.zeros(0)
    mask = torch.zeros(len(order), longest, dtype=torch.bool, device=tokens.mask.device)
    with progress_bar(len(order), 0, "reading captions", unit="caption") as bar:
        for start in range(0, len(order), batch):
            rows = order[start : start + batch]
            chosen = torch.from_numpy(rows).to(tokens.ids.device)
            width = int(tokens.lengths[rows].max())
            part = retriever.text_tokens(tokens.ids[chosen, :width], tokens.mask[chosen, :width])
            block = pack(part).to(kept)  # (b, 1 + m', c)
            if not start:
                blocks = block.new_zeros(len(order), 1 + longest, block.shape[2])
            blocks[chosen, : block.shape[1]] = block
            mask[chosen, : part.mask.shape[1]] = part.mask
            bar.update(len(rows))
    return blocks, mask


@torch.no_grad()
def cache_pictures(
    retriever: Retriever, pictures: PictureSource, batch: int, device: torch.device, precision: str = "fp32"
) -> PictureSource:
    """The tokens of the pictures, in the form of these; of a part of a set, the whole set is read."""
    if isinstance(pictures, SomePictures):
        whole = cache_pictures(retriever, pictures.whole, batch, device, precision)
        return SomePictures(whole, pictures.codes)
    kept = kept_type(precision, device)
    codes = np.arange(len(pictures))
    parts = [codes[start : start + batch] for start in range(0, len(codes), batch)]

    def read() -> tuple[Tensor, ...]:
        blocks = []
        with progress_bar(len(codes), 0, "reading pictures", unit="picture") as bar:
            for pixels in pictures.batches(parts):
                blocks.append(pack(retriever.image_tokens(pixels)).to(kept))
                bar.update(len(pixels))
        return (torch.cat(blocks),)

    with encoder_precision(device, precision):
        mark = f"{batch} {kept} {device} {weights_mark(retriever.image_encoder.backbone)}"
        (blocks,) = _remembered(pictures, mark, read)
    return CachedPictures(blocks)


def kept_type(precision: str, device: torch.device) -> torch.dtype:
    """Tokens are kept as the run computes them."""
    return torch.bfloat16 if precision == "bf16" and device.type == "cuda" else torch.float32


# What was read of pictures that are still open, and of captions paired with them: the next run over the same
# dataset with the same backbones need not read it again.
_READ: WeakKeyDictionary[Pictures, OrderedDict[str, tuple[Tensor, ...]]] = WeakKeyDictionary()
MOST_REMEMBERED = 4  # by set of pictures


def _remembered(pictures: Pictures, mark: str, read: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    found = _READ.setdefault(pictures, OrderedDict())
    if mark not in found:
        found[mark] = read()
    found.move_to_end(mark)
    while len(found) > MOST_REMEMBERED:
        found.popitem(last=False)
    return found[mark]


def weights_mark(module: nn.Module) -> str:
    """Equal marks, equal weights."""
    return tensors_mark(module.state_dict().values())


def tensors_mark(tensors: Iterable[Tensor]) -> str:
    """A hash of the tensors' values and shapes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
