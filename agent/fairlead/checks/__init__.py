"""Holds the checks, one in each module. The file name of a module is the name of its check."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from fairlead.model.check_definition import Check


@cache
def load() -> dict[str, Check]:
    """Return all checks by name, sorted by name."""
    found: dict[str, Check] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        found[module] = importlib.import_module(f"{__name__}.{module}").check
    return found
