"""CATCH: scores in, verdicts out; pure functions."""

from pmpguard.late_imports import import_on_use

__getattr__ = import_on_use(__name__)
