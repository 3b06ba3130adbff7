"""Decode the Xid, SXid and "fallen off the bus" lines of a kernel log.

fairlead xid decode FILE     read a saved dmesg, journal (also -o json), syslog,
                             /dev/kmsg or fabricmanager.log;
                             - reads standard input as it comes:
                             journalctl -k -f | fairlead xid decode - --json

The meaning of a code depends on the driver that wrote the log. --driver gives the
driver's version. Without --driver, the version is read from the log, where the driver
loads. With --json, a record of Xid 144 to 150 that matches NVIDIA's table has one more
key, nvlink, with unit, layout, part, error_status, reason, severity, look and effect.
Process names are shown as they are in the log, but without characters that control a
terminal. A file name in the log may contain a line break. In the text of dmesg and
journalctl, the rest of the name then looks like a line of the kernel. The formats of
/dev/kmsg and journalctl -o json do not have this problem.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import stat
import sys
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from fairlead.cli.xid_text import LEGEND, RecordLines
from fairlead.errors import DataError, ExitCode, HostError, InputMissing, UsageError
from fairlead.xid.decode import decode
from fairlead.xid.log_file import Messages
from fairlead.xid.versions import parse_version

LINE_MAX = 8192  # bytes; the longest record that /dev/kmsg gives (kernel/printk/printk.c, CONSOLE_EXT_LOG_MAX)
ENDLESS_BYTES = 256 << 20  # a longer line is refused
# A line that does not match is of no interest. This test is cheap, so it comes first.
_WORTH = re.compile(
    rb'NVRM|nvidia-nvswitch|detected NVSwitch |fallen off the bus|Linux version |-- (?:Boot|Reboot) |"MESSAGE" ?: ?\['
)
_HEAD_LINES = 1000  # a kernel log is recognised by one of its first lines
_LOGS = "a kernel log is what dmesg, journalctl -k, /dev/kmsg or a syslog file gives"


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"What is printed for each line:\n{LEGEND}"
    parser.add_argument("what", choices=["decode"], help="decode: say what each recognised line means and what to do")
    parser.add_argument("file", metavar="FILE", help="a kernel log; - for standard input")
    parser.add_argument(
        "--driver",
        metavar="VERSION",
        default="",
        help="the driver that wrote the log, such as 570.172.08 (default: what the log says)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per recognised line")


def run(args: argparse.Namespace) -> ExitCode:
    if args.driver and parse_version(args.driver) is None:
        raise UsageError(f"--driver {args.driver}: not a driver version", hint="such as 570.172.08, 570 or r570")
    if args.file == "-":
        if sys.stdin is None:
            raise InputMissing("standard input is closed")
        return _print_all(sys.stdin.buffer, "standard input", args.driver, as_json=args.json)
    with _open(args.file) as file:
        return _print_all(file, args.file, args.driver, as_json=args.json)


def _open(path: str) -> BinaryIO:
    """Return the open file. Raise InputMissing where it is missing, is a folder or may not be read."""
    try:
        return open(path, "rb", buffering=1 << 16)
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        hint = "read it as root, or pipe it in: fairlead xid decode -" if isinstance(e, PermissionError) else ""
        raise InputMissing(f"{path}: {getattr(e, 'strerror', None) or e}", hint=hint) from None


def _print_all(source: BinaryIO, name: str, driver: str, *, as_json: bool) -> ExitCode:
    """Print each record as it is read. Raise DataError at the end if lines were not understood or the file is no kernel log."""
    live = not _is_regular(source)
    found = 0
    log = _LogFile(source, name)
    text = RecordLines()
    for record in decode(log.texts(), driver):
        found += 1
        for line in [json.dumps(msgspec.to_builtins(record))] if as_json else text.lines(record):
            _print_line(line, flush=live)
    log.end(found)
    if not found and not as_json:
        print(f"{name}: no Xid, SXid or bus loss in it", file=sys.stderr)
    return ExitCode.OK


def _is_regular(source: BinaryIO) -> bool:
    try:
        return stat.S_ISREG(os.fstat(source.fileno()).st_mode)
    except OSError:  # the stream has no file descriptor, because a program made it
        return False


class _LogFile:
    """Reads a log once. ``texts`` yields its messages. ``end`` raises an error if the log could not be read as a kernel log."""

    def __init__(self, source: BinaryIO, name: str) -> None:
        self._source, self._name = source, name
        self._lines = 0
        self._of_a_kernel = False  # whether a line began as a line of a kernel log begins
        self._binary = False
        # how many lines have an error behind an unknown prefix, and the number of the first such line
        self._hidden = self._first_hidden = 0

    def texts(self) -> Iterator[str]:
        """Yield the kernel's message of each line, or "" for a line that is of no interest."""
        messages = Messages()
        while line := _read_line(self._source, self._name):
            self._lines += 1
            line = line.lstrip(b"\0")  # a power loss leaves zero bytes in a file
            self._binary = self._binary or b"\0" in line
            worth = _WORTH.search(line)
            if not worth and (self._of_a_kernel or self._lines > _HEAD_LINES):
                yield ""
                continue
            found = messages.of(self._lines, line.decode("utf-8", "replace"))
            self._of_a_kernel = self._of_a_kernel or found.known or bool(worth and worth.start() == 0)
            if found.hides_an_error:
                self._hidden += 1
                self._first_hidden = self._first_hidden or self._lines
            yield found.text if worth else ""

    def end(self, found: int) -> None:
        """Raise DataError where lines were not understood, or where the file was not a kernel log at all."""
        if not self._lines:
            raise DataError(f"{self._name} is empty, so nobody knows what the kernel said", hint=_LOGS)
        if self._hidden:
            many = f"{self._hidden} lines hold" if self._hidden > 1 else "1 line holds"
            raise DataError(
                f"{self._name}: {many} an Xid, SXid or bus loss behind a prefix that is not known, and not decoded; "
                f"the first is line {self._first_hidden}",
                hint="cut the prefix off, so that the line begins with its time stamp, with kernel: or with NVRM:",
            )
        if not found and not self._of_a_kernel:
            what = "not a text file" if self._binary else "no line of it is of a kernel log"
            raise DataError(f"{self._name}: {what}", hint=_LOGS)


def _read_line(source: BinaryIO, name: str) -> bytes:
    """Return the next line, cut after LINE_MAX bytes. Return b"" at the end of the log.

    Raise DataError for a line that does not end, as in /dev/zero.
    """
    first = rest = _read_part(source, name)
    left = ENDLESS_BYTES
    while len(rest) == LINE_MAX and not rest.endswith(b"\n"):
        rest = _read_part(source, name)
        left -= LINE_MAX
        if left < 0:
            raise DataError(f"{name}: a line of it is longer than {ENDLESS_BYTES >> 20} MiB", hint=_LOGS)
    return first


def _read_part(source: BinaryIO, name: str) -> bytes:
    while True:
        try:
            return source.readline(LINE_MAX)
        except OSError as e:
            # EPIPE: the kernel has overwritten records of /dev/kmsg before they were read; the next read returns the oldest left
            if e.errno != errno.EPIPE:
                raise HostError(f"{name}: {e.strerror or e}") from None
            print(f"{name}: records were lost to a ring buffer overrun", file=sys.stderr)


def _print_line(text: str, *, flush: bool = False) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=flush)


def json_types() -> dict[str, object]:
    """Return the type of what --json prints (json_schema.py)."""
    from fairlead.xid.decode import Decoded

    return {"one object for each line": Decoded}
