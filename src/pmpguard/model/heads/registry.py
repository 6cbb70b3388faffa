"""Heads by name."""

from __future__ import annotations

from pmpguard.model.heads.dove import DoveHead
from pmpguard.model.heads.head import Head
from pmpguard.model.heads.pir import PirHead
from pmpguard.model.heads.swan import SwanHead
from pmpguard.model.retriever_config import HeadConfig


def build_head(config: HeadConfig, dim: int) -> Head | None:
    """The head a model is configured with, untrained; None for a model without one."""
    heads, dropout = config.attention_heads, config.dropout
    if config.name == "pir":
        return PirHead(dim, config.scenes, config.keep, config.instructions, config.cycles, heads, dropout)
    if config.name == "swan":
        return SwanHead(dim, heads, dropout)
    if config.name == "dove":
        return DoveHead(dim, heads, dropout)
    return None
