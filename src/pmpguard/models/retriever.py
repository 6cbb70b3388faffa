"""The whole model: two encoders, cross-gated attention, awareness attention and its boundary."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import dropout
from tqdm import tqdm

from pmpguard.data.images.framing import Framing
from pmpguard.errors import ConfigError, DataError
from pmpguard.kernels.pair_scoring import (
    all_pairs,
    awareness_all_pairs,
    gated_all_pairs,
    gated_awareness_scores,
    gated_floats,
)
from pmpguard.models import model_folder
from pmpguard.models.attention.awareness import awareness_parts
from pmpguard.models.attention.boundary import Boundary
from pmpguard.models.attention.cross_gated import ALIGNED, CrossGatedAttention
from pmpguard.models.config import Ranking, RetrieverConfig
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.adapters import attach_adapters
from pmpguard.models.encoders.image import ImageEncoder, pretrained_image_encoder
from pmpguard.models.encoders.projection import unit
from pmpguard.models.encoders.text import (
    NO_TEXTS,
    TextEncoder,
    pretrained_text_encoder,
)
from pmpguard.models.explain import Explanation, explain_pair
from pmpguard.models.heads.registry import build_head
from pmpguard.models.hub import push_to_hub
from pmpguard.models.inputs import ImageInput, ImagesInput, image_batch, square_pixels, text_batch
from pmpguard.models.tokenizer import Tokenizer, word_tokenizer

COLDEST, HOTTEST = 0.01, 0.5  # bounds of the learned temperature
PROGRESS_FROM = 8  # batches; shorter jobs show no bar


class Retriever(nn.Module):
    """Encodes captions and images, scores pairs of them, and says why.

    Made by `Retriever.create` (from pretrained or untrained encoders) or `Retriever.load`. Training calls
    `forward_images` and `forward_texts`; everyone else `encode_images`, `encode_texts` and `score`.
    """

    def __init__(
        self,
        config: RetrieverConfig,
        image_encoder: ImageEncoder,
        text_encoder: TextEncoder,
        tokenizer: Tokenizer,
    ) -> None:
        super().__init__()
        self.config = config
        self.image_encoder = image_encoder
        self.text_encoder = text_encoder
        self.tokenizer = tokenizer
        gates, awareness = config.cross_gated, config.awareness
        self.cross_gated_attention = (
            CrossGatedAttention(config.dim, gates.attention_scale, gates.gate_bias) if gates.use else None
        )
        self.boundary = Boundary(awareness.alpha, awareness.mismatched, awareness.at_test)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.temperature)))
        self.head = build_head(config.head, config.dim)
        self.adapters = attach_adapters(config.adapters, image_encoder, text_encoder)

    @classmethod
    def create(
        cls,
        config: RetrieverConfig,
        captions: Iterable[str] | None = None,
        *,
        allow_download: bool = False,
        framing: Framing | None = None,
    ) -> Retriever:
        """A new model from the encoders that `config` names; `tiny` text takes its words from `captions`.

        `framing` goes before the config's own.
        """
        config = config.sized()
        image_encoder = pretrained_image_encoder(
            config.vision,
            config.dim,
            config.input_size,
            config.vision_options,
            multi_scale=config.multi_scale,
            allow_download=allow_download,
            framing=framing or config.framing,
            pooling="mean" if config.text != NO_TEXTS else "own",
        )
        text_encoder, tokenizer = pretrained_text_encoder(
            config.text,
            config.dim,
            config.max_tokens,
            config.text_options,
            tokenizer=word_tokenizer(captions) if config.text == "tiny" and captions is not None else None,
            allow_download=allow_download,
        )
        return cls(config, image_encoder, text_encoder, tokenizer)

    def __repr__(self) -> str:
        config, count = self.config, sum(parameter.numel() for parameter in self.parameters())
        side = self.image_encoder.grid
        return "\n".join(
            [
                f"Retriever({config.vision} + {config.text}, ranked by {config.ranking})",
                f"  images: {config.input_size} px, {side} x {side} regions",
                f"  texts: at most {config.max_tokens} tokens",
                f"  vectors of {config.dim}; {count:,} parameters on {self.device}",
            ]
        )

    @property
    def device(self) -> torch.device:
        return self.log_temperature.device

    @property
    def reads_texts(self) -> bool:
        """Whether there is a text encoder; without one, images find images and nothing else."""
        return self.config.text != NO_TEXTS

    @property
    def framing(self) -> Framing:
        """How an image that is not square becomes one."""
        return self.image_encoder.architecture.framing

    @property
    def temperature(self) -> Tensor:
        """tau, between 0.01 and 0.5. The gradient passes the bounds, so a value at one can come back."""
        bounded = self.log_temperature.clamp(math.log(COLDEST), math.log(HOTTEST))
        return (self.log_temperature + (bounded - self.log_temperature).detach()).exp()

    # ------------------------------------------------------------------------------------------- for training

    def tokenize(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Token ids (N, L) and mask (N, L), true except at padding; L at most `max_tokens` + 2."""
        return self.tokenizer.encode(texts, self.config.max_tokens)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Pixel values 0..255 as the image encoder wants them."""
        return self.image_encoder.normalise(pixels)

    def forward_images(self, pixels: Tensor) -> Encoded:
        """(N, 3, s, s): uint8, or float that `normalise` has been applied to."""
        return self.project_images(self.image_tokens(pixels))

    def forward_texts(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        """What `tokenize` gave, moved to the model's device."""
        return self.project_texts(self.text_tokens(token_ids, token_mask))

    def image_tokens(self, pixels: Tensor) -> Encoded:
        """`forward_images` up to the last linear layer: what to keep of a frozen backbone."""
        return self.image_encoder.tokens(pixels)

    def text_tokens(self, token_ids: Tensor, token_mask: Tensor) -> Encoded:
        """`forward_texts` up to the last linear layer."""
        return self.text_encoder.tokens(token_ids, token_mask)

    def project_images(self, tokens: Encoded) -> Encoded:
        """The rest of `forward_images`: the last linear layer, then the head."""
        encoded = self.image_encoder.project(self._thinned(tokens))
        return encoded if self.head is None else self.head.images(encoded)

    def project_texts(self, tokens: Encoded) -> Encoded:
        """The rest of `forward_texts`: the last linear layer, then the head."""
        encoded = self.text_encoder.project(self._thinned(tokens))
        return encoded if self.head is None else self.head.texts(encoded)

    def _thinned(self, tokens: Encoded) -> Encoded:
        """In training, without a random share of the features."""
        share = self.config.dropout
        if not share or not self.training:
            return tokens
        pooled, fragments = (dropout(part, share) for part in (tokens.pooled, tokens.fragments))
        return Encoded(pooled, fragments, tokens.mask)

    # ------------------------------------------------------------------------------------------------ for use

    def encode_texts(self, texts: str | Sequence[str], *, batch_size: int = 256) -> Encoded:
        """One caption or several; what goes beyond `max_tokens` tokens is cut."""
        texts = text_batch(texts)
        ids, mask = self.tokenize(texts)

        def encode(rows: slice) -> Encoded:
            longest = int(mask[rows].sum(1).max())
            return self.forward_texts(
                ids[rows, :longest].to(self.device), mask[rows, :longest].to(self.device)
            )

        return self._in_batches(encode, len(texts), batch_size, "texts")

    def encode_images(self, images: ImagesInput, *, batch_size: int = 64) -> Encoded:
        """One image or several, of any size: paths, PIL images, arrays (H, W, 3) or tensors (3, H, W).

        A tensor may hold all of them, (N, 3, H, W). Values are uint8, or float in [0, 1].
        """
        batch = image_batch(images)

        def encode(rows: slice) -> Encoded:
            return self.forward_images(self._pixels(batch[rows], rows.start).to(self.device))

        return self._in_batches(encode, len(batch), batch_size, "images")

    def encode_query(self, texts: str | Sequence[str], *, batch_size: int = 256) -> Tensor:
        """(T, d): a unit vector for each caption, on the CPU; the name is that of sentence-transformers."""
        return self.encode_texts(texts, batch_size=batch_size).pooled.float().cpu()

    def encode_document(self, images: ImagesInput, *, batch_size: int = 64) -> Tensor:
        """(I, d): a unit vector for each image, on the CPU."""
        return self.encode_images(images, batch_size=batch_size).pooled.float().cpu()

    @staticmethod
    def similarity(
        texts: Encoded | npt.ArrayLike | Tensor, images: Encoded | npt.ArrayLike | Tensor
    ) -> Tensor:
        """(T, I): the cosine of every row of the one with every row of the other."""
        rows, columns = (
            torch.as_tensor(each.pooled if isinstance(each, Encoded) else each).float()
            for each in (texts, images)
        )
        return unit(rows) @ unit(columns).T

    @torch.no_grad()
    def score(
        self,
        texts: Encoded | str | Sequence[str],
        images: Encoded | ImagesInput,
        ranking: Ranking | None = None,
    ) -> Tensor:
        """The ranking score of every caption against every image, (texts, images), higher is better.

        What is not encoded yet is. `ranking` replaces the configured one; z counts as a cosine: the
        temperature is the same for all.
        """
        texts = texts if isinstance(texts, Encoded) else self.encode_texts(texts)
        images = images if isinstance(images, Encoded) else self.encode_images(images)
        ranking = self.config.ranking if ranking is None else ranking
        if ranking == "head":
            return self._head_scores(texts, images)
        parts = []
        if "awareness" in ranking:
            parts.append(self._awareness(texts, images))
        if "gated" in ranking:
            if self.cross_gated_attention is None:
                raise ConfigError(
                    f"ranking {ranking!r} needs cross-gated attention", fix="rank by awareness or pooled"
                )
            parts.append(gated_all_pairs(self.cross_gated_attention, texts, images))
        if "pooled" in ranking:
            parts.append(texts.pooled @ images.pooled.T)
        return parts[0] if len(parts) == 1 else parts[0] + self.config.ranking_weight * parts[1]  # (T, I)

    def _head_scores(self, texts: Encoded, images: Encoded) -> Tensor:
        """The head's score of all pairs: (T, I)."""
        if self.head is None:
            raise ConfigError("ranking 'head' needs a head", fix="rank by awareness or pooled")
        floats = self.head.floats_per_pair(texts, images)
        return all_pairs(self.head.score, texts, images, floats_per_pair=floats)

    def _awareness(self, texts: Encoded, images: Encoded) -> Tensor:
        """S of all pairs with the boundary used at test: (T, I)."""
        options = self.config.awareness
        boundary = self.boundary.value(train=False)
        attention = self.cross_gated_attention
        if options.input == "raw" or attention is None:
            return awareness_all_pairs(
                texts, images, boundary, sharpness=options.sharpness, direction=options.direction
            )

        def score_block(some_texts: Encoded, some_images: Encoded) -> Tensor:
            return gated_awareness_scores(
                attention,
                some_texts,
                some_images,
                boundary,
                sharpness=options.sharpness,
                direction=options.direction,
            )

        return all_pairs(score_block, texts, images, floats_per_pair=gated_floats(texts, images))

    def explain(self, text: str, image: ImageInput) -> Explanation:
        """Each word's evidence for and against the match, and its regions; S as at test, words to regions."""
        return self.explain_encoded(text, self.encode_images(image))

    @torch.no_grad()
    def explain_encoded(self, text: str, regions: Encoded) -> Explanation:
        """`explain` of one image that is encoded already."""
        words, regions = self.encode_texts([text]), regions.to(self.device)
        seen_words, seen_regions = words.fragments, regions.fragments  # (1, m, d), (1, n, d)
        if self.config.awareness.input == "gated" and self.cross_gated_attention is not None:
            gated = self.cross_gated_attention.gate(seen_words, words.mask, seen_regions, axes=ALIGNED)
            seen_words, seen_regions = unit(gated.words), unit(gated.regions)
        boundary = self.boundary.value(train=False)
        sharpness = self.config.awareness.sharpness
        parts = awareness_parts(seen_words, words.mask, seen_regions, boundary, sharpness=sharpness)
        grid = (self.image_encoder.grid, self.image_encoder.grid)
        return explain_pair(parts, self.tokenizer.words(text, self.config.max_tokens), grid, float(boundary))

    # ------------------------------------------------------------------------------------------ save and load

    save = model_folder.save

    push_to_hub = push_to_hub

    @classmethod
    def load(cls, path: str | Path) -> Retriever:
        """Read a model directory, in evaluation mode; every file is checked against the recorded hashes.

        `default` is the model that comes with pmpguard. A folder of a CLIP, as `pmpguard convert` writes it
        or as the Hub has it, ranks by its pooled vectors. A model of the Hub is called `hub:org/name`.
        """
        return model_folder.load(cls, path)

    # ------------------------------------------------------------------------------------------------- inside

    def _pixels(self, images: Tensor | Sequence[ImageInput], first: int) -> Tensor:
        """Images as uint8, or normalised float, of the encoder's size: (N, 3, s, s)."""
        pixels = square_pixels(images, self.config.input_size, first, self.framing)
        return pixels if pixels.dtype == torch.uint8 else self.normalise(255 * pixels.to(self.device))

    @torch.no_grad()
    def _in_batches(self, encode: Callable[[slice], Encoded], count: int, size: int, unit: str) -> Encoded:
        if count == 0:
            raise DataError(f"no {unit} to encode", fix="give at least one")
        starts = range(0, count, size)
        hidden = None if len(starts) >= PROGRESS_FROM else True  # None: shown on a terminal only
        with self._evaluating():
            parts = [encode(slice(start, start + size)) for start in tqdm(starts, unit, disable=hidden)]
        return Encoded.cat(parts)

    @contextlib.contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Evaluation mode for a while."""
        before = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(before)
