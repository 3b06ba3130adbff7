"""The rows: every module here has ``FAULTS``. A new check without a row in one of them fails tests/scorecard."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from tests.scorecard.entry import Fault


@cache
def load() -> tuple[Fault, ...]:
    """All rows, by module and then as written. Raises ValueError for a name that is there twice."""
    found = [
        fault
        for name in sorted(m.name for m in pkgutil.iter_modules(__path__))
        for fault in importlib.import_module(f"{__name__}.{name}").FAULTS
    ]
    names = [fault.name for fault in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"named twice: {', '.join(twice)}")
    return tuple(found)
