"""Which captions are wrong, what they should be, and the cleaned dataset; `pmpguard.audit(data)` does it."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pmpguard.audit.api import Audit

__all__ = ["Audit"]


def __getattr__(name: str) -> Any:
    if name == "Audit":
        from pmpguard.audit.api import Audit

        return Audit
    if name == "__signature__":  # what `inspect.signature(pmpguard.audit)` and notebooks show
        from pmpguard.audit.api import audit

        return inspect.signature(audit)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _CallableModule(ModuleType):
    """A package that is called as a function, so that `pmpguard.audit` is both."""

    def __call__(self, *arguments: Any, **options: Any) -> Audit:
        from pmpguard.audit.api import audit

        return audit(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
