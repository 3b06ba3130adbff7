"""Reads memory controllers, NVMe controllers, mounts and file system errors, from sysfs and PID 1's mount table.

In the agent's own mount table everything is read-only (ProtectSystem=strict in its unit). So fairlead reads PID 1's table. It
uses the options of the file system, which come after the separator (Documentation/filesystems/proc.rst, mountinfo). If fairlead
may not read PID 1's table (when a user runs it), it reads its own table.
"""

from __future__ import annotations

import re

from fairlead.host import mount_table
from fairlead.host.pci import ADDRESS
from fairlead.host.root import Root
from fairlead.model.facts import Missing, unreadable
from fairlead.model.host_facts import USERS_DEVICES, FsErrors, MemoryController, MountPoint, NvmeController

_EDAC = "/sys/devices/system/edac/mc"
_NVME = "/sys/class/nvme"
_BLOCK = "/sys/class/block"
_EXT4 = "/sys/fs/ext4"
_PARTITION = re.compile(r"(.*\d)p\d{1,3}")
_ESCAPE = re.compile(r"\\([0-7]{3})")


def memory_controllers(root: Root) -> tuple[MemoryController, ...] | Missing:
    """Return EDAC's memory controllers (Documentation/ABI/testing/sysfs-devices-edac). Without the folder there is no EDAC
    driver, so there are none."""
    names = root.list(_EDAC)
    if isinstance(names, Missing):
        return names
    return tuple(_controller(root, n) for n in names or () if n.startswith("mc") and n[2:].isdigit())


def _controller(root: Root, name: str) -> MemoryController:
    folder = f"{_EDAC}/{name}"
    worst, most = "", 0
    corrected = root.number(f"{folder}/ce_count")
    for dimm in root.names(folder) if corrected != 0 else ():  # ce_count is the sum over the DIMMs
        if dimm.startswith(("dimm", "rank")):
            count = root.number(f"{folder}/{dimm}/dimm_ce_count")
            if isinstance(count, int) and count > most:
                label = root.value(f"{folder}/{dimm}/dimm_label")
                worst, most = label if isinstance(label, str) and label else dimm, count
    return MemoryController(
        name=name,
        corrected=corrected,
        uncorrected=root.number(f"{folder}/ue_count"),
        worst_dimm=worst,
    )


def images(root: Root) -> frozenset[str]:
    """Return the block devices that are not the node's own disks, by name and by major:minor.

    These are the ``USERS_DEVICES``, and devices that are built only on ``USERS_DEVICES`` (/sys/class/block/NAME/slaves:
    device-mapper, md, bcache), such as a user's encrypted image. A device without a list of slaves counts as the node's own.
    """
    below = {name: _below(root, name) for name in root.names(_BLOCK)}
    found = {name for name in below if name.startswith(USERS_DEVICES)}
    while more := {name for name, stack in below.items() if name not in found and stack and found.issuperset(stack)}:
        found |= more
    numbers = (root.value(f"{_BLOCK}/{name}/dev") for name in found)
    return frozenset((*found, *(number for number in numbers if isinstance(number, str))))


def _below(root: Root, name: str) -> tuple[str, ...]:
    """Return the devices that a device is built on, or for a partition its disk, or () if that is not known."""
    found = root.list(f"{_BLOCK}/{name}/slaves")
    whole = _PARTITION.fullmatch(name)
    return found if isinstance(found, tuple) else (whole[1],) if whole else ()


def devices(root: Root) -> frozenset[str] | Missing:
    """Return the node's own block devices (no ``images``) with their partitions, and EDAC's memory controllers, by their names
    in kernel records. Return Missing for a machine tree without the list of block devices."""
    blocks, controllers = root.list(_BLOCK), root.list(_EDAC)
    if isinstance(blocks, Missing) or isinstance(controllers, Missing):
        return blocks if isinstance(blocks, Missing) else unreadable(f"{_EDAC}: cannot be listed")
    if not blocks:
        return unreadable(f"{_BLOCK}: no block device")
    return frozenset((*blocks, *(controllers or ()))) - images(root)


def nvme(root: Root) -> tuple[NvmeController, ...] | Missing:
    """Return the NVMe controllers (/sys/class/nvme). Controllers over fabrics have no PCI address."""
    names = root.list(_NVME)
    if isinstance(names, Missing):
        return names
    return tuple(
        NvmeController(
            name=name,
            pci=_address(root, f"{_NVME}/{name}"),
            state=root.value(f"{_NVME}/{name}/state"),
        )
        for name in names or ()
        if name.startswith("nvme") and name[4:].isdigit()
    )


def _address(root: Root, folder: str) -> str:
    """Return the address of the PCI function that a class device belongs to. It is in the target of the device's link:
    "../../devices/pci0000:15/..."."""
    target = root.readlink(folder)
    if not isinstance(target, str) or "/devices/pci" not in target:
        target = root.real(folder)
    return next((c for c in reversed(target.split("/")) if ADDRESS.fullmatch(c)), "")


def mounts(root: Root) -> tuple[MountPoint, ...] | Missing:
    """Return all mounts except the FUSE mounts of users. If a path has several mounts, only the last is returned, because it
    hides the others."""
    lines = mount_table.lines(root, "/proc/1/mountinfo")
    if root.is_live and not isinstance(lines, list):
        lines = mount_table.lines(root, "/proc/self/mountinfo")
    if lines is None:
        return unreadable("/proc/1/mountinfo: no such file")
    if isinstance(lines, Missing):
        return lines
    found: dict[str, MountPoint] = {}
    for line in lines:
        before, _, after = line.decode("utf-8", "replace").partition(" - ")
        fields, options = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(options) < 3:
            continue
        path = _plain(fields[4])
        found[path] = MountPoint(
            path=path,
            device=fields[2],
            kind=options[0],
            source=_plain(options[1]),
            read_only="ro" in options[2].split(","),
            flagged_read_only="ro" in fields[5].split(","),
        )
    return tuple(found.values()) or unreadable("/proc/1/mountinfo: no mount in it")


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1], 8)), text)


def fs_errors(root: Root) -> tuple[FsErrors, ...] | Missing:
    """Return ext4's own count of errors (Documentation/ABI/testing/sysfs-fs-ext4, errors_count)."""
    names = root.list(_EXT4)
    if isinstance(names, Missing):
        return names
    return tuple(
        FsErrors(device=name, errors=root.number(f"{_EXT4}/{name}/errors_count")) for name in names or () if name != "features"
    )
