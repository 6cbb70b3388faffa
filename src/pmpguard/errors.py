"""Errors a user can act on: what went wrong, where, and the fix."""

from __future__ import annotations

import importlib
from types import ModuleType


class PmpguardError(Exception):
    """Base of every error we raise on purpose.

    `message` names the file, row or field; `fix` says what to do about it. The command line prints both
    and exits with code 1, without a traceback.

    >>> str(PmpguardError("pairs.csv row 3: caption is blank", fix="remove the row"))
    'pairs.csv row 3: caption is blank\\nFix: remove the row'
    """

    def __init__(self, message: str, *, fix: str = "") -> None:
        self.message = message
        self.fix = fix
        super().__init__(f"{message}\nFix: {fix}" if fix else message)


class DataError(PmpguardError):
    """A dataset, image or caption that cannot be used as it is."""


class ConfigError(PmpguardError):
    """A setting that is unknown, out of range or contradicts another."""


class ModelError(PmpguardError):
    """Weights that are missing, damaged or of another model."""


class CheckpointError(PmpguardError):
    """A run that cannot be resumed from what is on disk."""


class TrainingError(PmpguardError):
    """Training cannot go on: a loss that is not finite, a full disk."""


class MissingExtraError(PmpguardError):
    """An optional dependency is not installed."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional dependency, or say which extra brings it.

    >>> require("json", "plots").__name__
    'json'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = (error.name or module).partition(".")[0]
        raise MissingExtraError(
            f"this needs the package {package!r}, which is not installed",
            fix=f"pip install 'pmpguard[{extra}]'",
        ) from error
