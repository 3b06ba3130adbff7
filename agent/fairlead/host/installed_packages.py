"""Lists the installed packages as a short text for settings.

``/@packages`` has a line for each package that dpkg knows: NAME ARCHITECTURE VERSION WANT STATUS (dpkg-query(1)). WANT is
install or hold. STATUS is installed, or the state that an interrupted run left. On a machine of the EL family the line comes
from rpm's database (``rpm_database``), and WANT is "-". A machine tree without a package database has a file named
``/@packages`` instead.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.host import packages_cache, rpm_database
from fairlead.host.root import Root
from fairlead.model.facts import Missing

PACKAGES = "/@packages"
STATUS = "/var/lib/dpkg/status"
STATUS_MAX_BYTES = 64 << 20
_known: dict[str, tuple[object, str]] = {}


def text(root: Root) -> str | Missing | None:
    """Return the text of ``/@packages``, or None on a machine without a package database and without such a file."""
    where = None if _has_dpkg(root) else rpm_database.folder(root)
    if where is not None:
        return _of_rpm(root, where)
    if not root.exists(STATUS):
        return root.read_text(PACKAGES)
    stamp = root.stamp(STATUS)
    known = _known.get(root.path)
    if known is not None and stamp is not None and known[0] == stamp:
        return known[1]
    data = root.read_text(STATUS, STATUS_MAX_BYTES)
    lines = "".join(f"{line}\n" for line in parse_status(data)) if isinstance(data, str) else data
    if isinstance(lines, str):
        _known[root.path] = (stamp, lines)
    return lines


def _of_rpm(root: Root, where: str) -> str | Missing:
    """Return the lines of rpm's database. It is read only if it has changed since this or another program has read it."""
    stamp = rpm_database.stamp(root, where)
    if stamp is None:
        return rpm_database.lines(root, where)
    known = _known.get(root.path)
    if known is not None and known[0] == stamp:
        return known[1]
    lines: str | Missing | None = packages_cache.kept(root, stamp)
    if lines is None:
        lines = rpm_database.lines(root, where)
        if isinstance(lines, str):
            packages_cache.keep(root, stamp, lines)
    if isinstance(lines, str):
        _known[root.path] = (stamp, lines)
    return lines


def _has_dpkg(root: Root) -> bool:
    """Say whether packages are dpkg's here. EPEL has dpkg too, and there its database is empty."""
    stamp = root.stamp(STATUS)
    return stamp is not None and stamp != (0,) and root.read_bytes(STATUS, 1, head=True) != b""


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
