"""The notebooks of the documentation run from top to bottom, in miniature."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "docs" / "notebooks").glob("*.ipynb"))
# What makes each notebook small: words of its cells and what stands there instead.
SMALLER = {
    "add_a_method": {"epochs=5": "epochs=3, batch_size=40", "scenes=600": "scenes=40"},
    "audit_captions": {"synthetic_scenes(400, size=128": "synthetic_scenes(40, size=64"},
    "detector_in_your_loop": {"4000, 500, 20": "1000, 100, 2"},
    "search_archive": {
        "synthetic_scenes(200": "synthetic_scenes(40", "scenes=600": "scenes=40", "epochs=6": "epochs=1",
        "batch_size=160": "batch_size=40",
    },
    "train_under_noise": {
        "SCENES, EPOCHS = 600, 10": "SCENES, EPOCHS = 40, 1", "batch_size=160": "batch_size=40",
        'preset("light", image_size=128, dim=256, vision_options=frozen, text_options=frozen)':
            'preset("tiny")',
    },
}  # fmt: skip


def cells_of(notebook: Path) -> list[tuple[str, str]]:
    """Kind and text of every cell."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [(cell["cell_type"], "".join(cell["source"])) for cell in cells]


def run_cell(code: str, names: dict[str, object]) -> None:
    """Run a cell as Jupyter does: `%%writefile` writes it, and what its last line is worth is shown."""
    if code.startswith("%%writefile "):
        head, _, body = code.partition("\n")
        Path(head.split()[1]).write_text(body, encoding="utf-8")
        return
    tree = ast.parse(code)
    *first, last = tree.body
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102
    else:
        exec(compile(ast.Module(first, []), "cell", "exec"), names)  # noqa: S102
        shown = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
        assert len(repr(shown).splitlines()) <= 20, shown
        html = getattr(shown, "_repr_html_", None)
        assert html is None or html().startswith("<")


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(notebook: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = set(sys.modules)
    names: dict[str, object] = {"__name__": "__main__"}
    code = [text for kind, text in cells_of(notebook) if kind == "code"]
    for usual, smaller in SMALLER[notebook.stem].items():
        assert any(usual in text for text in code), usual
        code = [text.replace(usual, smaller) for text in code]
    try:
        for text in code:
            run_cell(text, names)
    finally:
        for name in {"mymethods", "careful"} & (set(sys.modules) - before):
            del sys.modules[name]  # written by this notebook


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_committed_without_outputs_and_reads_well(notebook: Path) -> None:
    stored = json.loads(notebook.read_text(encoding="utf-8"))
    code = [cell for cell in stored["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] or cell["execution_count"] for cell in code)
    kind, first = cells_of(notebook)[0]
    assert kind == "markdown" and first.startswith("# ")
    links = [part.partition(")")[0] for _, text in cells_of(notebook) for part in text.split("](")[1:]]
    local = [link.partition("#")[0] for link in links if "://" not in link]
    assert local and all((notebook.parent / link).exists() for link in local)


def test_every_notebook_has_its_miniature() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(SMALLER)
