"""Refuses, with a message of one line, a machine tree that is incomplete or badly edited.

A correct tree may have dangling links to devices, and only 64 bytes of a device's configuration space (read without root). Such
a tree is not refused.
"""

from __future__ import annotations

import errno
import os

from fairlead.errors import DataError, InputMissing
from fairlead.host.root import Root
from fairlead.model.cpulist import parse_cpulist

CONFIG_BYTES = (0, 64, 256, 4096)  # empty file; the kernel's sizes: header, PCI, PCI Express (pci_create_attr)
_LISTS = ("/sys/devices/system/cpu/online", "/sys/devices/system/node/online")
_GLOBS = ("/sys/devices/system/node/node[0-9]*/cpulist",)
_FOLDERS = (
    "/sys/bus/pci/devices",
    "/sys/class/infiniband",
    "/sys/class/net",
    "/sys/devices/system/node",
    "/sys/devices/system/cpu",
)
_HINT = "record it again with `fairlead snapshot`"


def refuse_broken(root: Root) -> None:
    """Check a machine tree. A live machine is not checked. Raises InputMissing for a tree without sys/, DataError for a damaged
    tree."""
    if root.is_live:
        return
    if not os.path.isdir(root.join("/sys")):
        raise InputMissing(f"{root.path}: no sys/ in it", hint="`fairlead snapshot DIR` writes a whole tree")
    for path in (*_LISTS, *(p for pattern in _GLOBS for p in root.glob(pattern))):
        text = root.read_line(path)
        if isinstance(text, str):
            try:
                parse_cpulist(text)
            except ValueError as e:
                raise DataError(f"{root.path}{path}: {e}", hint=_HINT) from None
    for folder in _FOLDERS:
        for name in root.names(folder):
            _size(root, f"{folder}/{name}")
    for name in root.names(_FOLDERS[0]):
        config = f"{_FOLDERS[0]}/{name}/config"
        size = _size(root, config)
        if size not in CONFIG_BYTES:
            raise DataError(f"{root.path}{config}: cut off after {size} bytes", hint=_HINT)


def _size(root: Root, path: str) -> int:
    """Return the size of the file at ``path``, or 0 if there is none."""
    try:
        return os.stat(root.join(path)).st_size
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise DataError(f"{root.path}{path}: links lead in a circle", hint=_HINT) from None
        return 0
