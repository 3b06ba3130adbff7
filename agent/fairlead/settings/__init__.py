"""Holds the settings, one in each module. The file name of a module is the name of its setting."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from fairlead.errors import UsageError
from fairlead.model.setting import Setting


@cache
def load() -> dict[str, Setting]:
    """Return all settings by name, sorted by name."""
    found: dict[str, Setting] = {}
    for module in sorted(m.name for m in pkgutil.iter_modules(__path__)):
        found[module] = importlib.import_module(f"{__name__}.{module}").setting
    return found


def groups() -> dict[str, tuple[str, ...]]:
    """Return the names of the settings of each group. Groups and names are sorted."""
    found: dict[str, list[str]] = {}
    for name, setting in load().items():
        if setting.group:
            found.setdefault(setting.group, []).append(name)
    return {group: tuple(names) for group, names in sorted(found.items())}


def select(words: str) -> tuple[str, ...]:
    """Return the names of the settings that a list of settings and groups names, such as "nccl,pcie". Raise UsageError for a word
    that is neither a setting nor a group."""
    every, grouped = load(), groups()
    chosen: set[str] = set()
    for word in filter(None, (w.strip() for w in words.split(","))):
        if word not in every and word not in grouped:
            known = "; ".join(f"{group}: {', '.join(names)}" for group, names in grouped.items())
            raise UsageError(f"{word}: no setting and no group of settings", hint=f"there are {known}")
        chosen.update(grouped.get(word, ()), (word,) if word in every else ())
    if not chosen:
        raise UsageError(f"{words!r}: names no setting", hint=f"a setting or one of the groups {', '.join(grouped)}")
    return tuple(sorted(chosen))
