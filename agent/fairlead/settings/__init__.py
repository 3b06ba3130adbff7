"""The folder is the list: every module here that has a ``setting`` is one, named by its file."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from fairlead.model.setting import Setting


@cache
def load() -> dict[str, Setting]:
    """All settings by name, sorted."""
    found: dict[str, Setting] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        found[module] = importlib.import_module(f"{__name__}.{module}").setting
    return found
