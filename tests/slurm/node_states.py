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
    ``why``. reconcile, resume: of a drain of ours that stood when the node came into this state; "" where both cannot be.
    releases: those that have it like this. made: false where the tests do not make it, and ``note`` says why.
    """

    name: str
    words: frozenset[str]
    drain: str
    reconcile: str
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
    "slurmctld clears DRAIN itself here; that is no person's resume, so nothing is acknowledged, and current faults drain again"
)

ROWS = (
    Row(name="idle", words=_words("IDLE"), drain="drained", reconcile="drained", resume="resumed"),
    Row(
        name="allocated",
        words=_words("ALLOCATED"),
        drain="drained",
        reconcile="drained",
        resume="resumed",
        note="the job goes on, before and after",
    ),
    Row(
        name="mixed",
        words=_words("MIXED"),
        drain="drained",
        reconcile="drained",
        resume="resumed",
        ours=_words("DRAIN"),
        note="the job goes on; 22.05 calls a drained one ALLOCATED",
    ),
    Row(
        name="completing",
        words=_words("COMPLETING"),
        drain="drained",
        reconcile="drained",
        resume="held",
        note="resumed when the epilog has ended, because a step that cannot be killed looks the same",
    ),
    Row(
        name="drained",
        words=_words("IDLE+DRAIN"),
        drain="foreign",
        reconcile="foreign",
        resume="foreign",
        note="the drain is a person's",
    ),
    Row(
        name="draining",
        words=_words("ALLOCATED+DRAIN"),
        drain="foreign",
        reconcile="foreign",
        resume="foreign",
        note="the drain is a person's",
    ),
    Row(name="down", words=_words("DOWN"), drain="foreign", reconcile="foreign", resume="foreign", note="set by a person"),
    Row(
        name="down, not responding",
        words=_words("DOWN+NOT_RESPONDING"),
        drain="foreign",
        reconcile="drained",
        resume="held",
        note="slurmd does not answer; 24.11 and newer append ` : Not responding` to our reason, and the drain stays ours",
    ),
    Row(
        name="not responding",
        words=_words("IDLE+NOT_RESPONDING"),
        drain="drained",
        reconcile="drained",
        resume="resumed",
        note="every node that was just resumed shows this until the next ping; Slurm starts nothing there meanwhile",
    ),
    Row(name="fail", words=_words("IDLE+FAIL"), ours=_words("FAIL"), drain="foreign", reconcile="foreign", resume="foreign"),
    Row(
        name="failing",
        words=_words("ALLOCATED+FAIL"),
        ours=_words("FAIL"),
        drain="foreign",
        reconcile="foreign",
        resume="foreign",
    ),
    Row(
        name="maint",
        words=_words("IDLE+MAINTENANCE"),
        drain="drained",
        reconcile="drained",
        resume="resumed",
        note="findings of the driver and of settings are suppressed while a maintenance reservation runs; it stays as it is",
    ),
    Row(name="reserved", words=_words("IDLE+RESERVED"), drain="drained", reconcile="drained", resume="resumed"),
    Row(
        name="planned",
        words=_words("IDLE+PLANNED"),
        drain="drained",
        reconcile="",
        resume="",
        note="backfill has planned a job for it; Slurm plans none on a drained node",
    ),
    Row(
        name="reboot requested",
        words=_words("ALLOCATED+REBOOT_REQUESTED"),
        drain="held",
        reconcile="drained",
        resume="held",
        why="rebooting",
    ),
    Row(
        name="reboot issued",
        words=_words("DOWN+REBOOT_ISSUED"),
        drain="foreign",
        reconcile="drained",
        resume="held",
        note="` : reboot issued` is appended to our reason, and the drain stays ours. If the reboot lifts the drain (ASAP on"
        " 22.05, nextstate=RESUME on all), nothing is acknowledged; otherwise the node is resumed when it is back and well",
    ),
    Row(
        name="reboot timed out",
        words=_words("DOWN"),
        drain="foreign",
        reconcile="drained",
        resume="held",
        note="` : reboot timed out` is appended to our reason",
    ),
    Row(
        name="power down requested",
        words=_words("ALLOCATED+POWER_DOWN"),
        drain="held",
        reconcile="drained",
        resume="held",
        why="powering down",
        note="the node waits for the job's end",
    ),
    Row(
        name="power down, draining",
        words=_words("ALLOCATED+DRAIN+POWER_DOWN"),
        drain="foreign",
        reconcile="drained",
        resume="held",
        note="`state=power_down_asap`: slurmctld drains the node with its own reason, but keeps our reason if there is one",
    ),
    Row(
        name="powering down",
        words=_words("IDLE+POWERING_DOWN"),
        ours=_words("IDLE+POWERING_DOWN"),
        drain="held",
        reconcile="held",
        resume="held",
        why="powering down",
        note=_LIFTED,
    ),
    Row(
        name="powered down",
        words=_words("IDLE+POWERED_DOWN"),
        ours=_words("IDLE+POWERED_DOWN"),
        drain="held",
        reconcile="held",
        resume="held",
        why="powered down",
        note=_LIFTED,
    ),
    Row(
        name="powering up",
        words=_words("POWERING_UP"),
        ours=_words("POWERING_UP"),
        drain="drained",
        reconcile="lost",
        resume="held",
        note=f"the drain stays when slurmd registers, and the prolog refuses the job that the node is switched on for; {_LIFTED}",
    ),
    Row(
        name="not resumed in time",
        words=_words("DOWN+POWERED_DOWN"),
        ours=_words("DOWN+POWERED_DOWN"),
        drain="foreign",
        reconcile="held",
        resume="held",
        note=f"ResumeTimeout is reached; that is appended to our reason, or our reason is gone; {_LIFTED}",
    ),
    Row(
        name="future",
        words=_words("FUTURE"),
        drain="error",
        reconcile="error",
        resume="error",
        note="slurmctld lists no such node: fairlead reports an error and tries again, and the ledger keeps its entry",
    ),
    Row(
        name="unknown",
        words=_words("UNKNOWN"),
        drain="held",
        reconcile="drained",
        resume="held",
        why="not registered yet",
        note="after a start of slurmctld, until slurmd registers. A slurmctld without its saved state shows the node without our"
        " drain: that is nobody's resume, and current faults drain again",
    ),
    Row(
        name="invalid registration",
        words=_words("DRAIN+INVALID_REG"),
        drain="foreign",
        reconcile="drained",
        resume="held",
        note="slurmd found less hardware than slurm.conf has; 24.11 and newer replace our reason, so a person resumes the node",
    ),
    Row(
        name="blocked",
        words=_words("BLOCKED"),
        drain="drained",
        reconcile="drained",
        resume="resumed",
        releases=("24.11", "26.05"),
        made=False,
        note="another job has the whole topology block (24.05 and newer); the tests do not make it: it needs topology/block",
    ),
)


class Event(Struct, frozen=True, kw_only=True):
    """Something that happens to a node whose drain is ours, or that has none.

    shows: what slurmctld shows after it, by release where they differ. does: what fairlead does. seen: the tests that have seen
    it on real slurmctld, as FILE below tests/slurm and the name in it.
    """

    name: str
    shows: str
    does: str
    seen: str


_AGAIN = "nothing is acknowledged; what is still wrong drains again when the agent next reads the node's state"

EVENTS = (
    Event(
        name="the agent drains the node",
        shows="`drain` is added to the state; the reason is `fairlead:CHECK:TOKEN SUMMARY`, the user is the agent's",
        does="it reads the drain back; only after that the verdict says `drain`",
        seen="test_agent.py: test_xid_to_drain_and_a_persons_resume",
    ),
    Event(
        name="an admin drains the node, or replaces our reason",
        shows="the admin's reason and user; our reason is gone",
        does="it leaves the node alone and goes on reading its state. A resume then acknowledges what was known before",
        seen="directed.py: taken, then an Xid",
    ),
    Event(
        name="`scontrol reboot`",
        shows="our drain stays, with ` : reboot issued`",
        does="it resumes the node when it is back and well; a person may resume it before",
        seen="test_rebooted.py: test_a_reboot_by_slurmctld_acknowledges_nothing",
    ),
    Event(
        name="`scontrol reboot ASAP`",
        shows="22.05: our drain is lifted. 24.11 and 26.05: it stays, with ` : reboot issued`",
        does=f"if the drain is lifted, {_AGAIN}. Otherwise as after `scontrol reboot`",
        seen="directed.py: reboot asap",
    ),
    Event(
        name="`scontrol reboot nextstate=RESUME`, with ASAP or without",
        shows="our drain is lifted on all releases; 24.11 without slurmdbd keeps our reason",
        does=_AGAIN,
        seen="directed.py: reboot nextstate=resume",
    ),
    Event(
        name="a fault comes while a reboot waits for a job's end",
        shows="`reboot_requested`; with ASAP also `drain` by root with `Reboot ASAP`",
        does="it waits. After the boot only faults that this boot has found drain, not faults that the reboot has repaired",
        seen="directed.py: lost while a reboot waits",
    ),
    Event(
        name="an admin resumes the node while a reboot waits",
        shows="the reboot and the drain are gone; nothing has booted",
        does="this is a person's resume, so what was known before is acknowledged",
        seen="directed.py: resume instead of a reboot",
    ),
    Event(
        name="slurmctld starts again with its state",
        shows="`unknown` until slurmd registers, then our drain as it was",
        does="nothing; the agents of many nodes ask one after the other",
        seen="test_many_nodes.py: test_a_slurmctld_that_is_back_is_asked_by_its_agents_one_after_the_other",
    ),
    Event(
        name="slurmctld starts without its state (`-c`, or an emptied folder), or with an old one",
        shows="the node without drain and reason, on all releases",
        does=f"{_AGAIN}. A drain by `fairlead drain` is made again",
        seen="test_rebooted.py: test_a_slurmctld_without_its_saved_state_acknowledges_nothing",
    ),
    Event(
        name="`scontrol reconfigure`",
        shows="our drain stays. 22.05: slurmctld goes on. 24.11 and 26.05: slurmctld and every slurmd start anew",
        does="nothing",
        seen="moves.py: reconfigure",
    ),
    Event(
        name="a person resumes the node (`resume`, `undrain`)",
        shows="22.05 and 26.05: no drain, no reason. 24.11 without slurmdbd: no drain, but our reason is kept",
        does="it acknowledges, by name, what was known before; new evidence drains again",
        seen="directed.py: same evidence",
    ),
    Event(
        name="a person resumes the node, and Slurm is reconfigured before the agent has read the node again",
        shows="as after a resume. On 24.11 with slurmdbd and on 26.05 nothing shows whether slurmctld had lost the drain instead",
        does="22.05, and 24.11 without slurmdbd: as after a resume. Otherwise only kernel records count as acknowledged, and"
        " what is still wrong drains again; the second resume counts",
        seen="test_rebooted.py: test_of_a_resume_beside_a_reconfiguration_only_the_past_counts",
    ),
    Event(
        name="a maintenance reservation ends",
        shows="`maintenance` goes; a drain stays as it is",
        does="findings of the driver and of settings, which the reservation suppressed, may drain now",
        seen="directed.py: reservation ended",
    ),
    Event(
        name="somebody sets the node DOWN",
        shows="`down` with that person's reason instead of ours; `drain` stays if it was set",
        does="it leaves the node alone, and resumes nothing",
        seen="test_node_states.py: test_row",
    ),
    Event(
        name="slurmd does not answer",
        shows="`down`, `not_responding`; our drain stays. 24.11 and 26.05 append ` : Not responding` to its reason",
        does="the drain is still ours. The node is resumed when slurmd answers and the node is well",
        seen="test_node_states.py: test_row",
    ),
)
