"""Reads the events in which Slurm's accounting says that a node was down or drained, and says whose each one was.

The text is that of ``sacctmgr -P show event format=NodeName,TimeStart,TimeEnd,State,Reason`` with SLURM_TIME_FORMAT=%s. A reason
is written by a person or a program and may contain ``|``, so it is the last column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from fairlead.model.nodelist import expand, is_name
from fairlead.model.plain_text import one_line

COLUMNS = ("NodeName", "TimeStart", "TimeEnd", "State", "Reason")
EVENTS_MAX = 2_000_000
#: How slurmctld and slurmd begin the reasons that they set themselves (node_mgr.c, ping_nodes.c, job_mgr.c, agent.c).
SLURMS_OWN = (
    *("Not responding", "Node unexpectedly rebooted", "Kill task failed", "Prolog error", "Epilog error", "Low ", "gres/"),
    *("batch job complete failure", "Duplicate jobid", "ResumeTimeout reached", "reboot timed out", "Node ", "slurmd"),
)
#: The reasons of slurmctld's events of a node that it switches off (power_save.c). It is in service: a job switches it on.
SWITCHED_OFF = re.compile(r"Powered down(?: after [A-Za-z]+)?")
_REASON = re.compile(r"fairlead:([a-z0-9_.]{1,64}):([0-9a-z]{6,32}) (.*)", re.DOTALL)
_NUMBER = re.compile(r"[0-9]{1,11}")


class Whose(StrEnum):
    """Names who took a node out of service. fault: fairlead or Slurm, because of a fault. maintenance: planned. person: a
    person."""

    FAULT = "fault"
    MAINTENANCE = "maintenance"
    PERSON = "person"


class ServiceReason(Struct, frozen=True):
    """Holds the parts of a reason of fairlead."""

    check: str
    token: str
    summary: str


class NodeOut(Struct, frozen=True, kw_only=True):
    """Says from when to when a node was out of service. end_unix: None while this goes on. down: Slurm had set it down. token:
    that of fairlead's reason, or ""."""

    node: str
    begin_unix: float
    end_unix: float | None
    whose: Whose
    reason: str = ""
    down: bool = False
    token: str = ""


def parsed(reason: str) -> ServiceReason | None:
    """Return the parts of a reason of fairlead, or None for any other reason."""
    found = _REASON.fullmatch(reason)
    return None if found is None else ServiceReason(*found.groups())


def whose(state: str, reason: str) -> Whose:
    """Return who took a node out of service, by the words of its state and by its reason."""
    ours = parsed(reason)
    if "MAINT" in state or (ours is not None and ours.check == "maintain"):
        return Whose.MAINTENANCE
    if ours is not None:
        return Whose.PERSON if ours.check == "manual" else Whose.FAULT
    return Whose.FAULT if reason.startswith(SLURMS_OWN) else Whose.PERSON


def out_of_service(lines: Iterable[str], mistakes: list[str]) -> list[NodeOut]:
    """Return the events in the lines. Left out are events of the whole cluster, and those of nodes that slurmctld has switched
    off to save power. The reason of each line that cannot be read is added to ``mistakes``."""
    found: list[NodeOut] = []
    header: list[str] | None = None
    number = 0
    for number, raw in enumerate(lines, 1):
        line = raw.rstrip("\n")
        if header is None:
            header = line.split("|")
            if header[: len(COLUMNS)] != list(COLUMNS):
                mistakes.append(f"events: the first line is not {'|'.join(COLUMNS)}")
                return []
            continue
        cells = line.split("|", len(COLUMNS) - 1)
        if number > EVENTS_MAX:
            mistakes.append(f"events: more than {EVENTS_MAX} lines: the rest is not read")
            break
        if len(cells) != len(COLUMNS):
            mistakes.append(f"events: line {number} is cut short")
            continue
        nodes = _nodes(cells[0])
        if not cells[0] or (SWITCHED_OFF.fullmatch(cells[4]) and "DRAIN" not in cells[3]):
            continue
        if nodes is None or not _NUMBER.fullmatch(cells[1]):
            mistakes.append(f"events: line {number}: its node or its time cannot be read")
            continue
        end = float(cells[2]) if _NUMBER.fullmatch(cells[2]) and int(cells[2]) else None
        found += [_event(node, float(cells[1]), end, cells[3], one_line(cells[4], 300)) for node in nodes]
    if header is None:
        mistakes.append("events: is empty, not even a first line with the names of the columns")
    return found


def _event(node: str, begin: float, end: float | None, state: str, reason: str) -> NodeOut:
    ours = parsed(reason)
    return NodeOut(
        node=node,
        begin_unix=begin,
        end_unix=None if end is None else max(begin, end),
        whose=whose(state, reason),
        reason=reason,
        down="DOWN" in state or "FAIL" in state,
        token=ours.token if ours is not None else "",
    )


def _nodes(text: str) -> list[str] | None:
    try:
        names = expand(text) if text else []
    except ValueError:
        return None
    return names if all(map(is_name, names)) else None
