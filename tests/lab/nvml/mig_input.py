"""Give the simulated library the MIG instances that a machine tree describes, in the words of mig.c and mig_devices.c."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# The rows of mig.c's table of profiles.
ROWS = ("1g.10gb", "1g.10gb+me", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
SPANNING, SMALL_SHIFT = 1 << 9, 10


def slot_value(row: int, start: int, small: int = 0) -> int:
    """A slot of mig.c: an instance with a compute instance that spans it, or with ``small`` ones of one slice. -1: with none."""
    compute = SPANNING if not small else ((1 << small) - 1) << SMALL_SHIFT if small > 0 else 0
    return 1 + row + (start << 5) + compute


def mig_lines(number: int, gpu: Mapping[str, Any]) -> Iterator[str]:
    """The lines for one GPU of nvml.json. Raises ValueError for a profile that mig.c does not have."""
    instances = gpu.get("mig", {}).get("instances", [])
    devices = gpu.get("mig_devices", [])
    for slot, instance in enumerate(instances):
        small = sum(1 for d in devices if d["gi"] == instance["gi"] and " MIG 1c." in d["name"])
        row = ROWS.index(instance["profile"])
        yield f"gpu.{number}.mig.slot.{slot}={slot_value(row, instance['start'], small if instance['compute'] else -1)}"
    for device in devices:
        key = f"gpu.{number}.mig.gi.{device['gi']}"
        yield f"{key}.ci.{device['ci']}.uuid={device['uuid']}"
        for name, value in (("used_bytes", device["memory"].get("used_bytes", device["memory"])),
                            ("sram_uncorrected", device["sram_uncorrected"])):  # fmt: skip
            yield f"{key}.{name}={_text(value)}"


def _text(value: Any) -> str:
    return f"error {value['error']}" if isinstance(value, dict) else str(value)
