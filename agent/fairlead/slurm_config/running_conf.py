"""Reads which nodes and GPUs the present gres.conf or file of NodeName lines has, so that a new file does not lose any."""

from __future__ import annotations

import re
from collections.abc import Collection

from fairlead.model.nodelist import expand, in_order

_NODES = re.compile(r"^\s*NodeName\s*=\s*(\"[^\"]*\"|\S+)(.*)$", re.IGNORECASE)
_GPU = re.compile(r"\bName\s*=\s*gpu\b", re.IGNORECASE)
_FILE = re.compile(r"\b(?:File|MultipleFiles)\s*=\s*(\S+)", re.IGNORECASE)


def node_names(text: str) -> frozenset[str]:
    """Return the nodes of all NodeName lines. Raise ValueError for a nodelist that is not valid."""
    return frozenset(name for names, _ in _lines(text) for name in names)


def gpu_counts(text: str) -> dict[str, int]:
    """Return how many GPU device files a gres.conf has for each node. A node that is left to AutoDetect is not counted."""
    counts: dict[str, int] = {}
    for names, rest in _lines(text):
        file = _FILE.search(rest)
        if _GPU.search(rest) and file:
            for name in names:
                counts[name] = counts.get(name, 0) + len(expand(file[1]))
    return counts


def fewer_gpus(before: str, after: str, allowed: Collection[str]) -> str:
    """Return in words which nodes have fewer GPUs in ``after`` than in ``before``, or "" for none.

    Nodes that are not in both files, or that are in ``allowed``, are left out.
    """
    new = gpu_counts(after)
    old = gpu_counts(before)
    lost = [name for name in in_order(old) if name in new and new[name] < old[name] and name not in allowed]
    return ", ".join(f"{name} has {new[name]}, the running file {old[name]}" for name in lost[:8])


def _lines(text: str) -> list[tuple[list[str], str]]:
    found = []
    for raw in text.replace("\\\n", " ").splitlines():
        match = _NODES.match(raw.partition("#")[0])
        if match and match[1].upper() != "DEFAULT":
            found.append((expand(match[1].strip('"')), match[2]))
    return found
