"""A hook of mkdocs for pages that are written while the site is built.

Every notebook of docs/notebooks becomes a page, from which it can be downloaded. The reference of the command
line comes from the parsers, the leaderboard from the recorded rows.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from pmpguard.cli.reference import reference_page

sys.path.insert(0, str(Path(__file__).parents[2]))
from tools.leaderboard import documentation_page

DOWNLOAD = '[Download this notebook]({name}){{ .md-button download="{name}" }}'


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the written pages; a notebook itself is copied beside its page."""
    for file in [each for each in files if each.src_uri.endswith(".ipynb")]:
        notebook = json.loads(Path(file.abs_src_path or "").read_text(encoding="utf-8"))
        page = file.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, page, content=as_markdown(notebook, Path(file.src_uri).name)))
    files.append(File.generated(config, "cli.md", content=reference_page()))
    results = Path(config.config_file_path).parent / "benchmarks" / "results"
    files.append(File.generated(config, "leaderboard.md", content=documentation_page(results)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to notebooks lead to their pages; a figure stays on one line with its deviation."""
    linked = re.sub(r"\]\((notebooks/\w+)\.ipynb\)", r"](\1.md)", markdown)
    return re.sub(r"(?<=\d) (± \d|¹)", "\u00a0\\1", linked).replace("± ", "±\u00a0")


def as_markdown(notebook: dict[str, Any], name: str) -> str:
    """The cells of a notebook one after the other, with the link to it below the title."""
    title, *rest = [
        "".join(cell["source"]).rstrip()
        if cell["cell_type"] == "markdown"
        else "```python\n{}\n```".format("".join(cell["source"]).rstrip())
        for cell in notebook["cells"]
    ]
    return "\n\n".join([title, DOWNLOAD.format(name=name), *rest, ""])
