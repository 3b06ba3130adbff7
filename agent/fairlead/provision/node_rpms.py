"""Reads the package database of a node of the EL family for `fairlead lock`: rpmdb.sqlite, or the text that rpm prints.

rpmdb.sqlite has all relations of the installed packages. The text has names and versions only. It is for EL8, whose database
only rpm itself can read.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from typing import Literal
from urllib.parse import quote

from fairlead.errors import DataError, InputMissing
from fairlead.host.rpm_header import HEADER_MAX_BYTES, RpmHeader, parse
from fairlead.model.plain_text import one_line

DATABASE_MAX = 2 << 30
TEXT_MAX = 16 << 20
PACKAGES_MAX = 100_000
BUSY_SECONDS = 2.0
SQLITE = b"SQLite format 3\0"
#: Berkeley DB's hash (at byte 12, in either order of bytes), which EL8 uses.
BERKELEY = (b"\x61\x15\x06\x00", b"\x00\x06\x15\x61")
ASK = "rpm -qa --qf '%{NAME} %{ARCH} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\\n' > FILE"
_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9+._-]*) (\(none\)|[A-Za-z0-9_]+) ([0-9]+:[^\s:-]+-[^\s:-]+)")


def kind_of(path: str) -> Literal["deb", "rpm", ""]:
    """Say by its first bytes which package manager a database belongs to, or "" for an empty file and for anything else. Raises
    InputMissing, DataError."""
    head = _head(path)
    if head.startswith(SQLITE) or head[12:16] in BERKELEY or _LINE.match(head.decode("utf-8", "replace")):
        return "rpm"
    return "deb" if re.match(rb"\s*[A-Za-z][A-Za-z-]*: ", head) else ""


def _head(path: str) -> bytes:
    hint = "--status takes a copy of a node's /var/lib/dpkg/status or /var/lib/rpm/rpmdb.sqlite"
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise DataError(f"{path}: not a file", hint=hint)
        with open(path, "rb") as f:
            return f.read(4096)
    except OSError as e:
        raise InputMissing(f"{path}: {e.strerror}", hint=hint) from None


def read_rpms(path: str) -> tuple[RpmHeader, ...]:
    """Return the packages of a node. From the text of rpm they have no relations. Raises InputMissing, DataError."""
    head = _head(path)
    if head[12:16] in BERKELEY:
        raise DataError(f"{path}: a Berkeley DB (EL8), which only rpm can read", hint=f"on that node: {ASK}")
    if not head.startswith(SQLITE):
        return _from_text(path)
    if os.path.getsize(path) > DATABASE_MAX:
        raise DataError(f"{path}: a package database of more than {DATABASE_MAX >> 30} GiB", hint=f"on that node: {ASK}")
    # without a -wal nobody writes to the copy, and SQLite need not write beside it
    mode = "mode=ro" if os.path.exists(f"{path}-wal") else "mode=ro&immutable=1"
    hint = "copy rpmdb.sqlite (and rpmdb.sqlite-wal, if it is there) again while no dnf runs on that node"
    try:
        connection = sqlite3.connect(f"file:{quote(os.path.abspath(path))}?{mode}", uri=True, timeout=BUSY_SECONDS)
        try:
            return tuple(_from_database(connection))
        finally:
            connection.close()
    except (sqlite3.Error, ValueError) as e:
        raise DataError(f"{path}: no whole database of rpm: {one_line(str(e), 120)}", hint=hint) from None


def _from_database(connection: sqlite3.Connection) -> list[RpmHeader]:
    found: list[RpmHeader] = []
    for number, length in connection.execute("SELECT hnum, length(blob) FROM Packages ORDER BY hnum").fetchall():
        if len(found) >= PACKAGES_MAX or not isinstance(length, int) or length > HEADER_MAX_BYTES:
            raise ValueError(f"package {number} is not a header")
        blob = connection.execute("SELECT blob FROM Packages WHERE hnum = ?", (number,)).fetchone()[0]
        if not isinstance(blob, bytes):
            raise ValueError(f"package {number} is not a header")
        header = parse(blob)
        if header.architecture:  # a key for signatures has no architecture
            found.append(header)
    return found


def _from_text(path: str) -> tuple[RpmHeader, ...]:
    with open(path, "rb") as f:
        data = f.read(TEXT_MAX + 1)
    if len(data) > TEXT_MAX:
        raise DataError(f"{path}: a list of packages of more than {TEXT_MAX >> 20} MiB", hint=f"on that node: {ASK}")
    found = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        match = _LINE.fullmatch(line)
        if match is None:
            words = f"{path}: line {number} is not NAME ARCHITECTURE EPOCH:VERSION-RELEASE: {one_line(line, 60)}"
            raise DataError(words, hint=f"on that node: {ASK}")
        if match[2] != "(none)":
            found.append(RpmHeader(name=match[1], version=match[3], architecture=match[2]))
    return tuple(found)
