"""Finds the machine or the tree that a command line names. Imports little, so that commands that only read sysfs start fast."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from fairlead.errors import DataError, InputMissing
from fairlead.host.root import Root
from fairlead.model.facts import Missing, unreadable
from fairlead.model.json_text import NOT_JSON


def machine(root: str) -> Root:
    """Return the root that the command line names. Raise InputMissing for a folder that is not a machine tree."""
    if root != "/" and not (os.path.isdir(os.path.join(root, "sys")) or os.path.isdir(os.path.join(root, "proc"))):
        raise InputMissing(
            f"{root} is not a machine tree (it has no sys/ and no proc/)", hint="`fairlead snapshot DIR` writes one"
        )
    if root != "/" and not os.access(root, os.R_OK | os.X_OK):
        raise InputMissing(f"{root}: cannot be read")
    return Root(root)


def recorded_nvml(root: str) -> dict[str, Any] | Missing:
    """Return NVML's answers in a tree. Raise DataError where nvml.json is not a JSON object."""
    path = os.path.join(root, "nvml.json")
    try:
        with open(path, "rb") as f:
            data = msgspec.json.decode(f.read(16 << 20))
    except FileNotFoundError:
        return unreadable(f"{path}: no such file")
    except OSError as e:
        return unreadable(f"{path}: {e.strerror}")
    except NOT_JSON as e:
        raise DataError(f"{path}: not JSON: {e}") from None
    if not isinstance(data, dict):
        raise DataError(f"{path}: not a JSON object")
    return data
