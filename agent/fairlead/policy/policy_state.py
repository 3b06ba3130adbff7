"""Holds what the policy remembers between sweeps, and the present time as a value. It is saved before anything is written to
Slurm."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from fairlead.model.finding import Action, Finding, Level

ACKNOWLEDGED_MAX = 1000

_RANK = {Level.OK: 0, Level.WARN: 1, Level.UNKNOWN: 2, Level.DRAIN: 3}


def rank(level: Level) -> int:
    """Return how bad a level is, for comparing: OK, WARN, UNKNOWN, DRAIN."""
    return _RANK[level]


class Proof(StrEnum):
    """Says what is known of the return-to-service command's run, for the drain that is set and for the node as it is now."""

    NONE = "none"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"


class Now(Struct, frozen=True, kw_only=True):
    """Describes the present time. ``boot_seconds`` is CLOCK_BOOTTIME. ``wall_seconds`` is the time of day, for strikes and
    waiting only.

    job_running: a job is on the node. jobs: the jobs that are. applying: an apply run or a maintenance reservation is under
    way. drained: slurmctld has accepted a drain of ours, which still applies. returned: since the last decision the agent or a
    person has resumed the node from such a drain. A drain that slurmctld has lost, or that a person has put other words over,
    is no return. hold: there is an admin hold (``fairlead hold``). disabled: /etc/fairlead/disabled exists. over_budget: one
    line that says why no drain has room (``policy.drain_limits``). suspicion: the same, from common cause or a suspect job.
    full_sweep: every reading is fresh. A kernel record starts single checks on the last readings, which is no full sweep.
    serials: GPU serial by PCI address. gpus: addresses of the GPUs that the driver lists. job: the job that runs here alone,
    if one does. drain_check, drain_since_seconds: what the drain is for and the time of day when it was made. They come from
    the ledger, which still knows them when the history was lost. proof: of the return-to-service command.
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
    """Follows one (check, device) over time.

    level: what it counts as, after confirmation and recovery. window: the severity (``decision_rules.Severity``) of the last
    sweeps. confirmed: the severity up to which its findings count. clean: how many sweeps in a row were better than ``level``.
    floor: the worst of those. bad: the findings that were last seen at DRAIN. found: what the last sweep found. since_seconds:
    the time of day when the level became DRAIN. jobs: the jobs that ran here then, for whose end drain_after_job waits; None:
    it is not known which, so all count. job: the job that ran alone here when the newest of ``bad`` came; None when none did,
    or several. earlier: ``bad`` was seen in an earlier boot, and nothing has shown it in this one. confirmed_earlier:
    ``confirmed`` was reached in an earlier boot.
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
    """Says which escalation step one fault of one GPU card has reached (``policy.ladder``).

    key: the check/device at which it was last seen. step: what to do next, or what was done when the episode is not ``open``.
    An episode goes on until the node is back in service, or has booted. taken: how often this step was taken already.
    since_seconds: the time of day when the episode began, or ended. why: why it is more than the check asks for.
    manual_resume: a person has to resume the node. drained: the node was drained for it in this episode.
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
    """Says that a person has repaired these devices. What was read of them before does not count again.

    devices: names of one device (PCI address, GPU serial). everything: the whole node was repaired. boot_id, sequence,
    boot_seconds: the boot in which the person said so, the last kernel record then, and CLOCK_BOOTTIME. Samples up to that
    time are of the past.
    """

    boot_id: str
    sequence: int
    boot_seconds: float
    devices: tuple[str, ...] = ()
    everything: bool = False


class PolicyState(Struct, frozen=True, kw_only=True):
    """Holds everything that the policy remembers. msgspec encodes it. An empty state is a safe start.

    acknowledged: identities of evidence that a person has dealt with. ran: checks that have run in this boot. clean_sweeps:
    sweeps in a row without anything that would drain. thorough_clean_sweeps: those of them that judged every check. strikes:
    times of day of drains by GPU serial (or address, or "node"). drained_for: (check/device) keys of the drain that is set or
    ordered. These must be well before a resume, whatever their check's mode is by then. gpu_serials: GPU serial by PCI
    address, as last read. ladder: escalation steps by fault and GPU card. reboots: times of day of boots for faults. drained:
    a drain of ours was set at the last decision. repairs: made in this boot. requests: the last requests of people that this
    state contains. One that is read again after a crash changes nothing.
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


def identity(finding: Finding) -> str:
    """Return what an acknowledgement covers: the evidence where it has a name, else the finding itself."""
    return f"{finding.key}#{finding.evidence_id or finding.summary}"


def remembered_findings(state: PolicyState) -> tuple[Finding, ...]:
    """Return every finding that is remembered as active, at any level, each once."""
    return tuple({identity(f): f for track in state.tracks.values() for f in (*track.bad, *track.found)}.values())


def acknowledge(state: PolicyState, findings: Iterable[Finding]) -> PolicyState:
    """Return the state after a person has acknowledged these findings, which then drain no more.

    Only new evidence counts again: another kernel record, another counter value, or the same state after it had gone.
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
