"""How commands end: with a reader that has gone, on SIGTERM, and as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.search_examples import make_world

from pmpguard.cli.main import VERBS, main

TINY = (
    "--train.model.vision tiny --train.model.text tiny --train.model.dim 32 --train.model.image_size 64 "
    "--train.batch_size 40 --train.device cpu"
)
# Verbs that serve, talk to the Hub, or take weights or scenes are tested where those are at hand.
NOT_WALKED = {"serve", "up", "push", "convert", "export", "index tune", "tile",
              "corrupt import", "corrupt export", "audit export"}  # fmt: skip
WALK = (
    "demo --scenes 40 --epochs 1 --encoders tiny",
    "data check world --progress false",
    "data stats world",
    "data convert world pairs.jsonl",
    "data sheet world",
    "data scenes drawn --count 5",
    "corrupt world noise.json 0.2",
    f"train run --dataset world --train.epochs 1 --train.method infonce {TINY}",
    "methods",
    "methods pmpguard",
    "table --list",
    "evaluate run/model --dataset world --bootstrap 20",
    "embed world --model model --out vectors --progress false",
    "audit vectors --out report --bootstrap 0",
    "clean report --out cleaned.jsonl",
    "figure report --out figure.png",
    "index build index --embeddings vectors",
    "index add index vectors",
    "index remove index scene-000003",
    "index verify index",
    "index info index",
    "index export index --out exported",
    "search index river -k 2",
    "completion bash",
)


@pytest.mark.slow
def test_every_verb_prints_one_json_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    answers: dict[str, Any] = {}
    for command in WALK:
        code = main([*command.split(), "--json"])
        captured = capsys.readouterr()
        assert code in (0, 3), f"{command}: {captured.err}"
        answers[command] = json.loads(captured.out)
    assert all(answer for answer in answers.values())
    walked = {" ".join(c.split()[:2]) if " ".join(c.split()[:2]) in VERBS else c.split()[0] for c in WALK}
    assert set(VERBS) - walked == NOT_WALKED


def start(words: str, folder: Path, **pipes: Any) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pmpguard", *words.split()]
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


@pytest.mark.parametrize("words", ["--help", "methods --json", "train --help-all"])
def test_a_reader_that_has_gone_is_no_error(words: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as of `| head` that has seen enough
    process = start(words, tmp_path, stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, b"")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "folder"),
    [("demo --scenes 60 --epochs 400 --encoders tiny --out out", "out/infonce"),
     (f"train out --scenes 60 --train.epochs 400 --train.method infonce {TINY}", "out")],
    ids=["demo", "train"],
)  # fmt: skip
def test_sigterm_saves_and_says_so(words: str, folder: str, tmp_path: Path) -> None:
    process = start(words, tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not list((tmp_path / folder / "checkpoints").glob("step-*")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 143
    said = (out + errors).decode()
    assert "stopped at step" in said and "run the same command again to continue" in said
    assert list((tmp_path / folder / "checkpoints").glob("step-*"))


@pytest.mark.slow
def test_a_quick_audit_shows_bars_from_the_first_image_on(tmp_path: Path) -> None:
    make_world(tmp_path)
    with contextlib.ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).setenv("PMPGUARD_PROGRESS", "1")
        process = start("audit world --quick --out report --bootstrap 0", tmp_path, stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=240)
    said = errors.decode()
    assert process.returncode == 0, said
    bars = (
        "checking scenes-0:   0%",
        "reading images:   0%",
        "encoding:   0%",
    )  # the last draw may be skipped
    places = [said.find(bar) for bar in bars]
    assert -1 not in places and places == sorted(places), said
