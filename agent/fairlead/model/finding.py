"""Holds findings: what is wrong with a node, in one line each, for `sinfo -R` and for a person who is called at night."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import IntEnum, StrEnum
from typing import Any, TypedDict

from msgspec import Struct
from msgspec.structs import force_setattr, replace


class Level(IntEnum):
    """Names how bad a finding is. The numbers are the exit codes of commands. ``worst`` puts UNKNOWN between WARN and DRAIN."""

    OK = 0
    WARN = 1
    DRAIN = 2
    UNKNOWN = 3

    @property
    def word(self) -> str:
        return self.name.lower()


#: The ``fault`` of a finding about lost kernel records. A person may acknowledge it, although it drains nothing.
OVERRUN = "overrun"


class Action(StrEnum):
    """Names what to do next, with NVIDIA's word (GPU debug guidelines, Xid catalogue) if NVIDIA has one."""

    NONE = "none"
    RESTART_APP = "restart_app"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    CHECK_FABRIC = "check_fabric"
    CHECK_HARDWARE = "check_hardware"
    UPDATE_SOFTWARE = "update_software"
    CONTACT_SUPPORT = "contact_support"
    FOLLOW_CAUSE = "follow_cause"
    PROVISION = "provision"


class Service(StrEnum):
    """Names when a node with this finding should leave service."""

    KEEP = "keep"
    DRAIN_AFTER_JOB = "drain_after_job"
    DRAIN_NOW = "drain_now"


class Mode(StrEnum):
    """Names a check's mode. observe: the check only reports. enforce: the check may drain the node."""

    OBSERVE = "observe"
    ENFORCE = "enforce"


_BY_LEVEL: Any = None


class Finding(Struct, frozen=True, kw_only=True):
    """Describes one thing that is wrong. ``summary``: the text at the end of a reason in `sinfo -R`. ``evidence``: what was read.

    ``check``: the caller of a check fills this in (``named``), so no check writes its own name. ``service``: without a value, a
    finding at DRAIN takes the node out of service now, and any other level keeps the node in service. ``evidence_id`` names the
    evidence (a kernel record, a counter value). An acknowledgement is for this evidence, and only new evidence counts again. No
    field contains a process name, a comment or other text of a user. ``jobs``: the jobs on the device when the newest evidence
    came, or None if the check does not know them.
    """

    check: str = ""
    level: Level
    summary: str
    device: str = ""  # PCI address, interface, or "" for the node
    evidence: tuple[str, ...] = ()
    action: Action = Action.NONE
    service: Service = _BY_LEVEL
    evidence_id: str = ""
    # the name of the fault within the check, such as an Xid's code. Two findings with the same name are the same fault again
    fault: str = ""
    needs_history: bool = False  # one reading is not enough to judge this
    jobs: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.service is _BY_LEVEL:
            force_setattr(self, "service", Service.DRAIN_NOW if self.level is Level.DRAIN else Service.KEEP)

    @property
    def key(self) -> str:
        """Return the key by which confirmations and strikes are counted."""
        return f"{self.check}/{self.device}"


def named(check: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Return the findings of a check with its name filled in."""
    for finding in findings:
        yield replace(finding, check=check)


def with_action(
    level: Level,
    summary: str,
    action: Action,
    *evidence: str,
    device: str = "",
    service: Service = Service.DRAIN_NOW,
    evidence_id: str = "",
    fault: str = "",
) -> Finding:
    """Return a finding whose summary ends with what to do next. ``service`` applies only to a finding at DRAIN. Any other level
    keeps the node in service. Empty evidence is left out."""
    return Finding(
        level=level,
        device=device,
        summary=summary if action is Action.NONE else f"{summary}: {action.value}",
        evidence=tuple(said for said in evidence if said),
        action=action,
        service=service if level is Level.DRAIN else Service.KEEP,
        evidence_id=evidence_id,
        fault=fault,
    )


class FindingData(TypedDict):
    """A finding as `check --json` and status.json show it. level: ok, warn, drain or unknown."""

    check: str
    level: str
    device: str
    summary: str
    evidence: list[str]
    action: str
    needs_history: bool


def as_data(finding: Finding) -> FindingData:
    """Return a finding as `check --json` and status.json show it."""
    return {
        "check": finding.check,
        "level": finding.level.word,
        "device": finding.device,
        "summary": finding.summary,
        "evidence": list(finding.evidence),
        "action": finding.action.value,
        "needs_history": finding.needs_history,
    }


def worst(findings: tuple[Finding, ...]) -> Level:
    """Return the level of a node by its findings: DRAIN before UNKNOWN before WARN before OK."""
    levels = {f.level for f in findings}
    for level in (Level.DRAIN, Level.UNKNOWN, Level.WARN):
        if level in levels:
            return level
    return Level.OK
