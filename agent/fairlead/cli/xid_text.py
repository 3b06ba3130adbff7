"""Makes the lines of `fairlead xid decode` for a person: what each record is, what it means and what to do, in named fields.

If a record repeats an earlier record of the same device, the number of the earlier line is printed in place of the fields.
"""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.cli.wrapped_text import fields, wrap
from fairlead.model.finding import Action, Service
from fairlead.xid.decode import Decoded
from fairlead.xid.line import XidKind

LEGEND = """\
  means    what the code or the line means, in a few words
  do       the action, in NVIDIA's words where NVIDIA has one, and what becomes of
           the node in Slurm
  blames   what is to blame: application, gpu, node, fabric or driver
  follows  the fault that this one comes from
  log      the message as the log has it
`fairlead explain xid CODE` says more about each code."""
REMEMBERED = 256  # how many different records are remembered, however long the log is
LOG_MAX = 400  # characters of a message
_STAYS = {
    Service.KEEP: "the node stays in service",
    Service.DRAIN_AFTER_JOB: "the node leaves service when its jobs have ended",
    Service.DRAIN_NOW: "the node leaves service now",
}


class RecordLines:
    """Makes the printed lines of each record in turn, and remembers earlier records."""

    def __init__(self) -> None:
        self._first: dict[tuple[object, ...], Decoded] = {}

    def lines(self, record: Decoded) -> Iterator[str]:
        """Yield the lines of the next record."""
        said = (
            record.kind,
            record.code,
            record.pci,
            record.means,
            record.action,
            record.service,
            record.blames,
            record.caused_by,
        )
        first = self._first.setdefault(said, record)
        if len(self._first) > REMEMBERED:
            del self._first[next(iter(self._first))]
        again = f": as line {first.line}" if first is not record else ""
        yield from wrap(_plain(f"line {record.line}: {_head(record)}{again}"), "", "    ", breaking=True)
        rows = [] if again else list(_meaning(record))
        if record.text and (not again or record.text != first.text):
            cut = " ... (--json has all)" if len(record.text) > LOG_MAX else ""
            rows.append(("log", _plain(record.text[:LOG_MAX]) + cut))
        yield from fields(((f"{name:7}", value) for name, value in rows), breaking=True)


def _head(record: Decoded) -> str:
    where = f" on {'NVSwitch' if record.kind is XidKind.SXID else 'GPU'} {record.pci}" if record.pci else ""
    if record.kind is XidKind.BUS_LOST:
        return f"bus loss{where} (counts as Xid {record.code})"
    mig = "" if record.mig is None else f", MIG instance {record.mig.gi}" + ("" if record.mig.ci is None else f"/{record.mig.ci}")
    process = f" ({record.process})" if record.process else ""
    by = "" if record.pid is None else f", process {record.pid}{process}"
    return f"{'SXid' if record.kind is XidKind.SXID else 'Xid'} {record.code}{where}{mig}{by}"


def _meaning(record: Decoded) -> Iterator[tuple[str, str]]:
    yield "means", record.means
    do = "nothing" if record.action is Action.NONE else record.action.value
    yield "do", f"{do}; {_STAYS[record.service]} ({record.service.value})"
    yield "blames", record.blames
    if record.caused_by is not None:
        yield "follows", f"Xid {record.caused_by}"


def _plain(text: str) -> str:
    """Return the text without signs that control a terminal: a process name can hold any byte."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
