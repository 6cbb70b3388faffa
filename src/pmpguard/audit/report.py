"""The audit as one page to review by keyboard: opens from disk, asks the network for nothing.

The page's parts (markup, style, scripts) lie in `web/report/` and, where the search page has them too, in
`web/shared/`; they are joined here. Captions reach the page as
JSON only and become text only. Its policy allows exactly the script and the style written here, by hash.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

from pmpguard.audit.issues import ISSUES
from pmpguard.audit.report_columns import Codes, PairTruth, check_rows, report_columns
from pmpguard.audit.row_list import in_order
from pmpguard.audit.rows import AuditRow, AuditSummary
from pmpguard.audit.sprites import LoadThumbnail, SaveSheet, write_heat_maps, write_thumbnails
from pmpguard.files import atomic_directory, write_atomic

REPORT_PAIRS = 20_000  # on a page, unless more are asked for
EMBEDDED_IMAGES = 1000  # up to so many are put into the page itself
SHARED = ("dom.js", "words.js", "heat.js")
SCRIPTS = ("columns.js", "images.js", "decisions.js", "view.js", "list.js", "detail.js", "report.js")
_SHEETS = "sprites"


def write_report(
    out: Path,
    rows: Sequence[AuditRow],
    summary: AuditSummary,
    load_thumbnail: LoadThumbnail,
    *,
    single_file: bool | None = None,
    truth: Mapping[str, PairTruth] | None = None,
    most: int = REPORT_PAIRS,
) -> Path:
    """Write `out/index.html`, and `out/sprites/` beside it where the page does not hold the images itself.

    `load_thumbnail` gives the image named by `AuditRow.image`, of any size, or None where it cannot be
    read; it is called once for each image, most suspicious first. `single_file` puts everything into the
    page or nothing; None does so up to 1,000 images. `truth`, by pair id, is shown beside the verdicts where
    the noise was injected. The `most` suspicious pairs are on the page, which says how many are not. The
    page is written last.
    """
    ordered = in_order(rows)[:most]
    check_rows(ordered, truth)
    if len(rows) > most:
        unshown = f"{len(rows) - most:,} less suspicious pairs are not on this page; they stand in {ISSUES}"
        summary = replace(summary, warnings=(*summary.warnings, unshown))
    images = Codes()
    images.of(row.image for row in ordered)
    if single_file is None:
        single_file = len(images.strings) <= EMBEDDED_IMAGES
    out.mkdir(parents=True, exist_ok=True)
    embedded: dict[str, str] = {}

    def embed(name: str, content: bytes) -> None:
        embedded[name] = base64.b64encode(content).decode("ascii")

    with contextlib.ExitStack() as stack:
        save: SaveSheet = embed
        if not single_file:
            folder = stack.enter_context(atomic_directory(out / _SHEETS))

            def save(name: str, content: bytes) -> None:
                (folder / name).write_bytes(content)

        thumbnails = write_thumbnails(images.strings, load_thumbnail, save)
        heat = write_heat_maps(ordered, save)
    columns = report_columns(ordered, images, thumbnails, heat, summary, truth)
    page = out / "index.html"
    write_atomic(page, fill_page({**columns, "sheets": embedded if single_file else None}))
    if single_file:
        shutil.rmtree(out / _SHEETS, ignore_errors=True)  # of an earlier, larger report
    return page


def fill_page(data: dict[str, Any]) -> str:
    """The whole document. Markers are filled in one pass, so nothing inside the data can pose as one."""
    web = resources.files("pmpguard") / "web"
    source = web / "report"
    style = (source / "report.css").read_text(encoding="utf-8")
    shared = [as_script((web / "shared" / name).read_text(encoding="utf-8")) for name in SHARED]
    scripts = [(source / name).read_text(encoding="utf-8") for name in SCRIPTS]
    script = '"use strict";\n' + "\n".join([*shared, *scripts])
    images = "data:" if data["sheets"] is not None else "data: 'self' file:"
    policy = (
        f"default-src 'none'; script-src {_hash_source(script)}; style-src {_hash_source(style)}; "
        f"img-src {images}; base-uri 'none'; form-action 'none'"
    )
    parts = {"policy": policy, "style": style, "script": script, "data": embedded_json(data)}
    template = (source / "report.html").read_text(encoding="utf-8")
    return re.sub(r"\{\{ (\w+) \}\}", lambda marker: parts[marker[1]], template)


def as_script(module: str) -> str:
    """A module of `web/shared/`, which imports nothing, as a part of one script.

    >>> as_script("const one = 1;\\nexport const two = () => 2 * one;\\n")
    'const one = 1;\\nconst two = () => 2 * one;\\n'
    """
    return re.sub(r"^export ", "", module, flags=re.MULTILINE)


def embedded_json(value: Any) -> str:
    """JSON in plain ASCII that cannot end the script element it stands in."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _hash_source(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"
