"""Defines what /run/fairlead/status.json has: the state of the agent, as `fairlead status --json` prints it."""

from __future__ import annotations

from typing import Any, Required, TypedDict

Raised = TypedDict("Raised", {"from": str, "why": str})


class StatusFinding(TypedDict, total=False):
    """A finding of the last sweep (FindingData). id: the name that acknowledgements use. raised: from which action, and why, or
    null. A reader of another node's status keeps only what it knows."""

    check: Required[str]
    level: str
    device: str
    summary: Required[str]
    evidence: list[str]
    action: str
    needs_history: bool
    id: str
    raised: Raised | None
    mode: str


class ActiveFindingData(TypedDict):
    """A finding that people may acknowledge."""

    id: str
    check: str
    device: str
    summary: str


class Escalation(TypedDict):
    """How far the repairs of a device have come."""

    step: str
    open: bool
    since_unix: float
    why: str
    tied: bool


#: The part of the policy's state that people may acknowledge or clear. ladder: by device.
Remembered = TypedDict(  # noqa: UP013 (a key is no name of ours)
    "Remembered",
    {
        "standing": list[ActiveFindingData],
        "acknowledged": list[str],
        "requests": list[str],
        "strikes": dict[str, list[float]],
        "reboots": list[float],
        "ladder": dict[str, Escalation],
    },
)


class StatusSuppressed(TypedDict):
    check: str
    summary: str
    why: str


class StatusLimit(TypedDict):
    kind: str
    name: str


class StatusDrain(TypedDict, total=False):
    reason: str
    since_unix: float


class StatusStateFolder(TypedDict):
    path: str
    lost_at_reboot: str


class StatusDocument(TypedDict):
    generation: int
    profile: str
    hash: str


class StatusSweep(TypedDict, total=False):
    boot_seconds: float
    seconds: float
    count: int


class StatusStuck(TypedDict):
    stuck: dict[str, Any] | None


StatusSlurm = TypedDict(  # noqa: UP013 (the key "held" is no name of ours)
    "StatusSlurm", {"error": str, "held": str, "over_budget": str, "limit": StatusLimit | None, "topology": str}
)


class StatusGpu(TypedDict, total=False):
    pci: str
    serial: str
    uuid: str


#: The whole file. hold: null without an admin hold. return: null without a return command. history: the last events.
StatusData = TypedDict(
    "StatusData",
    {
        "schema": int,
        "agent_version": str,
        "agent_release": str,
        "state_folder": StatusStateFolder,
        "driver": str,
        "node": str,
        "slurm_node": str,
        "document": StatusDocument,
        "sweep": StatusSweep,
        "pid": int,
        "boot_id": str,
        "findings": list[StatusFinding],
        "standing": list[ActiveFindingData],
        "acknowledged": list[str],
        "requests": list[str],
        "strikes": dict[str, list[float]],
        "reboots": list[float],
        "ladder": dict[str, Escalation],
        "gpus": list[StatusGpu],
        "held": list[StatusSuppressed],
        "drain": StatusDrain | None,
        "hold": dict[str, Any] | None,
        "return": dict[str, Any] | None,
        "slurm": StatusSlurm,
        "worker": StatusStuck,
        "history": list[dict[str, Any]],
        "trouble": list[str],
    },
    total=False,  # {} stands for no status
)
