"""ENCODE and score: encoders, cross-gated attention, awareness attention, the boundary."""

from pmpguard.late_imports import import_on_use

__getattr__ = import_on_use(__name__)
