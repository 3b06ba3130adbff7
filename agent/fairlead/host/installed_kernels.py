"""Lists the installed kernels with their NVIDIA modules, as a short text for settings.

``/@kernels`` has a line for each installed kernel, oldest first: RELEASE HEADERS MODULE NEXT. HEADERS is yes or no. MODULE is
the version of the NVIDIA module built for the kernel, or none, or unknown. NEXT is yes if GRUB boots this kernel next
(``next_kernel``), maybe if GRUB's configuration does not show which kernel is next, else no. A machine tree without kernels has a
file named ``/@kernels`` instead.

The rescue kernels of the EL family (vmlinuz-0-rescue-MACHINE) are left out. Each is a copy of another kernel, it has no modules
of its own, and only a person at the boot menu chooses it.
"""

from __future__ import annotations

import gzip
import lzma
import mmap
import re

from fairlead.host.next_kernel import RESCUE, next_kernel, version_key
from fairlead.host.root import Root
from fairlead.model.facts import Missing

KERNELS = "/@kernels"
DEP_MAX_BYTES = 64 << 20
_MODULE = re.compile(
    r"^[^\s:]*/nvidia(?:-current|-tesla(?:-\d+)?|-legacy-\d+xx)?(?:-open)?\.ko(?:\.xz|\.gz|\.zst)?(?=:)", re.MULTILINE
)
_known: dict[tuple[str, str], tuple[object, str]] = {}


def text(root: Root) -> str | Missing | None:
    """Return the text of ``/@kernels``, or None on a machine without a kernel and without such a file."""
    return kernels(root) or root.read_text(KERNELS)


def kernels(root: Root) -> str:
    """Return the lines of ``/@kernels``, or "" if no kernel is installed."""
    found = (path.partition("/vmlinuz-")[2] for path in root.glob("/boot/vmlinuz-*"))
    releases = sorted((release for release in found if not release.startswith(RESCUE)), key=version_key)
    following = next_kernel(root, releases)
    lines = []
    for release in releases:
        headers = "yes" if root.exists(f"/lib/modules/{release}/build/Makefile") else "no"
        boots = "yes" if release == following else "maybe" if not following else "no"
        lines.append(f"{release} {headers} {module_of(root, release)} {boots}\n")
    return "".join(lines)


def module_of(root: Root, release: str) -> str:
    """Return the version of the NVIDIA module that is built for a kernel, ``none``, or ``unknown`` when it cannot be read."""
    dep = root.read_text(f"/lib/modules/{release}/modules.dep", DEP_MAX_BYTES)
    if isinstance(dep, Missing):
        return "unknown"
    match = _MODULE.search(dep or "")
    if match is None:
        return "none"
    path = match[0] if match[0].startswith("/") else f"/lib/modules/{release}/{match[0]}"
    stamp = root.stamp(path)
    if stamp == (0,):
        return "none"
    known = _known.get((root.path, path))
    if known is None or known[0] != stamp or stamp is None:
        found = _built_by_dkms(root, release) if path.endswith(".zst") else _version(root.join(path))
        _known[root.path, path] = known = (stamp, found)
    return known[1]


def _built_by_dkms(root: Root, release: str) -> str:
    """Return the version of the NVIDIA module that dkms has built and installed for a kernel, or "unknown".

    This is for modules that are compressed with zstd (Ubuntu), which this Python module cannot read. Source: dkms 3.0.10,
    do_install (kernel-RELEASE-ARCH in its tree is a link to VERSION/RELEASE/ARCH).
    """
    for link in root.glob(f"/var/lib/dkms/nvidia*/kernel-{release}-*", dangling=True):
        target = root.readlink(link)
        version = target.partition("/")[0] if isinstance(target, str) else ""
        if re.fullmatch(r"[0-9.]+", version):
            return version
    return "unknown"


def _version(path: str) -> str:
    """Return MODULE_VERSION from the section .modinfo of a module file (``version=535.261.03``), or "unknown"."""
    try:
        if path.endswith(".ko"):
            with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as content:
                at = content.find(b"\0version=")
                found = content[at + 9 : at + 60] if at >= 0 else b""
        elif path.endswith((".xz", ".gz")):
            with lzma.open(path) if path.endswith(".xz") else gzip.open(path) as g:
                found = g.read().partition(b"\0version=")[2][:60]
        else:
            return "unknown"
    except (OSError, ValueError, EOFError, lzma.LZMAError):
        return "unknown"
    said = found.partition(b"\0")[0].decode("ascii", "replace")
    return said if re.fullmatch(r"[0-9.]+", said) else "unknown"
