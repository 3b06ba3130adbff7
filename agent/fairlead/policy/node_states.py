"""What fairlead does about a node in each state and with each flag that Slurm knows: one table.

``docs/reference/node-states.md`` prints it, and tests/slurm/test_node_states.py puts real nodes of slurmctld 22.05, 24.11
and 26.05 into every row. Words are slurmctld's own (sinfo(1), ``StateComplete``), outcomes those of the drain protocol.
"""

from __future__ import annotations

from msgspec import Struct

RELEASES = ("22.05", "24.11", "26.05")


class Row(Struct, frozen=True, kw_only=True):
    """One state.

    words: what slurmctld calls it, all at once. ours: the same on a node that fairlead had drained before, where that
    differs. drain: what comes of a drain that the agent wants there, on a node that it has not drained; ``held`` says
    ``why``. look, resume: of a drain of ours that stood when the node came into this state; "" where both cannot be.
    releases: those that have it like this. made: false where the tests do not make it, and ``note`` says why.
    """

    name: str
    words: frozenset[str]
    drain: str
    look: str
    resume: str
    why: str = ""
    note: str = ""
    ours: frozenset[str] | None = None
    releases: tuple[str, ...] = RELEASES
    made: bool = True

    @property
    def words_with_ours(self) -> frozenset[str]:
        return self.words | {"DRAIN"} if self.ours is None else self.ours


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split("+"))


_LIFTED = (
    "slurmctld clears DRAIN itself here; that is no person's resume: nothing is acknowledged, what is still wrong drains again"
)

ROWS = (
    Row(name="idle", words=_words("IDLE"), drain="drained", look="drained", resume="resumed"),
    Row(
        name="allocated",
        words=_words("ALLOCATED"),
        drain="drained",
        look="drained",
        resume="resumed",
        note="the job goes on, before and after",
    ),
    Row(
        name="mixed",
        words=_words("MIXED"),
        drain="drained",
        look="drained",
        resume="resumed",
        ours=_words("DRAIN"),
        note="the job goes on; 22.05 calls a drained one ALLOCATED",
    ),
    Row(
        name="completing",
        words=_words("COMPLETING"),
        drain="drained",
        look="drained",
        resume="held",
        note="resumed once the epilog has ended: a step that cannot be killed looks the same",
    ),
    Row(name="drained", words=_words("IDLE+DRAIN"), drain="foreign", look="foreign", resume="foreign", note="a person's"),
    Row(name="draining", words=_words("ALLOCATED+DRAIN"), drain="foreign", look="foreign", resume="foreign", note="a person's"),
    Row(name="down", words=_words("DOWN"), drain="foreign", look="foreign", resume="foreign", note="set by a person"),
    Row(
        name="down, not responding",
        words=_words("DOWN+NOT_RESPONDING"),
        drain="foreign",
        look="drained",
        resume="held",
        note="slurmd is silent; 24.11 and newer append ` : Not responding` to our reason, and it stays ours",
    ),
    Row(
        name="not responding",
        words=_words("IDLE+NOT_RESPONDING"),
        drain="drained",
        look="drained",
        resume="resumed",
        note="every freshly resumed node says so until the next ping; Slurm starts nothing there meanwhile",
    ),
    Row(name="fail", words=_words("IDLE+FAIL"), ours=_words("FAIL"), drain="foreign", look="foreign", resume="foreign"),
    Row(name="failing", words=_words("ALLOCATED+FAIL"), ours=_words("FAIL"), drain="foreign", look="foreign", resume="foreign"),
    Row(
        name="maint",
        words=_words("IDLE+MAINTENANCE"),
        drain="drained",
        look="drained",
        resume="resumed",
        note="findings of the driver and of settings are held: a maintenance reservation is running; it stays as it is",
    ),
    Row(name="reserved", words=_words("IDLE+RESERVED"), drain="drained", look="drained", resume="resumed"),
    Row(
        name="planned",
        words=_words("IDLE+PLANNED"),
        drain="drained",
        look="",
        resume="",
        note="backfill has a job for it; Slurm plans none on a drained node",
    ),
    Row(
        name="reboot requested",
        words=_words("ALLOCATED+REBOOT_REQUESTED"),
        drain="held",
        look="drained",
        resume="held",
        why="rebooting",
    ),
    Row(
        name="reboot issued",
        words=_words("DOWN+REBOOT_ISSUED"),
        drain="foreign",
        look="drained",
        resume="held",
        note="our reason gets ` : reboot issued` and stays ours. Where the reboot lifts the drain (ASAP on 22.05,"
        " nextstate=RESUME on all) nothing is acknowledged; else the node is resumed once it is back and well",
    ),
    Row(
        name="reboot timed out",
        words=_words("DOWN"),
        drain="foreign",
        look="drained",
        resume="held",
        note="our reason gets ` : reboot timed out`",
    ),
    Row(
        name="power down requested",
        words=_words("ALLOCATED+POWER_DOWN"),
        drain="held",
        look="drained",
        resume="held",
        why="powering down",
        note="waits for the job's end",
    ),
    Row(
        name="power down, draining",
        words=_words("ALLOCATED+DRAIN+POWER_DOWN"),
        drain="foreign",
        look="drained",
        resume="held",
        note="`state=power_down_asap`: slurmctld drains it with its own reason, and leaves ours where it stands",
    ),
    Row(
        name="powering down",
        words=_words("IDLE+POWERING_DOWN"),
        ours=_words("IDLE+POWERING_DOWN"),
        drain="held",
        look="held",
        resume="held",
        why="powering down",
        note=_LIFTED,
    ),
    Row(
        name="powered down",
        words=_words("IDLE+POWERED_DOWN"),
        ours=_words("IDLE+POWERED_DOWN"),
        drain="held",
        look="held",
        resume="held",
        why="powered down",
        note=_LIFTED,
    ),
    Row(
        name="powering up",
        words=_words("POWERING_UP"),
        ours=_words("POWERING_UP"),
        drain="held",
        look="held",
        resume="held",
        why="powering up",
        note=_LIFTED,
    ),
    Row(
        name="not resumed in time",
        words=_words("DOWN+POWERED_DOWN"),
        ours=_words("DOWN+POWERED_DOWN"),
        drain="foreign",
        look="held",
        resume="held",
        note=f"ResumeTimeout reached, our reason has that appended or is gone; {_LIFTED}",
    ),
    Row(
        name="future",
        words=_words("FUTURE"),
        drain="error",
        look="error",
        resume="error",
        note="slurmctld lists no such node: an error that says so, tried again, and the ledger keeps what it has",
    ),
    Row(
        name="unknown",
        words=_words("UNKNOWN"),
        drain="held",
        look="drained",
        resume="held",
        why="not registered yet",
        note="after a start of slurmctld, until slurmd registers. A slurmctld without its saved state shows it without our drain:"
        " that is nobody's resume, and what is still wrong drains again",
    ),
    Row(
        name="invalid registration",
        words=_words("DRAIN+INVALID_REG"),
        drain="foreign",
        look="drained",
        resume="held",
        note="slurmd found less hardware than slurm.conf has; 24.11 and newer write that over our reason: a person resumes it",
    ),
    Row(
        name="blocked",
        words=_words("BLOCKED"),
        drain="drained",
        look="drained",
        resume="resumed",
        releases=("24.11", "26.05"),
        made=False,
        note="another job has the topology block for itself (24.05 and newer); not made in the tests: needs topology/block",
    ),
)
