"""The command line: help, usage errors, exit codes, plain and JSON output."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import pmpguard
from pmpguard.cli import main as cli
from pmpguard.errors import DataError


@dataclasses.dataclass(frozen=True)
class Settings:
    epochs: int = 3
    rate: float = 0.1


USUAL = Settings()


@dataclasses.dataclass(frozen=True)
class Report:
    path: Path
    epochs: int
    exit_code: int = 0

    def as_text(self) -> str:
        return f"{self.path} after {self.epochs} epochs"

    def as_dict(self) -> dict[str, Any]:
        return {"path": str(self.path), "epochs": self.epochs}


def sample(path: Path, big_name: str = "x", train: Settings = USUAL, fail: str | None = None) -> Report:
    """A verb for tests.

    Args:
        path: something to name
        big_name: an option of two words
        train: nested settings
        fail: how to go wrong
    """
    if fail == "data":
        raise DataError(f"{path} row 3: bad", fix="mend it")
    if fail == "disk":
        raise OSError(28, "No space left on device", str(path))
    if fail == "stop":
        raise KeyboardInterrupt
    if fail == "term":
        signal.raise_signal(signal.SIGTERM)
    return Report(path / big_name, train.epochs, 4 if fail == "partly" else 0)


VERBS = dict(cli.VERBS)
HELP = """\
usage: pmpguard COMMAND [options]

Image-text retrieval on remote-sensing imagery when the captions cannot be trusted.

commands:
  demo            the main job on the synthetic scenes: train, detect mismatched captions, rematch
  data check      find missing, unreadable, duplicate and leaking images and captions
  data stats      counts, lengths and the best recall the ids allow
  data convert    read any known format, write another
  data sheet      draw a contact sheet of images and captions
  data scenes     write the synthetic scenes as a dataset
  corrupt         mismatch a seeded, fingerprinted share of the training captions
  corrupt import  read the noise of another project from its index file
  corrupt export  write a noise file in NCR's or RRSITR's form
  convert         turn an OpenCLIP or OpenAI checkpoint into a Hugging Face CLIP folder
  export          a model as ONNX, or as a CLIP of transformers or OpenCLIP
  push            put a model on the Hugging Face Hub, with a card
  train           train a retriever, select it on validation, measure it once on test
  methods         the training methods, and what the settings of each mean
  table           run a recipe's methods, rates and seeds, and render the table
  evaluate        recalls of any model directory on any dataset
  audit           say which captions of a dataset are wrong and what they should be
  audit export    an audit's issues for FiftyOne, Label Studio, spreadsheets
  clean           write the dataset that an audit, and your decisions, leave
  figure          draw audited pairs: image, wrong words, the caption it should have
  tile            cut GeoTIFF scenes into overlapping tiles that keep their coordinates
  embed           turn images and captions into vectors that others can read
  index build     make a searchable index of an embedding
  index add       add images to an index without building it again
  index remove    remove images from an index
  index tune      store the vectors of an index in fewer bytes, to a stated agreement
  index verify    name any file of an index that is missing or changed
  index export    vectors as GeoParquet with a STAC collection, for map tools
  index info      what an index holds and can be filtered by
  search          find images or captions by text, image, or both
  serve           the search page and its API over an index
  up              from a folder of images to a search page in one step
  completion      what bash, zsh or fish need to complete commands and options

`pmpguard COMMAND --help` shows its options. Every command takes --config FILE.yaml, overrides
such as --train.epochs 5, and --json for machine-readable output.
"""


@pytest.fixture(autouse=True)
def sample_verb(monkeypatch):
    module = types.ModuleType("pmpguard.cli.sample")
    vars(module)["sample"] = sample
    monkeypatch.setitem(sys.modules, "pmpguard.cli.sample", module)
    monkeypatch.setitem(cli.VERBS, "sample", ("sample", "sample", "a verb for tests"))
    monkeypatch.setitem(cli.VERBS, "group one", ("sample", "sample", "another"))


def test_the_help_of_a_group_lists_its_verbs(capsys):
    assert cli.main(["data", "--help"]) == cli.main(["data", "-h"]) == 0
    first, second = capsys.readouterr().out.split("usage: ")[1:]
    assert first == second and "\n  data check " in first and "\n  corrupt " not in first
    assert cli.main(["data"]) == 2


def test_help_and_version(capsys):
    for words in ([], ["-h"], ["--help"], ["help"]):
        assert cli.main(words) == 0
        text = capsys.readouterr().out
        assert text.startswith("usage: pmpguard COMMAND") and "a verb for tests" in text
        assert max(map(len, text.splitlines())) <= 110
    assert cli.main(["help", "sample"]) == 0
    assert capsys.readouterr().out.startswith("usage: pmpguard sample")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"pmpguard {pmpguard.__version__}\n"


def test_the_text_of_help(monkeypatch, capsys):
    monkeypatch.setattr(cli, "VERBS", VERBS)
    assert cli.main(["--help"]) == 0
    assert capsys.readouterr().out == HELP


def test_a_yes_or_no_option_needs_no_value() -> None:
    def verb(name: str, loud: bool = False, k: int = 1) -> None: ...

    assert cli.arranged(["x", "--loud", "-k", "3"], verb) == ["x", "--loud", "true", "--k", "3"]
    assert cli.arranged(["--loud", "false", "x"], verb) == ["--loud", "false", "x"]
    assert cli.arranged(["x", "--loud"], verb) == ["x", "--loud", "true"]


def test_a_value_may_begin_with_a_minus_sign() -> None:
    def verb(name: str, box: str | None = None, k: int = 1, loud: bool = False) -> None: ...

    assert cli.arranged(["x", "--box", "-10,40,5,50"], verb) == ["x", "--box=-10,40,5,50"]
    assert cli.arranged(["--box", "-.5,-1e-3, -2,3", "x"], verb) == ["--box=-.5,-1e-3, -2,3", "x"]
    assert cli.arranged(["--box=-1", "--train.rate", "-2"], verb) == ["--box=-1", "--train.rate=-2"]
    assert cli.arranged(["--json", "x", "--loud", "-k", "-3"], verb) == [
        "--json", "x", "--loud", "true", "--k=-3"
    ]  # fmt: skip


def test_an_option_that_takes_a_list_may_be_repeated(capsys) -> None:
    def verb(name: str, where: tuple[str, ...] = ()) -> str:
        return f"{name} {where}"

    assert cli.run_verb("verb", verb, ["x", "--where", "a=b, c", "--where=d<-1"]) == 0
    assert cli.run_verb("verb", verb, ["x"]) == 0
    assert capsys.readouterr().out == "x ('a=b, c', 'd<-1')\nx ()\n"


def test_positional_only_words_with_a_default_may_be_left_out(capsys) -> None:
    def verb(name: str, text: str = "none", /, k: int = 1) -> str:
        return f"{name}, {text}, {k}"

    for words in (["x"], ["-k", "2", "x"], ["x", "-k", "2", "y"], ["x", "--k=2", ""], ["x", "--", "-y"]):
        assert cli.run_verb("verb", verb, words) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == ["x, none, 1", "x, none, 2", "x, y, 2", "x, , 2", "x, -y, 1"]
    assert cli.run_verb("verb", verb, ["-k", "2"]) == 2
    assert "name" in capsys.readouterr().err


def test_help_of_a_verb_lists_each_option_once(capsys):
    assert cli.main(["sample", "--help"]) == 0
    text = capsys.readouterr().out
    assert text.count("an option of two words") == 1 and "A verb for tests." in text


def test_every_verb_has_a_function_with_documented_options():
    import importlib
    import inspect

    for verb, (module, name, text) in cli.VERBS.items():
        function = getattr(importlib.import_module(f"pmpguard.cli.{module}"), name)
        described = inspect.getdoc(function) or ""
        for option in inspect.signature(function).parameters:
            assert f"{option}:" in described, f"pmpguard {verb}: option {option} is not described"
        assert text


def test_results_as_text_and_json(capsys):
    assert cli.main(["sample", "a", "--big-name", "b-c", "--train.epochs", "5"]) == 0
    assert capsys.readouterr().out == "a/b-c after 5 epochs\n"
    assert cli.main(["group", "one", "a", "--big_name=b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"path": "a/b", "epochs": 3}
    assert cli.main(["sample", "a", "--fail", "partly"]) == 4


def test_config_files_and_overrides(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("big_name: y\ntrain:\n  epochs: 7\n")
    assert cli.main(["sample", "--config", str(tmp_path / "c.yaml"), "a"]) == 0
    assert capsys.readouterr().out == "a/y after 7 epochs\n"
    assert cli.main(["sample", "--config", str(tmp_path / "c.yaml"), "a", "--train.epochs", "8"]) == 0
    assert capsys.readouterr().out == "a/y after 8 epochs\n"
    assert cli.main(["sample", "a", "--train.epochs", "8", f"--config={tmp_path / 'c.yaml'}"]) == 0
    assert capsys.readouterr().out == "a/y after 8 epochs\n"  # an option wins from the front, too


def test_of_several_processes_only_the_first_prints(monkeypatch, capsys):
    for rank, shown in (("0", "a/x after 3 epochs\n"), ("1", "")):
        monkeypatch.setenv("RANK", rank)
        assert cli.main(["sample", "a"]) == 0
        assert capsys.readouterr().out == shown
    assert cli.main(["sample", "a", "--json"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsense"], "unknown command 'nonsense'\nFix: `pmpguard --help` lists all commands\n"),
        (["group"], "unknown command 'group'\nKnown: group one\n"),
        (["group", "zebra"], "unknown command 'group zebra'\nKnown: group one\n"),
        (["group", "ome", "a"], "unknown command 'group ome'\nDid you mean `pmpguard group one`?\n"),
        (["data", "chek", "a"], "unknown command 'data chek'\nDid you mean `pmpguard data check`?\n"),
        (["chek"], "unknown command 'chek'\nDid you mean `pmpguard data check`?\n"),
        (["evalute"], "unknown command 'evalute'\nDid you mean `pmpguard evaluate`?\n"),
        (["sample"], "path"),
        (["sample", "a", "--colour", "red"], "unknown option --colour\nFix: `pmpguard sample --help`"),
        (
            ["sample", "a", "--train.epochs", "many"],
            "--train.epochs: Expected a whole number. Got value: many\n",
        ),
        (["sample", "a", "--train.speed", "3"], "unknown option --train.speed\n"),
        (
            ["sample", "a", "--train.epoch", "3"],
            "unknown option --train.epoch\nDid you mean --train.epochs?\n",
        ),
        (["sample", "a", "--epochs", "3"], "unknown option --epochs\nDid you mean --train.epochs?\n"),
        (["sample", "a", "--big", "x"], "unknown option --big\n"),
        (["sample", "a", "b", "c"], "too many words: b c\n"),
        (["sample", "a\udcff"], r"pmpguard sample: a\udcff is not UTF-8" "\nFix: rename it\n"),
    ],
)
def test_wrong_usage_is_code_2(words, message, capsys):
    try:
        code = cli.main(words)
    except SystemExit as error:
        code = error.code
    assert code == 2
    captured = capsys.readouterr()
    assert message in captured.err and not captured.out
    assert 2 <= captured.err.count("\n") <= 3


def test_an_unknown_key_in_a_config_file_is_an_error(tmp_path, capsys):
    (tmp_path / "c.yaml").write_text("train:\n  epoch: 7\n")
    assert cli.main(["sample", "a", "--config", str(tmp_path / "c.yaml")]) == 2
    assert "unknown option --train.epoch\nDid you mean --train.epochs?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fail", "code", "message"),
    [
        ("data", 1, "pmpguard sample: a row 3: bad\nFix: mend it\n"),
        ("disk", 1, "pmpguard sample: [Errno 28] No space left on device: 'a'\n"),
        ("stop", 130, "\npmpguard sample: interrupted\n"),
        ("term", 143, "\npmpguard sample: terminated\n"),
    ],
)
def test_failures_have_a_message_and_a_code(fail, code, message, capsys):
    assert cli.main(["sample", "a", "--fail", fail]) == code
    assert capsys.readouterr().err == message


def test_sigterm_ends_a_job_that_a_shell_put_into_the_background(capsys) -> None:
    """Such a job ignores Ctrl-C from its first moment; being told to stop still counts."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert cli.main(["sample", "a", "--fail", "term"]) == 143
    finally:
        signal.signal(signal.SIGINT, before)
    assert capsys.readouterr().err == "\npmpguard sample: terminated\n"


def test_the_package_itself_is_the_command() -> None:
    asked = [sys.executable, "-m", "pmpguard", "--version"]
    told = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert told.stdout.startswith("pmpguard ")


def test_sigterm_reaches_whoever_listens_to_ctrl_c(monkeypatch, capsys):
    """A verb that saves on Ctrl-C, as training does, saves on SIGTERM, too; its exit code tells which."""
    received: list[int] = []

    def saving(path: Path) -> Report:
        before = signal.signal(signal.SIGINT, lambda number, _: received.append(number))
        signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGINT, before)
        return Report(path, 1, exit_code=130)

    monkeypatch.setattr(sys.modules["pmpguard.cli.sample"], "sample", saving)
    before = signal.getsignal(signal.SIGTERM)
    assert cli.main(["sample", "a"]) == 143
    assert received == [signal.SIGINT] and capsys.readouterr().out == "a after 1 epochs\n"
    assert signal.getsignal(signal.SIGTERM) == before


def test_no_dotted_option_of_a_mapping_is_lost() -> None:
    def verb(train: dict[str, Any] | None = None) -> None:
        """A verb."""

    words = [
        "--train.a.b",
        "1",
        "--train",
        "{c: 2}",
        "--train.a.d",
        "-3",
        "--train.e=x",
        "--train.f.g",
        "true",
    ]
    (option,) = cli.arranged(words, verb)
    name, _, value = option.partition("=")
    assert name == "--train"
    assert json.loads(value) == {"a.b": "1", "c": 2, "a.d": "-3", "e": "x", "f.g": "true"}
