"""RPM packages, repositories and databases as bytes, written here: for tests that need neither root nor rpm.

A package has a header that rpm's documentation describes, and no payload. A repository has createrepo_c's files with only what
a resolver reads. ``tests/driver/test_lock_el.py`` compares both with real packages and real createrepo_c.
"""

from __future__ import annotations

import bz2
import gzip
import hashlib
import lzma
import sqlite3
import struct
import subprocess
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from msgspec import Struct

from fairlead.host import rpm_header

FLAGS = {"=": 8, "<": 2, ">": 4, "<=": 10, ">=": 12}
NAMES = {8: "EQ", 2: "LT", 4: "GT", 10: "LE", 12: "GE"}


class Rpm(Struct, frozen=True, kw_only=True):
    """A package. Relations are "name" or "name OPERATOR version"."""

    name: str
    version: str
    architecture: str = "x86_64"
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    obsoletes: tuple[str, ...] = ()
    recommends: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    installed_bytes: int = 4096

    @property
    def evr(self) -> tuple[str, str, str]:
        epoch, _, rest = self.version.rpartition(":")
        number, _, release = rest.partition("-")
        return epoch or "0", number, release

    @property
    def file(self) -> str:
        return f"{self.name}-{self.evr[1]}-{self.evr[2]}.{self.architecture}.rpm"

    @property
    def all_provides(self) -> tuple[str, ...]:
        return (*self.provides, f"{self.name} = {self.version}")


def split(relation: str) -> tuple[str, int, str]:
    if relation.startswith("("):
        return relation, 0, ""
    words = relation.split(" ")
    return (words[0], FLAGS[words[1]], words[2]) if len(words) == 3 else (relation, 0, "")


def header(rpm: Rpm) -> bytes:
    """The header of a package, as rpm's database has it."""
    tags: list[tuple[int, int, Sequence[str] | int]] = []
    epoch, number, release = rpm.evr
    tags += [(rpm_header.NAME, 6, [rpm.name]), (rpm_header.VERSION, 6, [number]), (rpm_header.RELEASE, 6, [release])]
    tags += [(rpm_header.EPOCH, 4, int(epoch))] if epoch != "0" else []
    tags += [(rpm_header.SIZE, 4, rpm.installed_bytes), (rpm_header.ARCHITECTURE, 6, [rpm.architecture])]
    rows = (
        (rpm_header.PROVIDES, rpm.all_provides),
        (rpm_header.REQUIRES, rpm.requires),
        (rpm_header.CONFLICTS, rpm.conflicts),
        (rpm_header.OBSOLETES, rpm.obsoletes),
    )
    numbers: dict[int, list[int]] = {}
    for (name, flag, version), relations in rows:
        if relations:
            parts = [split(r) for r in relations]
            tags += [(name, 8, [p[0] for p in parts]), (version, 8, [p[2] for p in parts]), (flag, 4, 0)]
            numbers[flag] = [p[1] for p in parts]
    if rpm.files:
        folders = sorted({f.rpartition("/")[0] + "/" for f in rpm.files})
        tags += [(rpm_header.FOLDER, 8, folders), (rpm_header.FILE_NAME, 8, [f.rpartition("/")[2] for f in rpm.files])]
        tags += [(rpm_header.FILE_FOLDER, 4, 0)]
        numbers[rpm_header.FILE_FOLDER] = [folders.index(f.rpartition("/")[0] + "/") for f in rpm.files]
    return packed(tags, numbers)


def packed(tags: Sequence[tuple[int, int, Sequence[str] | int]], numbers: dict[int, list[int]]) -> bytes:
    index, data = b"", b""
    for tag, kind, value in sorted(tags, key=lambda t: t[0]):
        if isinstance(value, int):
            data += b"\0" * (-len(data) % 4)
            values = numbers.get(tag, [value])
            content, count = struct.pack(f">{len(values)}I", *values), len(values)
        else:
            content, count = b"".join(v.encode() + b"\0" for v in value), len(value)
        index += struct.pack(">IIiI", tag, kind, len(data), count)
        data += content
    return struct.pack(">II", len(tags), len(data)) + index + data


def package_bytes(rpm: Rpm) -> bytes:
    """A package file: lead, an empty signature, the header, a payload that is only its name."""
    lead = rpm_header.LEAD_MAGIC + b"\3\0" + b"\0" * (rpm_header.LEAD_BYTES - 6)
    magic = rpm_header.MAGIC + b"\0" * 4
    signature = magic + packed([(1000, 4, 0)], {})
    signature += b"\0" * (-(len(signature) - 8) % 8)
    return lead + signature + magic + header(rpm) + f"payload of {rpm.name}".encode()


def write_packages(folder: Path, rpms: Iterable[Rpm]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for rpm in rpms:
        (folder / rpm.file).write_bytes(package_bytes(rpm))
    return folder


def zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-qc"], input=data, capture_output=True, check=True).stdout


PACK: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": zstd,
}


def primary(rpms: Iterable[Rpm], *, kind: str = "sha256", prefix: str = "") -> bytes:
    """primary.xml, as createrepo_c(8) writes it."""
    out = ['<?xml version="1.0" encoding="UTF-8"?>\n<metadata xmlns="http://linux.duke.edu/metadata/common"']
    out.append(' xmlns:rpm="http://linux.duke.edu/metadata/rpm">\n')
    for rpm in rpms:
        data = package_bytes(rpm)
        epoch, number, release = rpm.evr
        digest = hashlib.new(kind, data).hexdigest()
        out.append(f"<package type='rpm'><name>{rpm.name}</name><arch>{rpm.architecture}</arch>")
        out.append(f"<version epoch='{epoch}' ver='{number}' rel='{release}'/><checksum type='{kind}' pkgid='YES'>{digest}")
        out.append(f"</checksum><size package='{len(data)}' installed='{rpm.installed_bytes}' archive='0'/>")
        out.append(f"<location href={quoteattr(prefix + rpm.file)}/><format>")
        for word in ("provides", "requires", "conflicts", "obsoletes", "recommends"):
            relations = rpm.all_provides if word == "provides" else getattr(rpm, word)
            out.append(f"<rpm:{word}>{''.join(map(entry, relations))}</rpm:{word}>" if relations else "")
        out.append("".join(f"<file>{f}</file>" for f in rpm.files) + "</format></package>\n")
    return "".join([*out, "</metadata>\n"]).encode()


def entry(relation: str) -> str:
    name, flag, version = split(relation)
    if not flag:
        return f"<rpm:entry name={quoteattr(name)}/>"
    epoch, _, rest = version.rpartition(":")
    number, _, release = rest.partition("-")
    more = f" rel='{release}'" if release else ""
    return f"<rpm:entry name={quoteattr(name)} flags='{NAMES[flag]}' epoch='{epoch or 0}' ver='{number}'{more}/>"


def metadata(folder: Path, xml: bytes, *, pack: str = ".gz", kind: str = "sha256") -> Path:
    """repodata/ of a folder: primary.xml as it is passed, and a repomd.xml that fits it."""
    data = PACK[pack](xml)
    digest = hashlib.new(kind, data).hexdigest()
    name = f"repodata/{digest}-primary.xml{pack}"
    (folder / "repodata").mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    (folder / "repodata/repomd.xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?>\n<repomd xmlns="http://linux.duke.edu/metadata/repo">\n'
        f'  <data type="primary"><checksum type="{kind}">{digest}</checksum><location href="{name}"/></data>\n</repomd>\n'
    )
    return folder


def repository(folder: Path, rpms: Sequence[Rpm], *, pack: str = ".gz") -> Path:
    """A repository of these packages."""
    write_packages(folder, rpms)
    return metadata(folder, primary(rpms), pack=pack)


def database(path: Path, rpms: Iterable[Rpm]) -> Path:
    """rpmdb.sqlite with these packages installed."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE Packages (hnum INTEGER PRIMARY KEY AUTOINCREMENT, blob BLOB NOT NULL)")
        for rpm in rpms:
            connection.execute("INSERT INTO Packages (blob) VALUES (?)", (header(rpm),))
    connection.close()
    return path


def listed(path: Path, rpms: Iterable[Rpm]) -> Path:
    """What `rpm -qa --qf` prints."""
    path.write_text("".join(f"{r.name} {r.architecture} {r.evr[0]}:{r.evr[1]}-{r.evr[2]}\n" for r in rpms))
    return path
