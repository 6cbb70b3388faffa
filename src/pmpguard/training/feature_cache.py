"""Frozen backbones run once: their features are kept, and steps train the projections and heads alone.

Possible when nothing in the backbones is trained and images are not augmented, for then the features of an
image never change. They stand where pixels or token ids would, as `Encoded` before the last linear layers;
`encode_images` and `encode_texts` finish either kind of input.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from pmpguard.data.images.sources import ImageSource, ImageSubset
from pmpguard.data.images.transforms import Augmentation
from pmpguard.device import encoder_precision, to_device
from pmpguard.errors import ConfigError
from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever
from pmpguard.training.loader import ImageInput, TextInput, TokenTable
from pmpguard.training.tracking import progress_bar


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

    features: Encoded  # (images, n, c), or of a larger set
    codes: np.ndarray  # (images,) their numbers in the features

    def __len__(self) -> int:
        return len(self.codes)

    def batches(self, codes: Sequence[np.ndarray]) -> Iterator[Encoded]:
        for part in codes:
            yield self.features[to_device(self.codes[part], self.features.mask.device)]


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
) -> tuple[CachedImages, TokenTable]:
    """Run both frozen backbones over everything; features stay on the device, in the run's precision."""
    if not is_frozen(retriever):
        raise ConfigError(
            "features can be kept only of frozen backbones",
            fix="set model.vision_options.frozen=true and model.text_options.frozen=true",
        )
    kept = kept_type(precision, device)
    weights = f"{kept} {device} {weights_fingerprint(retriever.text_encoder.backbone)}"
    known = _CAPTIONS.setdefault(whole_set(images), {}).setdefault(weights, {})
    with encoder_precision(device, precision):
        features = _caption_features(retriever, tokens, batch, kept, known)
    words = features.mask.sum(1).cpu().numpy()
    return (
        cache_images(retriever, images, batch, device, precision),
        replace(tokens, lengths=words, packs=False, specials=(0, 0), features=features),
    )


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
            part = retriever.text_tokens(tokens.ids[chosen, :width], tokens.mask[chosen, :width])
            part = part.to(dtype=kept)
            for place, (row, words) in enumerate(zip(rows, part.mask.sum(1).tolist(), strict=True)):
                one = part[place : place + 1]
                known[names[row]] = Encoded(
                    one.pooled.clone(), one.fragments[:, :words].clone(), one.mask[:, :words].clone()
                )
            bar.update(len(rows))
    longest = max(1, tokens.mask.shape[1] - sum(tokens.specials))  # m
    width = known[names[0]].pooled.shape[1] if names else 0
    silent = Encoded(  # pads all captions to the same length
        torch.zeros(1, width, dtype=kept, device=tokens.ids.device),
        torch.zeros(1, longest, width, dtype=kept, device=tokens.ids.device),
        torch.zeros(1, longest, dtype=torch.bool, device=tokens.ids.device),
    )
    return Encoded.cat([*(known[name] for name in names), silent])[: len(names)]


@torch.no_grad()
def cache_images(
    retriever: Retriever, images: ImageSource, batch: int, device: torch.device, precision: str = "fp32"
) -> CachedImages:
    """The features of the images; of a part of a set, the whole set is read."""
    if isinstance(images, ImageSubset):
        whole = cache_images(retriever, images.whole, batch, device, precision)
        return CachedImages(whole.features, whole.codes[images.codes])
    kept = kept_type(precision, device)
    codes = np.arange(len(images))
    parts = [codes[start : start + batch] for start in range(0, len(codes), batch)]

    def read() -> Encoded:
        features = []
        with progress_bar(len(codes), 0, "reading images", unit="image") as bar:
            for pixels in images.batches(parts):
                features.append(retriever.image_tokens(pixels).to(dtype=kept))
                bar.update(len(pixels))
        return Encoded.cat(features)

    with encoder_precision(device, precision):
        weights = f"{batch} {kept} {device} {weights_fingerprint(retriever.image_encoder.backbone)}"
        return CachedImages(_remembered(images, weights, read), codes)


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


def _remembered(images: ImageSource, weights: str, read: Callable[[], Encoded]) -> Encoded:
    cache = _READ.setdefault(images, OrderedDict())
    if weights not in cache:
        cache[weights] = read()
    cache.move_to_end(weights)
    while len(cache) > MAX_CACHED_MODELS:
        cache.popitem(last=False)
    return cache[weights]


def weights_fingerprint(module: nn.Module) -> str:
    """Equal fingerprints, equal weights."""
    return tensors_fingerprint(module.state_dict().values())


def tensors_fingerprint(tensors: Iterable[Tensor]) -> str:
    """A hash of the tensors' values and shapes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
