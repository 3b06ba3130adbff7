"""Lists the tools. Every module in this folder defines one tool, and the module's name is the tool's name."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from fairlead.measure.tool import Tool


@cache
def load() -> dict[str, Tool]:
    """Return all tools by name, in the order in which they are run: those with the shortest deadline first."""
    found = {m.name: importlib.import_module(f"{__name__}.{m.name}").tool for m in pkgutil.iter_modules(__path__)}
    return dict(sorted(found.items(), key=lambda item: (item[1].seconds, item[0])))
