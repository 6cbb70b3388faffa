"""pmpguard: image-text retrieval on remote-sensing imagery when the captions cannot be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from pmpguard.models.retriever import Retriever

__version__ = "0.1.0"


def load(path: str | Path) -> Retriever:
    """Load a trained retriever from its directory. torch is imported only when this is called."""
    from pmpguard.models.retriever import Retriever

    return Retriever.load(path)
