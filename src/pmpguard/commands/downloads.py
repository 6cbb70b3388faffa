"""What to say when a dataset is not there: what to download, and how it has to lie on disk."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pmpguard.errors import DataError


@dataclass(frozen=True)
class Download:
    """A public dataset: where it is offered and what its folder must hold."""

    title: str
    source: str
    holds: tuple[str, ...]


DOWNLOADS = {
    "rsicd": Download(
        "RSICD (10,921 pictures, five captions each)",
        "https://github.com/201528014227051/RSICD_optimal",
        ("dataset_rsicd.json", "images/  (airport_1.jpg ... 00001.jpg ..., from RSICD_images)"),
    ),
    "rsitmd": Download(
        "RSITMD (4,743 pictures, five captions each)",
        "https://github.com/xiaoyuan1996/AMFMN",
        ("dataset_RSITMD.json", "images/  (airport_0.tif or .jpg ...)"),
    ),
    "rs5m": Download(
        "RS5M (5 million pictures, one caption each, tar shards)",
        "https://github.com/om-ai-lab/RS5M",
        ("train/*.tar", "val/*.tar", "test/*.tar  (members NAME.img_content, NAME.caption, NAME.img_name)"),
    ),
}


def require_dataset(path: Path) -> None:
    """Stop with instructions when nothing is at `path`; a pattern of shards is left to its reader."""
    if path.exists() or re.search(r"[{*?\[]", str(path)):
        return
    named = [entry for key, entry in DOWNLOADS.items() if key in path.name.lower()]
    lines = ["download it yourself (this program never does) and put it there, or name another folder"]
    lines[0] += " with --dataset:"
    for entry in named or DOWNLOADS.values():
        lines += [f"  {entry.title} from {entry.source}", *(f"    {path}/{part}" for part in entry.holds)]
    raise DataError(f"{path}: no such dataset", fix="\n".join(lines))
