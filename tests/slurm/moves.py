"""What may happen in a sequence: to one node (``MOVES``), and to slurmctld, which all nodes of the cluster have in common."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tests.lab.cluster import Cluster
from tests.slurm.record import Span
from tests.slurm.ward import Ward

STATE, KEPT = "/var/spool/slurm/state", "/var/spool/slurm/kept"
Move = Callable[[Ward, random.Random], None]


def words(chance: random.Random) -> str:
    """Words of a person, with a number that no other has."""
    said = chance.choice(("ann: riser swap", "bob keeps it", "fairlead: by hand", "RMA 4711, do not touch"))
    return f"{said} #{chance.randrange(10**6)}"


# -- a node -----------------------------------------------------------------------------------------------


def fault(ward: Ward, chance: random.Random) -> None:
    kind = chance.choice(("xid", "xid", "lost", "remap"))
    ward.fault(kind, chance.randrange(8), lasting=chance.random() < 0.7)


def repair(ward: Ward, chance: random.Random) -> None:
    ward.repair()


def agent_killed(ward: Ward, chance: random.Random) -> None:
    ward.agent_down(kill=chance.random() < 0.7)
    time.sleep(chance.choice((0.0, 0.0, 2.0)))
    ward.agent_up()


def agent_forgets(ward: Ward, chance: random.Random) -> None:
    ward.agent_forgets()


def person_drains(ward: Ward, chance: random.Random) -> None:
    ward.drains(words(chance))


def person_takes_over(ward: Ward, chance: random.Random) -> None:
    """Words over what stands there, or behind it."""
    now = ward.now()
    there = now.reason if now else ""
    said = words(chance)
    ward.drains(f"{there} {said}".strip() if chance.random() < 0.4 else said, chance.choice(("", "drain")))


def person_repeats(ward: Ward, chance: random.Random) -> None:
    """The words that stand there already, ours perhaps: nobody can tell."""
    now = ward.now()
    if now and now.reason:
        ok, _ = ward.scontrol("update", f"nodename={ward.node}", "state=drain", f"reason={now.reason}")
        ward.tell(f"ann: drains with the words that stand there: {ok}")


def person_lifts(ward: Ward, chance: random.Random) -> None:
    ward.lifts(chance.choice(("resume", "resume", "undrain")))


def commands(ward: Ward, chance: random.Random) -> None:
    what = chance.choice(("ack", "clear", "resume", "resume --adopt"))
    more = ["--all"] if what in ("ack", "clear") else []
    ward.act(f"fairlead {what}", lambda: ward.command(*what.split(), *more, "--reason", "known"))


def hold(ward: Ward, chance: random.Random) -> None:
    if "hold" in ward.begun:
        ward.over("hold")
        ward.act("hold --release", lambda: ward.command("hold", "--release"))
    else:
        ward.act("hold", lambda: ward.command("hold", "--reason", "riser"))
        ward.begun["hold"] = time.time()


def reservation(ward: Ward, chance: random.Random) -> None:
    """A maintenance reservation begins, or the one that there is ends."""
    ended, _ = ward.scontrol("delete", f"reservation={ward.node}")
    what = "delete" if ended else "create"
    if not ended:
        name = [f"reservation={ward.node}", f"nodes={ward.node}", "users=root", "starttime=now", "duration=30"]
        ward.scontrol("create", *name, "flags=maint,ignore_jobs")
        ward.begun["maintenance"] = time.time()
    else:
        ward.over("maintenance")
    ward.tell(f"ann: {what}s a maintenance reservation")


def slow(ward: Ward, chance: random.Random) -> None:
    """Slurm's commands are slow, before the question is sent or before the answer comes; or fast again."""
    if "slow" in ward.begun:
        ward.wire.slow()
        ward.over("slow")
        ward.tell("Slurm's commands are fast")
    else:
        slow_for(ward, *chance.choice(((1.5, 0), (3, 0), (0, 3), (1, 1))))


def slow_for(ward: Ward, before: float, after: float) -> None:
    """Slurm's commands take so many seconds before they ask, and so many more before they answer."""
    ward.begun["slow"] = time.time()
    ward.wire.slow(before, after)
    ward.tell(f"Slurm's commands are slow: {before:g} s, {after:g} s")


def reboot(ward: Ward, chance: random.Random) -> None:
    """By Slurm, in all its forms, or by hand; returns when the node is back."""
    before = ward.power_cycles
    how = chance.choice(("asap", "asap resume", "asap down", "resume", "by hand", "plug"))
    if how in ("by hand", "plug"):
        ward.reboot(orderly=how == "by hand")
        return
    options = [*(["ASAP"] if "asap" in how else []), *(f"nextstate={s}" for s in ("resume", "down") if s in how)]
    options += [f"reason={words(chance)}"] if chance.random() < 0.3 else []
    ok, told = ward.scontrol("reboot", *options, ward.node)
    ward.tell(f"ann: scontrol reboot {' '.join(options)}: {'done' if ok else told.strip()}")
    if ok:
        ward.until(lambda: ward.power_cycles > before, 12)


def jobs(ward: Ward, chance: random.Random) -> None:
    ward.submit()


def taken(ward: Ward, chance: random.Random) -> None:
    """A fault; a person's words over our drain; perhaps `clear --all` and another agent; a person's resume; a new fault."""
    first, second = chance.sample(range(8), 2)
    ward.fault("xid", first)
    ward.until(lambda: (now := ward.now()) is not None and "DRAIN" in now.states)
    ward.drains(words(chance))
    time.sleep(3)
    if chance.random() < 0.7:
        ward.act("fairlead clear", lambda: ward.command("clear", "--all", "--reason", "repaired"))
    if chance.random() < 0.7:
        agent_killed(ward, chance)
    ward.lifts("resume")
    time.sleep(1.5)
    ward.fault(chance.choice(("xid", "remap")), second)


MOVES: dict[Move, int] = {
    fault: 9, repair: 1, agent_killed: 3, agent_forgets: 1, person_drains: 2, person_takes_over: 2, person_repeats: 1,
    person_lifts: 5, commands: 3, hold: 2, reservation: 1, slow: 2, reboot: 3, jobs: 4, taken: 1,
}  # fmt: skip


# -- slurmctld --------------------------------------------------------------------------------------------


@contextmanager
def without_slurmctld(cluster: Cluster, wards: Sequence[Ward], what: str, *, loses: bool = False) -> Iterator[None]:
    """Stop it, and start it again unless that was done inside."""
    for ward in wards:
        ward.begun["no slurmctld"], ward.losing = time.time(), loses
        ward.tell(f"slurmctld: {what}")
    cluster.stop_slurmctld()
    try:
        yield
    finally:
        for ward in wards:
            ward.until(lambda w=ward: w.now() is not None, 30)  # type: ignore[misc]
            ward.over("no slurmctld", loses=loses)
            ward.losing = False
            ward.tell("slurmctld answers again")
            ward.submit()


def reconfigure(cluster: Cluster, wards: Sequence[Ward], chance: random.Random) -> None:
    """slurmctld starts itself anew from 23.11 on."""
    began = time.time()
    for ward in wards:
        ward.tell("ann: scontrol reconfigure")
    cluster.scontrol("reconfigure", check=False)
    if cluster.suite != "bookworm":
        for ward in wards:
            ward.record.spans.append(Span(began, time.time(), "reconfigure"))


def restart(cluster: Cluster, wards: Sequence[Ward], chance: random.Random) -> None:
    seconds = chance.choice((0.0, 0.0, 4.0))
    with without_slurmctld(cluster, wards, f"stopped, and {seconds:g} s later started with its state"):
        time.sleep(seconds)
        cluster.start_slurmctld()


def restart_without_state(cluster: Cluster, wards: Sequence[Ward], chance: random.Random) -> None:
    with without_slurmctld(cluster, wards, "stopped, its state removed, started", loses=True):
        cluster.run(["/bin/rm", "-rf", STATE])
        cluster.start_slurmctld()


def restart_cleared(cluster: Cluster, wards: Sequence[Ward], chance: random.Random) -> None:
    with without_slurmctld(cluster, wards, "stopped, started with -c", loses=True):
        cluster.start_slurmctld("-c")


def restart_with_a_backup(cluster: Cluster, wards: Sequence[Ward], chance: random.Random) -> None:
    """With the copy of its state that ``keep`` made."""
    with without_slurmctld(cluster, wards, "stopped, started with the copy of its state from before", loses=True):
        cluster.run(["/bin/sh", "-c", f"[ ! -d {KEPT} ] || {{ rm -rf {STATE} && cp -a {KEPT} {STATE}; }}"])
        cluster.start_slurmctld()


def keep(cluster: Cluster) -> None:
    """Copy the state that slurmctld has saved."""
    cluster.run(["/bin/sh", "-c", f"rm -rf {KEPT} && cp -a {STATE} {KEPT}"], check=False)


Event = Callable[[Cluster, Sequence[Ward], random.Random], None]
EVENTS: dict[Event, int] = {
    reconfigure: 3, restart: 2, restart_without_state: 2, restart_cleared: 2, restart_with_a_backup: 2,
}  # fmt: skip
