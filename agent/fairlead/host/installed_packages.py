"""Lists the installed packages, and the kernels with their NVIDIA modules, as short texts for settings.

``/@packages`` has a line for each package that dpkg knows: NAME ARCHITECTURE VERSION WANT STATUS (dpkg-query(1)). WANT is
install or hold. STATUS is installed, or the state that an interrupted run left.

``/@kernels`` has a line for each installed kernel, oldest first: RELEASE HEADERS MODULE NEXT. HEADERS is yes or no. MODULE is
the version of the NVIDIA module built for the kernel, or none, or unknown. NEXT is yes when GRUB boots this kernel next, maybe
when that is not clear, else no.

A machine tree without dpkg or kernels has both as files of that name.
"""

from __future__ import annotations

import gzip
import lzma
import mmap
import re
from collections.abc import Iterator

from fairlead.host.root import Root
from fairlead.model.facts import Missing

PACKAGES, KERNELS = "/@packages", "/@kernels"
STATUS = "/var/lib/dpkg/status"
STATUS_MAX_BYTES = 64 << 20
_MODULE = re.compile(
    r"^[^\s:]*/nvidia(?:-current|-tesla(?:-\d+)?|-legacy-\d+xx)?(?:-open)?\.ko(?:\.xz|\.gz|\.zst)?(?=:)", re.MULTILINE
)
_DEFAULT = re.compile(r"^\s*GRUB_DEFAULT=[\"']?(.*?)[\"']?\s*$", re.MULTILINE)
_SAVED = re.compile(r"^saved_entry=(.*)$", re.MULTILINE)
_known: dict[tuple[str, str], tuple[object, str]] = {}


def text(root: Root, path: str) -> str | Missing | None:
    """Return the text of ``/@packages`` or ``/@kernels``, or None on a machine that has neither dpkg nor such a file."""
    if path == KERNELS:
        return kernels(root) or root.read_text(KERNELS)
    if not root.exists(STATUS):
        return root.read_text(PACKAGES)
    stamp = root.stamp(STATUS)
    known = _known.get((root.path, PACKAGES))
    if known is not None and stamp is not None and known[0] == stamp:
        return known[1]
    data = root.read_text(STATUS, STATUS_MAX_BYTES)
    if not isinstance(data, str):
        return data
    lines = "".join(f"{line}\n" for line in parse_status(data))
    _known[root.path, PACKAGES] = (stamp, lines)
    return lines


def parse_status(data: str) -> Iterator[str]:
    """Return the lines of ``/@packages`` from dpkg's status file (deb-control(5), dpkg-query(1))."""
    for stanza in data.split("\n\n"):
        fields: dict[str, str] = {}
        for line in stanza.split("\n"):
            if line[:1] not in ("", " ", "\t"):
                key, _, value = line.partition(": ")
                if key in ("Package", "Status", "Version", "Architecture"):
                    fields[key] = value
        words = fields.get("Status", "").split()
        if len(words) == 3 and fields.get("Package"):
            status = words[2] if words[1] == "ok" else f"{words[2]}/{words[1]}"
            yield " ".join(
                (fields["Package"], fields.get("Architecture", "-") or "-", fields.get("Version", "-") or "-", words[0], status)
            )


def version_key(release: str) -> tuple[tuple[int, str], ...]:
    """Return the sort key of a kernel release: numbers by value and words by letter, as `sort -V` orders them."""
    return tuple((int(n), "") if n else (-1, w) for n, w in re.findall(r"(\d+)|([^\d.+-]+)", release))


def kernels(root: Root) -> str:
    """Return the lines of ``/@kernels``, or "" where no kernel is installed."""
    releases = sorted((p.partition("/vmlinuz-")[2] for p in root.glob("/boot/vmlinuz-*")), key=version_key)
    following = next_kernel(root, releases)
    lines = []
    for release in releases:
        headers = "yes" if root.exists(f"/lib/modules/{release}/build/Makefile") else "no"
        boots = "yes" if release == following else "maybe" if not following else "no"
        lines.append(f"{release} {headers} {module_of(root, release)} {boots}\n")
    return "".join(lines)


def next_kernel(root: Root, releases: list[str]) -> str:
    """Return the release that GRUB boots next, or "" when its configuration does not say that plainly.

    Source: GRUB manual, "Simple configuration handling". GRUB_DEFAULT is a number (0 is the newest kernel), a title or id of
    an entry, or ``saved``; then it is saved_entry of grubenv. Boot entries (BLS) are named MACHINE-RELEASE.
    """
    default = root.read_text("/etc/default/grub")
    chosen = "0"
    if isinstance(default, str) and (found := _DEFAULT.findall(default)):
        chosen = found[-1]
    if chosen == "saved":
        saved = [root.read_text(f"/boot/{folder}/grubenv") for folder in ("grub", "grub2")]
        entries = [found[-1] for t in saved if isinstance(t, str) and (found := _SAVED.findall(t))]
        chosen = entries[0] if entries else "0"
    if chosen in ("", "0"):
        return releases[-1] if releases else ""
    named = [r for r in releases if re.search(rf"(?:^|[^\w.]){re.escape(r)}(?:$|[^\w.])", chosen)]
    return max(named, key=len, default="")


def module_of(root: Root, release: str) -> str:
    """Return the version of the NVIDIA module that is built for a kernel, ``none``, or ``unknown`` when it cannot be read."""
    dep = root.read_text(f"/lib/modules/{release}/modules.dep", STATUS_MAX_BYTES)
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
    """Return the version that dkms says it has built and installed for a kernel. Ubuntu compresses modules with zstd, which
    nothing here can read. Source: dkms 3.0.10, do_install (kernel-RELEASE-ARCH in its tree is a link to VERSION/RELEASE/ARCH)."""
    for link in root.glob(f"/var/lib/dkms/nvidia*/kernel-{release}-*", dangling=True):
        target = root.readlink(link)
        version = target.partition("/")[0] if isinstance(target, str) else ""
        if re.fullmatch(r"[0-9.]+", version):
            return version
    return "unknown"


def _version(path: str) -> str:
    """Return MODULE_VERSION from the section .modinfo of a module file (``version=535.261.03``)."""
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
