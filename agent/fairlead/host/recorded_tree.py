"""Refuses, with one line, a recorded machine tree that was cut or edited badly.

What recordings rightly lack (devices behind dangling links, 64 bytes of configuration space read without root) is no
reason to refuse one.
"""

from __future__ import annotations

import errno
import os

from fairlead.errors import DataError, InputMissing
from fairlead.host.root import Root
from fairlead.model.cpulist import parse_cpulist

CONFIG_BYTES = (0, 64, 256, 4096)  # the kernel's sizes: header, PCI, PCI Express (pci_create_attr); 0: the file was kept empty
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
    """Check a tree; a live machine passes. Raises InputMissing for a tree without sys/, DataError for one that is damaged."""
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
    """Return the size of what is at ``path``, or 0 for nothing."""
    try:
        return os.stat(root.join(path)).st_size
    except OSError as e:
        if e.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            raise DataError(f"{root.path}{path}: links lead in a circle", hint=_HINT) from None
        return 0
