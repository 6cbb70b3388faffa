"""Frozen backbones run once: their features are kept, and steps train the projections and heads alone.

Possible when nothing in the backbones is trained and images are not augmented, for then the features of an
image never change. They stand where pixels or token ids would, as `Encoded` before the last linear layers;
`encode_images` and `encode_texts` finish either kind of input.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import torch
from torch.nn.functional import pad

from pmpguard.config import fingerprint
from pmpguard.data.byte_ranges import file_version
from pmpguard.data.images.sources import ImageSource, ImageSubset, StreamedImages
from pmpguard.data.images.transforms import Augmentation
from pmpguard.data.shards import split_reference
from pmpguard.device import encoder_precision, to_device
from pmpguard.errors import ConfigError
from pmpguard.models.checkpoints import tensors_fingerprint, weights_fingerprint
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.progress import progress_bar
from pmpguard.training.kept_vectors import bytes_of
from pmpguard.training.loader import ImageInput, ImageInputs, TextInput, TokenTable
from pmpguard.training.stored_features import Storage, read_or_make

IN_MEMORY = Storage("always")


def encode_images(retriever: Retriever, images: ImageInput) -> Encoded:
    """Unit vectors from pixels as `forward_images` takes them, or from cached features."""
    return retriever.project_images(image_features(retriever, images))


def image_features(retriever: Retriever, images: ImageInput) -> Encoded:
    """The same up to the last linear layer."""
    return images if isinstance(images, Encoded) else retriever.image_tokens(images)


def encode_texts(retriever: Retriever, texts: TextInput) -> Encoded:
    """Unit vectors of captions from token ids, padded or packed, or from cached features."""
    return retriever.project_texts(text_features(retriever, texts))


def text_features(retriever: Retriever, texts: TextInput) -> Encoded:
    """The same up to the last linear layer."""
    return texts if isinstance(texts, Encoded) else texts.features(retriever)


@dataclass(frozen=True)
class CachedImages:
    """A frozen backbone's features of images, in the place of an `ImageSource`."""

    features: Encoded  # (images, n, c), or of a larger set; mapped ones lie on disk
    codes: np.ndarray  # (images,) their numbers in the features
    device: torch.device  # where they are wanted

    def __len__(self) -> int:
        return len(self.codes)

    def batches(self, codes: Sequence[np.ndarray]) -> Iterator[Encoded]:
        for part in codes:
            yield self.features[to_device(self.codes[part], self.features.mask.device)].to(self.device)


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
def cache_features(
    retriever: Retriever,
    images: ImageSource,
    tokens: TokenTable,
    batch: int,
    device: torch.device,
    precision: str = "fp32",
    storage: Storage = IN_MEMORY,
) -> tuple[ImageInputs, TokenTable]:
    """Run both frozen backbones over everything; features are kept in the run's precision.

    They stay on the device, or go to disk where `storage` says so. Where the disk has no room either, images
    and captions are given back as they were.
    """
    if not is_frozen(retriever):
        raise ConfigError(
            "features can be kept only of frozen backbones",
            fix="set model.vision_options.frozen=true and model.text_options.frozen=true",
        )
    kept = kept_type(precision, device)
    weights = f"{kept} {device} {weights_fingerprint(retriever.text_encoder.backbone)}"
    known = _CAPTIONS.setdefault(whole_set(images), {}).setdefault(weights, {})
    with encoder_precision(device, precision):
        if storage.keep == "always" or storage.in_memory(_caption_bytes(retriever, tokens, kept)):
            features: Encoded | None = _caption_features(retriever, tokens, batch, kept, known)
        else:
            features = _captions_on_disk(retriever, tokens, batch, kept, storage, weights)
    if features is not None:
        words = features.mask.sum(1).cpu().numpy()
        tokens = replace(tokens, lengths=words, packs=False, specials=(0, 0), features=features)
    return cache_images(retriever, images, batch, device, precision, storage), tokens


def _longest(tokens: TokenTable) -> int:
    """Most words of a caption."""
    return max(1, tokens.mask.shape[1] - sum(tokens.specials))


def _caption_bytes(retriever: Retriever, tokens: TokenTable, kept: torch.dtype) -> int:
    """What the features of all captions take; of their width one caption tells."""
    if not len(tokens):
        return 0
    first = slice(0, 1)
    width = retriever.text_tokens(tokens.ids[first].long(), tokens.mask[first]).pooled.shape[1]
    return len(tokens) * (_longest(tokens) + 1) * width * torch.empty(0, dtype=kept).element_size()


def _captions_on_disk(
    retriever: Retriever, tokens: TokenTable, batch: int, kept: torch.dtype, storage: Storage, weights: str
) -> Encoded | None:
    """Features of the captions in their own order, all as long as the longest."""
    longest, count = _longest(tokens), len(tokens)

    def make(first: int) -> Iterator[Encoded]:
        with progress_bar(count, first, "reading captions", unit="caption") as bar:
            for start in range(first, count, batch):
                part = slice(start, start + batch)
                read = retriever.text_tokens(tokens.ids[part].long(), tokens.mask[part]).to(dtype=kept)
                missing = longest - read.mask.shape[1]
                yield Encoded(
                    read.pooled, pad(read.fragments, (0, 0, 0, missing)), pad(read.mask, (0, missing))
                )
                bar.update(len(read))

    name = fingerprint(["captions", weights, batch, tensors_fingerprint([tokens.ids, tokens.mask])])
    return read_or_make(name, count, _caption_bytes(retriever, tokens, kept), batch, storage, make)


def _caption_features(
    retriever: Retriever, tokens: TokenTable, batch: int, kept: torch.dtype, known: dict[bytes, Encoded]
) -> Encoded:
    """Features (U, m, c) of the captions. What is not `known` is read, shortest first to pad little."""
    ids = tokens.ids.cpu().numpy()
    names = [row[:length].tobytes() for row, length in zip(ids, tokens.lengths, strict=True)]
    order = np.argsort(tokens.lengths, kind="stable")
    new = np.array([row for row in order if names[row] not in known], dtype=np.int64)
    with progress_bar(len(new), 0, "reading captions", unit="caption") as bar:
        for start in range(0, len(new), batch):
            rows = new[start : start + batch]
            chosen, width = torch.from_numpy(rows).to(tokens.ids.device), int(tokens.lengths[rows].max())
            part = retriever.text_tokens(tokens.ids[chosen, :width].long(), tokens.mask[chosen, :width])
            part = part.to(dtype=kept)
            for place, (row, words) in enumerate(zip(rows, part.mask.sum(1).tolist(), strict=True)):
                one = part[place : place + 1]
                known[names[row]] = Encoded(
                    one.pooled.clone(), one.fragments[:, :words].clone(), one.mask[:, :words].clone()
                )
            bar.update(len(rows))
    longest = _longest(tokens)  # m
    width = known[names[0]].pooled.shape[1] if names else 0
    silent = Encoded(  # pads all captions to the same length
        torch.zeros(1, width, dtype=kept, device=tokens.ids.device),
        torch.zeros(1, longest, width, dtype=kept, device=tokens.ids.device),
        torch.zeros(1, longest, dtype=torch.bool, device=tokens.ids.device),
    )
    return Encoded.cat([*(known[name] for name in names), silent])[: len(names)]


@torch.no_grad()
def cache_images(
    retriever: Retriever,
    images: ImageSource,
    batch: int,
    device: torch.device,
    precision: str = "fp32",
    storage: Storage = IN_MEMORY,
) -> ImageInputs:
    """The features of the images, where `storage` has room; of a part of a set, the whole set is read."""
    if isinstance(images, ImageSubset):
        whole = cache_images(retriever, images.whole, batch, device, precision, storage)
        if not isinstance(whole, CachedImages):
            return images
        return replace(whole, codes=whole.codes[images.codes])
    kept = kept_type(precision, device)
    codes = np.arange(len(images))

    def make(first: int) -> Generator[Encoded, None, None]:
        parts = [codes[start : start + batch] for start in range(first, len(codes), batch)]
        with progress_bar(len(codes), first, "reading images", unit="image") as bar:
            for pixels in images.batches(parts):
                yield retriever.image_tokens(pixels).to(dtype=kept)
                bar.update(len(pixels))

    def read() -> Encoded | None:
        made = make(0)
        beginning = next(made)
        size = len(codes) * bytes_of(beginning) // len(beginning)
        if storage.in_memory(size):
            return Encoded.filled(itertools.chain([beginning], made), len(codes))
        made.close()
        name = fingerprint(["images", weights, images_fingerprint(images)])
        return read_or_make(name, len(codes), size, batch, storage, make)

    with encoder_precision(device, precision):
        weights = f"{batch} {kept} {device} {weights_fingerprint(retriever.image_encoder.backbone)}"
        features = _remembered(images, weights, read)
    return images if features is None else CachedImages(features, codes, device)


def images_fingerprint(images: ImageSource) -> str:
    """What tells the content of a set of images: the names, sizes and times of its files, or its pixels."""
    if not isinstance(images, StreamedImages):
        return tensors_fingerprint([getattr(images, "pixels")])  # noqa: B009 - in memory
    names = images.table.arrow["image"].take(pa.array(images.rows)).to_pylist()
    files = {split_reference(name)[0] for name in names}
    versions = [[file, *file_version(images.table.root / file)] for file in sorted(files)]
    return fingerprint([names, versions, str(images.table.root), images.size, str(images.framing)])


def whole_set(images: ImageSource) -> ImageSource:
    """The open set that `images` are a part of, or they themselves."""
    return whole_set(images.whole) if isinstance(images, ImageSubset) else images


def kept_type(precision: str, device: torch.device) -> torch.dtype:
    """Features are kept as the run computes them."""
    return torch.bfloat16 if precision == "bf16" and device.type == "cuda" else torch.float32


# What was read of images that are still open, and of captions paired with them: the next run over the same
# dataset with the same backbones need not read it again.
_READ: WeakKeyDictionary[ImageSource, OrderedDict[str, Encoded]] = WeakKeyDictionary()
_CAPTIONS: WeakKeyDictionary[ImageSource, dict[str, dict[bytes, Encoded]]] = WeakKeyDictionary()
MAX_CACHED_MODELS = 4  # of each set of images


def _remembered(images: ImageSource, weights: str, read: Callable[[], Encoded | None]) -> Encoded | None:
    cache = _READ.setdefault(images, OrderedDict())
    if weights not in cache:
        features = read()
        if features is None:
            return None
        cache[weights] = features
    cache.move_to_end(weights)
    while len(cache) > MAX_CACHED_MODELS:
        cache.popitem(last=False)
    return cache[weights]
