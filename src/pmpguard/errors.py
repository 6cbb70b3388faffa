"""Errors a user can act on: what went wrong, where, and the fix."""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

MAX_REASON_CHARACTERS = 300  # of what a parser says


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


class FullDiskError(PmpguardError, OSError):
    """A file could not be written for want of space; what was there before is untouched."""


class MissingExtraError(PmpguardError):
    """An optional dependency is not installed."""


def one_of(name: str, known: Iterable[str]) -> str:
    """A fix for a name that is none of the known ones: the nearest first.

    >>> one_of("pmpgaurd", ["infonce", "pmpguard"]), one_of("x", ["infonce"])
    ('did you mean pmpguard? known: infonce, pmpguard', 'known: infonce')
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, 1)
    return f"{f'did you mean {near[0]}? ' if near else ''}known: {', '.join(names) or 'none'}"


@contextlib.contextmanager
def damage_named(path: Path, fix: str, kind: type[PmpguardError] = DataError) -> Iterator[None]:
    """Within the block files of a known form are read; whatever a damaged one raises becomes our error.

    Parsers raise what their inner parts happen to: a zip of arrays has a dozen kinds of errors.
    """
    try:
        yield
    except PmpguardError:
        raise
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place in the file that cannot be
            raise
        raise kind(f"{path}: damaged ({error})", fix=fix) from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"[:MAX_REASON_CHARACTERS]
        raise kind(f"{path}: damaged, or not what its name says ({reason})", fix=fix) from error


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
