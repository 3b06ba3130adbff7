"""What the policy remembers between sweeps, and this moment as a value. Saved before Slurm is told anything."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct, field
from msgspec.structs import replace

from fairlead.model.finding import Action, Finding, Level

ACKNOWLEDGED_MAX = 1000

_RANK = {Level.OK: 0, Level.WARN: 1, Level.UNKNOWN: 2, Level.DRAIN: 3}


def rank(level: Level) -> int:
    """How bad, for comparing: OK, WARN, UNKNOWN, DRAIN."""
    return _RANK[level]


class Proof(StrEnum):
    """What there is of the return-to-service command's run, for the drain that stands and the node as it is."""

    NONE = "none"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"


class Now(Struct, frozen=True, kw_only=True):
    """This moment. ``boot_seconds`` is CLOCK_BOOTTIME, ``wall_seconds`` the time of day (strikes and waiting only).

    job_running: a job is on the node; jobs: which. applying: apply or a maintenance reservation runs. drained: slurmctld has
    accepted a drain of ours and it still applies. returned: since the last decision the node has gone back into service after
    one, by the agent's resume or a person's (a drain that slurmctld has lost, or that a person has put words of theirs over, is
    no return). hold: ``fairlead hold``. disabled: /etc/fairlead/disabled exists. over_budget: what leaves no room for a drain
    (``policy.drain_limits``), one line; suspicion: the same from common cause or a suspect job. full_sweep: every reading is
    fresh (a kernel record wakes single checks on the last one: not a clean sweep). serials: GPU serial by PCI address. gpus:
    addresses of the GPUs that the driver lists. job: the job that runs here alone, if one does. drain_check,
    drain_since_seconds: what the standing drain is for and when it was made (time of day), from the ledger: it still says so
    when the history was lost. proof: of the return-to-service command.
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
    """One (check, device) over time.

    level: what it counts as, after confirmation and recovery. window: the severity (``rules.Severity``) of the last sweeps;
    confirmed: the severity up to which its findings count. clean: sweeps in a row that were better than ``level``; floor:
    the worst of those. bad: the findings last seen at DRAIN; found: what the last sweep said. since_seconds: time of day
    when it became DRAIN; jobs: those that ran here then, for whose end drain_after_job waits; None: not known, all. job: the
    job that ran alone here when the newest of ``bad`` came; None when none did, or several. earlier: ``bad`` was seen in an
    earlier boot, and nothing has said so in this one. confirmed_earlier: ``confirmed`` was reached in an earlier boot.
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
    """How far one fault of one board has come on the ladder (``policy.ladder``).

    key: check/device it was last seen as. step: what to do, or what was done when it is not ``open``: an episode goes on
    until the node is back in service, or has booted. taken: how often this step was taken already. since_seconds: time
    of day when the episode began, or ended. why: why it is more than the check asks for. manual_resume: a person has to resume.
    drained: the node was drained for it in this episode.
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
    """A person said that these are repaired: what was read of them before does not count again.

    devices: names of one device (PCI address, GPU serial). everything: the whole node. boot_id, sequence, boot_seconds:
    the boot it was said in, the last kernel record then, and CLOCK_BOOTTIME (samples up to then are of the past).
    """

    boot_id: str
    sequence: int
    boot_seconds: float
    devices: tuple[str, ...] = ()
    everything: bool = False


class PolicyState(Struct, frozen=True, kw_only=True):
    """Everything remembered. Encodes with msgspec; an empty one is a safe start.

    acknowledged: identities of evidence that a person has dealt with. ran: checks that have run in this boot. clean_sweeps:
    sweeps in a row without anything that would drain; thorough_clean_sweeps: those of them that judged every check. strikes:
    times of day of drains by GPU serial (or address, or "node"). drained_for: (check/device) keys of the drain that stands or
    is ordered; they must be well before a resume, whatever their check's mode has become meanwhile. gpu_serials: GPU serial by
    PCI address, as last read. ladder: by fault and board. reboots: times of day of boots for faults. drained: a drain of ours
    stood at the last decision. repairs: said in this boot. requests: the last ones of people that are contained in this state:
    one that is read again after a crash changes nothing.
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
    """What an acknowledgement covers: the evidence where it has a name, else the statement itself."""
    return f"{finding.key}#{finding.evidence_id or finding.summary}"


def remembered_findings(state: PolicyState) -> tuple[Finding, ...]:
    """Every finding that is remembered as standing, at any level, each once."""
    return tuple({identity(f): f for track in state.tracks.values() for f in (*track.bad, *track.found)}.values())


def acknowledge(state: PolicyState, findings: Iterable[Finding]) -> PolicyState:
    """The state after a person said "I know": these findings do not drain any more.

    Only new evidence counts again: another kernel record, another counter value, or the same thing after it had gone.
    """
    return acknowledge_evidence(state, (identity(f) for f in findings))


def acknowledge_evidence(state: PolicyState, identities: Iterable[str]) -> PolicyState:
    """``acknowledge`` for evidence by its name (see ``identity``)."""
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
