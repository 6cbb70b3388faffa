"""pmpguard: image-text retrieval on remote-sensing imagery under noisy correspondence (mismatched captions).

Public names are imported when they are first used: `import pmpguard` loads neither torch nor numpy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from pmpguard import detection, evaluation, kernels, losses, models, noise
    from pmpguard.audit.api import audit
    from pmpguard.data.formats import read_pairs
    from pmpguard.detection.detector import NoiseDetector
    from pmpguard.models.retriever import Retriever

__version__ = "0.1.0"
__all__ = [
    "NoiseDetector",
    "audit",
    "detection",
    "evaluation",
    "kernels",
    "load",
    "losses",
    "models",
    "noise",
    "read_pairs",
]
_MODULES = {"audit", "detection", "evaluation", "kernels", "losses", "models", "noise"}
_NAMES = {"NoiseDetector": "pmpguard.detection.detector", "read_pairs": "pmpguard.data.formats"}


def load(path: str | Path) -> Retriever:
    """Load a retriever from its directory, the folder of a CLIP, or `hub:org/name`."""
    from pmpguard.models.retriever import Retriever

    return Retriever.load(path)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
