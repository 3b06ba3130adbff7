"""Holds the checks. Each module in this folder is one check, and its file name is the name of the check."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from fairlead.model.check import Check


@cache
def load() -> dict[str, Check]:
    """Return all checks by name, sorted by name."""
    found: dict[str, Check] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        found[module] = importlib.import_module(f"{__name__}.{module}").check
    return found
