"""Records as a kernel writes them to /dev/kmsg: with the lines that name the device, where a driver prints by dev_printk(), and
with the flag of a fragment, where the NVIDIA driver prints."""

from __future__ import annotations

import re

_BY_DEVICE = (
    (re.compile(r"nvme nvme(\d+): "), "nvme", "c237:{}"),  # drivers/nvme/host: the controller, a character device
    (re.compile(r"(?:pcieport|nvidia|mlx5_core) ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])[ :]"), "pci", "+pci:{}"),
)


def record(text: str, sequence: int, microseconds: int, *, level: int = 3, facility: int = 0) -> str:
    """One record, with its line breaks (Documentation/ABI/testing/dev-kmsg; drivers/base/core.c, set_dev_info)."""
    flag = "c" if text.startswith("NVRM: ") else "-"  # it appends KERN_CONT: kernel-open/nvidia/os-interface.c, nv_printf
    lines = [f"{facility << 3 | level},{sequence},{microseconds},{flag};{text}"]
    for pattern, subsystem, device in _BY_DEVICE:
        if match := pattern.match(text):
            lines += [f" SUBSYSTEM={subsystem}", f" DEVICE={device.format(match[1])}"]
    return "\n".join(lines) + "\n"
