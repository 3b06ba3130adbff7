"""Reads fairlead.lock, which lies beside the site's declaration. For each declared driver it lists the exact packages with
hashes.

`fairlead lock` writes the file (provision.driver_lock). This module reads the file, compares it with the declaration, and lays it
over a node's document. A declared driver that the lock does not have, or has with other values, is refused before any node is
changed.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.config.driver_rules import Set, architecture, faults
from fairlead.errors import ConfigError, InputMissing
from fairlead.model.change import Package
from fairlead.settings.driver import DriverWant

NAME = "fairlead.lock"
SCHEMA = 1
# These declared values must equal those of the locked set. An empty version or branch allows any.
DECLARED = ("branch", "version", "module", "install")


class LockedSet(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds one set: the declared values that it was resolved from, and the version and the packages that were found."""

    version: str
    branch: str
    module: str
    install: tuple[str, ...]
    architecture: str
    packages: tuple[Package, ...]


class Lock(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    schema: int
    sets: dict[str, LockedSet] = {}


_read: dict[str, tuple[tuple[int, int], Lock]] = {}


def path_beside(site_file: str) -> str:
    """Return the path of a site's lock."""
    return os.path.join(os.path.dirname(os.path.abspath(site_file)), NAME)


def load_lock(path: str) -> Lock:
    """Return a lock. A file that has not changed is not read again. Raises InputMissing, ConfigError."""
    try:
        info = os.stat(path)
        stamp = (info.st_mtime_ns, info.st_ino)
        if path in _read and _read[path][0] == stamp:
            return _read[path][1]
        with open(path, "rb") as f:
            lock = msgspec.convert(tomllib.load(f), Lock)
    except FileNotFoundError:
        raise InputMissing(f"{path}: no such file", hint="write it with `fairlead lock`") from None
    except OSError as e:
        raise InputMissing(f"{path}: {e.strerror}") from None
    except (ValueError, RecursionError, msgspec.ValidationError) as e:
        raise ConfigError(path, "", f"not a lock: {e}", hint="write it anew with `fairlead lock`") from None
    if lock.schema != SCHEMA:
        raise ConfigError(path, "schema", f"{lock.schema} is not readable by this version, which reads {SCHEMA}")
    _read[path] = (stamp, lock)
    return lock


def declared(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> DriverWant | None:
    """Return the driver that the layers declare. A later layer wins. Return None if the layers declare no driver, or a driver
    that is not managed. Raises ConfigError if a layer declares the packages."""
    table: dict[str, Any] = {}
    for origin, layer in layers:
        settings = layer.get("settings", {})
        settings = settings.get("driver", {}) if isinstance(settings, Mapping) else {}
        if isinstance(settings, Mapping):
            if "packages" in settings:
                words = "must not be declared: it comes from the lock"
                raise ConfigError(origin, "settings.driver.packages", words, hint="declare settings.driver.install")
            table.update(settings)
    try:
        want = msgspec.convert(table, DriverWant)
    except msgspec.ValidationError:
        return None  # the check of the layer reports the mistake with its file and key
    return want if want.managed and (want.version or want.branch) else None


def lock_layer(
    site_file: str, node: str, layers: Sequence[tuple[str, Mapping[str, Any]]], profile: str
) -> tuple[str, dict[str, Any]] | None:
    """Return what the lock adds to a node's document, with the lock's path. Return None for a node without a declared driver.
    Raises ConfigError with file, key and node where lock and declaration do not agree."""
    want = declared(layers)
    if want is None:
        return None
    path = path_beside(site_file)
    if not os.path.exists(path):
        words = f"node {node} declares a driver, but {path} does not exist"
        raise ConfigError(site_file, "settings.driver", words, hint="write it with `fairlead lock`")
    found = load_lock(path).sets.get(want.set)
    key = f"sets.{want.set}"
    if found is None:
        raise ConfigError(path, key, f"node {node} wants this set, but the lock does not have it", hint="run `fairlead lock`")
    for name in DECLARED:
        own, locked = getattr(want, name), getattr(found, name)
        if own and own != locked and not (name == "install" and set(own) == set(locked)):
            words = f"is {_plain(locked)}, but node {node} declares {_plain(own)}"
            raise ConfigError(path, f"{key}.{name}", words, hint="run `fairlead lock` again")
    refuse(found, path, key, architecture(want.gpu, profile), node)
    packages = [msgspec.to_builtins(p) for p in found.packages]
    return path, {"settings": {"driver": {"version": found.version, "branch": found.branch, "packages": packages}}}


def refuse(found: LockedSet, path: str, key: str, gpu: str, node: str = "") -> None:
    """Raise ConfigError for a set that is known to be bad. The error has the first reason and the number of further reasons."""
    chosen = Set(version=found.version, branch=found.branch, module=found.module, gpu=gpu, packages=found.packages)
    against = faults(chosen)
    if against:
        more = f" (and {len(against) - 1} more)" if len(against) > 1 else ""
        of = f", of node {node}" if node else ""
        raise ConfigError(path, f"{key}{of}", f"{against[0].text}{more}", hint="`fairlead lock --check` lists every reason")


def _plain(value: object) -> str:
    return " ".join(value) if isinstance(value, tuple) else str(value)
