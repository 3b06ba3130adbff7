"""Reads facts about the kernel and the driver's kernel module: boot id, uptime, virtual machine or not, module version."""

from __future__ import annotations

import os
import re

from fairlead.host import boot_clock
from fairlead.host.root import Root
from fairlead.model.facts import Missing, unreadable

# Enough for the first CPU in /proc/cpuinfo. To read the whole file makes the kernel sample the frequency of every CPU.
_HEAD_BYTES = 16384
_NVRM = re.compile(r"^NVRM version:.*?Kernel Module(?: for \S+)?\s+(\d+\.\d+(?:\.\d+)?)", re.MULTILINE)

#: How the vendor or the product of a virtual machine begins (systemd, src/basic/virt.c, dmi_vendor_table). The product of Hyper-V
#: is "Virtual Machine".
_HYPERVISORS = (
    "KVM", "OpenStack", "KubeVirt", "Amazon EC2", "QEMU", "VMware", "VMW", "innotek GmbH", "VirtualBox", "Xen", "Bochs",
    "Parallels", "BHYVE", "Hyper-V", "Virtual Machine", "Apple Virtualization", "Google Compute Engine",
)  # fmt: skip


def node_name(root: Root) -> str:
    """Return the short host name of the live machine. For a machine tree, return the host name that it records, or the name of
    its folder if it records none."""
    if root.is_live:
        return os.uname().nodename.partition(".")[0]
    recorded = root.read_line("/proc/sys/kernel/hostname")
    return recorded if isinstance(recorded, str) and recorded else os.path.basename(root.path)


def boot_id(root: Root) -> str | Missing:
    return root.value("/proc/sys/kernel/random/boot_id")


def uptime_seconds(root: Root) -> float | Missing:
    """Return the seconds since boot. On the live machine they are read from the clock, since a container may have another
    /proc/uptime."""
    if root.is_live:
        return boot_clock.boottime()
    text = root.value("/proc/uptime")
    if isinstance(text, Missing):
        return text
    try:
        return float(text.split()[0])
    except ValueError:
        return unreadable(f"/proc/uptime: not seconds: {text[:40]!r}")


def virtual(root: Root) -> bool | Missing:
    """Return whether this is a virtual machine, by the CPU flag ``hypervisor`` (x86: CPUID leaf 1, ECX bit 31).

    An Arm CPU has no such flag, and /proc/cpuinfo has a line "Features" (arch/arm64/kernel/cpuinfo.c). There the DMI text of the
    machine decides, as in systemd-detect-virt (src/basic/virt.c).
    """
    if root.exists("/sys/hypervisor/type"):
        return True
    data = root.read_bytes("/proc/cpuinfo", _HEAD_BYTES, head=True)
    if isinstance(data, Missing):
        return data
    for line in (data or b"").split(b"\n"):
        if line.startswith(b"flags"):
            return b"hypervisor" in line.partition(b":")[2].split()
        if line.startswith(b"Features"):
            return _virtual_by_dmi(root)
    return unreadable("/proc/cpuinfo: no line of CPU flags or features")


def _virtual_by_dmi(root: Root) -> bool | Missing:
    """Return whether the vendor or the product is that of a hypervisor. A ``*.metal`` instance of Amazon EC2 has none."""
    texts = [root.read_line(f"/sys/class/dmi/id/{name}") for name in ("sys_vendor", "product_name")]
    missing = next((text for text in texts if isinstance(text, Missing)), None)
    if missing is not None:
        return missing
    vendor, product = (text if isinstance(text, str) else "" for text in texts)
    if not vendor:
        return unreadable("/sys/class/dmi/id/sys_vendor: no such file")
    of_hypervisor = any(text.startswith(_HYPERVISORS) for text in (vendor, product))
    return of_hypervisor and not (vendor == "Amazon EC2" and product.endswith(".metal"))


def module_version(root: Root) -> str | Missing:
    """Return the version of the loaded nvidia.ko (/sys/module/nvidia/version, else /proc/driver/nvidia/version)."""
    version = root.read_line("/sys/module/nvidia/version")
    if isinstance(version, str) and version:
        return version
    text = root.read_text("/proc/driver/nvidia/version", 65536)
    if isinstance(text, str):
        match = _NVRM.search(text)
        return match[1] if match else unreadable("/proc/driver/nvidia/version: no NVRM version")
    if isinstance(version, Missing):
        return version
    return text if isinstance(text, Missing) else unreadable("the nvidia kernel module is not loaded")
