"""Heads by name."""

from __future__ import annotations

from pmpguard.models.config import HeadConfig
from pmpguard.models.heads.dove import DoveHead
from pmpguard.models.heads.head import Head
from pmpguard.models.heads.pir import PirHead
from pmpguard.models.heads.swan import SwanHead


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
