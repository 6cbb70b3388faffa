"""The paper in three files: cross-gated attention, awareness attention, the boundary. Plain torch."""

from pmpguard.late_imports import import_on_use

__getattr__ = import_on_use(__name__)
