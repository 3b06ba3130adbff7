"""Finds out whether the node's hardware profile is for another GPU, before anything is changed on the node.

The rule is that of the agent (checks/gpu_count.py, is_another_kind), which needs a release of fairlead. This module reads sysfs.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence

from .managed_files import read

NVIDIA = 0x10DE
COMPUTE_CLASS = 0x0302  # 3D controller, include/linux/pci_ids.h; a card for a display does not count


def other_gpus(pci_ids: Sequence[str], root: str = "") -> dict[str, int]:
    """Return how many GPUs of the node have each PCI ID if none has a PCI ID of the profile. Return {} if one has, if the profile
    lists no PCI IDs, and if no GPU can be read."""
    found: dict[str, int] = {}
    for folder in sorted(glob.glob(f"{root}/sys/bus/pci/devices/*")) if pci_ids else ():
        kind, vendor, device = (_number(os.path.join(folder, name)) for name in ("class", "vendor", "device"))
        if vendor == NVIDIA and kind >> 8 == COMPUTE_CLASS and device and not os.path.lexists(os.path.join(folder, "physfn")):
            pci_id = f"{vendor:04x}:{device:04x}"
            found[pci_id] = found.get(pci_id, 0) + 1
    return {} if set(found) & set(pci_ids) else found


def _number(path: str) -> int:
    """Return the number of a sysfs file such as ``0x10de``, or 0 if it cannot be read or has another text."""
    try:
        text = (read(path) or b"").decode("ascii", "replace").strip()
    except OSError:
        return 0
    return int(text, 16) if re.fullmatch(r"0x[0-9a-f]{1,6}", text) else 0
