"""A model goes to the Hub and comes back the same, through the real client and a server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import yaml
from helpers.hub_server import running_hub

from pmpguard.errors import DataError
from pmpguard.models.config import preset
from pmpguard.models.hub import front_matter, index_results
from pmpguard.models.retriever import Retriever
from pmpguard.synthetic.scenes import synthetic_scenes, write_world

CAPTIONS = ["a round pond", "two planes near a farm"]
ROW = {
    "dataset": "rsicd",
    "method": "pmpguard",
    "rate": 0.4,
    "seed": 0,
    "metrics": {"mr": 26.871, "i2t_r1": 9.5},
}
WORK = """
import sys, torch, pmpguard
from pmpguard.errors import PmpguardError
from pmpguard.search.index.model_identity import identify_model, keep_model
from pathlib import Path

folder, kept = Path(sys.argv[1]), Path(sys.argv[2])
model = pmpguard.load(folder)
print(model.push_to_hub("some-org/ponds", results=[{row}]))
back = pmpguard.load("hub:some-org/ponds")
texts = ["a round pond", "two planes"]
assert torch.equal(back.encode_query(texts), model.encode_query(texts))
name = Path("hub:some-org/ponds")  # as the command line has it
assert identify_model(name).fingerprint == identify_model(folder).fingerprint
keep_model(name, kept)
assert torch.equal(pmpguard.load(kept).encode_query(texts), model.encode_query(texts))
for wrong in ("hub:some-org/nothing", "hub:some-org/secret", "hub:no name"):
    try:
        pmpguard.load(wrong)
    except PmpguardError as error:
        print(error)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "model"
    config = preset("tiny", dim=16, image_size=32)
    Retriever.create(config, CAPTIONS).save(folder)
    return folder


def run(hub, cache, *words):
    """A process of its own: the client reads its address and its cache when it is imported."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    environment |= {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(cache),
        "HF_TOKEN": "hf_stand_in",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "NO_PROXY": "127.0.0.1",
    }
    return subprocess.run(
        [sys.executable, *map(str, words)], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.slow
def test_a_model_is_pushed_and_loaded_by_its_name(tmp_path, model):
    with running_hub() as hub:
        hub.repositories["some-org/secret"] = [("0" * 40, {"config.json": b"{}"})]
        hub.private.add("some-org/nothing")
        done = run(hub, tmp_path / "cache", "-c", WORK.replace("{row}", repr(ROW)), model, tmp_path / "kept")
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert lines[0].startswith(f"{hub.url}/some-org/ponds/commit/")
        assert "hub:some-org/nothing: cannot be fetched" in done.stdout
        assert "hub:no name: cannot be fetched" in done.stdout and "hf auth login" in done.stdout
        files = hub.files("some-org/ponds")[1]
        assert set(files) == {
            "model.safetensors",
            "config.json",
            "tokenizer.json",
            "manifest.json",
            "README.md",
        }
        assert files["model.safetensors"] == (model / "model.safetensors").read_bytes()
        assert any(path.endswith("objects/batch") for _, path in hub.asked)  # large files by LFS
        card = files["README.md"].decode()
        header = yaml.safe_load(card.split("---\n")[1])
        assert header["library_name"] == "pmpguard" and header["pipeline_tag"]
        assert header["model-index"][0]["results"][0]["metrics"][0] == {
            "type": "mr", "name": "mR", "value": 26.87,
        }  # fmt: skip
        assert 'pmpguard.load("hub:some-org/ponds")' in card
        assert "README.md" not in json.loads(files["manifest.json"])["sha256"]  # people edit it there
    write_world(synthetic_scenes(40, size=32), tmp_path / "my-dataset")  # now that the Hub is gone
    words = ("hub:some-org/ponds", "--dataset", tmp_path / "my-dataset", "--bootstrap", "0", "--json")
    done = run(hub, tmp_path / "cache", "-m", "pmpguard", "evaluate", *words)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["split"] == "test" and 0 < found["rankings"][found["ranking"]]["mr"] <= 100


@pytest.mark.slow
def test_the_command_pushes_and_a_later_revision_does_not_hide_the_earlier(tmp_path, model):
    (tmp_path / "results.jsonl").write_text(json.dumps(ROW))
    with running_hub() as hub:
        words = ("-m", "pmpguard", "push", model, "some-org/ponds", "--results", tmp_path / "results.jsonl")
        done = run(hub, tmp_path / "cache", *words, "--private", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["repository"] == "some-org/ponds"
        assert hub.private == {"some-org/ponds"}
        first = hub.files("some-org/ponds")[0]
        hub.commit("some-org/ponds", {"README.md": b"nothing is left"})
        code = f"import pmpguard; print(repr(pmpguard.load('hub:some-org/ponds@{first}')))"
        done = run(hub, tmp_path / "cache", "-c", code)
        assert done.returncode == 0 and "Retriever(tiny + tiny" in done.stdout, done.stderr
        done = run(hub, tmp_path / "cache", "-m", "pmpguard", "evaluate", "hub:some-org/ponds")
        assert done.returncode == 1 and "no model here" in done.stderr and "pmpguard convert" in done.stderr


def test_the_client_of_the_hub_reads_the_card():
    import huggingface_hub

    report = {"dataset": "ucm", "split": "val", "ranking": "pooled", "rankings": {"pooled": {"mr": 30.0}}}
    card = huggingface_hub.ModelCard(front_matter("some-org/ponds", [ROW, report]) + "# Ponds\n")
    rows = [
        (
            result.dataset_type,
            result.dataset_split,
            result.metric_type,
            result.metric_value,
            result.dataset_args,
        )
        for result in card.data.eval_results
    ]
    assert rows == [
        ("rsicd", "test", "mr", 26.87, {"mismatch rate": 0.4, "seed": 0}),
        ("rsicd", "test", "i2t_r1", 9.5, {"mismatch rate": 0.4, "seed": 0}),
        ("ucm", "val", "mr", 30.0, None),
    ]
    assert card.data.library_name == "pmpguard"
    assert "model-index" not in front_matter("some-org/ponds")


def test_results_that_are_not_of_this_model_are_refused():
    with pytest.raises(DataError, match="several methods: infonce, pmpguard"):
        index_results([ROW, ROW | {"method": "infonce"}])
    with pytest.raises(DataError, match="result 2: no dataset or no recalls"):
        index_results([ROW, {"dataset": "rsicd", "metrics": {"auroc": 0.9}}])
