"""Decode the Xid, SXid and "fallen off the bus" lines of a kernel log.

fairlead xid decode FILE     a saved dmesg, journal (-o json too), syslog, /dev/kmsg
                             or fabricmanager.log;
                             - reads standard input as it comes:
                             journalctl -k -f | fairlead xid decode - --json

Codes are read as the driver meant them that wrote the log: --driver, or what the
log says where the driver loads. With --json a line of 144 to 150 that fits NVIDIA's
table has a key more, nvlink: unit, layout, part, error_status, reason, severity,
look, effect. Process names are shown as the log has them, without what steers a
terminal: this is the reader's own log. In what dmesg and journalctl print as text,
a line break in a file's name begins a line that nothing tells from the kernel's;
/dev/kmsg and journalctl -o json keep it apart.
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
ENDLESS_BYTES = 256 << 20  # a line that is longer is no line
# What a line must hold to be of interest, looked for before anything dearer is done with it.
_WORTH = re.compile(
    rb'NVRM|nvidia-nvswitch|detected NVSwitch |fallen off the bus|Linux version |-- (?:Boot|Reboot) |"MESSAGE" ?: ?\['
)
_HEAD_LINES = 1000  # at the beginning of a file, in which a kernel log shows that it is one
_LOGS = "a kernel log is what dmesg, journalctl -k, /dev/kmsg or a syslog file gives"


def register(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"What is printed of each line:\n{LEGEND}"
    parser.add_argument("what", choices=["decode"], help="decode: what each recognised line says, means and asks for")
    parser.add_argument("file", metavar="FILE", help="a kernel log; - for standard input")
    parser.add_argument(
        "--driver", metavar="VERSION", default="", help="the driver that wrote the log, such as 570.172.08; default: what it says"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object per recognised line")


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
    """The file, for reading. Raises InputMissing when it is not there, is a folder or may not be read."""
    try:
        return open(path, "rb", buffering=1 << 16)
    except (OSError, ValueError) as e:  # ValueError: a NUL in the name
        hint = "read it as root, or pipe it in: fairlead xid decode -" if isinstance(e, PermissionError) else ""
        raise InputMissing(f"{path}: {getattr(e, 'strerror', None) or e}", hint=hint) from None


def _print_all(source: BinaryIO, name: str, driver: str, *, as_json: bool) -> ExitCode:
    """Print each record as it is read. Raises DataError at the end where "none" would say more than is known."""
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
    except OSError:  # no descriptor: a program gave us its own stream
        return False


class _LogFile:
    """A log that is read once: its messages, and whether it was a kernel log that could be read."""

    def __init__(self, source: BinaryIO, name: str) -> None:
        self._source, self._name = source, name
        self._lines = 0
        self._of_a_kernel = False  # a line of it began as those of a kernel log do
        self._binary = False
        self._hidden = self._first_hidden = 0  # how many lines have an error behind a prefix that is not known, and the first

    def texts(self) -> Iterator[str]:
        """The kernel's message of each line; "" for a line that cannot be of interest."""
        messages = Messages()
        while line := _read_line(self._source, self._name):
            self._lines += 1
            line = line.lstrip(b"\0")  # what a power loss leaves in a file
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
        """Raises DataError where lines were not understood, or where it was no kernel log at all."""
        if not self._lines:
            raise DataError(f"{self._name}: it is empty, so nobody knows what the kernel said", hint=_LOGS)
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
    """Return one line, of a longer one its first LINE_MAX bytes; b"" at the end. Raises DataError for one that does not end,
    as that of /dev/zero."""
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
            if e.errno != errno.EPIPE:  # from /dev/kmsg: the ring buffer has overrun the reader, who goes on with what is left
                raise HostError(f"{name}: {e.strerror or e}") from None
            print(f"{name}: records were lost to a ring buffer overrun", file=sys.stderr)


def _print_line(text: str, *, flush: bool = False) -> None:
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), flush=flush)
