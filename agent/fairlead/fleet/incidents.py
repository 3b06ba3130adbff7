"""Makes incidents of what nodes and Slurm say: one for each node and cause, until the node is back in service for a day.

A cause is a check and a device. Drains for the same cause that follow a return to service within ``SETTLED_SECONDS`` belong to
the same incident, and so do other checks of the same device: one fault of a GPU is found by several checks. An incident that
slurmctld alone has seen (the node did not answer) has the check ``slurm``.

A repair is confirmed if another GPU card is in the slot afterwards, or if a person has closed the device (`fairlead clear`) and
names what was replaced. A resume without that is no proof of a repair.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from fairlead.fleet.machines import Fleet, FleetMachine
from fairlead.fleet.node_events import NodeOut, ServiceReason, Whose, parsed
from fairlead.fleet.service_record import (
    CLEAR,
    DAY_SECONDS,
    DRAINED,
    ENDS,
    GIVEN_UP,
    LOST,
    REPAIRED,
    RESUMED_BY_PERSON,
    ServiceEntry,
)

SETTLED_SECONDS = float(DAY_SECONDS)
REPAIR_SECONDS = 14.0 * DAY_SECONDS  # a repair is reported at most so long after the return to service
SAME_SECONDS = 600.0  # a drain by the agent and what Slurm says of it
LIMIT_SECONDS = 4 * 3600.0  # a drain limit delays a drain at most so long
SLURM = "slurm"  # the check of an incident that only slurmctld has seen
_PART = re.compile(
    r"\b(?:replaced|exchanged|swapped|rma|firmware|new (?:gpu|card|cable|module|transceiver|nic|hca|dimm|psu))\b", re.I
)
_PCI = re.compile(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")


class Ended(StrEnum):
    """Names how an incident ended. unconfirmed: the node went back into service without proof of a repair. person: a person took
    the drain over, and nobody reported a repair."""

    OPEN = "open"
    CONFIRMED = "confirmed repair"
    UNCONFIRMED = "unconfirmed"
    PERSON = "person's own"


class Incident(Struct, frozen=True, kw_only=True):
    """Holds one incident. node: the NodeName at that time. machine: the computer's key. device: the slot (PCI address), another
    device, or "" for the node. serial: that of the GPU card, or "" if unknown. times: when it began, and each time that it came
    back. end_unix: None while it is open. also: further checks of the same fault. jobs: the jobs that the agent saw on the node
    at those times. how: in one line, how it ended."""

    node: str
    machine: str
    node_class: str
    check: str
    begin_unix: float
    end_unix: float | None = None
    device: str = ""
    serial: str = ""
    times: tuple[float, ...] = ()
    also: tuple[str, ...] = ()
    jobs: tuple[int, ...] = ()
    ended: Ended = Ended.OPEN
    how: str = ""
    driver: str = ""

    @property
    def cause(self) -> str:
        return f"{self.check}/{self.device}" if self.device else self.check


class FleetHistory(Struct, frozen=True, kw_only=True):
    """Holds what happened: the incidents in order of time, and the times out of service that the nodes themselves report."""

    incidents: tuple[Incident, ...]
    outs: tuple[NodeOut, ...]
    troubles: tuple[str, ...] = ()


class _Working(Struct, kw_only=True):
    """Holds an incident while it is made. out: the node is drained for it now."""

    check: str
    device: str
    serial: str
    node: str
    times: list[float]
    end: float | None = None
    out: bool = True
    also: list[str] = []
    jobs: list[int] = []
    ended: Ended = Ended.OPEN
    how: str = ""


def history_of(fleet: Fleet, events: Sequence[NodeOut], now: float) -> FleetHistory:
    """Return the incidents and times out of service of all machines. ``events``: what Slurm says, or ()."""
    of_node: dict[str, list[NodeOut]] = {}
    for event in events:
        of_node.setdefault(event.node, []).append(event)
    incidents: list[Incident] = []
    outs: list[NodeOut] = []
    troubles: list[str] = []
    reported: set[str] = set()
    for machine in fleet.machines:
        found, out, trouble = _of_machine(machine)
        names = {name for _, name in machine.names} | {machine.node}
        own = [e for name in sorted(names - reported) for e in of_node.get(name, ())]
        reported |= names
        incidents += _with_slurms(found, own, machine)
        outs += out
        troubles += trouble
    for node in sorted(of_node.keys() - reported):  # a node without any service record
        incidents += _with_slurms([], of_node[node], None)
    incidents = [i for i in incidents if i.begin_unix <= now]
    return FleetHistory(
        incidents=tuple(sorted(incidents, key=lambda i: (i.begin_unix, i.node, i.cause))),
        outs=tuple(outs),
        troubles=tuple(troubles),
    )


# -- one machine -----------------------------------------------------------------------------------


def _of_machine(machine: FleetMachine) -> tuple[list[Incident], list[NodeOut], list[str]]:
    working: list[_Working] = []
    outs: list[NodeOut] = []
    drain: tuple[ServiceEntry, ServiceReason] | None = None
    entries = sorted(machine.record.entries, key=lambda e: e.unix)
    for entry in entries:
        if entry.what == DRAINED:
            reason = parsed(entry.args.get("reason", ""))
            if reason is None:
                continue
            if drain is not None:
                _close(machine, working, outs, drain, entry)
            drain = entry, reason
            if reason.check not in ("manual", "maintain"):
                _begin(machine, working, entry, reason)
        elif entry.what in ENDS and drain is not None:
            _close(machine, working, outs, drain, entry)
            drain = None
    if drain is not None:
        outs.append(_out(machine, drain, None))
    _add_findings(machine, working)
    troubles = _add_strikes(machine, working)
    _confirm(machine, working, entries)
    working.sort(key=lambda w: w.times[0])
    return [_made(machine, w) for w in working], outs, troubles


def _begin(machine: FleetMachine, working: list[_Working], entry: ServiceEntry, reason: ServiceReason) -> None:
    """Begin an incident with a drain, or go on with the one that the same fault has begun."""
    keys = [key for key in entry.args.get("findings", "").split(" ") if key]
    own = [key for key in keys if key.partition("/")[0] == reason.check] or keys[:1]
    device = own[0].partition("/")[2] if own else next(iter(_PCI.findall(reason.summary)), "")
    serials = dict(pair.split("=", 1) for pair in entry.args.get("serials", "").split(" ") if "=" in pair)
    serial = serials.get(device, "") or _serial_at(machine, device, entry.unix)
    known = _same(working, reason.check, device, entry.unix)
    if known is None:
        node = machine.entry_nodes.get(entry.id, machine.node)
        known = _Working(check=reason.check, device=device, serial=serial, node=node, times=[], also=[], jobs=[])
        working.append(known)
    known.times.append(entry.unix)
    known.end, known.out, known.ended, known.how = None, True, Ended.OPEN, ""
    known.serial = known.serial or serial
    known.also += [key for key in keys if key not in known.also and key != f"{known.check}/{known.device}"]
    known.also += [reason.check] if reason.check != known.check and reason.check not in known.also else []
    known.jobs += [int(job) for job in entry.args.get("jobs", "").split(",") if job.isdigit() and int(job) not in known.jobs]


def _same(working: Iterable[_Working], check: str, device: str, unix: float) -> _Working | None:
    """Return the incident that a fault belongs to: of the same device, or of the same check if neither names a device."""
    for each in reversed(list(working)):
        fresh = each.out or (each.end is not None and unix - each.end < SETTLED_SECONDS)
        if fresh and each.device == device and (device or each.check == check):
            return each
    return None


def _close(
    machine: FleetMachine,
    working: list[_Working],
    outs: list[NodeOut],
    drain: tuple[ServiceEntry, ServiceReason],
    entry: ServiceEntry,
) -> None:
    outs.append(_out(machine, drain, entry.unix))
    for each in working:
        if each.out:
            each.out, each.end = False, entry.unix
            taken = entry.what == GIVEN_UP and "fairlead:maintain:" not in entry.detail
            each.ended = Ended.PERSON if taken else Ended.UNCONFIRMED
            each.how = {
                RESUMED_BY_PERSON: "a person resumed the node",
                LOST: "the drain was lost",
                GIVEN_UP: "a person's drain took its place" if taken else "maintenance took its place",
                DRAINED: "another drain took its place",
            }.get(entry.what, "the agent resumed the node after clean sweeps")


def _out(machine: FleetMachine, drain: tuple[ServiceEntry, ServiceReason], end: float | None) -> NodeOut:
    entry, reason = drain
    kinds = {"manual": Whose.PERSON, "maintain": Whose.MAINTENANCE}
    return NodeOut(
        node=machine.entry_nodes.get(entry.id, machine.node),
        begin_unix=entry.unix,
        end_unix=end if end is None else max(end, entry.unix),
        whose=kinds.get(reason.check, Whose.FAULT),
        reason=entry.args.get("reason", ""),
        token=reason.token,
    )


def _add_findings(machine: FleetMachine, working: list[_Working]) -> None:
    """Add the findings that would drain the node and have not: a drain limit delays the drain, or the agent is about to drain."""
    for finding in machine.record.findings:
        known = _same(working, finding.check, finding.device, finding.since_unix)
        if known is None and finding.enforced:
            serial = finding.serial or _serial_at(machine, finding.device, finding.since_unix)
            working.append(
                _Working(
                    check=finding.check,
                    device=finding.device,
                    serial=serial,
                    node=machine.node,
                    times=[finding.since_unix],
                    also=[],
                    jobs=[],
                    how="not drained yet",
                )
            )


def _add_strikes(machine: FleetMachine, working: list[_Working]) -> list[str]:
    """Add the drains that only a strike reports, because their entry in the audit trail is lost."""
    troubles = []
    known = [(each.device, t) for each in working for t in each.times]
    for device, times in machine.record.strikes.items():
        slots = [card.pci for card in machine.record.cards if device in (card.serial, card.pci)]
        slot = slots[-1] if slots else "" if device == "node" else device
        for unix in times:
            # a strike counts when the fault begins, and a drain limit may delay the drain
            if any(abs(unix - t) <= SAME_SECONDS or (d == slot and 0 <= t - unix <= LIMIT_SECONDS) for d, t in known):
                continue
            if (each := _same(working, "strike", slot, unix)) is None:
                serial = device if slots and slot != device else ""
                each = _Working(check="strike", device=slot, serial=serial, node=machine.node, times=[], also=[], jobs=[])
                working.append(each)
                troubles.append(
                    f"{machine.node}: a strike of {device} has no entry in the audit trail: an incident of unknown check"
                )
            each.times = sorted({*each.times, unix})
            each.out, each.end, each.ended, each.how = False, each.times[-1], Ended.UNCONFIRMED, "only a strike is known of it"
    return troubles


# -- repairs ---------------------------------------------------------------------------------------


def _confirm(machine: FleetMachine, working: list[_Working], entries: Sequence[ServiceEntry]) -> None:
    """Mark the incidents after which a part was replaced."""
    clears = [e for e in entries if e.what in (CLEAR, REPAIRED) and e.outcome != "failed"]
    for each in working:
        later = [w.times[0] for w in working if w is not each and w.device == each.device and w.times[0] > each.times[0]]
        until = min(later, default=float("inf"))
        if each.end is not None:
            until = min(until, each.end + REPAIR_SECONDS)
        swapped = _swapped(machine, each, until)
        cleared = [e for e in clears if each.times[0] <= e.unix <= until and _covers(e, each)]
        named = [e for e in cleared if _PART.search(e.why)]
        if swapped is not None:
            each.ended, each.how = Ended.CONFIRMED, f"card {each.serial} was replaced by {swapped}"
        elif named:
            each.ended, each.how = Ended.CONFIRMED, f"closed as repaired: {named[-1].why}"
        elif cleared:
            each.how = f"closed as repaired without a part: {cleared[-1].why}"
        if each.ended is Ended.CONFIRMED and each.end is None and not each.out:
            each.end = cleared[-1].unix if cleared else each.times[-1]


def _swapped(machine: FleetMachine, incident: _Working, until: float) -> str | None:
    """Return the serial of another card that came into the slot of an incident, or None."""
    for card in machine.record.cards:
        later = incident.times[0] < card.since_unix <= until
        if later and card.pci == incident.device and incident.serial not in ("", card.serial):
            return card.serial
    return None


def _covers(entry: ServiceEntry, incident: _Working) -> bool:
    words = (entry.args.get("devices") or entry.detail).replace(",", " ").split()
    return words[:3] == ["the", "whole", "node"] or incident.device in words or bool(incident.serial and incident.serial in words)


def _serial_at(machine: FleetMachine, device: str, unix: float) -> str:
    """Return the serial of the card that was in a slot at a time, or "" if that is not known."""
    known = [card for card in machine.record.cards if card.pci == device]
    before = [card.serial for card in known if card.since_unix <= unix]
    return before[-1] if before else ""


def _made(machine: FleetMachine, working: _Working) -> Incident:
    times = tuple(sorted(working.times))
    versions = [v for v in machine.record.versions if v.since_unix <= times[0]]
    return Incident(
        node=working.node,
        machine=machine.key,
        node_class=machine.record.node_class,
        check=working.check,
        begin_unix=times[0],
        end_unix=None if working.out else working.end,
        device=working.device,
        serial=working.serial,
        times=times,
        also=tuple(dict.fromkeys(working.also)),
        jobs=tuple(working.jobs),
        ended=working.ended,
        how=working.how,
        driver=versions[-1].driver if versions else "",
    )


# -- what only Slurm has seen ----------------------------------------------------------------------


def _with_slurms(found: list[Incident], events: Iterable[NodeOut], machine: FleetMachine | None) -> list[Incident]:
    """Add the incidents that slurmctld has seen and the agent has not: the node was down, or Slurm drained it by itself."""
    made = list(found)
    events = sorted(events, key=lambda e: e.begin_unix)
    planned = [e for e in events if e.whose is Whose.MAINTENANCE]
    tokens = {t for i in found for t in (i.begin_unix, *i.times)}
    slurms: list[Incident] = []
    for event in events:
        if event.whose is not Whose.FAULT or any(_within(event.begin_unix, p) for p in planned):
            continue
        if event.token and machine is not None and any(abs(event.begin_unix - t) <= SAME_SECONDS for t in tokens):
            continue  # the agent has reported this drain
        if any(_within(event.begin_unix, i) for i in found):
            continue  # a node that is drained for a fault and does not answer either
        reason = parsed(event.reason)
        check = reason.check if reason is not None else SLURM
        last = slurms[-1] if slurms else None
        end = event.end_unix
        if (
            last is not None
            and last.check == check
            and (last.end_unix is None or event.begin_unix - last.end_unix < SETTLED_SECONDS)
        ):
            times = (*last.times, event.begin_unix)
            slurms[-1] = replace(last, times=times, end_unix=end, ended=Ended.OPEN if end is None else Ended.UNCONFIRMED)
            continue
        slurms.append(
            Incident(
                node=event.node,
                machine=machine.key if machine is not None else event.node,
                node_class=machine.record.node_class if machine is not None else "",
                check=check,
                begin_unix=event.begin_unix,
                end_unix=end,
                times=(event.begin_unix,),
                ended=Ended.OPEN if end is None else Ended.UNCONFIRMED,
                how=event.reason,
            )
        )
    return made + slurms


def _within(unix: float, each: Incident | NodeOut) -> bool:
    end = each.end_unix
    return each.begin_unix - SAME_SECONDS <= unix and (end is None or unix <= end + SAME_SECONDS)


def by_machine(incidents: Iterable[Incident]) -> Mapping[str, list[Incident]]:
    """Return the incidents of each machine, in order of time."""
    found: dict[str, list[Incident]] = {}
    for each in incidents:
        found.setdefault(each.machine, []).append(each)
    return found
