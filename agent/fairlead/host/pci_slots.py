"""Reads which chassis slot the firmware names for each PCI address.

Source: Documentation/ABI/testing/sysfs-bus-pci, /sys/bus/pci/slots.
"""

from __future__ import annotations

from fairlead.host.root import Root

SLOTS = "/sys/bus/pci/slots"


def chassis_slots(root: Root) -> dict[str, str]:
    """Return the name of the slot by PCI address without the function, such as ``0000:1b:00``. Without such files, return {}."""
    found = {}
    for name in root.names(SLOTS):
        address = root.read_line(f"{SLOTS}/{name}/address")
        if isinstance(address, str) and address:
            found[address.strip().lower()] = name
    return found
