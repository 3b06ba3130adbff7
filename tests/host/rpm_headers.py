"""rpm databases of any size and with any fault: headers made byte by byte, in tables like rpm's own.

``tests/host/test_rpm_database.py`` shows that real rpm reads what this module writes.
"""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

NAME, VERSION, RELEASE, EPOCH, SUMMARY, ARCHITECTURE, FILES = 1000, 1001, 1002, 1003, 1004, 1022, 1117
REGION = 63
INT32, STRING, BINARY, STRINGS, TEXT = 4, 6, 7, 8, 9  # TEXT: a string with translations
#: The indexes that rpm 4.18 and 4.20 make beside the table of the headers. They are empty here.
INDEXES = (
    "Name", "Basenames", "Group", "Requirename", "Providename", "Conflictname", "Obsoletename", "Triggername", "Dirnames",
    "Installtid", "Sigmd5", "Sha1header", "Filetriggername", "Transfiletriggername", "Recommendname", "Suggestname",
    "Supplementname", "Enhancename",
)  # fmt: skip
PACKAGES = "CREATE TABLE 'Packages' (hnum INTEGER PRIMARY KEY AUTOINCREMENT,blob BLOB NOT NULL)"
INDEX = (
    "CREATE TABLE '{0}' (key 'TEXT' NOT NULL, hnum INTEGER NOT NULL, idx INTEGER NOT NULL, "
    "FOREIGN KEY (hnum) REFERENCES 'Packages'(hnum))"
)


def header(  # noqa: PLR0917
    name: str, version: str, release: str, epoch: int | None = None, architecture: str = "x86_64", files: Sequence[str] = ()
) -> bytes:
    """Return one header as it is in the database, with rpm's region around it. It has no signature."""
    words: list[tuple[int, int, int, bytes]] = [(NAME, STRING, 1, _text(name)), (VERSION, STRING, 1, _text(version))]
    words.append((RELEASE, STRING, 1, _text(release)))
    if epoch is not None:
        words.append((EPOCH, INT32, 1, struct.pack(">I", epoch)))
    words.append((SUMMARY, TEXT, 1, _text("a stand-in")))
    if architecture:
        words.append((ARCHITECTURE, STRING, 1, _text(architecture)))
    if files:
        words.append((FILES, STRINGS, len(files), b"".join(_text(path) for path in files)))
    return packed(words)


def packed(words: Iterable[tuple[int, int, int, bytes]]) -> bytes:
    """Return a header with these tags: number, type, count, data."""
    index, data = b"", b""
    for tag, kind, count, value in words:
        if kind == INT32:
            data += b"\0" * (-len(data) % 4)
        index += struct.pack(">IIiI", tag, kind, len(data), count)
        data += value
    entries = len(index) // 16 + 1
    trailer = struct.pack(">IIiI", REGION, BINARY, -16 * entries, 16)
    index = struct.pack(">IIiI", REGION, BINARY, len(data), 16) + index
    return struct.pack(">II", entries, len(data) + 16) + index + data + trailer


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape") + b"\0"


def database(folder: Path, headers: Iterable[bytes], *, journal: str = "wal") -> Path:
    """Write rpmdb.sqlite with these headers into ``folder``, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "rpmdb.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA journal_mode={journal}")
    for table in (PACKAGES, *(INDEX.format(name) for name in INDEXES)):
        connection.execute(table)
    for number, blob in enumerate(headers, 1):
        connection.execute("INSERT INTO Packages VALUES (?, ?)", (number, blob))
    connection.commit()
    connection.close()
    return path


def many(count: int, bytes_each: int) -> Iterable[bytes]:
    """Return headers of ``count`` packages whose lists of files take about ``bytes_each`` bytes each."""
    files = tuple(f"file-{number:06d}.cpp" for number in range(bytes_each // 16))
    return (header(f"package-{number:05d}", f"1.{number}", "1.el9", None, "x86_64", files) for number in range(count))
