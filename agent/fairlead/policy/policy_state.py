"""Defines the state that the policy stores between sweeps, and the inputs of a decision apart from findings (``Now``)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from fairlead.model.finding import Action, Finding, Level

ACKNOWLEDGED_MAX = 1000

_RANK = {Level.OK: 0, Level.WARN: 1, Level.UNKNOWN: 2, Level.DRAIN: 3}


def rank(level: Level) -> int:
    """Return a number by which levels are compared. The order, from good to bad, is OK, WARN, UNKNOWN, DRAIN."""
    return _RANK[level]


class Proof(StrEnum):
    """Names the state of the return-to-service command for the present drain and the present state of the node."""

    NONE = "none"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"


class Now(Struct, frozen=True, kw_only=True):
    """Describes the time of a decision and the state of the node at that time.

    boot_seconds: CLOCK_BOOTTIME. wall_seconds: the time of day (Unix seconds), used only for strikes and waiting times.

    job_running: a job is on the node. jobs: the jobs on the node. job: the job that runs alone on the node, or None. applying:
    an apply run or a maintenance reservation is under way. hold: there is an admin hold (``fairlead hold``). disabled:
    /etc/fairlead/disabled exists.

    drained: slurmctld has accepted a drain by this agent, and it still applies. returned: since the last decision, the agent or a
    person has resumed the node from such a drain. ``returned`` is False if slurmctld has lost the drain, or if a person has
    changed its reason. drain_check, drain_since_seconds: the check in the reason of the drain, and the time of day of the drain.
    These two come from the ledger, so they are known even if the policy state was lost. proof: the state of the return-to-service
    command.

    over_budget: why a budget leaves no room for a drain, as one line, or "" (``policy.drain_limits``). suspicion: why a common
    cause or a suspect job delays a drain, as one line, or "". full_sweep: every reading is new. ``full_sweep`` is False if a
    kernel record started single checks on the last readings. serials: GPU serials by PCI address. gpus: the PCI addresses of the
    GPUs that the driver lists.
    """

    boot_seconds: float
    wall_seconds: float
    boot_id: str
    job_running: bool = False
    jobs: frozenset[int] = frozenset()
    applying: bool = False
    drained: bool = False
    returned: bool = False
    hold: bool = False
    disabled: bool = False
    over_budget: str = ""
    suspicion: str = ""
    full_sweep: bool = True
    serials: Mapping[str, str] = field(default_factory=dict)
    gpus: frozenset[str] = frozenset()
    job: int | None = None
    drain_check: str = ""
    drain_since_seconds: float = 0.0
    proof: Proof = Proof.NONE


class Track(Struct, frozen=True, kw_only=True):
    """Holds the history of the findings of one check on one device.

    level: the level that counts, after confirmation and recovery. window: the severities (``decision_rules.Severity``) of the
    last sweeps. confirmed: the severity up to which findings count. clean: how many sweeps in a row were better than ``level``.
    floor: the worst level of these clean sweeps. bad: the findings that were last seen at DRAIN. found: the findings of the
    last sweep.

    since_seconds: the time of day when the level became DRAIN. jobs: the jobs that ran on the node at that time. A drain after
    the job waits for their end. None means that these jobs are unknown, and then the drain waits for any job. job: the job that
    ran alone on the node when the newest finding of ``bad`` appeared. It is None if no job or several jobs ran. earlier: ``bad``
    was seen in an earlier boot and not yet in this boot. confirmed_earlier: ``confirmed`` was reached in an earlier boot.
    """

    level: Level = Level.OK
    window: tuple[int, ...] = ()
    confirmed: int = 0
    clean: int = 0
    floor: Level = Level.OK
    bad: tuple[Finding, ...] = ()
    found: tuple[Finding, ...] = ()
    since_seconds: float = 0.0
    jobs: frozenset[int] | None = None
    job: int | None = None
    earlier: bool = False
    confirmed_earlier: bool = False


class EscalationStep(Struct, frozen=True, kw_only=True):
    """Describes the escalation step that one fault of one GPU card has reached (``policy.ladder``).

    An episode begins when the fault begins to count. It ends when the node is back in service or has booted. key: the
    check/device at which the fault was last seen. open: the episode has not ended. step: the next step while the episode is
    open, else the step that was taken. taken: how often this step was already taken. since_seconds: the time of day when the
    episode began, or, after its end, when it ended. why: why the step is higher than the check's own action, or "".
    manual_resume: a person has to resume the node. drained: the node was drained for this fault in this episode.
    """

    key: str
    step: Action
    open: bool = True
    taken: int = 0
    since_seconds: float = 0.0
    why: str = ""
    manual_resume: bool = field(default=False, name="tied")
    drained: bool = False


class Repair(Struct, frozen=True, kw_only=True):
    """Describes a repair that a person has reported. Readings of the repaired devices from before the repair do not count again.

    devices: the names of one device (PCI address, GPU serial). everything: the whole node was repaired. boot_id: the boot in
    which the person reported the repair. sequence: the number of the last kernel record at that time. boot_seconds:
    CLOCK_BOOTTIME at that time. Records and samples up to then do not count.
    """

    boot_id: str
    sequence: int
    boot_seconds: float
    devices: tuple[str, ...] = ()
    everything: bool = False


#: The tables of the state whose entries are read one by one where the whole table cannot be read.
_ENTRIES: dict[str, Any] = {"tracks": Track, "ladder": EscalationStep}


class PolicyState(Struct, frozen=True, kw_only=True):
    """Holds everything that the policy stores between sweeps. msgspec encodes it. An empty state is a safe start.

    boot_id: the boot of the last sweep. tracks: the track of each check/device. acknowledged: identities of the evidence that
    people have acknowledged. ran: the checks that have run in this boot. clean_sweeps: the number of sweeps in a row without
    a finding that would drain. thorough_clean_sweeps: the number of thorough sweeps among them, in which every check ran.

    strikes: the times of day of drains, by GPU serial (or address, or "node"). drained_for: the check/device keys of the
    findings for which the node is drained, or is to be drained. Before a resume all of them must be well, even if their check
    is in mode ``observe`` by then. gpu_serials: the GPU serial that was last read at each PCI address. ladder: the escalation
    steps by fault and GPU card. reboots: the times of day of boots for faults. drained: a drain by this agent was set at the
    last decision. repairs: the repairs in this boot. requests: the ids of people's last requests that this state contains. If
    one of these requests is read again after a crash, it changes nothing.
    """

    boot_id: str = ""
    tracks: dict[str, Track] = field(default_factory=dict)
    acknowledged: tuple[str, ...] = ()
    ran: frozenset[str] = frozenset()
    clean_sweeps: int = 0
    thorough_clean_sweeps: int = field(default=0, name="clean_looks")
    strikes: dict[str, tuple[float, ...]] = field(default_factory=dict)
    drained_for: frozenset[str] = frozenset()
    gpu_serials: dict[str, str] = field(default_factory=dict, name="boards")
    ladder: dict[str, EscalationStep] = field(default_factory=dict)
    reboots: tuple[float, ...] = ()
    drained: bool = False
    repairs: tuple[Repair, ...] = ()
    requests: tuple[str, ...] = ()


def state_of(data: bytes) -> tuple[PolicyState, tuple[str, ...]]:
    """Return a saved state, and the names of the parts that cannot be read. A newer release may have saved values that this
    release does not know, such as a new action. Then only the entry or the field with that value is left out. Raises msgspec's
    errors for data that are no JSON object."""
    try:
        return msgspec.json.decode(data, type=PolicyState), ()
    except msgspec.ValidationError:
        parts = msgspec.json.decode(data, type=dict[str, Any])
    found: dict[str, Any] = {}
    unread: list[str] = []
    for each in msgspec.structs.fields(PolicyState):
        value = parts.get(each.encode_name)
        if each.encode_name in _ENTRIES and isinstance(value, dict):
            parts_of = {key: part for key, part in value.items() if _reads(part, _ENTRIES[each.encode_name])}
            unread += [f"{each.encode_name} {key}" for key in value if key not in parts_of]
            found[each.encode_name] = parts_of
        elif each.encode_name in parts and _reads(value, each.type):
            found[each.encode_name] = value
        elif each.encode_name in parts:
            unread.append(each.encode_name)
    return msgspec.convert(found, PolicyState), tuple(unread)


def _reads(value: object, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def identity(finding: Finding) -> str:
    """Return the name that an acknowledgement stores: the evidence's id if it has one, else the finding's summary."""
    return f"{finding.key}#{finding.evidence_id or finding.summary}"


def remembered_findings(state: PolicyState) -> tuple[Finding, ...]:
    """Return all findings in the tracks of the state, at any level, each once."""
    return tuple({identity(f): f for track in state.tracks.values() for f in (*track.bad, *track.found)}.values())


def acknowledge(state: PolicyState, findings: Iterable[Finding]) -> PolicyState:
    """Return the state after a person has acknowledged these findings. They do not drain any more.

    Only new evidence counts again: another kernel record, another counter value, or the same state after it was gone once.
    """
    return acknowledge_evidence(state, (identity(f) for f in findings))


def acknowledge_evidence(state: PolicyState, identities: Iterable[str]) -> PolicyState:
    """Return the state after a person has acknowledged evidence by its name (see ``identity``)."""
    known = dict.fromkeys(state.acknowledged)
    known.update(dict.fromkeys(identities))
    names = frozenset(known)
    tracks = {}
    for key, track in state.tracks.items():
        rest = tuple(f for f in track.bad if identity(f) not in names)
        if track.bad and not rest:
            tracks[key] = replace(track, bad=(), window=(), confirmed=0, clean=0, level=min(track.level, Level.WARN, key=rank))
        else:
            tracks[key] = replace(track, bad=rest)
    return replace(state, acknowledged=tuple(known)[-ACKNOWLEDGED_MAX:], tracks=tracks)
