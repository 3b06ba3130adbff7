"""Reads the lock of the Python packages that run as root on nodes. It has exact versions of three packages, and the sha256 of
each of their wheels.

`make lock` writes this lock, node_wheels.toml, which is part of fairlead. Only wheels in the lock reach a node, whether they
come from an index, a mirror, a wheelhouse, the cache or a bundle.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tomllib
from functools import cache
from pathlib import Path

import msgspec
from msgspec import Struct

from fairlead.errors import DataError, InputMissing
from fairlead.provision.wheel_tags import normal

FILE = Path(__file__).parent / "node_wheels.toml"
# These two files are for `pip --require-hashes`. node.txt has the wheels of the lock, and admin.txt those for an admin host.
NODE_FILE = Path(__file__).parent / "node.txt"
ADMIN_FILE = Path(__file__).parent / "admin.txt"


class LockedWheel(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    size: int
    sha256: str


class LockedPackage(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    version: str
    license: str
    wheels: tuple[LockedWheel, ...]


class WheelLock(Struct, frozen=True, forbid_unknown_fields=True):
    schema: int
    packages: tuple[LockedPackage, ...]

    def wheel(self, name: str) -> LockedWheel | None:
        """Return the wheel with this file name, or None if the lock has no such wheel."""
        return next((w for p in self.packages for w in p.wheels if w.name == name), None)

    def versions(self) -> dict[str, str]:
        return {p.name: p.version for p in self.packages}


@cache
def load() -> WheelLock:
    """Return the lock of this installation."""
    return msgspec.convert(tomllib.loads(FILE.read_text(encoding="utf-8")), WheelLock)


@cache
def admin() -> dict[tuple[str, str], frozenset[str]]:
    """Return the packages that an admin host needs: the sha256 of the wheels of each (name, version). The names are normalised
    (PEP 503)."""
    text = ADMIN_FILE.read_text(encoding="utf-8")
    found = re.findall(r"^([^#\s]\S*)==(\S+)((?:\s+\\?\s*--hash=\S+)+)", text, re.MULTILINE)
    return {(normal(name), version): frozenset(re.findall("sha256:([0-9a-f]{64})", hashes)) for name, version, hashes in found}


def locked(path: str) -> LockedWheel:
    """Return the lock's entry for a wheel file, by the file's name. Raises DataError if the lock has no such entry."""
    found = load().wheel(os.path.basename(path))
    if found is None:
        known = ", ".join(f"{name} {version}" for name, version in load().versions().items())
        raise DataError(f"{path}: not in the lock of what runs on nodes, which has wheels of {known}", hint="take the file away")
    return found


def read_locked(path: str) -> bytes:
    """Return the content of a wheel that the lock has. Raises InputMissing, and DataError for a file that is not in the lock
    or has other content."""
    wanted = locked(path)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # a FIFO must not block us
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            content = file.read(wanted.size + 1) if regular else b""
    except OSError as e:
        raise InputMissing(f"{path}: {e.strerror}") from None
    if len(content) != wanted.size or hashlib.sha256(content).hexdigest() != wanted.sha256:
        words = f"{path}: not the file that the lock names (another sha256)"
        raise DataError(words, hint="delete it, and fetch the wheel again from a source that you trust")
    return content
