"""Methods by name, by entry point (group `pmpguard.methods`) or by import path `package.module:Class`."""

from __future__ import annotations

import importlib
import sys
from importlib.metadata import entry_points
from pathlib import Path

from pmpguard.errors import ConfigError, one_of
from pmpguard.methods.method import Method

BUILT_IN = {
    "pmpguard": "pmpguard.methods.pmpguard:PmpGuard",
    "infonce": "pmpguard.methods.infonce:InfoNce",
    "vse": "pmpguard.methods.baselines.vse:Vse",
    "naaf": "pmpguard.methods.baselines.naaf:Naaf",
    "ccl": "pmpguard.methods.baselines.ccl:Ccl",
    "l2rm": "pmpguard.methods.baselines.l2rm:L2rm",
    "bicro": "pmpguard.methods.baselines.bicro:BiCro",
    "decl": "pmpguard.methods.baselines.decl:Decl",
    "ncr": "pmpguard.methods.baselines.ncr:Ncr",
    "crcl": "pmpguard.methods.baselines.crcl:Crcl",
    "npc": "pmpguard.methods.baselines.npc:Npc",
    "osa": "pmpguard.methods.baselines.osa:Osa",
    "in2r": "pmpguard.methods.baselines.in2r:In2r",
    "sclip": "pmpguard.methods.baselines.sclip:Sclip",
    "rrsitr": "pmpguard.methods.baselines.rrsitr:Rrsitr",
    "harma": "pmpguard.methods.baselines.harma:Harma",
    "pir": "pmpguard.methods.baselines.pir:Pir",
    "swan": "pmpguard.methods.baselines.swan:Swan",
    "dove": "pmpguard.methods.baselines.dove:Dove",
}


def known_methods() -> dict[str, str]:
    """Name to import path, the built-in ones first."""
    installed = {entry.name: entry.value for entry in entry_points(group="pmpguard.methods")}
    return {**BUILT_IN, **installed}


def find_method(name: str) -> type[Method]:
    """The class behind a name or an import path.

    >>> find_method("infonce").__name__
    'InfoNce'
    """
    path = known_methods().get(name, name)
    module, _, attribute = path.partition(":")
    if not attribute:
        raise ConfigError(
            f"method: unknown method {name!r}",
            fix=f"{one_of(name, known_methods())}; your own: package.module:Class",
        )
    if path == name and (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # `mymethods:Mine` may lie in the current folder, as under `python -m`
    try:
        names = vars(importlib.import_module(module))
    except ImportError as error:
        fix = f"a module of one's own is looked for in {Path.cwd()} and where Python finds packages"
        raise ConfigError(f"method: cannot import {path!r} ({error})", fix=fix) from error
    kind = names.get(attribute)
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        own = [
            name
            for name, value in names.items()
            if isinstance(value, type) and issubclass(value, Method) and value.__module__ == module
        ]
        what = "is not a subclass of pmpguard.methods.method.Method" if kind is not None else "is not there"
        raise ConfigError(f"method: {path!r} {what}", fix=f"{one_of(attribute, own)} in {module}")
    return kind
