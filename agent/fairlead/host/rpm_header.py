"""Reads the header of an RPM package: from rpm's database, and from the beginning of a package file.

A header says what the package is called and what it provides, requires, conflicts with and obsoletes. Sources: rpm's
documentation, "RPM V4 Package Header format" and "RPM V4 Package format"; rpmtag.h and rpmds.h of rpm 4.18 (numbers of the tags
and of the comparisons).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO

from msgspec import Struct

NAME, VERSION, RELEASE, EPOCH, SIZE, ARCHITECTURE, LONG_SIZE = 1000, 1001, 1002, 1003, 1009, 1022, 5009
FILE_FOLDER, FILE_NAME, FOLDER = 1116, 1117, 1118
#: Tags of the names, the comparisons and the versions of a kind of relation.
PROVIDES, REQUIRES, CONFLICTS, OBSOLETES = (1047, 1112, 1113), (1049, 1048, 1050), (1054, 1053, 1055), (1090, 1114, 1115)
SUPPLEMENTS = (5052, 5054, 5053)
LESS, GREATER, EQUAL = 2, 4, 8
#: A relation with this bit is not required, or is for rpm itself (``rpmlib(...)``).
NOT_REQUIRED = 1 << 19 | 1 << 24
LEAD_BYTES = 96
LEAD_MAGIC, MAGIC = b"\xed\xab\xee\xdb", b"\x8e\xad\xe8\x01"
HEADER_MAX_BYTES = 64 << 20
ENTRIES_MAX = 65536
_INT32, _INT64, _STRING, _STRINGS, _I18N = 4, 5, 6, 8, 9


class Relation(Struct, frozen=True):
    """Describes one capability: its name, the comparison (LESS, GREATER and EQUAL added, 0 for none) and the version."""

    name: str
    comparison: int = 0
    version: str = ""


class RpmHeader(Struct, frozen=True, kw_only=True):
    """Describes one package. version: EPOCH:VERSION-RELEASE. installed_bytes: the room that its files take. programs: the files
    that another package may require by their path, which are those of the folders bin and sbin and of /etc."""

    name: str
    version: str
    architecture: str
    installed_bytes: int = 0
    provides: tuple[Relation, ...] = ()
    requires: tuple[Relation, ...] = ()
    conflicts: tuple[Relation, ...] = ()
    obsoletes: tuple[Relation, ...] = ()
    supplements: tuple[Relation, ...] = ()
    programs: tuple[str, ...] = ()


def parse(blob: bytes) -> RpmHeader:
    """Return what a header says. Raises ValueError for bytes that are no header, or a header with malformed tags."""
    try:
        tags = _Tags(blob)
        name, version, release = (tags.word(tag) for tag in (NAME, VERSION, RELEASE))
        if not (name and version and release):
            raise ValueError("a header without a name or a version")
        epoch = tags.numbers(EPOCH) or [0]
        return RpmHeader(
            name=name,
            version=f"{epoch[0]}:{version}-{release}",
            architecture=tags.word(ARCHITECTURE),
            installed_bytes=(tags.numbers(LONG_SIZE) or tags.numbers(SIZE) or [0])[0],
            provides=tags.relations(PROVIDES),
            requires=tags.relations(REQUIRES),
            conflicts=tags.relations(CONFLICTS),
            obsoletes=tags.relations(OBSOLETES),
            supplements=tags.relations(SUPPLEMENTS),
            programs=tuple(tags.programs()),
        )
    except (struct.error, IndexError) as e:
        raise ValueError(f"a torn header ({e})") from None


def read_package(file: BinaryIO) -> RpmHeader:
    """Return what the header of a package file says. Raises ValueError for a file that is no RPM package, or that is torn."""
    lead = file.read(LEAD_BYTES)
    if len(lead) < LEAD_BYTES or not lead.startswith(LEAD_MAGIC):
        raise ValueError("not an RPM package")
    signature = _next_header(file)
    file.read(-len(signature) % 8)
    return parse(_next_header(file))


def _next_header(file: BinaryIO) -> bytes:
    intro = file.read(16)
    if len(intro) < 16 or not intro.startswith(MAGIC):
        raise ValueError("not an RPM package, or torn")
    entries, size = struct.unpack_from(">II", intro, 8)
    length = 16 * entries + size
    if entries > ENTRIES_MAX or length > HEADER_MAX_BYTES:
        raise ValueError("a header of an impossible size")
    rest = file.read(length)
    if len(rest) < length:
        raise ValueError("torn: it ends within its header")
    return intro[8:] + rest


class _Tags:
    """Holds the bytes of a header, and finds the value of a tag in them."""

    def __init__(self, blob: bytes) -> None:
        entries, size = struct.unpack_from(">II", blob)
        self._data = 8 + 16 * entries
        if not 0 < entries <= ENTRIES_MAX or self._data + size != len(blob):
            raise ValueError("the sizes in a header do not agree")
        self._blob = blob
        self._index = {tag: (kind, at, n) for tag, kind, at, n in struct.iter_unpack(">IIiI", blob[8 : self._data])}

    def _value(self, tag: int, kinds: tuple[int, ...]) -> tuple[int, int, int]:
        """Return the kind, the position and the number of values of a tag. The number is 0 where the header has no such tag."""
        kind, at, count = self._index.get(tag, (kinds[0], 0, 0))
        if kind not in kinds or at < 0 or self._data + at > len(self._blob) or count > len(self._blob):
            raise ValueError("a tag lies outside its header")
        return kind, self._data + at, count

    def numbers(self, tag: int) -> list[int]:
        kind, at, count = self._value(tag, (_INT32, _INT64))
        return list(struct.unpack_from(f">{count}{'Q' if kind == _INT64 else 'I'}", self._blob, at))

    def texts(self, tag: int) -> list[str]:
        """Return the strings of a tag. Raises ValueError for a string that has blanks at its ends or control characters."""
        _, at, count = self._value(tag, (_STRINGS, _STRING, _I18N))
        end, found = at, []
        for _ in range(count):
            at, end = end, self._blob.index(b"\0", end) + 1
            text = self._blob[at : end - 1].decode("utf-8", "replace")
            if text and (not text.isprintable() or text != text.strip()):
                raise ValueError("a text in a header has a control character")
            found.append(text)
        return found

    def word(self, tag: int) -> str:
        """Return the first string of a tag, or "". Raises ValueError for a string with blanks."""
        text = (self.texts(tag) or [""])[0]
        if " " in text:
            raise ValueError("a name or a version has a blank")
        return text

    def relations(self, tags: tuple[int, int, int]) -> tuple[Relation, ...]:
        names, flags, versions = self.texts(tags[0]), self.numbers(tags[1]), self.texts(tags[2])
        rows = zip(names, flags, versions, strict=True)
        return tuple(
            Relation(name, flag & (LESS | GREATER | EQUAL), version) for name, flag, version in rows if not flag & NOT_REQUIRED
        )

    def programs(self) -> Iterator[str]:
        folders = self.texts(FOLDER)
        wanted = {n: f for n, f in enumerate(folders) if f.endswith(("/bin/", "/sbin/")) or f.startswith("/etc/")}
        if not wanted:
            return
        for number, name in zip(self.numbers(FILE_FOLDER), self.texts(FILE_NAME), strict=True):
            if number in wanted:
                yield wanted[number] + name
