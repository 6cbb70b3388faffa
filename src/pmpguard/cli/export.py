"""`pmpguard export`: a model in the form of another package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pmpguard

if TYPE_CHECKING:
    from pmpguard.interop.clip_export import ClipExport
    from pmpguard.interop.onnx_towers import OnnxExport

Form = Literal["onnx", "transformers", "open_clip"]


def export(model: Path, out: Path, to: Form = "onnx") -> OnnxExport | ClipExport:
    """Write a model for onnxruntime, transformers or OpenCLIP, and hold its vectors against the model's own.

    Args:
        model: a model directory, the folder of a CLIP, or hub:org/name.
        out: the folder to write.
        to: onnx takes any model; transformers and open_clip one whose towers are a CLIP's. What ranks pairs
            there is the cosine of the pooled vectors.
    """
    loaded = pmpguard.load(model)
    if to == "onnx":
        from pmpguard.interop.onnx_towers import export_onnx

        return export_onnx(loaded, out)
    from pmpguard.interop.clip_export import export_openclip, export_transformers

    return export_transformers(loaded, out) if to == "transformers" else export_openclip(loaded, out)
