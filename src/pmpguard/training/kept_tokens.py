"""Backbone tokens kept as blocks (N, 1 + n, c), pooled token first, and what is left to do with them."""

from __future__ import annotations

import torch
from torch import Tensor

from pmpguard.models.encoded import Encoded
from pmpguard.models.retriever import Retriever


def images_of(retriever: Retriever, images: Tensor) -> Encoded:
    """Unit vectors from pixels (N, 3, s, s) as `forward_images` takes them, or from kept blocks."""
    return retriever.project_images(image_tokens_of(retriever, images))


def image_tokens_of(retriever: Retriever, images: Tensor) -> Encoded:
    """The same up to the last linear layer."""
    if images.ndim == 4:
        return retriever.image_tokens(images)
    mask = torch.ones(len(images), images.shape[1] - 1, dtype=torch.bool, device=images.device)
    return unpack(images, mask)


def texts_of(retriever: Retriever, words: Tensor, mask: Tensor) -> Encoded:
    """Unit vectors from word ids (N, L) and their mask, or from kept blocks (N, 1 + m, c) and theirs."""
    return retriever.project_texts(text_tokens_of(retriever, words, mask))


def text_tokens_of(retriever: Retriever, words: Tensor, mask: Tensor) -> Encoded:
    """The same up to the last linear layer."""
    return retriever.text_tokens(words, mask) if words.ndim == 2 else unpack(words, mask)


def pack(tokens: Encoded) -> Tensor:
    """(N, 1 + n, c): the pooled token before the fragments."""
    return torch.cat([tokens.pooled[:, None], tokens.fragments], dim=1)


def unpack(blocks: Tensor, mask: Tensor) -> Encoded:
    """Backbone tokens from blocks (N, 1 + n, c) and the fragments' mask (N, n)."""
    return Encoded(blocks[:, 0], blocks[:, 1:], mask)
