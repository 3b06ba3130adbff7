"""Checks on the admin host, where the declaration is written, whether the node's GPUs can hold the declared MIG geometry."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from fairlead.errors import ConfigError
from fairlead.model.mig_geometry import A100_40, A100_80, GPUS, H100_80, refusal

#: The GPUs of each hardware profile that fairlead contains, or () if its GPUs have no MIG.
GPUS_OF_PROFILE: dict[str, tuple[str, ...]] = {
    "a100-pcie": (A100_40, A100_80),
    "gb200-nvl72": ("GB200 186GB", "GB200 189GB"),
    "gb300-nvl72": ("GB300",),
    "gh200": ("GH200 96GB", "GH200 144GB"),
    "gh200-quad": ("GH200 96GB", "GH200 144GB"),
    "h100-nvl": ("H100 94GB",),
    "h100-pcie": (H100_80,),
    "hgx-a100": (A100_40, A100_80),
    "hgx-a100-4gpu": (A100_40, A100_80),
    "hgx-b200": ("B200",),
    "hgx-b300": ("B300",),
    "hgx-h100": (H100_80, "H100 94GB", "H100 96GB"),
    "hgx-h200": ("H200",),
    "l4": (),
    "l40s-pcie": (),
}

_EXAMPLE = '["3g.40gb", "1g.10gb"]'
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def geometries(layer: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield each declared geometry of a layer with its key. Values of a wrong type are left out; the schema reports them."""
    settings = layer.get("settings")
    table = settings.get("mig") if isinstance(settings, Mapping) else None
    if not isinstance(table, Mapping):
        return
    by_gpu = table.get("by_gpu")
    found = [("settings.mig.geometry", table.get("geometry"))]
    found += [(f"settings.mig.by_gpu.{pci}", g) for pci, g in by_gpu.items()] if isinstance(by_gpu, Mapping) else []
    for key, geometry in found:
        if isinstance(geometry, list | tuple) and all(isinstance(name, str) for name in geometry):
            yield key, tuple(geometry)


def mig_mistakes(origin: str, layer: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield the mistakes in a layer's geometries that are mistakes on every GPU."""
    yield from _of_another_kind(origin, layer)
    for key, geometry in geometries(layer):
        found = refusal(geometry)
        if found:
            yield ConfigError(origin, key, found[0], hint=found[1])


def _of_another_kind(origin: str, layer: Mapping[str, Any]) -> Iterator[ConfigError]:
    """Yield the mistakes for which the schema would only print a pattern or a type."""
    settings = layer.get("settings")
    table = settings.get("mig") if isinstance(settings, Mapping) else None
    if not isinstance(table, Mapping):
        return
    by_gpu = table.get("by_gpu", {})
    found = {"settings.mig.geometry": table["geometry"]} if "geometry" in table else {}
    if isinstance(by_gpu, Mapping):
        found |= {f"settings.mig.by_gpu.{pci}": geometry for pci, geometry in by_gpu.items()}
        for pci in by_gpu:
            if not _ADDRESS.fullmatch(str(pci)):
                hint = "write it as 0000:1b:00.0, as `lspci -D` prints it"
                yield ConfigError(origin, f"settings.mig.by_gpu.{pci}", f"{_shown(pci)} is no PCI address", hint=hint)
    else:
        hint = f'write by_gpu = {{"0000:1b:00.0" = {_EXAMPLE}}}'
        yield ConfigError(origin, "settings.mig.by_gpu", f"{_shown(by_gpu)} is no table of PCI addresses", hint=hint)
    for key, value in found.items():
        if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
            hint = f"write a list such as {_EXAMPLE}, or an empty list: MIG off"
            yield ConfigError(origin, key, f"{_shown(value)} is no list of profiles", hint=hint)


def _shown(value: object) -> str:
    return repr(value)[:80]


def mig_mistakes_of_profile(origin: str, layer: Mapping[str, Any], profile: str) -> Iterator[ConfigError]:
    """Yield the mistakes in a layer's geometries on the GPUs of a hardware profile. For a site's own profile it yields
    nothing."""
    if profile not in GPUS_OF_PROFILE:
        return
    among = [gpu for gpu in GPUS if any(name in gpu.names.split(", ") for name in GPUS_OF_PROFILE[profile])]
    for key, geometry in geometries(layer):
        if geometry and not among:
            yield ConfigError(origin, key, f"the GPUs of {profile} have no MIG", hint="take it out, or declare an empty list")
        elif found := refusal(geometry, among, sure=True):
            other = "nodes with other GPUs need a hardware profile of your own"
            yield ConfigError(origin, key, f"{found[0]} (profile {profile})", hint=f"{found[1]}; {other}")
