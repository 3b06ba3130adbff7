"""Reads fabric profiles. A fabric profile says what NCCL needs on one kind of network; it becomes one layer of a node's
document."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from fairlead import assets
from fairlead.config.toml_text import read_toml
from fairlead.errors import ConfigError, InputMissing
from fairlead.model.profile_files import Fabric
from fairlead.nccl.nccl_conf import fault
from fairlead.nccl.nccl_version import parse, within


def fabric_names() -> tuple[str, ...]:
    """Return the names of the fabric profiles that this installation contains."""
    return tuple(sorted(p.stem for p in (assets.profile_directory() / "fabrics").glob("*.toml")))


def load_fabric(name: str) -> Fabric:
    """Return a fabric profile. ``name`` is its name, or the path of a site's own file. Raises InputMissing, ConfigError."""
    path = Path(name) if "/" in name else assets.profile_directory() / "fabrics" / f"{name}.toml"
    if not os.path.isfile(path):
        from fairlead.config import schema_keys

        hint = f"{schema_keys.meant(name, fabric_names())} known fabrics: {', '.join(fabric_names())}".strip()
        raise InputMissing(f"fabric {name!r}: no such profile", hint=hint)
    try:
        fabric = msgspec.convert(read_toml(path), Fabric)
    except msgspec.ValidationError as e:
        raise ConfigError(str(path), "", str(e)) from None
    _check(fabric, str(path))
    return fabric


def _check(fabric: Fabric, where: str) -> None:
    """Raise ConfigError for a variable that cannot be set, and for any variable where a vendor's plugin sets the variables."""
    for v in fabric.variables:
        reason = fault(v.name, v.value) if v.where == "node" else ""
        if fabric.owner:
            reason = f"{fabric.owner} owns the variables of this platform"
        try:
            within(parse(""), "" if v.nccl == "any" else v.nccl)
        except ValueError as e:
            reason = str(e)
        if reason:
            raise ConfigError(where, f"variables.{v.name}", reason)


def fabric_layer(fabric: Fabric) -> dict[str, Any]:
    """Return the profile as a layer of the document. The layer has the variables at the keys that the setting ``nccl`` and the
    job environment read. Raises ConfigError for a key that is declared twice."""
    layer: dict[str, Any] = {}
    for value in fabric.values:
        table = layer
        *parents, last = value.key.split(".")
        for part in parents:
            table = table.setdefault(part, {})
        if last in table:
            raise ConfigError(f"fabric {fabric.name}", value.key, "declared twice")
        table[last] = value.value
    of_node = [
        {"name": v.name, "value": v.value, "why": v.why, "source": v.source, "nccl": "" if v.nccl == "any" else v.nccl}
        for v in fabric.variables
        if v.where == "node"
    ]
    of_job = [
        {"name": v.name, "value": v.value, "when": v.when, "unless": v.unless, "why": v.why, "source": v.source}
        for v in fabric.variables
        if v.where == "job"
    ]
    if of_node:
        layer.setdefault("settings", {}).setdefault("nccl", {})["variables"] = of_node
    if of_job:
        layer.setdefault("jobenv", {})["fabric"] = of_job
    return layer
