"""Compares a machine tree that was recorded with one that was written by hand: what NVML says, and which files there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: What identifies one machine, and so differs between any two.
OWN = {"uuid", "serial", "pci", "minor", "index", "processes"}
PCI = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
BUS = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}")


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each value of a GPU's entry with its dotted key. An error stands for all below it; of a list the first entry."""
    if isinstance(value, dict) and value.keys() != {"error"}:
        for key, below in value.items():
            yield from leaves(below, f"{prefix}.{key}" if prefix else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        yield from leaves(value[0], f"{prefix}.0")
    else:
        yield prefix, value


def nvml_differences(recorded: dict[str, Any], written: dict[str, Any]) -> list[str]:
    """Return one line for each key of a GPU that has another value, or that only one of the two has."""
    ours, theirs = ({k: v for k, v in leaves(gpu) if k.partition(".")[0] not in OWN} for gpu in (recorded, written))
    lines = []
    for key in sorted(ours.keys() | theirs.keys()):
        if key not in theirs:
            lines.append(f"nvml {key}: only recorded: {ours[key]!r}")
        elif key not in ours:
            lines.append(f"nvml {key}: only written by hand: {theirs[key]!r}")
        elif ours[key] != theirs[key]:
            lines.append(f"nvml {key}: recorded {ours[key]!r}, written by hand {theirs[key]!r}")
    return lines


def patterns(tree: Path) -> set[str]:
    """Return the paths of all files and links of a tree, without PCI addresses and numbers, so that they mean kinds of files."""
    found = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_symlink() or path.is_file()}
    return {re.sub(r"\d+", "N", BUS.sub("pciBUS", PCI.sub("PCI", path))) for path in found}


def file_differences(recorded: Path, written: Path) -> list[str]:
    """Return one line for each kind of file that only one of the trees has."""
    ours, theirs = patterns(recorded), patterns(written)
    lines = [f"file {path}: only recorded" for path in sorted(ours - theirs)]
    return lines + [f"file {path}: only written by hand" for path in sorted(theirs - ours)]


def nearest(recorded: dict[str, Any], trees: Path) -> Path:
    """Return the healthy tree of a kind of machine whose GPU is the same: by PCI ID, else by name, else by architecture
    (nvmlDeviceArchitecture_t), else the first tree."""
    healthy = sorted(path for path in trees.iterdir() if path.is_dir() and "." not in path.name)

    def same(tree: Path) -> tuple[bool, ...]:
        gpu = json.loads((tree / "nvml.json").read_text())["gpus"][0]
        return tuple(gpu.get(key) == recorded.get(key) for key in ("pci_device_id", "name", "architecture"))

    return max(healthy, key=same)


def differences(recorded: Path, written: Path) -> list[str]:
    """Return the differences of the first GPUs, then those of the files."""
    first, second = (json.loads((tree / "nvml.json").read_text())["gpus"][0] for tree in (recorded, written))
    return nvml_differences(first, second) + file_differences(recorded, written)


def readable_names(tree: Path, secrets: list[str]) -> list[str]:
    """Return the files of a tree that hold one of these texts, which redaction should have replaced."""
    wanted = [secret.encode() for secret in secrets]
    files = (path for path in sorted(tree.rglob("*")) if path.is_file() and not path.is_symlink())
    return [str(path.relative_to(tree)) for path in files if any(secret in path.read_bytes() for secret in wanted)]
