"""The command line: verbs, each a plain function in `pmpguard.cli`.

A verb's parser is built from its function's signature and docstring only when that verb runs, so
`pmpguard --help` imports nothing heavy. Every verb takes `--config file.yaml` and dotted overrides; unknown
keys are errors. A function returns a result with `as_dict()`/`as_text()`, plain values, or None.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import json
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import pmpguard
from pmpguard.cli.config_files import configs_and_others
from pmpguard.cli.options import asks_for_help, help_text
from pmpguard.cli.usage import unknown_command, wrong_usage
from pmpguard.errors import ConfigError, PmpguardError
from pmpguard.safe_text import PrintableFormatter, printable

# verb -> (module, function, one line of help)
VERBS: dict[str, tuple[str, str, str]] = {
    "demo": (
        "demo",
        "demo",
        "the main job on the synthetic scenes: train, detect mismatched captions, rematch",
    ),
    "data check": ("data", "check", "find missing, unreadable, duplicate and leaking images and captions"),
    "data stats": ("data", "stats", "counts, lengths and the best recall the ids allow"),
    "data convert": ("convert_data", "convert", "read any known format, write another"),
    "data sheet": ("data", "sheet", "draw a contact sheet of images and captions"),
    "data scenes": ("data", "scenes", "write the synthetic scenes as a dataset"),
    "corrupt": ("corrupt", "corrupt", "mismatch a seeded, fingerprinted share of the training captions"),
    "corrupt import": ("corrupt", "import_noise", "read the noise of another project from its index file"),
    "corrupt export": ("corrupt", "export_noise", "write a noise file in NCR's or RRSITR's form"),
    "convert": (
        "convert_weights",
        "convert",
        "turn an OpenCLIP or OpenAI checkpoint into a Hugging Face CLIP folder",
    ),
    "export": ("export", "export", "a model as ONNX, or as a CLIP of transformers or OpenCLIP"),
    "push": ("push", "push", "put a model on the Hugging Face Hub, with a card"),
    "train": ("train", "train", "train a retriever, select it on validation, measure it once on test"),
    "methods": ("methods", "methods", "the training methods, and what the settings of each mean"),
    "table": ("table", "table", "run a recipe's methods, rates and seeds, and render the table"),
    "evaluate": ("train", "evaluate", "recalls of any model directory on any dataset"),
    "audit": ("audit", "audit", "say which captions of a dataset are wrong and what they should be"),
    "audit export": ("export_issues", "export", "an audit's issues for FiftyOne, Label Studio, spreadsheets"),
    "clean": ("clean", "clean", "write the dataset that an audit, and your decisions, leave"),
    "figure": ("figure", "figure", "draw audited pairs: image, wrong words, the caption it should have"),
    "tile": ("tile", "tile", "cut GeoTIFF scenes into overlapping tiles that keep their coordinates"),
    "embed": ("embed", "embed", "turn images and captions into vectors that others can read"),
    "index build": ("index", "build", "make a searchable index of an embedding"),
    "index add": ("index", "add", "add images to an index without building it again"),
    "index remove": ("index", "remove", "remove images from an index"),
    "index tune": ("index", "tune", "store the vectors of an index in fewer bytes, to a stated agreement"),
    "index verify": ("index", "verify", "name any file of an index that is missing or changed"),
    "index export": ("index", "export", "vectors as GeoParquet with a STAC collection, for map tools"),
    "index info": ("index", "info", "what an index holds and can be filtered by"),
    "search": ("search", "search", "find images or captions by text, image, or both"),
    "serve": ("serve", "serve", "the search page and its API over an index"),
    "up": ("up", "up", "from a folder of images to a search page in one step"),
    "completion": (
        "completion",
        "completion",
        "what bash, zsh or fish need to complete commands and options",
    ),
}

# Verbs that answer small questions beside other work: threads that spin while they wait would slow both.
ANSWERING = {"search", "serve", "up"}
SERVING = {"serve", "up"}  # every option may also come from the environment, as PMPGUARD_PORT
INTERRUPTED, TERMINATED = 130, 143  # exit codes
FLAGS = {"--json", "--allow_outside", "--help", "--print_config"}  # options that take no value
NEGATIVE_NUMBERS = re.compile(r"-[\d.][\d.,eE+ -]*")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; the exit code is 0 on success, 1 on a clear error, 2 on wrong usage.

    It is 130 after Ctrl-C and 143 after SIGTERM, on which every verb stops as on Ctrl-C.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if not words or words[0] in ("-h", "--help"):
        say(overview(VERBS))
        return 0
    if words[0] == "--version":
        say(f"pmpguard {pmpguard.__version__}")
        return 0
    verb = " ".join(words[:2]) if " ".join(words[:2]) in VERBS else words[0]
    group = [name for name in VERBS if name.startswith(f"{words[0]} ")]
    if verb not in VERBS and group and words[1:] in (["-h"], ["--help"]):
        say(overview(group))
        return 0
    if verb not in VERBS:
        print(unknown_command(words, VERBS), file=sys.stderr)
        return 2
    for word in words:
        if word.encode(errors="replace").decode() != word:  # the system's bytes, as Python holds them
            print(printable(f"pmpguard {verb}: {word} is not UTF-8\nFix: rename it"), file=sys.stderr)
            return 2
    module, name, _ = VERBS[verb]
    if verb in ANSWERING:  # before torch is imported
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PrintableFormatter())
    with told_to_stop() as is_terminated:
        try:
            function = getattr(importlib.import_module(f"pmpguard.cli.{module}"), name)
            code = run_verb(verb, function, words[len(verb.split()) :])
        except (PmpguardError, OSError) as error:  # OSError: a full disk, a folder one may not write to
            print(printable(f"pmpguard {verb}: {error}"), file=sys.stderr)
            return 1
        except KeyboardInterrupt as stop:
            what = str(stop) or ("terminated" if is_terminated() else "interrupted")
            print(printable(f"\npmpguard {verb}: {what}"), file=sys.stderr)
            code = INTERRUPTED
    return TERMINATED if code == INTERRUPTED and is_terminated() else code


@contextlib.contextmanager
def told_to_stop() -> Iterator[Callable[[], bool]]:
    """Treat SIGTERM as Ctrl-C, so that a verb saves what it can; tells whether it came."""
    process, came = os.getpid(), False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if os.getpid() != process:  # a worker forked from this process: nothing to save
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        came = True
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as a shell's background jobs inherit it
            raise KeyboardInterrupt
        signal.raise_signal(signal.SIGINT)

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread
        yield lambda: False
        return
    try:
        yield lambda: came
    finally:
        signal.signal(signal.SIGTERM, before)


def overview(verbs: Iterable[str]) -> str:
    """The text of `pmpguard --help`, and of `pmpguard data --help` for the verbs that begin so."""
    listed = list(verbs)
    width = max(map(len, listed))
    lines = [f"  {verb:<{width}}  {VERBS[verb][2]}" for verb in listed]
    return "\n".join(
        [
            "usage: pmpguard COMMAND [options]",
            "",
            "Image-text retrieval on remote-sensing imagery when the captions cannot be trusted.",
            "",
            "commands:",
            *lines,
            "",
            "`pmpguard COMMAND --help` shows its options. Every command takes --config FILE.yaml, overrides",
            "such as --train.epochs 5, and --json for machine-readable output.",
        ]
    )


def run_verb(verb: str, function: Callable[..., Any], words: Sequence[str]) -> int:
    """Parse `words` by the function's signature, call it and print what it returns.

    An attribute `exit_code` of the result, when there is one, becomes the exit code.
    """
    from jsonargparse import ArgumentParser

    from pmpguard.cli.addresses import read_here
    from pmpguard.config import renamed_words
    from pmpguard.data.images.roots import outside_allowed

    description = (inspect.getdoc(function) or "").partition("\nArgs:")[0]  # options are listed below it
    parser = ArgumentParser(
        prog=f"pmpguard {verb}",
        description=description,
        allow_abbrev=False,
        exit_on_error=False,
        default_env=verb in SERVING,
        env_prefix="PMPGUARD",
    )
    parser.add_argument("--config", action="config", help="a YAML file with any of the options below")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument(
        "--allow_outside", action="store_true", help="open images that lie outside the dataset's folder, too"
    )
    parser.add_function_arguments(function, as_positional=True, sub_configs=True)
    wanted = asks_for_help(words)
    if wanted is not None:
        say(help_text(verb, description, parser._actions, every=wanted == "all"))
        return 0
    configs, others = configs_and_others(words, verb)
    options = [*configs, *arranged(others, function)]
    try:
        given = parser.parse_args(options)
    except argparse.ArgumentError as error:
        known = [option for action in parser._actions for option in action.option_strings]
        told = [wrong_usage(verb, str(error), known), *renamed_words(str(error))]
        print(printable("\n".join(told)), file=sys.stderr)
        return 2
    namespace = parser.instantiate(given)
    check = getattr(inspect.getmodule(function), "check_given", None)
    if check is not None:  # a verb may tell what was given from what is so by default
        check(namespace, parser.parse_args(options, defaults=False).as_dict())
    parameters = inspect.signature(function).parameters
    values = {name: read_here(verb, name, namespace[name]) for name in parameters}
    first = [values.pop(name) for name, kind in parameters.items() if kind.kind is kind.POSITIONAL_ONLY]
    with outside_allowed(namespace["allow_outside"]):
        result = function(*first, **values)
    if os.environ.get("RANK", "0") == "0":  # of several processes that train together the first one speaks
        show(result, namespace["json"])
    return int(getattr(result, "exit_code", 0))


def say(text: str) -> None:
    """Print; a reader who has gone, such as `head`, wants no more of it."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nor what is left in the buffer


def show(result: Any, json_wanted: bool) -> None:
    """Print what a verb returned; None prints nothing, as JSON it is null."""
    if json_wanted:
        say(printable(json.dumps(as_plain(result), ensure_ascii=False)))
    elif result is not None:
        say(printable(result.as_text() if hasattr(result, "as_text") else str(result)))


def arranged(words: Sequence[str], function: Callable[..., Any]) -> list[str]:
    """The words as the parser wants them.

    A yes-or-no option without a value means yes. A value that begins with a minus sign is joined to its
    option. An option that takes a list may be repeated. Dotted options of one mapping, of which the parser
    would lose some, become that mapping. A positional-only parameter that has a default may be left out.
    """
    parameters = inspect.signature(function).parameters
    kinds = {f"--{name}": str(kind.annotation) for name, kind in parameters.items()}
    result: list[str] = []
    lists: dict[str, list[str]] = {}
    mappings: dict[str, dict[str, Any]] = {}
    given = 0  # words that belong to no option
    rest = list(words)
    while rest:
        word = option_name(rest.pop(0))
        name, equals, value = word.partition("=")
        following = rest[0] if rest and not option_name(rest[0]).startswith("--") else None
        if word == "--":  # all others belong to no option
            result += [word, *rest]
            given += len(rest)
            break
        if not word.startswith("--"):
            result.append(word)
            given += word != "-h"
        elif kinds.get(word) in ("bool", str(bool)):
            has_value = following is not None and following.lower() in ("true", "false", "yes", "no")
            result += [word, rest.pop(0) if has_value else "true"]
        elif kinds.get(name) == "tuple[str, ...]" and (equals or following is not None):
            lists.setdefault(name, []).append(value if equals else rest.pop(0))
        elif kinds.get(whole := name.partition(".")[0], "").startswith("dict[") and (
            equals or following is not None
        ):
            value = value if equals else rest.pop(0)
            dotted = name.partition(".")[2]
            mappings.setdefault(whole, {}).update({dotted: value} if dotted else mapping_of(value, whole))
        elif equals or word in FLAGS or following is None:
            result.append(word)
        elif NEGATIVE_NUMBERS.fullmatch(following):
            result.append(f"{word}={rest.pop(0)}")
        else:
            result += [word, rest.pop(0)]
    collected = {**lists, **mappings}
    result = [f"{name}={json.dumps(values)}" for name, values in collected.items()] + result
    required = sum(kind.default is kind.empty for kind in parameters.values())
    optional = [
        str(kind.default)
        for kind in parameters.values()
        if kind.kind is kind.POSITIONAL_ONLY and kind.default is not kind.empty
    ]
    return result + optional[given - required :] if given >= required else result


def mapping_of(text: str, option: str) -> dict[str, Any]:
    """A mapping as YAML or JSON."""
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{option}: not readable as YAML ({error})", fix="give {name: value}") from error
    if not isinstance(found, dict):
        raise ConfigError(
            f"{option}: {text!r} is no mapping", fix=f"give {{name: value}}, or {option}.NAME VALUE"
        )
    return found


def option_name(word: str) -> str:
    """Options may be written with dashes or underscores, -k as --k; values stay as they are.

    >>> option_name("--write-pairs=a-b"), option_name("a-b"), option_name("-1"), option_name("-k")
    ('--write_pairs=a-b', 'a-b', '-1', '--k')
    """
    if len(word) == 2 and word[0] == "-" and word[1].isalpha() and word != "-h":
        return f"-{word}"
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def as_plain(result: Any) -> Any:
    """A command's result as values JSON can hold."""
    from pmpguard.config import to_dict

    return result.as_dict() if hasattr(result, "as_dict") else to_dict(result)


if __name__ == "__main__":
    sys.exit(main())
