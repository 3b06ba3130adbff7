"""Decodes a whole log: yields one object for each recognised record, and finds for each Xid 45 the fault that caused it.

If the driver prints the cause of a 45 ("caused by previous Xid N"), this is the cause. Otherwise the cause is the latest Xid of
the same GPU and, under MIG, of the same instance. A fault of an application ends only that application's channels. So if both
lines name a process, it must be the same process. Some Xids only report what was done about a fault (63, 64, 154). They are the
cause only if there is no other Xid. Faults from before a boot are never the cause of a 45 after it. The order of the lines counts
and not their time, because many logs have no time stamps.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import UNSET, Struct, UnsetType

from fairlead.model.finding import Action, Service
from fairlead.xid.catalogue import look_up
from fairlead.xid.line import XidKind, XidLine, read
from fairlead.xid.meaning import meaning
from fairlead.xid.nvlink5 import NvlinkFault
from fairlead.xid.versions import loaded

CONSEQUENCE = 45
RECORDS = frozenset({63, 64, 154})
NO_CAUSE = frozenset({CONSEQUENCE, 162})  # 162 reports no fault
REMEMBER = 256  # at most this many faults are stored: the latest fault of each GPU, instance and process
BOOT = ("Linux version ", "-- Boot ", "-- Reboot --")  # the kernel's first record, and journalctl's marks between boots


class Instance(Struct, frozen=True):
    """Names a MIG instance by its GPU instance and its compute instance. ``ci`` is None if the driver names only the GPU
    instance."""

    gi: int
    ci: int | None


class Decoded(Struct, frozen=True, kw_only=True):
    """Describes one record.

    line: the number of the line, from 1. pci: the PCI address, or "" if the line has none. mig: the MIG instance, or None.
    process, text: the process name and the message as printed. action, service, means (a few words): the meaning in the
    catalogue, or the meaning that the line itself has (``xid.meaning``). caused_by: the Xid that caused a 45. blames: who is to
    blame. For a 45, this is who is to blame for its cause. nvlink: for a line of Xid 144 to 150, the row of NVIDIA's table of
    NVLink 5 errors.
    """

    line: int
    kind: XidKind
    code: int
    pci: str
    mig: Instance | None
    pid: int | None
    process: str | None
    action: Action
    service: Service
    caused_by: int | None
    blames: str
    means: str
    text: str
    nvlink: NvlinkFault | UnsetType = UNSET


class _Faults:
    """Holds the latest faults of this boot, per GPU, instance and process."""

    def __init__(self) -> None:
        self._latest: dict[tuple[str, int | None, int | None, int | None, bool], XidLine] = {}

    def forget(self) -> None:
        self._latest.clear()

    def note(self, line: XidLine) -> None:
        if not line.pci or line.kind is XidKind.SXID or line.code in NO_CAUSE:
            return
        key = (line.pci, line.gi, line.ci, line.pid, line.code in RECORDS)
        self._latest.pop(key, None)
        self._latest[key] = line
        if len(self._latest) > REMEMBER:
            del self._latest[next(iter(self._latest))]

    def cause(self, line: XidLine, driver: str) -> XidLine | None:
        """Return the latest fault that can have caused this line. If there is no such fault, return the latest Xid of
        ``RECORDS``, which only reports what was done about a fault."""
        record = None
        for fault in reversed(self._latest.values()):
            if _can_cause(fault, line, driver):
                if fault.code not in RECORDS:
                    return fault
                record = record or fault
        return record


def _can_cause(fault: XidLine, line: XidLine, driver: str) -> bool:
    if fault.pci != line.pci:
        return False
    if None not in (fault.gi, line.gi) and fault.gi != line.gi:
        return False
    if None not in (fault.ci, line.ci) and fault.ci != line.ci:
        return False
    own = None not in (fault.pid, line.pid) and meaning(fault, driver).blames == "application"
    return not own or fault.pid == line.pid


def decode(texts: Iterable[str], driver: str = "") -> Iterator[Decoded]:
    """Yield all recognised records of a log in their order, as soon as each is read. ``texts`` are messages without time stamps
    (``xid.log_file``). ``driver`` is the version of the driver that printed the log. If it is "", the version comes from the
    record that the driver prints when it loads.
    """
    faults = _Faults()
    running = driver

    def watched() -> Iterator[str]:
        nonlocal running
        for text in texts:
            if text.startswith(BOOT):
                faults.forget()
                running = driver
            elif not driver:
                running = loaded(text) or running
            yield text

    for index, line in read(watched()):
        means = meaning(line, running)
        caused_by, blames = line.caused_by, means.blames
        if line.kind is XidKind.XID and line.code == CONSEQUENCE:
            if caused_by is not None:
                blames = look_up(caused_by, running).blames
            elif (cause := faults.cause(line, running)) is not None:
                caused_by, blames = cause.code, meaning(cause, running).blames
        faults.note(line)
        yield Decoded(
            line=index + 1,
            kind=line.kind,
            code=line.code,
            pci=line.pci,
            mig=None if line.gi is None else Instance(line.gi, line.ci),
            pid=line.pid,
            process=line.process,
            action=means.action,
            service=means.service,
            caused_by=caused_by,
            blames=blames,
            means=means.words,
            text=line.text,
            nvlink=means.nvlink or UNSET,
        )
