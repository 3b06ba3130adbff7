"""Reads the names and versions of all installed packages from rpm's database, without a process and without rpm's library.

rpm 4.16 and newer keep a SQLite file (EL9, EL10, Fedora). Its table Packages has one header for each installed package. On EL8
the database is a Berkeley DB, and on SLES it is rpm's own format (ndb). Only rpm itself can read these two, so ``rpm -qa`` is
called there. Sources: rpm's documentation, "RPM V4 Package Header format" (the magic number is left out in the database);
rpmtag.h of rpm 4.18 (numbers of the tags); sqlite.org, "Write-Ahead Logging" (read-only databases).
"""

from __future__ import annotations

import os
import struct
import subprocess
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from fairlead.host.root import Root
from fairlead.model.facts import Missing, unreadable

if TYPE_CHECKING:
    import sqlite3

#: EL9 has the first path. EL10 has the second one, and a link from the first to it.
FOLDERS = ("/var/lib/rpm", "/usr/lib/sysimage/rpm")
FILE = "rpmdb.sqlite"
#: The files of the older formats: Berkeley DB (EL8) and ndb (SLES).
OLDER = ("Packages", "Packages.db")
#: The tags of name, version, release, epoch and architecture, as the bytes that a header has.
TAGS = tuple(tag.to_bytes(4, "big") for tag in (1000, 1001, 1002, 1003, 1022))
NUMBER = 4  # the type of a number with 32 bits
WORD_MAX_BYTES = 4096
TAGS_MAX = 65536
HEADER_MAX_BYTES = 64 << 20
PACKAGES_MAX = 100_000
BUSY_SECONDS = 2.0
QUERY_SECONDS = 60.0
#: How often the database is read again if a transaction changes it meanwhile.
READS = 3
#: dnf(8), installonlypkgs: several versions of these packages may be installed at once.
INSTALL_ONLY = ("kernel", "gpg-pubkey", "installonlypkg")
_QUERY = "%{NAME} %{ARCH} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\\n"
_STEP = "`rpmdb --verifydb` on the node says whether the database is damaged, and `rpmdb --rebuilddb` makes it anew"
_TWO = struct.Struct(">II").unpack_from

_Row = tuple[str, str, str]


def folder(root: Root) -> str | None:
    """Return the folder that has rpm's database on this machine, or None where there is no database."""
    for path in FOLDERS:
        if any(root.exists(f"{path}/{name}") for name in (FILE, *OLDER)):
            return path
    return None


def stamp(root: Root, where: str) -> tuple[tuple[int, ...], ...] | None:
    """Return a value that changes whenever the database changes, or None if the files cannot be examined.

    SQLite writes first to the file with the name ``-wal``. The time of the last change of the inode does not count, because each
    reader who is root sets the owner of that file anew.
    """
    stamps = [root.stamp(f"{where}/{name}") for name in (FILE, f"{FILE}-wal", *OLDER)]
    return None if None in stamps else tuple(known[:3] for known in stamps if known is not None)


def lines(root: Root, where: str) -> str | Missing:
    """Return the lines of ``/@packages`` for the database in the folder ``where``.

    A line is NAME ARCHITECTURE EPOCH:VERSION-RELEASE - STATUS. STATUS is ``installed``, or ``twice`` where a killed transaction
    has left two versions of one package. If a transaction changes the database while it is read, it is read again.
    """
    read = _read_sqlite if root.exists(f"{where}/{FILE}") else _ask_rpm
    rows: list[_Row] | Missing = []
    for _ in range(READS):
        before = stamp(root, where)
        rows = read(root, where)
        if stamp(root, where) == before:
            return rows if isinstance(rows, Missing) else as_lines(rows)
    return unreadable(f"{where}: another program changes rpm's database now; read it again when its transaction has ended")


def as_lines(rows: list[_Row]) -> str:
    """Return rows of name, architecture and version as the lines of ``/@packages``, in their order."""
    count = Counter([(name, architecture) for name, architecture, _ in rows])
    text = []
    for name, architecture, version in rows:
        several = count[name, architecture] > 1 and not name.startswith(INSTALL_ONLY)
        text.append(f"{name} {architecture} {version} - {'twice' if several else 'installed'}\n")
    return "".join(text)


def _read_sqlite(root: Root, where: str) -> list[_Row] | Missing:
    import sqlite3  # here, because a node with dpkg does without them
    from urllib.parse import quote

    path = root.join(f"{where}/{FILE}")
    # If these files are absent or empty, nobody changes the database, and it is read as one that never changes. Otherwise SQLite
    # would make them, or give an empty one a new time.
    try:
        quiet = not any(_size(f"{path}{end}") for end in ("-wal", "-journal"))
        mode = "mode=ro&immutable=1" if quiet else "mode=ro"
        connection = sqlite3.connect(f"file:{quote(path)}?{mode}", uri=True, timeout=BUSY_SECONDS)
        try:
            connection.execute("PRAGMA cache_size=20")  # pages; each is read once, and more of them only cost time
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, HEADER_MAX_BYTES)
            return list(_rows(connection))
        finally:
            connection.close()
    except (sqlite3.Error, OSError, ValueError) as e:
        return unreadable(f"{where}/{FILE}: {e}; {_STEP}")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0


def _rows(connection: sqlite3.Connection) -> Iterator[_Row]:
    for count, (number, header) in enumerate(connection.execute("SELECT hnum, blob FROM Packages ORDER BY hnum")):
        if count >= PACKAGES_MAX:
            raise ValueError(f"more than {PACKAGES_MAX} packages")
        try:
            row = package(header)
        except ValueError as e:
            raise ValueError(f"package number {number}: {e}") from None
        if row[1]:  # a key for signatures has no architecture
            yield row


def package(header: object) -> _Row:
    """Return name, architecture and EPOCH:VERSION-RELEASE of a header. Raise ValueError for what is no header.

    A header begins with the number of its tags and the size of its data. Then come four numbers for each tag (tag, type, offset
    of its value in the data, count), and then the data. All numbers have 32 bits, and the highest byte is first.
    """
    if not isinstance(header, bytes) or len(header) < 8:
        raise ValueError("it is not a header")
    tags, size = _TWO(header)
    data = 8 + 16 * tags
    if not 0 < tags <= TAGS_MAX or data + size != len(header):
        raise ValueError("the sizes in its header do not agree")
    name, version, release, epoch, architecture = [_value(header, tag, data) for tag in TAGS]
    if not (name and version and release):
        raise ValueError("its header has no name, no version or no release")
    row = (name, architecture, f"{epoch or '0'}:{version}-{release}")
    text = "".join(row)
    if not text.isprintable() or " " in text:
        raise ValueError("a name or a version has a blank or a control character")
    return row


def _value(header: bytes, tag: bytes, data: int) -> str:
    """Return the number or the text of a tag, or "" if the header has no such tag. ``data``: where its data begins."""
    at = header.find(tag, 8, data)
    while at >= 0 and at % 16 != 8:  # the same bytes are part of another tag
        at = header.find(tag, at + 1, data)
    if at < 0:
        return ""
    kind, offset = _TWO(header, at + 4)
    at = data + offset
    end = at + 4 if kind == NUMBER else header.find(b"\0", at, at + WORD_MAX_BYTES)
    if end < 0 or end > len(header):
        raise ValueError("a tag lies outside its header, or is too long")
    return str(int.from_bytes(header[at:end], "big")) if kind == NUMBER else header[at:end].decode("utf-8", "replace")


def _ask_rpm(root: Root, where: str) -> list[_Row] | Missing:
    words = ["rpm", "--dbpath", root.join(where), "-qa", "--qf", _QUERY]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, timeout=QUERY_SECONDS, check=False)
    except FileNotFoundError:
        return unreadable(f"{where}: only rpm can read this database, and rpm is not installed")
    except (OSError, subprocess.TimeoutExpired) as e:
        return unreadable(
            f"{where}: rpm -qa: {getattr(e, 'strerror', None) or f'no answer within {QUERY_SECONDS:.0f} s'}; {_STEP}"
        )
    if done.returncode:
        said = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["failed"])[0]
        return unreadable(f"{where}: rpm -qa: {said[:200]}; {_STEP}")
    rows = []
    for line in done.stdout.decode("utf-8", "replace").split("\n")[:-1]:
        row = line.split(" ")
        if len(row) != 3 or not line.isprintable():
            return unreadable(f"{where}: rpm -qa: {line[:80]!r} is not the name and the version of a package; {_STEP}")
        if row[1] != "(none)":
            rows.append((row[0], row[1], row[2]))
    return rows
