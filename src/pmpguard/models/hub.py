"""Models on the Hugging Face Hub: fetched as `hub:org/name`, pushed with a card that its pages read."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pmpguard.errors import ConfigError, DataError, ModelError, PmpguardError, require
from pmpguard.files import write_manifest
from pmpguard.models.clip_folder import TOKENIZER_FILES, WEIGHTS_INDEX
from pmpguard.models.encoders.pretrained import PREPROCESSORS

if TYPE_CHECKING:
    from pmpguard.models.retriever import Retriever

PREFIX = "hub:"
DEFAULT = "default"  # the model that comes with pmpguard
DEFAULT_FOLDER = Path(__file__).parent / "default"
DEFAULT_TOLD = (
    "no --model given: using `default`, the small one that comes with pmpguard. A CLIP needs no training "
    "either: --model FOLDER-OF-A-CLIP or --model hub:ORG/NAME"
)
FETCHED = (
    *("config.json", "model.safetensors", WEIGHTS_INDEX, "model-*-of-*.safetensors", "manifest.json"),
    *(*PREPROCESSORS, *TOKENIZER_FILES),
)
LIBRARY, PIPELINE = "pmpguard", "zero-shot-image-classification"  # the Hub's word nearest to retrieval
TASK = {"type": "image-text-retrieval", "name": "Image–text retrieval"}
METRICS = {
    "mr": "mR",
    "i2t_r1": "image to text R@1",
    "i2t_r5": "image to text R@5",
    "i2t_r10": "image to text R@10",
    "t2i_r1": "text to image R@1",
    "t2i_r5": "text to image R@5",
    "t2i_r10": "text to image R@10",
}


def local_folder(name: str | Path) -> Path:
    """Where a model lies; one called `hub:org/name`, or `hub:org/name@revision`, is fetched if need be.

    `default` comes with this package.

    >>> local_folder("runs/first/model").as_posix(), local_folder("default").parent.name
    ('runs/first/model', 'models')
    """
    text = str(name)
    if text == DEFAULT:
        if (Path(DEFAULT) / "config.json").is_file():
            fix = "give the whole path of the folder, or rename it"
            raise ConfigError("'default' is the model that comes with pmpguard and a folder here", fix=fix)
        return DEFAULT_FOLDER
    if not text.startswith(PREFIX):
        return Path(name)
    repository, _, revision = text.removeprefix(PREFIX).partition("@")
    hub = require("huggingface_hub", "hub")
    with _explained(f"{text}: cannot be fetched"):
        folder = hub.snapshot_download(repository, revision=revision or None, allow_patterns=list(FETCHED))
    if not (Path(folder) / "config.json").is_file():
        raise ModelError(
            f"{text}: no model here",
            fix=f"an OpenCLIP is converted first: hf download {repository} --local-dir DIR, then "
            "`pmpguard convert DIR OUT`",
        )
    return Path(folder)


def push_to_hub(
    model: Retriever,
    repository: str,
    *,
    results: Sequence[Mapping[str, Any]] = (),
    notes: str = "",
    private: bool | None = None,
    message: str = "Add the model",
) -> str:
    """Upload the model to `org/name`, which is made if need be; the address of the commit.

    `results` are what `pmpguard evaluate --json` printed of this model, or rows that its training recorded;
    the card lists them. Who may write is decided by `hf auth login` or the variable HF_TOKEN.
    """
    hub = require("huggingface_hub", "hub")
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        model.save(folder, notes)
        card = (folder / "README.md").read_text(encoding="utf-8")
        (folder / "README.md").unlink()
        write_manifest(folder)  # without the card, which people edit on its page
        card = card.replace("path/to/this/directory", f"{PREFIX}{repository}")
        text = front_matter(repository, results) + card
        (folder / "README.md").write_text(text, encoding="utf-8")
        with _explained(f"{repository}: cannot be pushed"):
            api = hub.HfApi()
            api.create_repo(repository, private=private, exist_ok=True)
            pushed = api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    return str(pushed.commit_url)


def front_matter(repository: str, results: Sequence[Mapping[str, Any]] = ()) -> str:
    """What the Hub reads of a card: library, task, tags and, where there are any, results."""
    header: dict[str, Any] = {
        "library_name": LIBRARY,
        "pipeline_tag": PIPELINE,
        "tags": ["remote-sensing", "image-text-retrieval", "noisy-correspondence"],
    }
    if results:
        header["model-index"] = [{"name": repository, "results": index_results(results)}]
    return f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---\n\n"


def index_results(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows of results in the Hub's form; they must all be of one method, for a card speaks of one model."""
    methods = sorted({str(row["method"]) for row in results if "method" in row})
    if len(methods) > 1:
        raise DataError(
            f"results of several methods: {', '.join(methods)}", fix="give the rows of this model alone"
        )
    listed = []
    for number, row in enumerate(results, start=1):
        metrics = row.get("metrics") or row.get("rankings", {}).get(row.get("ranking"), {})
        known = [name for name in METRICS if name in metrics]
        if not known or "dataset" not in row:
            raise DataError(
                f"result {number}: no dataset or no recalls",
                fix="give rows of a results file, or what `pmpguard evaluate --json` printed",
            )
        told = {"mismatch rate": row.get("rate"), "seed": row.get("seed")}
        args = {name: value for name, value in told.items() if value is not None}
        dataset = {
            "type": str(row["dataset"]),
            "name": str(row["dataset"]),
            "split": row.get("split", "test"),
        }
        listed.append(
            {
                "task": TASK,
                "dataset": dataset | ({"args": args} if args else {}),
                "metrics": [
                    {"type": name, "name": METRICS[name], "value": round(float(metrics[name]), 2)}
                    for name in known
                ],
            }
        )
    return listed


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """The Hub's many errors as one that says what to do."""
    try:
        yield
    except PmpguardError:
        raise
    except (OSError, ValueError, RuntimeError) as error:  # its own are of these, httpx's of the last
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"{what}: {reason}",
            fix="check the name org/name and the network; private models and pushing need `hf auth login`",
        ) from error
