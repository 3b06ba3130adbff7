"""Takes a user out of the history of the fleet and the queue of events: the name of who acted, and job numbers.

What happened to the node stays, because it is the node's history: times, checks, devices and how it ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from fairlead.fleet.fleet_events import FleetEvent
from fairlead.fleet.node_events import NodeOut, parsed
from fairlead.fleet.service_record import ServiceEntry, ServiceRecord

ERASED = "erased"


class ErasedUser(Struct, frozen=True, kw_only=True):
    """Names the users that are erased and their jobs. until_unix: nodes and Slurm may send the same again until then."""

    names: tuple[str, ...]
    jobs: tuple[int, ...]
    until_unix: float


def without_users(record: ServiceRecord, erased: Iterable[ErasedUser]) -> ServiceRecord:
    """Return a service record without these users."""
    for user in erased:
        names = _words(user.names)
        jobs = {str(job) for job in user.jobs}
        record = replace(record, entries=tuple(_entry(entry, user.names, names, jobs) for entry in record.entries))
    return record


def event_without_users(event: NodeOut, erased: Iterable[ErasedUser]) -> NodeOut:
    """Return Slurm's node event without these users in the reason."""
    for user in erased:
        event = replace(event, reason=_reason(event.reason, _words(user.names)))
    return event


def fleet_event_without_user(event: FleetEvent, user: ErasedUser) -> FleetEvent:
    """Return an event for tickets without this user."""
    names = _words(user.names)
    return replace(
        event,
        who=ERASED if event.who in user.names else event.who,
        why=names.sub(ERASED, event.why),
        summary=names.sub(ERASED, event.summary),
        jobs=tuple(job for job in event.jobs if job not in user.jobs),
    )


def text_without_user(text: str, user: ErasedUser) -> str:
    return _words(user.names).sub(ERASED, text)


def _words(names: Iterable[str]) -> re.Pattern[str]:
    """Return what finds one of the names as a whole word."""
    return re.compile(rf"(?<![\w.-])(?:{'|'.join(map(re.escape, names)) or '(?!)'})(?![\w-])")


def _entry(entry: ServiceEntry, names: tuple[str, ...], found: re.Pattern[str], jobs: set[str]) -> ServiceEntry:
    args = dict(entry.args)
    if "jobs" in args:
        args["jobs"] = ",".join(job for job in args["jobs"].split(",") if job not in jobs)
    if "reason" in args:
        args["reason"] = _reason(args["reason"], found)
    return replace(
        entry,
        who=ERASED if entry.who in names else entry.who,
        args=args,
        why=found.sub(ERASED, entry.why),
        detail=found.sub(ERASED, entry.detail),
    )


def _reason(text: str, found: re.Pattern[str]) -> str:
    """Return a reason without the names. The check and the token of a reason of fairlead stay."""
    reason = parsed(text)
    head = text[: len(text) - len(reason.summary)] if reason is not None else ""
    return head + found.sub(ERASED, text[len(head) :])
