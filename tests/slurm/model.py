"""slurmctld as a model: what an update, a reboot, a job and slurmctld itself do to a node's state and reason.

From the sources of 22.05.8, 24.11.5 and 26.05 (src/slurmctld: update_node, drain_nodes, set_node_reason, make_node_alloc and
validate_node_specs in node_mgr.c, _queue_reboot_msg in controller.c or power_save.c, _slurm_rpc_reboot_nodes in proc_req.c;
src/interfaces/accounting_storage.c, clusteracct_storage_g_node_up), and held to the real ones by test_model.py.
NOT_RESPONDING comes and goes with slurmctld's pings and is left out of a node that is not DOWN; so is COMPLETING but by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from fairlead.errors import SlurmError, SlurmUnavailable
from fairlead.slurm.client import JobOn, NodeState, NodeTimes

SLURM_USER = "slurm"
REGISTRATION = "gres/gpu count reported lower than configured (7 < 8)"


@dataclass
class Record:
    """``reason`` None: none. ``next_state``: what a reboot leads to: "", resume, undrain (with ASAP) or down."""

    base: str = "IDLE"
    flags: set[str] = field(default_factory=set)
    reason: str | None = None
    user: str = ""
    time: int = 0
    jobs: int = 0
    next_state: frozenset[str] = frozenset()


SAVE_SECONDS = 5  # SAVE_MAX_WAIT of state_save.c


class Ctld:
    """A slurmctld of one release ("22", "24" or "26"); a SlurmClient too, as root.

    ``away``: every call fails unanswered. ``clock``: whole seconds, slurmctld's own. ``saved``: what is on disk.
    """

    def __init__(self, release: str, names: Sequence[str]) -> None:
        self.release = release
        self.records = {name: Record() for name in names}
        self.away = False
        self.clock = 1_800_001_000  # the agents' Clock
        self.booted = self.clock - 86400
        self.slurmd_began = self.booted
        self.saved = deepcopy(self.records)
        self._saved_at = self.clock
        self.on_write: Callable[[str], None] = lambda name: None

    # -- SlurmClient ----------------------------------------------------------------------------------

    def node(self, name: str) -> NodeState:
        return self.nodes((name,))[0]

    def nodes(self, names: Sequence[str] = ()) -> tuple[NodeState, ...]:
        self._answer()
        return tuple(self._state(n) for n in self.records if not names or n in names)

    def jobs_on(self, name: str) -> tuple[JobOn, ...]:
        self._answer()
        return tuple(JobOn(id=str(i + 1), state="R", nodes=1) for i in range(self.records[name].jobs))

    def began(self) -> float:
        self._answer()
        return self.booted

    def node_times(self) -> tuple[NodeTimes, ...]:
        began = self.slurmd_began
        return tuple(NodeTimes(name=n.name, reason_time=n.reason_time, slurmd_began=began) for n in self.nodes())

    def not_after(self, seconds: float) -> None:
        """The model answers at once."""

    def drain(self, name: str, reason: str) -> None:
        self.update(name, "DRAIN", reason)

    def update_reason(self, name: str, reason: str) -> None:
        self.update(name, "", reason)

    def resume(self, name: str) -> None:
        self.update(name, "UNDRAIN")

    def resume_down(self, name: str) -> None:
        self.update(name, "RESUME")

    # -- people -----------------------------------------------------------------------------------------

    def update(self, name: str, state: str = "", reason: str = "", user: str = "root") -> None:
        """`scontrol update nodename=NAME [state=STATE] [reason=REASON]`: DRAIN, UNDRAIN, RESUME, DOWN or FAIL."""
        self._answer()
        n = self.records[name]
        same = state == "" or (state == "DOWN" and n.base == "DOWN") or (state in ("DRAIN", "FAIL") and state in n.flags)
        if same and n.reason == (reason or None):
            return
        if reason:
            n.reason, n.user, n.time = reason, user, self.clock
        refused = bool(state) and not self._valid(n, state)
        counted_up = False
        if state and not refused:
            refused, counted_up = self._change(n, state)
        if not counted_up and n.base != "DOWN" and not n.flags & {"DRAIN", "FAIL"}:
            self._up(n)
        if refused:
            raise SlurmError("scontrol: slurm_update error: Invalid node state specified")

    def reboot(self, name: str, *, asap: bool = False, next_state: str = "", reason: str = "", user: str = "root") -> None:
        """`scontrol reboot [ASAP] [nextstate=RESUME|DOWN] [reason=REASON] NAME`."""
        self._answer()
        n = self.records[name]
        if n.flags & {"REBOOT_REQUESTED", "REBOOT_ISSUED"}:
            return
        n.flags.add("REBOOT_REQUESTED")
        n.next_state = frozenset({next_state} - {""})
        if reason:
            n.reason, n.user, n.time = reason, user, self.clock
        if asap:
            if self.release == "22" and not n.next_state:
                n.next_state = frozenset({"RESUME"})
            if "DRAIN" not in n.flags:
                n.next_state |= {"UNDRAIN"}
            n.flags.add("DRAIN")
        if n.reason is None:
            n.reason, n.user, n.time = "Reboot ASAP" if asap else "reboot requested", user, self.clock

    # -- slurmctld itself -------------------------------------------------------------------------------

    def mark(self, name: str, reason: str) -> None:
        """drain_nodes(): "Prolog error", "Epilog error", "Kill task failed". Nothing where the node is drained already."""
        n = self.records[name]
        if "DRAIN" in n.flags:
            return
        n.flags.add("DRAIN")
        if n.reason is None or n.reason.startswith("Not responding"):
            n.reason, n.user, n.time = reason, SLURM_USER, self.clock

    def silent(self, name: str) -> None:
        """SlurmdTimeout has passed without an answer: set_node_down_ptr(node, "Not responding")."""
        n = self.records[name]
        if n.base == "DOWN":
            return
        if self.release == "22":
            if n.reason is None or n.reason.startswith("Not responding"):
                n.reason, n.user, n.time = "Not responding", SLURM_USER, self.clock
        else:
            self._append(n, "Not responding")
        n.base, n.jobs = "DOWN", 0

    def issue_reboots(self) -> None:
        """Nodes that wait for a reboot and have no job are sent into it."""
        for n in self.records.values():
            if "REBOOT_REQUESTED" in n.flags and not n.jobs and "COMPLETING" not in n.flags and n.base in ("IDLE", "DOWN"):
                n.base = "DOWN"
                n.flags -= {"REBOOT_REQUESTED"}
                n.flags.add("REBOOT_ISSUED")
                self._append(n, "reboot issued")

    def register(self, name: str, *, valid: bool = True, booted: bool = False) -> None:
        """slurmd registers, with all that slurm.conf says or with a GPU less; ``booted``: for the first time since its boot."""
        n = self.records[name]
        if "REBOOT_ISSUED" in n.flags and not booted:
            return
        n.flags.discard("INVALID_REG")
        if not valid:
            n.flags.add("INVALID_REG")
            if n.base != "DOWN" and not n.flags & {"DRAIN", "FAIL"}:
                self.mark(name, REGISTRATION)
            elif self.release != "22" and n.reason != REGISTRATION:
                n.reason, n.user, n.time = REGISTRATION, SLURM_USER, self.clock
            return
        if n.base == "UNKNOWN":
            n.base = "ALLOCATED" if n.jobs else "IDLE"
        elif n.base == "DOWN" and "REBOOT_ISSUED" in n.flags:
            n.flags -= {"REBOOT_ISSUED"}
            if n.next_state:
                n.flags -= {"DRAIN"}
            if "DOWN" in n.next_state:
                self._append(n, "reboot complete")
            else:
                n.base = "IDLE"
            n.next_state = frozenset()
            if n.base != "DOWN" and not n.flags & {"DRAIN", "FAIL"}:
                self._up(n)

    def passed(self, seconds: int) -> None:
        """Time goes by: what has changed is saved."""
        self.clock += seconds
        if self.clock - self._saved_at >= SAVE_SECONDS:
            self.saved, self._saved_at = deepcopy(self.records), self.clock

    def killed(self) -> None:
        """slurmctld ends by SIGKILL and starts again, with what it had saved."""
        self.records = deepcopy(self.saved)
        self.restart()

    def restart(self) -> None:
        """slurmctld stops and starts from its saved state; nodes that are up are UNKNOWN until they register."""
        self.saved, self._saved_at, self.booted = deepcopy(self.records), self.clock, self.clock
        for n in self.records.values():
            if n.base != "DOWN":
                n.base = "UNKNOWN"

    def start_job(self, name: str) -> bool:
        """A job starts here, if slurmctld gives it the node."""
        n = self.records[name]
        if n.base not in ("IDLE", "ALLOCATED") or n.flags & {"DRAIN", "FAIL", "INVALID_REG", "COMPLETING", "REBOOT_REQUESTED"}:
            return False
        n.jobs += 1
        n.base, n.reason, n.user, n.time = "ALLOCATED", None, "", 0
        return True

    def end_job(self, name: str, *, completing: bool = False) -> None:
        """A job ends; ``completing``: its epilog still runs, until the next call."""
        n = self.records[name]
        n.flags.discard("COMPLETING")
        if n.jobs:
            n.jobs -= 1
            if completing:
                n.flags.add("COMPLETING")
            if n.base == "ALLOCATED" and not n.jobs:
                n.base = "IDLE"

    # -- parts ------------------------------------------------------------------------------------------

    def _answer(self) -> None:
        if self.away:
            raise SlurmUnavailable("sinfo: Unable to contact slurm controller (connect failure)")

    def _state(self, name: str) -> NodeState:
        n = self.records[name]
        return NodeState(
            name=name,
            states=frozenset({n.base, *n.flags}),
            reason=n.reason or "",
            reason_user=n.user,
            reason_time=n.time,
            partitions=("main",),
        )

    def _valid(self, n: Record, state: str) -> bool:
        """_valid_node_state_change()"""
        if state == "UNDRAIN":
            return "INVALID_REG" not in n.flags
        if state == "RESUME":
            busy = {"DRAIN", "FAIL", "REBOOT_REQUESTED"}
            return "INVALID_REG" not in n.flags and (n.base == "DOWN" or bool(n.flags & busy))
        return True

    def _change(self, n: Record, state: str) -> tuple[bool, bool]:
        """Whether it is refused after all, and whether the reason has been dealt with."""
        counted_up = False
        if state == "RESUME":
            if n.base == "IDLE" and n.flags & {"DRAIN", "FAIL"}:
                self._up(n)
                counted_up = True
            n.flags -= {"DRAIN", "FAIL", "REBOOT_REQUESTED", "REBOOT_ISSUED"}
            base = "IDLE" if n.base == "DOWN" else n.base
        elif state == "UNDRAIN":
            if n.base == "IDLE" and "DRAIN" in n.flags:
                self._up(n)
                counted_up = True
            n.flags -= {"DRAIN"}
            base = n.base
        elif state in ("DRAIN", "FAIL"):
            n.flags -= {"DRAIN", "FAIL"}
            n.flags.add(state)
            return False, False
        else:
            base = state
        if base == "DOWN":
            n.base, n.jobs = "DOWN", 0
        elif base == "IDLE":
            if n.base == "DOWN" or n.flags & {"DRAIN", "FAIL"}:
                self._up(n)
                counted_up = True
            n.flags -= {"DRAIN", "FAIL"}
            n.base = "IDLE"
        elif base == "UNKNOWN" and self.release != "26":
            return True, counted_up
        if not n.flags & {"REBOOT_REQUESTED", "REBOOT_ISSUED"}:
            n.next_state = frozenset()
        return False, counted_up

    def _up(self, n: Record) -> None:
        """24.11 leaves the reason behind where no accounting storage is configured, as here."""
        if self.release != "24":
            n.reason, n.user, n.time = None, "", 0

    def _append(self, n: Record, words: str) -> None:
        if self.release == "22":  # set_node_reboot_reason()
            n.reason = f"{n.reason} : {words}" if n.reason and words not in n.reason else words
        elif n.reason is None:
            n.reason = words
        elif f" : {words}" not in n.reason:
            n.reason += f" : {words}"
        n.user, n.time = SLURM_USER, self.clock
