"""The folder is the list: every module here that has a ``check`` is one, named by its file."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from fairlead.model.check import Check


@cache
def load() -> dict[str, Check]:
    """All checks by name, sorted."""
    found: dict[str, Check] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        found[module] = importlib.import_module(f"{__name__}.{module}").check
    return found
