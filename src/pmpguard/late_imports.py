"""Modules of a package that are imported when they are first used, so that `import pmpguard` stays quick."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType


def import_on_use(package: str) -> Callable[[str], ModuleType]:
    """The `__getattr__` of a package: `pmpguard.evaluation.recall` works after `import pmpguard`.

    >>> import_on_use("xml")("dom").__name__
    'xml.dom'
    """

    def find(name: str) -> ModuleType:
        full = f"{package}.{name}"
        if not name.startswith("_"):
            try:
                return importlib.import_module(full)
            except ModuleNotFoundError as error:
                if error.name != full:
                    raise
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
