"""Reads the records that nodes have sent, in a process of its own that has no rights (``sealed``).

The program that may write to Slurm starts this process, hands it the bytes of each node, and gets records of a fixed schema
back (msgpack). ``python -m fairlead.controller.record_reader`` is the process itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import IO, Annotated

import msgspec
from msgspec import Meta, Struct

from fairlead.errors import HostError
from fairlead.jobs.usage_record import RECORD_MAX_BYTES, BadRecord, UsageRecord, decoded
from fairlead.model.plain_text import one_line

FRAME_MAX = 16 << 20  # bytes of one node's answer; ssh_fetch takes less
RECORDS_MAX = 5000  # of one node in one answer
TROUBLES_MAX = 20
_SIZE = 8


class ReadRecords(Struct, frozen=True, kw_only=True):
    """Holds the records of one answer. troubles: why parts of it are no record, each in one line."""

    records: Annotated[tuple[UsageRecord, ...], Meta(max_length=RECORDS_MAX)] = ()
    troubles: Annotated[tuple[Annotated[str, Meta(max_length=300)], ...], Meta(max_length=TROUBLES_MAX)] = ()


def records_in(text: bytes) -> ReadRecords:
    """Return the records in a text of one record for each line. Lines that are no record are named, and the others are kept.

    Empty lines and the headings of files (``==> /PATH <==``, see ``ssh_fetch``) are left out.
    """
    found: list[UsageRecord] = []
    troubles: list[str] = []
    for number, line in enumerate((line for line in _lines(text) if line != b"\n" and not line.startswith(b"==> /")), 1):
        if len(found) == RECORDS_MAX:
            troubles.append(f"it has more than {RECORDS_MAX} records")
            break
        try:
            found.append(decoded(line))
        except BadRecord as e:
            troubles.append(one_line(f"record {number} {e}", 300))
    return ReadRecords(records=tuple(found), troubles=tuple(troubles[:TROUBLES_MAX]))


def _lines(text: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(text):
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end + 1
        yield text[at : min(end, at + RECORD_MAX_BYTES + 1)]
        at = end


class RecordReader:
    """Starts the process, and hands it one answer after the other. Use it in a ``with`` statement."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def read(self, text: bytes) -> ReadRecords:
        """Return the records in one answer. An answer that ends the process gives no record and one trouble; the next answer gets
        a new process. Raises HostError if no process can be started."""
        if len(text) > FRAME_MAX:
            return ReadRecords(troubles=("it is too long",))
        source, sink = self._pipes()
        try:
            _send(sink, text)
            return msgspec.msgpack.decode(_frame(source), type=ReadRecords)
        except (OSError, EOFError, msgspec.MsgspecError, RecursionError):
            self._end()
            return ReadRecords(troubles=("it has ended the process that reads it",))

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        """Return the output and the input of the process. Start it if it does not run."""
        if self._process is None:
            package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
            command = [sys.executable, "-P", "-m", "fairlead.controller.record_reader"]
            try:
                self._process = subprocess.Popen(
                    command,
                    env={"PYTHONPATH": package, "LC_ALL": "C"},
                    cwd="/",
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
                ready = _frame(_pipe(self._process.stdout))
            except (OSError, EOFError) as e:
                self._end()
                raise HostError(f"the process that reads records cannot be started: {e or 'it ended'}") from None
            if ready != b"sealed":
                self._end()
                raise HostError("the process that reads records has not given up its rights")
        return _pipe(self._process.stdout), _pipe(self._process.stdin)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    try:
                        pipe.close()
                    except OSError:
                        pass
            process.wait()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise EOFError("it has no pipe")
    return pipe


def _frame(stream: IO[bytes]) -> bytes:
    """Return the next frame. Raises EOFError at the end, and for a frame that is too long."""
    size = int.from_bytes(_exactly(stream, _SIZE), "big")
    if size > FRAME_MAX:
        raise EOFError("a frame is too long")
    return _exactly(stream, size)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise EOFError("it ended")
    return data


def main() -> None:
    from fairlead.controller.sealed import seal

    decode, encode = records_in, msgspec.msgpack.encode
    encode(decode(b"{}\n"))  # what is imported at the first use is imported now
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    try:
        seal()
    except HostError as e:
        sys.exit(f"{e}")
    _send(sink, b"sealed")
    while True:
        try:
            text = _frame(source)
        except EOFError:
            os._exit(0)
        _send(sink, encode(decode(text)))


def _send(sink: IO[bytes], data: bytes) -> None:
    sink.write(len(data).to_bytes(_SIZE, "big") + data)
    sink.flush()


if __name__ == "__main__":
    main()
