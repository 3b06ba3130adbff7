"""Decodes a whole log: one object per recognised record, and for each Xid 45 the fault that it follows.

The cause of a 45 is the one that the driver prints ("caused by previous Xid N"), else the latest Xid of the same GPU and,
under MIG, of the same instance. A fault of an application ends only that application's channels, so where both lines name a
process, it must be the same process. Xids that only record what was done about a fault (63, 64, 154) are named where there is
no other Xid. A boot starts with no known faults. Order counts and not time, because many logs have no stamps.
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
REMEMBER = 256  # faults per log, the latest of each GPU, instance and process
BOOT = ("Linux version ", "-- Boot ", "-- Reboot --")  # the kernel's first record; journalctl's mark between boots


class Instance(Struct, frozen=True):
    """Names a MIG instance. ci is None where the driver names the GPU instance only."""

    gi: int
    ci: int | None


class Decoded(Struct, frozen=True, kw_only=True):
    """Describes one record. line counts from 1; pci is "" where the line does not say it; process and text are as printed.

    action, service and means (a few words) are the catalogue's, or those that the line itself says where that counts more.
    blames: of a 45, its cause's. nvlink: the row of NVIDIA's table of NVLink 5 errors that a line of 144 to 150 fits; only for
    these lines.
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
        """Return the latest fault that can have led to this line. A record of what was done about a fault counts only where
        there is no fault."""
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
    """Return all recognised records of a log, in order and as they come. ``texts`` are messages without stamps
    (``xid.log_file``).

    ``driver``: the version of the driver that printed the log; with "", the version that the log itself names when the driver
    loads.
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
