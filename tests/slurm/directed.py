"""Sequences that are written out: what broke once, and what must hold in just that order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from fairlead.model.verdict import State
from tests.lab.cluster import Cluster
from tests.slurm import moves, sequences
from tests.slurm.crowd import cost
from tests.slurm.ward import Ward

Script = Callable[[Ward, random.Random], None]


def drained(ward: Ward) -> None:
    """Wait until slurmctld shows the node drained."""
    assert ward.until(lambda: (now := ward.now()) is not None and "DRAIN" in now.states, 15), "it is not drained"


def reconciled(ward: Ward) -> None:
    """Wait until the agent has asked what the node is now."""
    began = time.time()
    asked = lambda: any(call.ended and call.began > began and "sinfo" in call.words for call in ward.wire.read())  # noqa: E731
    assert ward.until(asked, ward.record.reconcile_seconds + 20), "the agent does not look"
    time.sleep(1)


def _reboot(*words: str) -> Script:
    def script(ward: Ward, chance: random.Random) -> None:
        """A GPU is lost, the node drained; an admin has Slurm reboot it, as `fairlead why` advises; the GPU is still lost."""
        ward.fault("lost", 3)
        drained(ward)
        ward.submit()
        before = ward.power_cycles
        ok, reported = ward.scontrol("reboot", *words, ward.node)
        ward.tell(f"ann: scontrol reboot {' '.join(words)}: {reported or 'done'}")
        assert ok and ward.until(lambda: ward.power_cycles > before, 20), "it is not rebooted"
        ward.hear(why=True)
        ward.submit()

    return script


def _taken(second: str) -> Script:
    def script(ward: Ward, chance: random.Random) -> None:
        """A fault; the admin's own words over our drain; `clear --all`; another agent; the admin's resume; a new fault."""
        ward.fault("xid", 0)
        drained(ward)
        ward.drains(f"ann: riser swap on {ward.node}.")
        reconciled(ward)
        ward.act("fairlead clear", lambda: ward.command("clear", "--all", "--reason", "riser swapped"))
        ward.agent_down()
        ward.agent_up()
        time.sleep(1)
        ward.lifts()
        time.sleep(1.5)
        ward.fault(second, 5)

    return script


def slow_drain(ward: Ward, chance: random.Random) -> None:
    """Slurm's answers take 3 s; an admin drains after the agent has asked, before it writes."""
    moves.slow_for(ward, 0, 3)
    ward.fault("xid", 0)
    asked = len(ward.wire.read())
    ward.until(lambda: len(ward.wire.read()) > asked, 5)
    time.sleep(1)
    ward.drains(f"ann: riser swap on {ward.node}.")
    time.sleep(12)


def slow_resume(ward: Ward, chance: random.Random) -> None:
    """The fault is gone, and Slurm's answers take 3 s; before the agent's resume an admin drains the node."""
    ward.fault("lost", 0)
    drained(ward)
    moves.slow_for(ward, 0, 3)
    ward.repair()
    time.sleep(5)
    ward.drains(f"ann: riser swap on {ward.node}.")
    time.sleep(12)


def own_drain_lifted(ward: Ward, chance: random.Random) -> None:
    """A fault while an admin's drain stands; the admin lifts it; a new fault a second later drains at once."""
    ward.drains(f"ann: riser swap on {ward.node}.")
    ward.fault("xid", 0)
    time.sleep(3)
    ward.lifts()
    time.sleep(1)
    ward.fault("xid", 1)
    ward.submit()
    time.sleep(8)


def reservation_ended(ward: Ward, chance: random.Random) -> None:
    """A maintenance reservation with an admin's drain ends, and a new fault drains at once."""
    moves.reservation(ward, chance)
    ward.drains(f"ann: firmware on {ward.node}.")
    ward.fault("xid", 0)
    time.sleep(3)
    ward.lifts()
    moves.reservation(ward, chance)
    time.sleep(1)
    ward.fault("remap", 1)
    ward.submit()
    time.sleep(8)


def forgotten_and_rebooted(ward: Ward, chance: random.Random) -> None:
    """The agent's state is emptied while its drain stands, then the node is rebooted; the GPU is still lost."""
    ward.fault("lost", 3)
    drained(ward)
    ward.agent_forgets()
    time.sleep(2)
    ward.hear(why=True)
    ward.reboot()
    ward.hear(why=True)


def same_evidence(ward: Ward, chance: random.Random) -> None:
    """What a person has resumed does not drain again; what comes after does."""
    ward.fault("lost", 3)
    drained(ward)
    time.sleep(4)
    ward.lifts()
    time.sleep(6)
    ward.agent_down(kill=True)
    ward.agent_up()
    time.sleep(4)
    ward.fault("xid", 4)


def resumed_by_command(ward: Ward, chance: random.Random) -> None:
    """`fairlead resume` on our own drain, and the same evidence does not drain again."""
    ward.fault("xid", 0)
    drained(ward)
    time.sleep(4)
    ward.act("fairlead resume", lambda: ward.command("resume", "--reason", "known"))
    time.sleep(5)
    assert ward.record.acts[-1].ok, "fairlead resume is refused"


def hold_while_slow(ward: Ward, chance: random.Random) -> None:
    """Slurm's commands take 1.5 s to start; a hold comes while a drain is on its way. When it has returned nothing is written."""
    moves.slow_for(ward, 1.5, 0)
    ward.fault("xid", 0)
    time.sleep(chance.uniform(1.0, 2.5))
    moves.hold(ward, chance)
    time.sleep(8)


def resume_instead_of_reboot(ward: Ward, chance: random.Random) -> None:
    """A reboot waits for a job's end, and the admin resumes the node instead: that is their resume, nothing has booted."""
    job = ward.cluster.submit("#!/bin/sh\nsleep 60\n", f"-w{ward.node}")
    ward.cluster.wait_job(job, "RUNNING")
    ward.fault("xid", 0)
    drained(ward)
    ok, reported = ward.scontrol("reboot", "ASAP", ward.node)
    assert ok, reported
    time.sleep(4)
    ward.lifts()
    time.sleep(8)
    ward.cluster.run(["/usr/bin/scancel", str(job)])


def words_while_it_reboots(ward: Ward, chance: random.Random) -> None:
    """An Xid, which the reboot ends; while the node is down an admin drains it in their own words; Slurm lifts it all."""
    ward.fault("xid", 0)
    drained(ward)
    before = ward.power_cycles
    ok, reported = ward.scontrol("reboot", "nextstate=RESUME", ward.node)
    assert ok and ward.until(lambda: "reboot" in ward.begun, 20), reported
    time.sleep(1)
    ward.drains(f"ann: riser swap on {ward.node}.")
    assert ward.until(lambda: ward.power_cycles > before, 60), "it is not rebooted"
    time.sleep(5)


def _while_a_reboot_waits(*words: str) -> Script:
    def script(ward: Ward, chance: random.Random) -> None:
        """A reboot waits for a job's end; meanwhile a GPU is lost, which the reboot repairs: the node is well and not drained."""
        job = ward.cluster.submit("#!/bin/sh\nsleep 60\n", f"-w{ward.node}")
        ward.cluster.wait_job(job, "RUNNING")
        before = ward.power_cycles
        ok, reported = ward.scontrol("reboot", *words, ward.node)
        ward.tell(f"ann: scontrol reboot {' '.join(words)}: {reported or 'done'}")
        assert ok, reported
        ward.fault("lost", 3, lasting=False)
        time.sleep(4)
        ward.hear(why=True)
        ward.cluster.run(["/usr/bin/scancel", str(job)])
        assert ward.until(lambda: ward.power_cycles > before, 60), "it is not rebooted"
        ward.hear(why=True)
        time.sleep(6)
        now = ward.now()
        assert now is not None and "DRAIN" not in now.states, f"it is drained, and well: {now}"

    return script


def lost_and_drained_before_a_reboot(ward: Ward, chance: random.Random) -> None:
    """Our drain for a lost GPU stands, a second one is lost while the reboot waits, and the reboot repairs both."""
    job = ward.cluster.submit("#!/bin/sh\nsleep 60\n", f"-w{ward.node}")
    ward.cluster.wait_job(job, "RUNNING")
    ward.fault("lost", 3, lasting=False)
    drained(ward)
    before = ward.power_cycles
    ok, reported = ward.scontrol("reboot", "ASAP", "nextstate=RESUME", ward.node)
    assert ok, reported
    ward.fault("remap", 4, lasting=False)
    time.sleep(4)
    ward.cluster.run(["/usr/bin/scancel", str(job)])
    assert ward.until(lambda: ward.power_cycles > before, 60), "it is not rebooted"
    time.sleep(6)


#: Name -> what happens, and how often the agent looks after its drain.
ALONE: Mapping[str, tuple[Script, float]] = {
    "reboot asap": (_reboot("ASAP"), 2),
    "reboot nextstate=resume": (_reboot("nextstate=RESUME"), 2),
    "reboot asap nextstate=resume, with words": (_reboot("ASAP", "nextstate=RESUME", "reason=ann: new kernel"), 2),
    "resumed by command": (resumed_by_command, 2),
    "hold while slow": (hold_while_slow, 2),
    "resume instead of a reboot": (resume_instead_of_reboot, 2),
    "words while it reboots": (words_while_it_reboots, 2),
    "taken, then an Xid": (_taken("xid"), 15),
    "taken, then a row remap": (_taken("remap"), 15),
    "slow drain": (slow_drain, 2),
    "slow resume": (slow_resume, 2),
    "own drain lifted": (own_drain_lifted, 30),
    "reservation ended": (reservation_ended, 30),
    "forgotten and rebooted": (forgotten_and_rebooted, 2),
    "same evidence": (same_evidence, 2),
    "lost while a reboot waits": (_while_a_reboot_waits("ASAP", "nextstate=RESUME"), 2),
    "lost while a reboot without a drain waits": (_while_a_reboot_waits("nextstate=RESUME"), 2),
    "lost and drained before a reboot": (lost_and_drained_before_a_reboot, 2),
}


def drain_kept(ward: Ward, chance: random.Random) -> None:
    """Our drain stands for a while: longer than slurmctld takes to save its state."""
    ward.fault("lost", 3)
    drained(ward)
    time.sleep(18)


def drain_kept_anew(ward: Ward, chance: random.Random) -> None:
    """Our drain is younger than slurmctld's last save of its state, perhaps."""
    time.sleep(14)
    ward.fault("xid", 3)
    drained(ward)


def resumed(ward: Ward, chance: random.Random) -> None:
    """A person has resumed it just before."""
    ward.fault("lost", 3)
    drained(ward)
    time.sleep(16)
    ward.lifts()


def resumed_from_an_xid(ward: Ward, chance: random.Random) -> None:
    """The same with a kernel record, which has been."""
    ward.fault("xid", 3)
    drained(ward)
    time.sleep(16)
    ward.lifts()


def persons(ward: Ward, chance: random.Random) -> None:
    """A person holds it, in words over ours."""
    ward.fault("xid", 3)
    drained(ward)
    ward.drains(f"ann: riser swap on {ward.node}.")
    time.sleep(4)


BEFORE: Mapping[str, Script] = {
    "ours": drain_kept, "ours, young": drain_kept_anew, "resumed by a person": resumed,
    "resumed from an Xid": resumed_from_an_xid,
    "a person's": persons,
}  # fmt: skip


def together(cluster: Cluster, wards: Sequence[Ward], event: moves.Event) -> list[sequences.Ended]:
    """Each of ``BEFORE`` on a node of its own, then an event of slurmctld; the judgement of each."""
    ready, over = threading.Barrier(len(wards) + 1), threading.Event()
    ended: list[sequences.Ended] = []

    def script_of(before: Script) -> Script:
        def script(ward: Ward, chance: random.Random) -> None:
            try:
                before(ward, chance)
            finally:
                ready.wait(120)
            over.wait(120)
            time.sleep(3)

        return script

    threads = []
    for ward, (name, before) in zip(wards, BEFORE.items(), strict=True):
        seed, script = f"{cluster.suite}:{event.__name__}:{name}", script_of(before)
        threads.append(threading.Thread(target=lambda w=ward, s=seed, d=script: ended.append(sequences.one(w, s, d))))  # type: ignore[misc]
    for thread in threads:
        thread.start()
    time.sleep(1)
    moves.keep(cluster)
    ready.wait(120)
    event(cluster, wards, random.Random(0))
    over.set()
    for thread in threads:
        thread.join()
    return ended


def alone(cluster: Cluster, wards: Sequence[Ward], names: Sequence[str]) -> list[sequences.Ended]:
    """Each of these sequences on a node of its own, at the same time."""
    ended: list[sequences.Ended] = []

    def run(ward: Ward, name: str) -> None:
        script, reconcile_seconds = ALONE[name]
        ended.append(sequences.one(ward, f"{cluster.suite}:{name}", script, reconcile_seconds))

    threads = [threading.Thread(target=run, args=pair) for pair in zip(wards, names, strict=False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


def rpcs(ward: Ward, since: float) -> int:
    """RPCs of the agent's calls since then."""
    return sum(cost(call.words) for call in ward.wire.read() if call.began >= since)


def counted(ward: Ward) -> dict[str, int]:
    """RPCs of the agent's calls: in five seconds while nothing is wrong, for a drain, for a resume."""
    ward.start(reconcile_seconds=600)
    reported = {}
    try:
        time.sleep(8)
        reported["nothing wrong"] = rpcs(ward, time.time() - 5)
        steps = {"drain": lambda: ward.fault("lost", 3), "resume": ward.repair}
        for what, change in steps.items():
            began = time.time()
            change()
            wanted = {"drain": State.DRAIN, "resume": State.OK}[what]
            assert ward.until(lambda w=wanted: ward.verdict() is w, 30), what  # type: ignore[misc]
            time.sleep(3)
            reported[what] = rpcs(ward, began)
    finally:
        ward.stop()
    return reported


def no_gpu(ward: Ward) -> tuple[str, list[str], tuple[str, ...]]:
    """An Xid on an address that carries no GPU: what `why` says, the verdicts, and the node's states."""
    ward.start()
    try:
        ward.kernel(79, "0000:ff:00.0")
        time.sleep(4)
        ward.hear(why=True)
        now = ward.now()
        assert now is not None
        reported = [text for _, where, text in ward.record.reported if where == "verdict"]
        return ward.record.reported[-1][2], reported, now.states
    finally:
        ward.stop()
