"""Simulates NVML for a machine tree. It reads values from ``nvml.json``. When a value is set, it writes this value to the file at
once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from fairlead.errors import HostError
from fairlead.host.atomic_file import write_file
from fairlead.host.root import Root
from fairlead.model.facts import Missing, StuckCall, unreadable
from fairlead.model.json_text import NOT_JSON

_MEGA = 1_000_000


class TreeNvml(Struct):
    root: Root
    stuck: StuckCall | None = None

    @property
    def raw(self) -> Mapping[str, Any] | Missing:
        data = self.root.read_bytes("/nvml.json", 16 << 20)
        if data is None:
            return unreadable("nvml.json: no such file in this tree")
        if isinstance(data, Missing):
            return data
        try:
            return msgspec.json.decode(data, type=dict[str, Any])
        except NOT_JSON as e:
            return unreadable(f"nvml.json: {e}")

    def sweep(self) -> TreeNvml:
        return self

    def set(self, pci: str, what: str, value: int | str) -> None:
        """Set ``what`` of the GPU at ``pci``. Raises HostError for a GPU or setting that the tree does not have, and for a
        change of ``mig`` of a GPU with a process on it."""
        raw = self.raw
        gpus = [] if isinstance(raw, Missing) else [g for g in raw["gpus"] if g.get("pci") == pci]
        if isinstance(raw, Missing) or not gpus or not _set(gpus[0], what, value):
            raise HostError(f"{pci}: no such GPU or setting {what} in nvml.json")
        write_file(self.root.join("/nvml.json"), msgspec.json.format(msgspec.json.encode(raw), indent=1))

    def release(self) -> None:
        """Do nothing: a tree's NVML needs no release."""

    def reattach(self) -> None:
        """Do nothing: a tree's NVML is never released."""


def _set(gpu: dict[str, Any], what: str, value: int | str) -> bool:
    match what:
        case "persistence":
            gpu["persistence_mode"] = value
        case "compute_mode":
            gpu["compute_mode"] = value
        case "power_limit_milliwatts":
            gpu["power"]["limit_milliwatts"] = value
        case "ecc_mode":
            gpu["ecc_mode"]["pending"] = value
        case "locked_clocks" | "locked_memory_clocks":
            return True  # NVML has no call that reads locked clocks
        case "application_clocks":
            clocks = gpu["application_clocks"]
            names = ("memory_hertz", "sm_hertz")
            words = [clocks[f"default_{n}"] // _MEGA for n in names] if value == "off" else str(value).split(",")
            clocks.update({n: int(w) * _MEGA for n, w in zip(names, words, strict=True)})
        case "mig":
            if gpu["processes"]:
                raise HostError(f"{gpu['pci']}: in use")
            on = int(value != "off")
            gpu["mig_mode"] = {"current": on, "pending": on}
            made = tuple(str(value).split(",")) if on else ()
            places = [name.partition("@") for name in made]
            gpu["mig"]["instances"] = [
                {"profile": n, "start": int(at) if at else i, "compute": 1} for i, (n, _, at) in enumerate(places)
            ]
            gpu["mig"]["profiles"] = sorted({name for name, _, _ in places})
            gpu.pop("mig_devices", None)  # those of the instances before: only a driver makes new ones
        case _:
            return False
    return True
