"""Every command of docs/interop-models.md runs, in the order of the page, on small models of each kind."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import runpy
import shlex
import shutil
from pathlib import Path

import pytest
import torch
from helpers.clip_models import trained_clip
from helpers.family_checkpoints import save_mae, save_t5
from helpers.openclip_weights import save_tokenizer, tiny_clip
from safetensors.torch import load_file

from pmpguard.cli import up as up_command
from pmpguard.cli.main import main
from pmpguard.models.bpe_vocabulary import clip_tokenizer
from pmpguard.models.config import preset
from pmpguard.models.retriever import Retriever
from pmpguard.synthetic.scenes import synthetic_scenes, write_world

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "interop-models.md").read_text(encoding="utf-8")
WRITTEN = ROOT / "tests" / "models" / "data"
ON_THE_HUB = ("pmpguard push", "hub:")  # tests/models/test_hub.py runs these against a Hub of its own
# Words that make a command small; the widths of the tiny CLIP are none of the usual.
SMALLER = {
    "pmpguard convert clip.pt": "--head_width 8 --text_head_width 4",
    "pmpguard audit": "--bootstrap 0",
    "pmpguard evaluate": "--bootstrap 0 --device cpu",
    "pmpguard train": "--train.model.image_size 32 --train.model.dim 16 --train.model.max_tokens 12 "
    "--train.epochs 1 --train.batch_size 20 --train.device cpu",
    "pmpguard embed": "--device cpu",
    "pmpguard search": "--device cpu",
    "pmpguard up": "--device cpu",
}


def commands() -> list[str]:
    """Those of the fenced blocks and of the table's cells, as they stand on the page."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.M | re.S)
    fences = [code for name, code in blocks if name in ("", "sh")]
    cells = [
        cell for line in PAGE.splitlines() if line.startswith("|") for cell in re.findall(r"`([^`]+)`", line)
    ]
    lines = [*cells, *"".join(fences).splitlines()]
    return [line.split(" > ")[0] for line in lines if line.startswith("pmpguard ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the page's reader has."""
    here = tmp_path_factory.mktemp("page")
    world = synthetic_scenes(60, size=32)
    write_world(world, here / "my-dataset")
    shutil.copytree(here / "my-dataset" / "images", here / "images")
    clip = shutil.copytree(WRITTEN / "openclip" / "quickgelu-crop", here / "clip")
    words = here / "bpe_simple_vocab_16e6.txt.gz"
    shutil.copyfile(WRITTEN / "openclip" / "vocabulary.txt.gz", words)
    clip_tokenizer(words).save(str(clip / "tokenizer.json"))
    torch.save({"state_dict": load_file(clip / "open_clip_model.safetensors")}, here / "clip.pt")
    tiny_clip().save_pretrained(here / "old-clip")
    save_tokenizer(here / "old-clip")
    torch.save(load_file(here / "old-clip" / "model.safetensors"), here / "old-clip" / "pytorch_model.bin")
    (here / "old-clip" / "model.safetensors").unlink()
    siglip = shutil.copytree(WRITTEN / "siglip" / "siglip", here / "siglip")
    (siglip / "spiece.model").write_bytes(gzip.decompress((siglip / "spiece.model.gz").read_bytes()))
    save_mae(here / "mae")
    save_t5(here / "t5")
    Retriever.create(preset("tiny", dim=16, image_size=32), world.table.captions).save(
        here / "runs" / "first" / "model"
    )
    trained_clip(here / "trained").save(here / "runs" / "clip" / "model")
    return here


@pytest.mark.slow
def test_every_command_of_the_page_runs(folder, monkeypatch, capsys):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    served: list[Path] = []
    monkeypatch.setattr(up_command, "serve_folder", lambda place, *_: served.append(place))
    written = commands()
    assert len(written) > 14 and [line for line in written if any(word in line for word in ON_THE_HUB)]
    printed = {}
    with contextlib.chdir(folder):
        for line in written:
            if any(word in line for word in ON_THE_HUB):
                continue
            more = next((words for name, words in SMALLER.items() if line.startswith(name)), "")
            assert main(shlex.split(f"{line} {more}")[1:]) == 0, (line, capsys.readouterr().err)
            printed[line] = capsys.readouterr().out
    hits = next(text for line, text in printed.items() if line.startswith("pmpguard search"))
    assert len(hits.splitlines()) >= 10
    assert "mR" in next(text for line, text in printed.items() if "--split test" in line)
    assert served and (folder / "report" / "index.html").is_file()
    found = json.loads(next(text for line, text in printed.items() if "--json" in line))
    assert found["dataset"]


@pytest.mark.slow
def test_the_python_of_the_page_runs(folder, tmp_path):
    pytest.importorskip("sentence_transformers", reason="the extra sentence-transformers is not installed")
    (code,) = (
        code for code in re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S) if "sentence" in code
    )
    (tmp_path / "block.py").write_text(code)
    with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()) as out:
        runpy.run_path(str(tmp_path / "block.py"))
    assert out.getvalue().count("tensor(") == 2
