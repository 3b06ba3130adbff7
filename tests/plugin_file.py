"""Loads a plug-in of Ansible from its file: such a file is in no package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{path.stem}_action", path)
    assert spec is not None and spec.loader is not None
    plugin = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    return plugin
