"""Which words of a caption its image, and its other captions, do not bear out.

Two kinds of evidence for every word, each as the logarithm of a likelihood ratio, borne out over not:

* the image: the word's largest cosine with the image's regions, which decides both branches of awareness
  attention. The bare number says little ("green" is high on most images), so it is standardised by what
  the same word gets on other images: a word that is not there looks like it does anywhere. The word is
  encoded by itself, because inside a caption it takes on what the rest of the caption says.
* the siblings: whether another caption of the image has the word, against how often that happens by chance.

How much either says is learned per spelling from captions that are believed. "the" rises nowhere and is found
everywhere: it says nothing, keeps a support of one half, and is never called wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from pmpguard.models.retriever import Retriever
from pmpguard.models.tokenizer import Tokenizer
from pmpguard.stable_random import StableRandom

Array = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]
REFERENCES = 256  # images a spelling is compared on
PRIOR_COUNT = 5.0  # what is learned of a spelling that is seen less often than this counts little
WRONG_UNDER = 0.2
SPELLINGS_AT_ONCE = 4096


@dataclass(frozen=True)
class WordSpan:
    """A word's characters in its caption."""

    start: int
    stop: int


@dataclass(frozen=True)
class WordList:
    """The words of many pairs, one after another (W,): of which pair, which spelling, which characters."""

    pair: Numbers
    spelling: Numbers
    start: Numbers
    stop: Numbers
    spellings: tuple[str, ...]

    @classmethod
    def of(cls, captions: Sequence[str], spans: Sequence[tuple[WordSpan, ...]]) -> WordList:
        number_of: dict[str, int] = {}
        rows = [
            (pair, number_of.setdefault(text[span.start : span.stop].lower(), len(number_of)), span)
            for pair, (text, words) in enumerate(zip(captions, spans, strict=True))
            for span in words
        ]
        columns = [(pair, spelling, span.start, span.stop) for pair, spelling, span in rows]
        table = np.array(columns, dtype=np.int64).reshape(-1, 4)
        return cls(table[:, 0], table[:, 1], table[:, 2], table[:, 3], tuple(number_of))


def word_spans(tokenizer: Tokenizer, text: str, max_tokens: int) -> tuple[WordSpan, ...]:
    """The words that the model reads, from left to right, without what it cuts off and without signs."""
    encoding = tokenizer.rules.encode(text)
    places = range(tokenizer.prefix, min(len(encoding.ids) - tokenizer.suffix, tokenizer.prefix + max_tokens))
    spans = []
    for _, group in groupby(places, key=lambda place: encoding.word_ids[place]):
        pieces = list(group)
        start, stop = encoding.offsets[pieces[0]][0], encoding.offsets[pieces[-1]][1]
        word = text[start:stop]
        start += len(word) - len(word.lstrip())
        stop -= len(word) - len(word.rstrip())
        if any(map(str.isalnum, text[start:stop])):
            spans.append(WordSpan(start, stop))
    return tuple(spans)


def spelling_vectors(retriever: Retriever, spellings: Sequence[str]) -> Tensor:
    """(V, d) unit: each spelling encoded by itself, the mean of its pieces."""
    parts = []
    for start in range(0, len(spellings), SPELLINGS_AT_ONCE):
        encoded = retriever.encode_texts(spellings[start : start + SPELLINGS_AT_ONCE])
        totals = (encoded.fragments * encoded.mask[..., None]).sum(1)  # (v, d)
        parts.append(normalize(totals, dim=1))
    return torch.cat(parts)


@dataclass(frozen=True)
class ImageWords:
    """Spellings and images of one model, ready to be compared."""

    vectors: Tensor  # (V, d)
    regions: Tensor  # (I, n, d), half precision will do
    mean: Tensor  # (V,) of the largest cosine, over reference images
    deviation: Tensor  # (V,)

    @classmethod
    @torch.no_grad()
    def of(cls, vectors: Tensor, regions: Tensor, seed: int = 0, references: int = REFERENCES) -> ImageWords:
        drawn = np.sort(StableRandom("reference images", seed).choice(len(regions), references))
        others = regions[torch.from_numpy(drawn).to(regions.device)].float()  # (R, n, d)
        best = torch.cat([largest_cosines(part, others) for part in torch.split(vectors, 512)])  # (V, R)
        return cls(vectors, regions, best.mean(1), best.std(1, correction=0).clamp(min=1e-3))

    @torch.no_grad()
    def rises(self, spellings: Numbers, images: Numbers) -> Array:
        """(W,) by how many deviations each word's largest cosine on its image exceeds the usual."""
        device = self.vectors.device
        order = np.argsort(images, kind="stable")  # image by image: its regions are read once
        present, starts = np.unique(images[order], return_index=True)
        best = torch.empty(len(spellings), device=device)
        for image, places in zip(present.tolist(), np.split(order, starts)[1:], strict=True):
            words = self.vectors[torch.from_numpy(spellings[places]).to(device)]  # (w, d)
            found = (words @ self.regions[image].float().T).amax(1)
            best[torch.from_numpy(places).to(device)] = found
        chosen = torch.from_numpy(spellings).to(device)
        return ((best - self.mean[chosen]) / self.deviation[chosen]).double().cpu().numpy()

    @torch.no_grad()
    def cosines(self, spellings: Tensor, images: Tensor) -> Tensor:
        """(W, n) of each word with the regions of its image."""
        return torch.einsum("wd,wnd->wn", self.vectors[spellings], self.regions[images].float())


def largest_cosines(words: Tensor, images: Tensor) -> Tensor:
    """(V, R): each word's largest cosine with a region of each image; words (V, d), images (R, n, d)."""
    count, regions, dim = images.shape
    return (words @ images.reshape(count * regions, dim).T).view(len(words), count, regions).amax(-1)


def visibility(spelling: Numbers, rises: Array, believed: Array, count: int) -> Array:
    """(count,) how far each spelling rises on average in believed captions; at least 0, shrunk when rare.

    spelling, rises and `believed`, the p(match) of each word's pair, are (W,).
    """
    total = np.bincount(spelling, weights=believed * rises, minlength=count)
    weight = np.bincount(spelling, weights=believed, minlength=count)
    found: Array = np.maximum(total / (weight + PRIOR_COUNT), 0.0)
    return found


def image_evidence(spelling: Numbers, rises: Array, visible: Array) -> Array:
    """(W,) log likelihood ratio: a word rises by its spelling's average v when it is there, by 0 when not,
    give or take one deviation, which makes v · rise - v²/2."""
    v = visible[spelling]
    found: Array = v * rises - v**2 / 2
    return found


def sibling_evidence(words: WordList, image_of: Numbers, believed: Array) -> Array:
    """(W,) log likelihood ratio of finding the word in another caption of the image, or of not finding it.

    image_of and believed (pairs,). 0 where an image has one caption only.
    """
    count = len(words.spellings)
    captions = np.bincount(image_of)  # (I,)
    # each spelling once per pair, then the number of pairs of the image that have it
    once = np.unique(words.pair * count + words.spelling)
    pair, spelling = once // count, once % count  # (U,)
    keys, place, carriers = np.unique(
        image_of[pair] * count + spelling, return_inverse=True, return_counts=True
    )
    found = carriers[place.ravel()] > 1  # (U,) in a sibling, too
    several = captions[image_of[pair]] > 1
    # by chance: a random place of a random image, whose other captions have the spelling
    of_image = captions[keys // count]
    places = np.where(of_image > 1, np.where(carriers > 1, of_image, of_image - 1), 0)
    chance = np.bincount(keys % count, weights=places, minlength=count)
    chance = (chance / max(int(captions[captions > 1].sum()), 1)).clip(1e-3, 1 - 1e-3)  # (V,)
    weight = believed[pair] * several
    hits = np.bincount(spelling, weights=weight * found, minlength=count)
    usual = (hits + PRIOR_COUNT * chance) / (
        np.bincount(spelling, weights=weight, minlength=count) + PRIOR_COUNT
    )
    usual = np.maximum(usual, chance).clip(1e-3, 1 - 1e-3)  # (V,)
    ratio = np.where(found, np.log(usual / chance)[spelling], np.log((1 - usual) / (1 - chance))[spelling])
    told = np.where(several, ratio, 0.0)  # (U,)
    back = np.searchsorted(once, words.pair * count + words.spelling)
    result: Array = told[back]
    return result


def support(evidence: Array) -> Array:
    """The chance that a word is borne out, when beforehand both are equally likely."""
    chance: Array = 0.5 * (1 + np.tanh(0.5 * evidence))
    return chance
