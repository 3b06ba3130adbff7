"""Reads a report that a site sent, and writes one. A report is text from outside: its size, keys and types are checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, get_origin

import msgspec

from fairlead.config import schema_keys
from fairlead.errors import DataError, HostError, InputMissing, UsageError, next_step
from fairlead.model.json_text import NOT_JSON
from fairlead.model.plain_text import one_line
from fairlead.selftest.selftest_report import NAMES_MAX, REPORT_MAX_BYTES, SCHEMA, SelftestReport

_MISTAKES_MAX = 20
_MISTAKE_MAX = 160  # characters


def read_report(path: str) -> SelftestReport:
    """Return the report in a file. Raises InputMissing, or DataError with every mistake of the file in one line."""
    try:
        with open(path, "rb") as f:
            data = f.read(REPORT_MAX_BYTES + 1)
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        raise InputMissing(f"{one_line(path, 200)}: {getattr(e, 'strerror', None) or e}") from None
    return decoded(data, path)


def decoded(data: bytes, path: str) -> SelftestReport:
    """Return the report that these bytes are. Raises DataError."""
    where, hint = one_line(path, 200), "`fairlead selftest --out FILE` writes a report"
    if len(data) > REPORT_MAX_BYTES:
        raise DataError(f"{where}: more than {REPORT_MAX_BYTES >> 10} KiB", hint=hint)
    try:
        value: Any = msgspec.json.decode(data)
    except NOT_JSON as e:
        raise DataError(f"{where}: not JSON: {e}", hint=hint) from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA or isinstance(value["schema"], bool):
        raise DataError(f"{where}: not a report of schema {SCHEMA}", hint=hint)
    if found := [one_line(said, _MISTAKE_MAX) for said in islice(_mistakes(value, SelftestReport, ""), _MISTAKES_MAX + 1)]:
        more = "; and more" if len(found) > _MISTAKES_MAX else ""
        raise DataError(f"{where}: {'; '.join(found[:_MISTAKES_MAX])}{more}", hint=hint)
    try:
        return msgspec.convert(value, SelftestReport)
    except msgspec.ValidationError as e:
        raise DataError(f"{where}: {one_line(str(e), _MISTAKE_MAX)}", hint=hint) from None


def _mistakes(value: object, schema: Any, key: str) -> Iterator[str]:
    """Yield each part of a value that its type does not allow, with its key. The caller stops after enough of them, so a file of
    thousands of mistakes takes no more time. (``config.mistakes`` finds all, and searches for the key that was meant.)"""
    bare = schema_keys.bare(schema)
    if schema_keys.is_table(bare) and isinstance(value, dict):
        known = schema_keys.fields(bare)
        for name, entry in value.items():
            inner = f"{key}.{name}".strip(".")
            if name not in known:
                yield f"{inner}: unknown key"
            else:
                yield from _mistakes(entry, known[name], inner)
        for field in msgspec.structs.fields(bare):
            if field.required and field.name not in value:
                yield f"{key}.{field.name}: is missing".strip(".")
        return
    if get_origin(bare) is tuple and isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _mistakes(entry, schema_keys.value_type(bare), f"{key}[{number}]")
        value = [] if len(value) <= NAMES_MAX else value
    try:
        msgspec.convert(value, schema)
    except msgspec.ValidationError as e:
        yield f"{key}: {str(e).partition(' - at ')[0]}"


def encoded(report: SelftestReport) -> bytes:
    """Return a report as it is written."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


class NewFile:
    """Makes a file before the run that fills it, so that a folder that cannot be written is known at once."""

    def __init__(self, path: str) -> None:
        """Make the file. Raises UsageError if there is one of that name, and HostError if it cannot be made."""
        self.path = path
        try:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            raise UsageError(f"{one_line(path, 200)} exists already", hint="name a new file with --out FILE") from None
        except (OSError, ValueError) as e:
            hint = next_step(e) if isinstance(e, OSError) else ""
            reason = getattr(e, "strerror", None) or e
            raise HostError(f"{one_line(path, 200)}: {reason}", hint=hint or "name another file with --out FILE") from None

    def write(self, data: bytes) -> None:
        """Fill the file. Raises HostError, and then no file is left."""
        try:
            with os.fdopen(self._fd, "wb") as f:
                f.write(data)
        except OSError as e:
            os.unlink(self.path)
            raise HostError(f"{one_line(self.path, 200)}: {e.strerror}", hint=next_step(e)) from None

    def remove(self) -> None:
        """Remove the file, because the run did not end."""
        os.close(self._fd)
        os.unlink(self.path)


def read_reports(paths: Sequence[str]) -> dict[str, SelftestReport]:
    """Return the reports by path. Raises InputMissing, or DataError with the mistakes of all files."""
    found, wrong = {}, []
    for path in dict.fromkeys(paths):
        try:
            found[path] = read_report(path)
        except DataError as e:
            wrong.append(e)
    if wrong:
        raise DataError("; ".join(str(e) for e in wrong), hint=wrong[0].hint)
    return found
