"""Attention layers that the heads and adapters are made of."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head attention: queries (N, q, d) look at states (N, k, d); the result is (N, q, d).

    The mask is true where a state may be seen: (N, k) for all queries alike, or (N, q, k).
    """

    def __init__(self, dim: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.queries = nn.Linear(dim, dim)
        self.keys = nn.Linear(dim, dim)
        self.values = nn.Linear(dim, dim)
        self.merge = nn.Linear(dim, dim)

    def forward(self, queries: Tensor, states: Tensor, mask: Tensor | None = None) -> Tensor:
        seen = F.scaled_dot_product_attention(
            split_heads(self.queries(queries), self.heads),
            split_heads(self.keys(states), self.heads),
            split_heads(self.values(states), self.heads),
            attn_mask=head_mask(mask),
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.merge(join_heads(seen))  # type: ignore[no-any-return]


class GatedAttention(nn.Module):
    """Self-attention whose queries and keys are gated by each other before they meet.

    With q, k and v linear in the states, (a, b) = sigmoid(W_g (W_q q * W_k k)) in every head, and q*a attends
    to k*b. Used by SWAN and DOVE on words.
    """

    def __init__(self, dim: int, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.queries_keys_values = nn.Linear(dim, 3 * dim)
        width = dim // heads
        self.query_part = nn.Linear(width, width)
        self.key_part = nn.Linear(width, width)
        self.gates = nn.Linear(width, 2 * width)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(N, L, d) and (N, L) or (N, L, L) -> (N, L, d)."""
        parts = self.queries_keys_values(states).chunk(3, -1)
        queries, keys, values = (split_heads(part, self.heads) for part in parts)  # each (N, h, L, d/h)
        gates = torch.sigmoid(self.gates(self.query_part(queries) * self.key_part(keys)))
        query_gate, key_gate = gates.chunk(2, -1)
        seen = F.scaled_dot_product_attention(
            queries * query_gate, keys * key_gate, values, attn_mask=head_mask(mask)
        )
        return join_heads(seen)


class AttentionLayer(nn.Module):
    """Attention added to a base, then a small feed-forward layer, each normalised afterwards."""

    def __init__(self, dim: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, dropout)
        self.after_attention = nn.LayerNorm(dim)
        self.feed_forward = nn.Sequential(
            nn.Linear(dim, 2 * dim), nn.LayerNorm(2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)
        )
        self.after_feed_forward = nn.LayerNorm(dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, base: Tensor, queries: Tensor, states: Tensor, mask: Tensor | None = None) -> Tensor:
        """`queries` look at `states`, and what they see is added to `base`; one query serves all of it."""
        base = self.after_attention(base + self.drop(self.attention(queries, states, mask)))
        return self.after_feed_forward(base + self.drop(self.feed_forward(base)))  # type: ignore[no-any-return]


def split_heads(states: Tensor, heads: int) -> Tensor:
    """(N, L, d) -> (N, heads, L, d / heads)."""
    return states.reshape(*states.shape[:2], heads, -1).transpose(1, 2)


def join_heads(states: Tensor) -> Tensor:
    """(N, heads, L, d / heads) -> (N, L, d)."""
    return states.transpose(1, 2).flatten(2)


def head_mask(mask: Tensor | None) -> Tensor | None:
    """(N, k) or (N, q, k) with an axis for the heads, and one for the queries where it has none."""
    if mask is None:
        return None
    return mask[:, None, None, :] if mask.ndim == 2 else mask[:, None]
