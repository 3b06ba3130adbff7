"""Makes events from the history of the fleet: which node was drained, resumed, held, acknowledged or repaired, and by whom.

The sources are the entries of the nodes' audit trails (in service records) and Slurm's own node events. A drain of fairlead is in
both: its token makes them one event. An entry of a kind that is not known here is no event. No clock decides what is an event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fairlead.fleet.node_events import NodeOut, Whose, parsed
from fairlead.fleet.service_record import DRAINED, LOST, REPAIRED, RESUMED, RESUMED_BY_PERSON, ServiceEntry, ServiceRecord
from fairlead.model.plain_text import one_line

SCHEMA = "event/1"
KINDS = ("drained", "resumed", "held", "acknowledged", "repaired", "lemon", "maintenance")
TEST = "test"
TEXT_MAX = 300
JOBS_MAX = 40
NEXT_SECONDS = 2.0  # slurmdbd ends one node event and begins the next at the same second when only the reason changes
Text = Annotated[str, Meta(max_length=4096)]


class FleetEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describes one change of a node's state. at_unix: when, by the clock of who reports it. by: "fairlead", "slurm" or "person".
    cause: the check, or what else the change is for. token: that of fairlead's reason. ``source``: the id of the entry in the
    audit trail. why: the words of the person."""

    kind: str
    node: str
    at_unix: float
    by: str = ""
    cause: str = ""
    device: str = ""
    serial: str = ""
    summary: Text = ""
    who: str = ""
    why: Text = ""
    node_class: str = ""
    machine: str = ""
    jobs: tuple[int, ...] = ()
    token: str = ""
    source: str = ""

    @property
    def key(self) -> str:
        """Return what makes this event the same event, however often it is found: node, kind, and the token of the drain, or time
        and cause where there is none."""
        known = (self.token,) if self.token else (f"{self.at_unix:.3f}", self.cause, self.source)
        return "\t".join((self.node, self.kind, *known))


def of_records(records: Iterable[ServiceRecord]) -> Iterator[tuple[FleetEvent, float]]:
    """Yield the events in the records of one machine, and how long before the record was written each happened, in seconds, by
    the node's own clock. A machine that was renamed reports an entry under both names: the first one counts."""
    seen: set[str] = set()
    for record in sorted(records, key=lambda r: (r.written_unix, r.node)):
        for entry in record.entries:
            if entry.id not in seen:
                seen.add(entry.id)
                event = _of_entry(record, entry)
                if event is not None:
                    yield event, record.written_unix - entry.unix


def _of_entry(record: ServiceRecord, entry: ServiceEntry) -> FleetEvent | None:
    """Return the event of an entry, or None if the entry is none."""
    reason = parsed(entry.args.get("reason", ""))
    check, token, summary = ("", "", "") if reason is None else (reason.check, reason.token, reason.summary)
    if entry.what == DRAINED and reason is not None:
        kind = "maintenance" if check == "maintain" else "drained"
        device, serial, jobs = _details(entry, check)
        by = "person" if check in ("manual", "maintain") else "fairlead"
        return _event(record, entry, kind, by, cause=check, token=token, summary=summary, device=device, serial=serial, jobs=jobs)
    if entry.what in (RESUMED, RESUMED_BY_PERSON, LOST):
        by = {RESUMED: "fairlead", RESUMED_BY_PERSON: "person"}.get(entry.what, "slurm")
        return _event(record, entry, "resumed", by, cause=check or entry.what, token=token, summary=entry.detail or summary)
    if entry.what == "hold" and entry.outcome == "held":
        return _event(record, entry, "held", "person", cause="hold", who=entry.who, why=entry.why)
    if entry.what in ("acknowledged", REPAIRED):
        kind = "acknowledged" if entry.what == "acknowledged" else "repaired"
        who = entry.args.get("for", entry.who)
        return _event(record, entry, kind, "person", cause=entry.what, summary=entry.detail, who=who, why=entry.why)
    return None


def _event(
    record: ServiceRecord, entry: ServiceEntry, kind: str, by: str, *, summary: str = "", why: str = "", **more: object
) -> FleetEvent:
    return FleetEvent(
        kind=kind,
        node=record.node,
        at_unix=entry.unix,
        by=by,
        summary=one_line(summary, TEXT_MAX),
        why=one_line(why, TEXT_MAX),
        node_class=record.node_class,
        machine=record.machine,
        source=entry.id,
        **more,  # type: ignore[arg-type]
    )


def _details(entry: ServiceEntry, check: str) -> tuple[str, str, tuple[int, ...]]:
    """Return what a drain is for: the device, its serial, and the jobs that ran."""
    keys = [key for key in entry.args.get("findings", "").split(" ") if key]
    own = [key for key in keys if key.partition("/")[0] == check] or keys[:1]
    device = own[0].partition("/")[2] if own else ""
    serials = dict(pair.split("=", 1) for pair in entry.args.get("serials", "").split(" ") if "=" in pair)
    jobs = [int(job) for job in entry.args.get("jobs", "").split(",") if job.isascii() and job.isdigit() and len(job) < 12]
    return device, serials.get(device, ""), tuple(jobs[:JOBS_MAX])


def of_slurm(outs: Iterable[NodeOut]) -> Iterator[FleetEvent]:
    """Yield the events in Slurm's node events. A node that only got another reason is not resumed in between."""
    of_node: dict[str, list[NodeOut]] = {}
    for out in outs:
        of_node.setdefault(out.node, []).append(out)
    for node, own in of_node.items():
        own.sort(key=lambda out: out.begin_unix)
        begins = [out.begin_unix for out in own]
        for at, out in enumerate(own):
            yield _of_out(node, out)
            end = out.end_unix
            later = begins[at + 1] if at + 1 < len(begins) else None
            if end is not None and (later is None or later > end + NEXT_SECONDS):
                cause = _cause(out)
                yield FleetEvent(kind="resumed", node=node, at_unix=end, cause=cause, summary=out.reason, token=out.token)


def _of_out(node: str, out: NodeOut) -> FleetEvent:
    ours = parsed(out.reason)
    person = out.whose is not Whose.FAULT
    return FleetEvent(
        kind="maintenance" if out.whose is Whose.MAINTENANCE else "drained",
        node=node,
        at_unix=out.begin_unix,
        by="person" if person else "fairlead" if out.token else "slurm",
        cause=_cause(out),
        summary=one_line(out.reason if ours is None else ours.summary, TEXT_MAX),
        token=out.token,
    )


def _cause(out: NodeOut) -> str:
    ours = parsed(out.reason)
    return ours.check if ours is not None else "down" if out.down else "drain"


def document(event: FleetEvent, identity: str, time: str, cluster: str) -> bytes:
    """Return the JSON of an event. ``identity``: its id. ``time``: at_unix as ISO 8601. Characters that mean something in HTML
    are escaped, so that a page that shows the text as it is shows no element."""
    data: dict[str, object] = {"schema": SCHEMA, "id": identity, "kind": event.kind, "node": event.node, "time": time}
    if cluster:
        data["cluster"] = cluster
    data |= {name: value for name, value in _plain(msgspec.to_builtins(event)).items() if name not in ("kind", "node", "source")}
    text = msgspec.json.encode(data)
    for mark in (b"<", b">", b"&"):
        text = text.replace(mark, b"\\u%04x" % mark[0])
    return text


def _plain(data: Mapping[str, object]) -> dict[str, object]:
    return {name: one_line(value, TEXT_MAX) if isinstance(value, str) else value for name, value in data.items()}
